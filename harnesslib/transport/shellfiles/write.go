package shellfiles

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"
)

// inlineWrite is how many bytes of content are sent as text; more goes through a standard input.
const inlineWrite = 64 << 10

// WriteFile replaces a file's content atomically; a new file gets perm less the sandbox's umask, zero meaning 0666.
func (f *Files) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	if len(data) > inlineWrite {
		return f.stream(ctx, name, bytes.NewReader(data), perm, fnCommit)
	}
	format, text := literal(data)
	_, err := f.call(ctx, request{op: "write", name: name, fn: fnStore, args: []string{arg(name), mode(perm), temporary(), format, text}})
	return err
}

// AppendFile adds data at the end of a file, which it makes when it is missing.
func (f *Files) AppendFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	if len(data) > inlineWrite {
		return f.stream(ctx, name, bytes.NewReader(data), perm, fnJoin)
	}
	format, text := literal(data)
	_, err := f.call(ctx, request{op: "write", name: name, fn: fnAppend, args: []string{arg(name), mode(perm), format, text}})
	return err
}

// CopyTo replaces a file's content with what r gives, as WriteFile does, in constant memory. When r fails the file
// stays as it was.
func (f *Files) CopyTo(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	start := make([]byte, inlineWrite+1)
	n, err := io.ReadFull(r, start)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return f.WriteFile(ctx, name, start[:n], perm)
	case err != nil:
		return err
	}
	return f.stream(ctx, name, io.MultiReader(bytes.NewReader(start), r), perm, fnCommit)
}

func mode(perm fs.FileMode) string {
	if perm.Perm() == 0 {
		return "666"
	}
	return octal(perm)
}

// temporary is the name of a file that nobody else has.
func temporary() string { return ".sandbus-" + rand.Text()[:16] }

// literal is content as the format and the argument of printf. Only NUL cannot stand for itself.
func literal(data []byte) (format, text string) {
	if bytes.IndexByte(data, 0) < 0 {
		return "%s", string(data)
	}
	return "%b", escapes.Replace(string(data))
}

var escapes = strings.NewReplacer(`\`, `\\`, "\x00", `\0000`)

// discardLimit is how long a failed write may take to clean up behind itself.
const discardLimit = 10 * time.Second

// stream sends content to a temporary file, and then has it put where it belongs: a connection that breaks in the middle
// must not end as a file that is shorter.
func (f *Files) stream(ctx context.Context, name string, r io.Reader, perm fs.FileMode, end Function) (err error) {
	tmp := temporary()
	src := &counter{r: r}
	res, err := f.call(ctx, request{op: "write", name: name, fn: fnStage, args: []string{arg(name), tmp}, stdin: src})
	sent, failed := src.count()
	if err == nil {
		err = failed
	}
	if err == nil {
		var n int64
		if n, err = strconv.ParseInt(strings.TrimSpace(string(res.Stdout)), 10, 64); err != nil || n != sent {
			err = &fs.PathError{Op: "write", Path: name, Err: failure(codeShort, nil)}
		}
	}
	if err == nil {
		_, err = f.call(ctx, request{op: "write", name: name, fn: end, args: []string{arg(name), mode(perm), tmp, fmt.Sprint(sent)}})
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardLimit)
		defer cancel()
		// What it fails with says no more than err does.
		_, _ = f.call(clean, request{op: "write", name: name, fn: fnDiscard, args: []string{arg(name), tmp}})
	}
	return err
}

// counter counts what was read, and keeps the error. The reader may be still at it when the count is asked for.
type counter struct {
	r io.Reader

	mu  sync.Mutex // guards the fields below
	n   int64
	err error
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

func (c *counter) count() (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n, c.err
}
