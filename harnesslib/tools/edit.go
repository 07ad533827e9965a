package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// Replacement is one edit: a text that stands once in the file, and what comes in its place.
type Replacement struct {
	OldText string `json:"oldText"`
	NewText string `json:"newText"`
}

// Edited is what an Editor did.
type Edited struct {
	Diff             string // unified, 4 lines of context, without file names
	FirstChangedLine int    // of the file now, from 1
}

// Editor makes edits in the sandbox, all or none, each matched against the file as it was. Its error for edits that
// cannot be made names each of them, counted from 1, with the reason: no match with the closest passage, more than one
// match with the count, an overlap, an identical result, a file over 64 MiB, invalid UTF-8 around the edit.
type Editor interface {
	Edit(ctx context.Context, path string, edits []Replacement) (Edited, error)
}

// EditParams are of Edit. They unmarshal from all forms that models send: edits as a list or as a string of JSON, or one
// pair of oldText and newText beside the path.
type EditParams struct {
	Path  string        `json:"path"`
	Edits []Replacement `json:"edits"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *EditParams) UnmarshalJSON(data []byte) error {
	var m struct {
		Path    string          `json:"path"`
		Edits   json.RawMessage `json:"edits"`
		OldText *string         `json:"oldText"`
		NewText *string         `json:"newText"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	*p = EditParams{Path: m.Path}
	if edits := bytes.TrimSpace(m.Edits); len(edits) > 0 && !bytes.Equal(edits, []byte("null")) {
		if edits[0] == '"' {
			var s string
			if err := json.Unmarshal(edits, &s); err != nil {
				return err
			}
			edits = []byte(s)
		}
		if err := json.Unmarshal(edits, &p.Edits); err != nil {
			return fmt.Errorf("edits: want a list of {oldText, newText}: %w", err)
		}
	}
	switch {
	case m.OldText != nil && m.NewText != nil:
		p.Edits = append(p.Edits, Replacement{*m.OldText, *m.NewText})
	case m.OldText != nil:
		return fmt.Errorf("oldText without newText: want both")
	case m.NewText != nil:
		return fmt.Errorf("newText without oldText: want both")
	}
	return nil
}

// EditResult is what Edit did.
type EditResult struct {
	Text             string
	Blocks           int    // how many passages were replaced
	Diff             string // unified, 4 lines of context
	FirstChangedLine int    // of the file now, from 1
}

// Edit replaces passages of a file, all or none.
func (t *Tools) Edit(ctx context.Context, p EditParams) (*EditResult, error) {
	if t.cfg.Editor == nil {
		return nil, lacks("edit")
	}
	if len(p.Edits) == 0 {
		return nil, refuse("edit %s: there are no edits, want at least one oldText with its newText", printable(p.Path))
	}
	for i, e := range p.Edits {
		switch e.OldText {
		case "":
			return nil, refuse("edit %s: edit %d: oldText is empty; use write to make a file", printable(p.Path), i+1)
		case e.NewText:
			return nil, refuse("edit %s: edit %d: oldText and newText are the same, nothing would change", printable(p.Path), i+1)
		}
	}
	var done Edited
	err := t.onFile(ctx, p.Path, func(path string) (err error) {
		done, err = t.cfg.Editor.Edit(ctx, path, p.Edits)
		return err
	})
	if err != nil {
		return nil, fail(ctx, "edit", p.Path, err)
	}
	blocks := "1 block"
	if len(p.Edits) > 1 {
		blocks = fmt.Sprintf("%d blocks", len(p.Edits))
	}
	return &EditResult{
		Text:   fmt.Sprintf("Replaced %s in %s", blocks, printable(p.Path)),
		Blocks: len(p.Edits), Diff: done.Diff, FirstChangedLine: done.FirstChangedLine,
	}, nil
}
