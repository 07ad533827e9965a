package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/loadtest/record"
	"github.com/sandbus/sandbus/loadtest/report"
)

func newCompare(a *app) *cobra.Command {
	var limit float64
	var arms []string
	c := &cobra.Command{
		Use:   "compare A B",
		Short: "Print the ratios of two recordings, with their spread",
		Long: `compare prints B's figures over A's for each arm, workload and rung: medians over samples, and behind them the smallest
and largest ratio of any two samples. It exits with 4 when a p50 or p95 is more than --limit times A's, a throughput less
than A's divided by it, or a rung of A is missing in B. A and B are files of JSON lines and may be the same: --arms
echo,bus-native compares two arms of one run, where a noisy machine disturbs both.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &usageError{fmt.Errorf("compare: %d arguments, want two files", len(args))}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if limit < 1 {
				return &usageError{fmt.Errorf("limit %g: want 1 or more", limit)}
			}
			if len(arms) != 0 && len(arms) != 2 {
				return &usageError{fmt.Errorf("arms %s: want two, A's and B's", strings.Join(arms, ","))}
			}
			before, err := readFile(args[0])
			if err != nil {
				return err
			}
			after, err := readFile(args[1])
			if err != nil {
				return err
			}
			left, right := before.Rungs, after.Rungs
			if len(arms) == 2 {
				left, right = ofArm(left, arms[0]), ofArm(right, arms[1])
			}
			diffs := record.Compare(left, right, len(arms) == 2, limit)
			if len(diffs) == 0 {
				return &usageError{errors.New("compare: A has no rung to compare")}
			}
			if err := report.Comparison(a.stdout, diffs, limit); err != nil {
				return err
			}
			if slices.ContainsFunc(diffs, func(d record.Diff) bool { return len(d.Past) > 0 }) {
				return &statusError{exitPastLimit, fmt.Sprintf("past the limit of %g", limit)}
			}
			return nil
		},
	}
	c.Flags().Float64Var(&limit, "limit", 1.25, "how many times worse is too much")
	c.Flags().StringSliceVar(&arms, "arms", nil, "compare A's first `arm` with B's second (default: each with itself)")
	return c
}

func newShow(a *app) *cobra.Command {
	var page string
	c := &cobra.Command{
		Use:   "show FILE...",
		Short: "Print the table of recordings again, or make their HTML page",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			all := &record.File{}
			for _, name := range args {
				f, err := readFile(name)
				if err != nil {
					return err
				}
				all.Append(f)
			}
			if page != "" {
				return writePage(page, all)
			}
			return report.Table(a.stdout, all)
		},
	}
	c.Flags().StringVar(&page, "html", "", "write the page to this `file` instead")
	return c
}

func ofArm(rungs []*record.Rung, arm string) (out []*record.Rung) {
	for _, r := range rungs {
		if r.Arm == arm {
			out = append(out, r)
		}
	}
	return out
}

func readFile(name string) (*record.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, &usageError{err}
	}
	defer func() { _ = f.Close() }() // only read from
	r, err := record.Read(f)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", name, err)}
	}
	return r, nil
}
