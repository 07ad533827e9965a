package files

import (
	"crypto/sha256"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/textedit"
)

// The bounds of an edit.
const (
	maxEditFile    = 64 << 20
	maxEdits       = 1000
	maxDiffContext = 100
	maxDiff        = 256 << 10
)

// Edit answers fs.edit. Read, replacements and write are under one lock: two edits of one file at once both land.
func (r *Root) Edit(req *sandbusv1.EditRequest) (*sandbusv1.EditResponse, error) {
	p, err := r.changing("edit", req)
	if err != nil {
		return nil, err
	}
	if n := len(req.GetEdits()); n == 0 || n > maxEdits {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "%d edits: want 1 to %d", n, maxEdits)
	}
	if n := len(req.GetExpectedSha256()); n != 0 && n != sha256.Size {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "expected SHA-256: %d bytes, want %d", n, sha256.Size)
	}
	if c := req.GetDiffContext(); c > maxDiffContext {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "%d lines of context: the bound is %d", c, maxDiffContext)
	}
	t, err := r.target(p)
	if err != nil {
		return nil, r.wrap("edit", p, err)
	}
	defer t.close()
	unlock, err := r.locks.lock(t)
	if err != nil {
		return nil, r.wrap("edit", p, err)
	}
	defer unlock()
	resp, err := t.edit(req)
	if err != nil {
		return nil, r.wrap("edit", p, err)
	}
	return resp, nil
}

// edit is called under the target's lock.
func (t *target) edit(req *sandbusv1.EditRequest) (*sandbusv1.EditResponse, error) {
	content, err := t.whole()
	if err != nil {
		return nil, err
	}
	if want := req.GetExpectedSha256(); len(want) > 0 {
		sum := sha256.Sum256(content)
		if err := checkSum("edit", t.place.given, sum[:], want); err != nil {
			return nil, err
		}
	}
	edits := make([]textedit.Edit, len(req.GetEdits()))
	for i, e := range req.GetEdits() {
		edits[i] = textedit.Edit{
			Old: bus.FromText(e.GetOldText(), e.GetOldTextRaw()), New: bus.FromText(e.GetNewText(), e.GetNewTextRaw()),
			Bytes: len(e.GetOldTextRaw()) > 0,
		}
	}
	now, places, faults := textedit.Apply(content, edits, req.GetExact())
	if len(faults) > 0 {
		return refusedEdits(t.place.given, faults), nil
	}
	s, err := t.stage(0o600) // it gets the mode of what it replaces
	if err != nil {
		return nil, err
	}
	defer s.discard()
	if err := s.write(now); err != nil {
		return nil, err
	}
	if err := s.commit(placing{sync: !req.GetNoSync()}); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(now)
	resp := &sandbusv1.EditResponse{Size: int64(len(now)), Sha256: sum[:]}
	for _, p := range places {
		resp.Places = append(resp.Places, &sandbusv1.EditPlace{
			Offset: int64(p.Offset), OldBytes: int64(p.Length), NewBytes: int64(len(p.New)), Line: int64(p.Line), Fuzzy: p.Fuzzy,
		})
	}
	if c := int(req.GetDiffContext()); c >= 0 {
		if c == 0 {
			c = 4
		}
		diff, cut, first := textedit.Diff(content, places, c, maxDiff)
		resp.Diff, resp.DiffCut, resp.FirstChangedLine = toValid(diff), cut, int64(first)
	}
	return resp, nil
}

// whole reads the target.
func (t *target) whole() ([]byte, error) {
	if err := t.look(); err != nil {
		return nil, err
	}
	if !t.exists {
		return nil, unix.ENOENT
	}
	if err := t.regular(); err != nil {
		return nil, err
	}
	fd, err := t.open(unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	if err := unix.Fstat(fd, &t.st); err != nil {
		return nil, err
	}
	if err := t.regular(); err != nil { // something else has come in between
		return nil, err
	}
	if t.st.Size > maxEditFile {
		return nil, &bus.Error{
			Code: sandbusv1.Code_CODE_TOO_LARGE, Path: t.place.given,
			Message: tooLong("edit", t.place.given, t.st.Size, maxEditFile, "change it by a command such as sed, or write it anew"),
		}
	}
	return readAt(fd, int(t.st.Size), 0)
}

var editReasons = map[textedit.Reason]sandbusv1.EditReason{
	textedit.Empty:     sandbusv1.EditReason_EDIT_REASON_EMPTY,
	textedit.NoMatch:   sandbusv1.EditReason_EDIT_REASON_NO_MATCH,
	textedit.Ambiguous: sandbusv1.EditReason_EDIT_REASON_AMBIGUOUS,
	textedit.Overlap:   sandbusv1.EditReason_EDIT_REASON_OVERLAP,
	textedit.Identical: sandbusv1.EditReason_EDIT_REASON_IDENTICAL,
	textedit.NotUTF8:   sandbusv1.EditReason_EDIT_REASON_NOT_UTF8,
}

// maxFaultTexts bounds the passages that an answer shows, in bytes.
const maxFaultTexts = 256 << 10

// refusedEdits is the answer when edits cannot be made.
func refusedEdits(given string, faults []textedit.Fault) *sandbusv1.EditResponse {
	resp := &sandbusv1.EditResponse{}
	texts := 0
	for _, f := range faults {
		if texts += len(f.Closest); texts > maxFaultTexts {
			f.Closest, f.ClosestLine = "", 0
		}
		w := &sandbusv1.EditFault{
			Index: int32(f.Index), Reason: editReasons[f.Reason], Message: toValid(f.String()), Count: int32(f.Count),
			Other: int32(f.Other), Closest: f.Closest, ClosestLine: int64(f.ClosestLine),
		}
		for _, l := range f.Lines {
			w.Lines = append(w.Lines, int64(l))
		}
		resp.Faults = append(resp.Faults, w)
	}
	message := fmt.Sprintf("edit %s: %s", printable(given), faults[0].String())
	if n := len(faults); n > 1 {
		message += fmt.Sprintf(" (and %d more)", n-1)
	}
	resp.Error = bus.ToWire(&bus.Error{Code: sandbusv1.Code_CODE_CONFLICT, Path: given, Message: message})
	return resp
}
