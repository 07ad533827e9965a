package tools

import (
	"context"
	"errors"
	"strings"

	"github.com/sandbus/sandbus/harnesslib"
)

// editor is the Editor of a sandbox.
type editor struct{ sb *harnesslib.Sandbox }

func (e editor) Edit(ctx context.Context, path string, edits []Replacement) (Edited, error) {
	list := make([]harnesslib.Edit, len(edits))
	for i, r := range edits {
		list[i] = harnesslib.Edit{Old: r.OldText, New: r.NewText}
	}
	done, err := e.sb.Edit(ctx, path, list, harnesslib.EditOptions{})
	if ee, ok := errors.AsType[*harnesslib.EditError](err); ok {
		return Edited{}, &editFaultsError{ee}
	}
	return Edited{Diff: done.Diff, FirstChangedLine: done.FirstChangedLine}, err
}

// editFaultsError is an EditError without the path, which the tool names as it was given.
type editFaultsError struct{ err *harnesslib.EditError }

func (f *editFaultsError) Error() string {
	parts := make([]string, len(f.err.Faults))
	for i := range f.err.Faults {
		parts[i] = f.err.Faults[i].String()
	}
	return strings.Join(parts, "\n")
}

func (f *editFaultsError) Unwrap() error { return f.err }
