package harnesslib

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/textedit"
)

// Rename gives a file, a link itself or a directory another name, as os.Rename does. Errors: as ReadFile.
func (s *Sandbox) Rename(ctx context.Context, oldName, newName string) error {
	return s.rename(ctx, oldName, newName, false)
}

// RenameNew is Rename that refuses with fs.ErrExist when something has the new name.
func (s *Sandbox) RenameNew(ctx context.Context, oldName, newName string) error {
	return s.rename(ctx, oldName, newName, true)
}

func (s *Sandbox) rename(ctx context.Context, oldName, newName string, noReplace bool) error {
	req := &sandbusv1.RenameRequest{NoReplace: noReplace}
	req.Path, req.PathRaw = bus.ToText(oldName)
	req.To, req.ToRaw = bus.ToText(newName)
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "fs.rename", "", req, &sandbusv1.RenameResponse{})
	})
	return pathError("rename", culprit(oldName, err), err)
}

// culprit is the path that an error is about, else the one that was given.
func culprit(given string, err error) string {
	if be, ok := errors.AsType[*bus.Error](err); ok && be.Path != "" {
		return be.Path
	}
	return given
}

// CopyOptions says how to copy a file inside the sandbox.
type CopyOptions struct {
	NoReplace bool // refuse with fs.ErrExist when there is a file already
	Parents   bool // make missing parent directories of the copy
	NoSync    bool // leave out the sync to the disk
}

// CopyFile copies a regular file inside the sandbox; the copy has the source's permission bits and appears whole or not
// at all. It returns the length in bytes. Errors: as ReadFile.
func (s *Sandbox) CopyFile(ctx context.Context, src, dst string, o CopyOptions) (int64, error) {
	req := &sandbusv1.CopyRequest{NoReplace: o.NoReplace, Parents: o.Parents, NoSync: o.NoSync}
	req.Path, req.PathRaw = bus.ToText(src)
	req.To, req.ToRaw = bus.ToText(dst)
	resp := &sandbusv1.CopyResponse{}
	err := s.do(ctx, func(t bus.Target) error {
		op := bus.NewOpID()
		err := s.hub.caller.Request(ctx, t, "fs.copy", op, req, resp)
		s.abandon(ctx, t, op, err)
		return err
	})
	return resp.GetSize(), pathError("copy", culprit(src, err), err)
}

// Chmod sets the permission bits, with setuid, setgid and sticky as os.Chmod has them. Errors: as ReadFile.
func (s *Sandbox) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	req := &sandbusv1.ChmodRequest{Mode: uint32(mode.Perm())}
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			req.Mode |= bit
		}
	}
	req.Path, req.PathRaw = bus.ToText(name)
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "fs.chmod", "", req, &sandbusv1.ChmodResponse{})
	})
	return pathError("chmod", name, err)
}

// Symlink makes newName a symbolic link with the text oldName, as os.Symlink does. Errors: as ReadFile.
func (s *Sandbox) Symlink(ctx context.Context, oldName, newName string) error {
	req := &sandbusv1.SymlinkRequest{}
	req.Path, req.PathRaw = bus.ToText(newName)
	req.Target, req.TargetRaw = bus.ToText(oldName)
	err := s.do(ctx, func(t bus.Target) error {
		return s.hub.caller.Request(ctx, t, "fs.symlink", "", req, &sandbusv1.SymlinkResponse{})
	})
	return pathError("symlink", newName, err)
}

// Edit replaces one passage of a file; see the package textedit for how it is found.
type Edit = textedit.Edit

// EditFault is why one edit cannot be made.
type EditFault = textedit.Fault

// EditError says that edits cannot be made; the file is as it was.
type EditError struct {
	Path   string
	Faults []EditFault // at least one
}

func (e *EditError) Error() string {
	parts := make([]string, len(e.Faults))
	for i := range e.Faults {
		parts[i] = e.Faults[i].String()
	}
	return "edit " + e.Path + ": " + strings.Join(parts, "; ")
}

// EditOptions says how to edit.
type EditOptions struct {
	// Exact turns fuzzy matching off.
	Exact bool
	// ExpectedSHA256 refuses with ErrConflict unless the present content has this SHA-256; nil means no condition.
	ExpectedSHA256 *[sha256.Size]byte
	// NoSync leaves out the sync to the disk.
	NoSync bool
	// DiffContext is how many lines around each change the diff has, at most 100; zero means 4, below zero no diff.
	DiffContext int
}

// EditResult is what Edit did.
type EditResult struct {
	Places           []EditPlace // of the edits, in their order
	Size             int64       // of the file now
	SHA256           [sha256.Size]byte
	Diff             string // unified, without file names
	DiffCut          bool   // the diff is not whole
	FirstChangedLine int    // of the file now, from one
}

// EditPlace is where an edit was made.
type EditPlace struct {
	Offset, OldBytes, NewBytes int64 // in the file before
	Line                       int   // in the file before, from one
	Fuzzy                      bool  // the passage was not exactly as it was given
}

// Edit makes several replacements in a regular file of at most 64 MiB in one request, all or none, under a lock of the
// sandbox: edits of one file at the same time all land. Errors: *EditError; as ReadFile; ErrLost when the answer did not
// come.
func (s *Sandbox) Edit(ctx context.Context, name string, edits []Edit, o EditOptions) (EditResult, error) {
	req := &sandbusv1.EditRequest{Exact: o.Exact, NoSync: o.NoSync, DiffContext: int32(max(-1, min(o.DiffContext, 1<<20)))}
	if o.ExpectedSHA256 != nil {
		req.ExpectedSha256 = o.ExpectedSHA256[:]
	}
	req.Path, req.PathRaw = bus.ToText(name)
	for _, e := range edits {
		w := &sandbusv1.Edit{}
		if w.OldText, w.OldTextRaw = bus.ToText(e.Old); e.Bytes {
			w.OldText, w.OldTextRaw = "", []byte(e.Old)
		}
		w.NewText, w.NewTextRaw = bus.ToText(e.New)
		req.Edits = append(req.Edits, w)
	}
	resp := &sandbusv1.EditResponse{}
	err := s.do(ctx, func(t bus.Target) error { return s.hub.caller.Request(ctx, t, "fs.edit", "", req, resp) })
	if len(resp.GetFaults()) > 0 {
		return EditResult{}, editError(name, resp.GetFaults())
	}
	if err != nil {
		return EditResult{}, pathError("edit", name, err)
	}
	if len(resp.GetPlaces()) != len(edits) {
		return EditResult{}, &fs.PathError{Op: "edit", Path: name, Err: fmt.Errorf("the sandbox answered %d edits with %d places", len(edits), len(resp.GetPlaces()))}
	}
	res := EditResult{
		Size: resp.GetSize(), Diff: resp.GetDiff(), DiffCut: resp.GetDiffCut(), FirstChangedLine: int(resp.GetFirstChangedLine()),
	}
	copy(res.SHA256[:], resp.GetSha256())
	for _, p := range resp.GetPlaces() {
		res.Places = append(res.Places, EditPlace{p.GetOffset(), p.GetOldBytes(), p.GetNewBytes(), int(p.GetLine()), p.GetFuzzy()})
	}
	return res, nil
}

var editReasons = map[sandbusv1.EditReason]textedit.Reason{
	sandbusv1.EditReason_EDIT_REASON_EMPTY:     textedit.Empty,
	sandbusv1.EditReason_EDIT_REASON_NO_MATCH:  textedit.NoMatch,
	sandbusv1.EditReason_EDIT_REASON_AMBIGUOUS: textedit.Ambiguous,
	sandbusv1.EditReason_EDIT_REASON_OVERLAP:   textedit.Overlap,
	sandbusv1.EditReason_EDIT_REASON_IDENTICAL: textedit.Identical,
	sandbusv1.EditReason_EDIT_REASON_NOT_UTF8:  textedit.NotUTF8,
}

func editError(name string, faults []*sandbusv1.EditFault) error {
	e := &EditError{Path: name}
	for _, f := range faults {
		fault := EditFault{
			Index: int(f.GetIndex()), Reason: editReasons[f.GetReason()], Count: int(f.GetCount()), Other: int(f.GetOther()),
			Closest: f.GetClosest(), ClosestLine: int(f.GetClosestLine()),
		}
		for _, l := range f.GetLines() {
			fault.Lines = append(fault.Lines, int(l))
		}
		e.Faults = append(e.Faults, fault)
	}
	return e
}
