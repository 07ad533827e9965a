package workerd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/shell"
)

// The bounds of an exec's request.
const (
	maxScript     = 4 << 20
	maxTimeout    = 7 * 24 * time.Hour
	maxGrace      = time.Hour
	defaultOutput = 8 << 20
	maxOutput     = 32 << 20 // a fast exec's output is held in memory until its end
)

// checkScript refuses what no shell can take.
func checkScript(script string) error {
	if i := strings.IndexByte(script, 0); i >= 0 {
		return invalid("the script has a NUL byte at offset %d: a shell cannot take it", i)
	}
	if len(script) > maxScript {
		return invalid("the script has %d bytes, the bound is %d", len(script), maxScript)
	}
	return nil
}

// dir is the absolute directory of an exec.
func (w *Worker) dir(cwd string) (string, error) {
	if strings.IndexByte(cwd, 0) >= 0 {
		return "", invalid("cwd %.200q has a NUL byte", cwd)
	}
	if cwd == "" || filepath.IsAbs(cwd) {
		return cwd, nil
	}
	return filepath.Join(w.cfg.Dir, cwd), nil
}

// runShell serves shell.run.
func (w *Worker) runShell(ctx context.Context, req *sandbusv1.ShellRunRequest) (*sandbusv1.ShellRunResponse, error) {
	c := shell.Command{
		Script: bus.FromText(req.GetScript(), req.GetScriptRaw()), Stdin: req.GetStdin(), HasStdin: req.GetHasStdin(),
		Limit: req.GetOutputLimit(),
	}
	err := checkScript(c.Script)
	if err != nil {
		return nil, err
	}
	if c.Dir, err = w.dir(bus.FromText(req.GetCwd(), req.GetCwdRaw())); err != nil {
		return nil, err
	}
	if c.Env, err = checkEnv(req.GetEnv(), true); err != nil {
		return nil, err
	}
	if c.Timeout, err = checkTimeout("timeout", req.GetTimeoutMs(), maxTimeout); err != nil {
		return nil, err
	}
	if len(c.Stdin) > 0 && !c.HasStdin {
		return nil, invalid("%d bytes of stdin without has_stdin", len(c.Stdin))
	}
	if c.Limit < 0 || c.Limit > maxOutput {
		return nil, invalid("output limit %d: want 1 to %d bytes, or 0 for %d", c.Limit, maxOutput, defaultOutput)
	}
	if c.Limit == 0 {
		c.Limit = defaultOutput
	}
	if w.shells == nil {
		return &sandbusv1.ShellRunResponse{Outcome: noShell()}, nil
	}
	resp, err := w.shells.Run(ctx, c)
	switch {
	case errors.Is(err, shell.ErrBusy):
		return nil, bus.Errorf(sandbusv1.Code_CODE_BUSY, "%v", err)
	case errors.Is(err, shell.ErrClosed):
		return nil, bus.Errorf(sandbusv1.Code_CODE_DRAINING, "the worker is stopping")
	case err != nil && ctx.Err() != nil: // it was still in the queue
		return &sandbusv1.ShellRunResponse{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}}, nil //nolint:nilerr // aborted is an outcome
	}
	return resp, err
}

func noShell() *sandbusv1.Outcome {
	return &sandbusv1.Outcome{
		Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 127, Stage: "shell", Errno: int32(unix.ENOENT),
		Message: "this sandbox has no shell: give the command as argv",
	}
}
