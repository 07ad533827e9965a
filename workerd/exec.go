package workerd

import (
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
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

func noShell() *sandbusv1.Outcome {
	return &sandbusv1.Outcome{
		Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 127, Stage: "shell", Errno: int32(unix.ENOENT),
		Message: "this sandbox has no shell: give the command as argv",
	}
}
