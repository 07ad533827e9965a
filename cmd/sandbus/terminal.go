package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandbus/sandbus/harnesslib"
)

func newShell(a *app) *cobra.Command {
	var cwd string
	c := &cobra.Command{
		Use:   "shell [ID]",
		Short: "Open a shell in a sandbox, on a terminal",
		Long: `shell runs bash (or sh) on a terminal of its own in the sandbox. It is "sandbus exec -it" with the sandbox's shell;
it exits with the shell's status.`,
		Example: "  sandbus shell box1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			named := ""
			if len(args) > 0 {
				named = args[0]
			}
			return a.withSandbox(c.Context(), named, func(sb *harnesslib.Sandbox) error {
				cmd := sb.ScriptCommand(`if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi`)
				cmd.Dir, cmd.Stdin, cmd.Stdout = cwd, a.stdin, a.stdout
				return execStatus(a.runOnTerminal(c.Context(), sb, cmd))
			})
		},
	}
	c.Flags().StringVar(&cwd, "cwd", "", "`directory` to begin in (default: the sandbox's)")
	return c
}

// defaultSize is a terminal's size where there is none here to ask.
var defaultSize = harnesslib.Size{Cols: 80, Rows: 24}

// runOnTerminal runs a command on a terminal in the sandbox that follows the one here, when there is one: raw, so that
// keys reach the command, and restored whatever happens.
func (a *app) runOnTerminal(ctx context.Context, sb *harnesslib.Sandbox, cmd *harnesslib.Cmd) error {
	size := defaultSize
	in, isFile := a.stdin.(*os.File)
	local := isFile && term.IsTerminal(int(in.Fd()))
	if local {
		size = windowSize(in, size)
	}
	cmd.Terminal = &size
	if !local || cmd.Stdin == nil {
		return cmd.Run(ctx)
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }() // nothing else can be done
	if err := cmd.Start(ctx); err != nil {
		return err
	}
	stop := followSize(ctx, in, size, func(s harnesslib.Size) {
		_ = sb.Resize(ctx, cmd.ID, s) // the command may have ended
	})
	defer stop()
	return cmd.Wait()
}

func windowSize(f *os.File, fallback harnesslib.Size) harnesslib.Size {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols < 1 || rows < 1 || cols > 65535 || rows > 65535 {
		return fallback
	}
	return harnesslib.Size{Cols: uint16(cols), Rows: uint16(rows)}
}

// followSize tells of each new size of a terminal until stop is called.
func followSize(ctx context.Context, f *os.File, now harnesslib.Size, tell func(harnesslib.Size)) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if s := windowSize(f, now); s != now {
				now = s
				tell(s)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		cancel(errors.New("the command has ended"))
		wg.Wait()
	}
}
