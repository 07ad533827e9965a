package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
)

// operand is a path in a sandbox, "[ID:]PATH" on the command line.
type operand struct {
	sandbox string // empty: the one that --sandbox names, or the only one
	path    string
	remote  bool // has a colon: for cp, the path is in a sandbox
}

// parseOperand takes "ID:PATH" apart. As with docker cp, a path that has a colon in its first part is written with
// "./" before it.
func parseOperand(s string) (operand, error) {
	head, tail, found := strings.Cut(s, ":")
	if !found || strings.Contains(head, "/") {
		return operand{path: s}, nil
	}
	if head != "" {
		if _, err := bus.ParseSandboxID(head); err != nil {
			return operand{}, &usageError{fmt.Errorf("%q: %w; write ./%s for a path with a colon", s, err, s)}
		}
	}
	if tail == "" {
		return operand{}, &usageError{fmt.Errorf("%q: the path is empty", s)}
	}
	return operand{sandbox: head, path: tail, remote: true}, nil
}

func newCat(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "cat [ID:]PATH...",
		Short:   "Print files of a sandbox",
		Example: "  sandbus cat box1:/etc/os-release",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.each(c.Context(), args, func(sb *harnesslib.Sandbox, path string) error {
				return sb.CopyFrom(c.Context(), path, a.stdout)
			})
		},
	}
	a.sandboxFlag(c)
	return c
}

func (a *app) sandboxFlag(c *cobra.Command) {
	c.Flags().StringVarP(&a.sandbox, "sandbox", "s", "", "`id` of the sandbox (environment: SANDBUS_SANDBOX)")
}

// each runs f on every operand, and goes on after a failure as cat and ls do.
func (a *app) each(ctx context.Context, args []string, f func(*harnesslib.Sandbox, string) error) error {
	ops := make([]operand, len(args))
	for i, arg := range args {
		var err error
		if ops[i], err = parseOperand(arg); err != nil {
			return err
		}
	}
	s, err := a.connect(ctx, true)
	if err != nil {
		return err
	}
	defer s.Close()
	var errs []error
	for _, op := range ops {
		sb, err := a.choose(ctx, s, op.sandbox)
		if err == nil {
			err = f(sb, op.path)
		}
		if err != nil {
			errs = append(errs, explain(err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// entry is one line of ls --json.
type entry struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"` // file, directory, symlink, fifo, socket, device
	Size   int64     `json:"size"`
	Mode   string    `json:"mode"` // octal
	Mtime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"`
}

func newLs(a *app) *cobra.Command {
	var asJSON, long bool
	c := &cobra.Command{
		Use:     "ls [-l] [[ID:]PATH...]",
		Short:   "List files of a sandbox",
		Example: "  sandbus ls -l box1:/src",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			return a.each(c.Context(), args, func(sb *harnesslib.Sandbox, path string) error {
				infos, err := list(c.Context(), sb, path)
				if err != nil {
					return err
				}
				switch {
				case asJSON:
					return printJSON(a.stdout, infos)
				case long:
					return printLong(a.stdout, infos)
				}
				for _, fi := range infos {
					if _, err := fmt.Fprintln(a.stdout, plain(fi.Name())); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each entry")
	c.Flags().BoolVarP(&long, "long", "l", false, "show mode, size, time and link targets")
	a.sandboxFlag(c)
	return c
}

// list describes a directory's entries, or the file itself.
func list(ctx context.Context, sb *harnesslib.Sandbox, name string) ([]fs.FileInfo, error) {
	entries, err := sb.ReadDir(ctx, name)
	if errors.Is(err, errNotDir) {
		fi, err := sb.Lstat(ctx, name)
		return []fs.FileInfo{fi}, err
	}
	if err != nil {
		return nil, err
	}
	var infos []fs.FileInfo
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return nil, err
		}
		infos = append(infos, fi)
	}
	return infos, nil
}

func target(fi fs.FileInfo) string {
	if st, ok := fi.Sys().(*harnesslib.FileStat); ok {
		return st.LinkTarget
	}
	return ""
}

func printJSON(w io.Writer, infos []fs.FileInfo) error {
	enc := json.NewEncoder(w)
	for _, fi := range infos {
		e := entry{
			Name: fi.Name(), Type: typeName(fi.Mode()), Size: fi.Size(), Mode: fmt.Sprintf("%04o", fi.Mode().Perm()),
			Mtime: fi.ModTime().UTC(), Target: target(fi),
		}
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

func typeName(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

func printLong(w io.Writer, infos []fs.FileInfo) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.AlignRight)
	for _, fi := range infos {
		name := plain(fi.Name())
		if t := target(fi); t != "" {
			name += " -> " + plain(t)
		}
		_, _ = fmt.Fprintf(tw, "%s\t%d\t%s\t %s\n", fi.Mode(), fi.Size(), fi.ModTime().Local().Format("2006-01-02 15:04:05"), name)
	}
	return tw.Flush()
}
