package tools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// WriteParams are of Write.
type WriteParams struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

// WriteResult is what Write did.
type WriteResult struct {
	Text  string
	Path  string // the file in the sandbox
	Bytes int
}

// Write replaces a file's whole content, and makes the file and its directories where they are missing.
func (t *Tools) Write(ctx context.Context, p WriteParams) (*WriteResult, error) {
	if t.cfg.Writer == nil {
		return nil, lacks("write")
	}
	name, err := t.resolve(ctx, p.Path, true)
	if err != nil {
		return nil, fail(ctx, "write", p.Path, err)
	}
	put := func() error { return t.cfg.Writer.WriteFile(ctx, name, []byte(p.Content), 0o666) }
	err = put()
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.cfg.Writer.MkdirAll(ctx, path.Dir(name), 0o777); err == nil {
			err = put()
		}
	}
	if err != nil {
		return nil, fail(ctx, "write", p.Path, err)
	}
	return &WriteResult{
		Text: fmt.Sprintf("Wrote %d bytes to %s", len(p.Content), printable(p.Path)), Path: name, Bytes: len(p.Content),
	}, nil
}
