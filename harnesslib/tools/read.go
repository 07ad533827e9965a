package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// ReadParams are of Read.
type ReadParams struct {
	Path   string `json:"path"`
	Offset int    `json:"offset,omitempty"` // the first line, from 1; zero and below mean the start
	Limit  int    `json:"limit,omitempty"`  // lines at most; zero means as many as the tool shows
}

// ReadResult is a file's text or its image.
type ReadResult struct {
	Text       string
	Image      *Image // nil: it is text
	FirstLine  int    // of what is shown, from 1; zero when nothing is
	LastLine   int
	TotalLines int
	NextOffset int    // where to go on; zero: the end of the file was reached
	LimitCut   bool   // the caller's limit cut the text
	LinesCut   bool   // MaxLines cut the text
	BytesCut   bool   // MaxBytes cut the text
	Encoding   string // of a file that was transcoded: "UTF-16LE" or "UTF-16BE"; empty for one that is as it is
}

// Read shows a file: text from a line on, or an image.
func (t *Tools) Read(ctx context.Context, p ReadParams) (*ReadResult, error) {
	if t.cfg.Reader == nil {
		return nil, lacks("read")
	}
	limit, err := count("read", "limit", p.Limit, MaxLines)
	if err != nil {
		return nil, err
	}
	var in *intake
	err = t.onFile(ctx, p.Path, func(path string) error {
		in = &intake{lines: lineWindow{from: max(1, p.Offset), limit: min(limit, MaxLines)}}
		if err := t.cfg.Reader.CopyFrom(ctx, path, in); err != nil {
			return err
		}
		return in.close()
	})
	if errors.Is(err, errBinary) && ctx.Err() == nil {
		return nil, t.refuseBinary(ctx, p.Path, in)
	}
	if err != nil {
		return nil, fail(ctx, "read", p.Path, err)
	}
	if in.image != nil {
		return &ReadResult{Text: in.image.note(), Image: in.image}, nil
	}
	return readResult(p, limit, in)
}

// refuseBinary says what a file is that is no text.
func (t *Tools) refuseBinary(ctx context.Context, path string, in *intake) error {
	size := ""
	if t.cfg.Resolver != nil {
		if r, err := t.cfg.Resolver.ResolvePath(ctx, path, t.cfg.Dir, false); err == nil && r.Exists {
			size = ", " + FormatSize(r.Size)
		}
	}
	return refuse("read %s: is a binary file (%s%s) and not shown. Use bash to look into it, for example: file %s; od -c %s | head",
		printable(path), http.DetectContentType(in.head), size, quoted(path), quoted(path))
}

// quoted is a word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func readResult(p ReadParams, limit int, in *intake) (*ReadResult, error) {
	w := &in.lines
	r := &ReadResult{TotalLines: w.total, Encoding: in.encoding}
	if w.from > max(1, w.total) {
		return nil, refuse("read %s: offset %d is beyond the end of the file (%d lines)", printable(p.Path), w.from, w.total)
	}
	var notices []string
	if in.encoding != "" {
		notices = append(notices, "Transcoded from "+in.encoding)
	}
	kept := len(w.kept)
	if kept == 0 && w.total > 0 {
		r.BytesCut, r.NextOffset = true, w.from+1
		notices = append(notices, fmt.Sprintf("Line %d is %s, over the %s limit. Use bash for a part of it: sed -n '%dp' %s | head -c %d",
			w.from, FormatSize(w.tooLong), FormatSize(MaxBytes), w.from, quoted(p.Path), MaxBytes))
		r.Text = footer("", notices)
		return r, nil
	}
	r.Text = strings.Join(w.kept, "\n")
	if kept > 0 {
		r.FirstLine, r.LastLine = w.from, w.from+kept-1
	}
	if r.LastLine == w.total || kept == 0 {
		if w.newline && kept > 0 {
			r.Text += "\n"
		}
		r.Text = footer(strings.TrimSuffix(r.Text, trimmedBefore(notices)), notices)
		return r, nil
	}
	r.NextOffset = r.LastLine + 1
	switch {
	case w.cutBytes:
		r.BytesCut = true
		notices = append(notices, fmt.Sprintf("Showing lines %d-%d of %d (%s limit). Use offset=%d to continue",
			r.FirstLine, r.LastLine, w.total, FormatSize(MaxBytes), r.NextOffset))
	case p.Limit > 0 && limit <= MaxLines:
		r.LimitCut = true
		notices = append(notices, fmt.Sprintf("%d more lines in file. Use offset=%d to continue", w.total-r.LastLine, r.NextOffset))
	default:
		r.LinesCut = true
		notices = append(notices, fmt.Sprintf("Showing lines %d-%d of %d. Use offset=%d to continue", r.FirstLine, r.LastLine, w.total, r.NextOffset))
	}
	r.Text = footer(r.Text, notices)
	return r, nil
}

// trimmedBefore is the newline that a text does not need when a footer comes.
func trimmedBefore(notices []string) string {
	if len(notices) == 0 {
		return ""
	}
	return "\n"
}

// errBinary ends the reading of a file that is not shown.
var errBinary = errors.New("is a binary file")

const (
	// probeBytes decide what a file is.
	probeBytes = 8 << 10
	// maxImageFile bounds an image that is read, in bytes.
	maxImageFile = 64 << 20
)

// intake takes a file's content and finds out what it is.
type intake struct {
	head     []byte // up to probeBytes, until it is decided what this is
	decided  bool
	raw      []byte // of what may be an image
	isImage  bool
	image    *Image
	encoding string
	decoder  *transform.Writer
	lines    lineWindow
}

func (in *intake) Write(b []byte) (int, error) {
	if in.isImage {
		if len(in.raw)+len(b) > maxImageFile {
			return 0, errBinary
		}
		in.raw = append(in.raw, b...)
		return len(b), nil
	}
	if in.decided {
		return len(b), in.text(b)
	}
	n := len(b)
	take := min(len(b), probeBytes-len(in.head))
	in.head = append(in.head, b[:take]...)
	if len(in.head) < probeBytes {
		return n, nil
	}
	if err := in.decide(); err != nil {
		return 0, err
	}
	if _, err := in.Write(b[take:]); err != nil {
		return 0, err
	}
	return n, nil
}

// decide looks at the first bytes and passes them on.
func (in *intake) decide() error {
	in.decided = true
	if mediaType(in.head) != "" {
		in.isImage, in.raw = true, append([]byte{}, in.head...)
		return nil
	}
	return in.asText()
}

// asText begins with the first bytes as text.
func (in *intake) asText() error {
	var order unicode.Endianness
	switch {
	case bytes.HasPrefix(in.head, []byte{0xff, 0xfe, 0, 0}): // UTF-32
	case bytes.HasPrefix(in.head, []byte{0xff, 0xfe}):
		in.encoding, order = "UTF-16LE", unicode.LittleEndian
	case bytes.HasPrefix(in.head, []byte{0xfe, 0xff}):
		in.encoding, order = "UTF-16BE", unicode.BigEndian
	}
	if in.encoding != "" {
		in.decoder = transform.NewWriter(&in.lines, unicode.UTF16(order, unicode.ExpectBOM).NewDecoder())
		return in.text(in.head)
	}
	if bytes.IndexByte(in.head, 0) >= 0 {
		return errBinary
	}
	return in.text(in.head)
}

func (in *intake) text(b []byte) error {
	if in.decoder == nil {
		_, _ = in.lines.Write(b) // never fails
		return nil
	}
	_, err := in.decoder.Write(b)
	return err
}

// close says that the file is over.
func (in *intake) close() error {
	if !in.decided {
		if err := in.decide(); err != nil {
			return err
		}
	}
	if in.isImage {
		image, err := newImage(in.raw)
		if err == nil {
			in.image = image
			return nil
		}
		in.isImage = false // it only begins like one
		if err := in.asText(); err != nil {
			return err
		}
		if err := in.text(in.raw[len(in.head):]); err != nil {
			return err
		}
	}
	if in.decoder != nil {
		if err := in.decoder.Close(); err != nil {
			return err
		}
	}
	in.lines.close()
	return nil
}

// lineWindow counts lines and keeps some, in constant memory.
type lineWindow struct {
	from, limit int // the first line to keep, and how many

	kept     []string
	size     int   // of what is kept, with newlines between
	tooLong  int64 // the length of the first line, when it is over the limit
	total    int
	newline  bool // the text ends with one
	cutBytes bool
	full     bool
	line     []byte // the present line as far as it may be kept
	length   int64  // of the present line
}

func (w *lineWindow) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if w.full && w.length == 0 { // only the count is wanted
			w.total += bytes.Count(b, []byte{'\n'})
			i := bytes.LastIndexByte(b, '\n') + 1
			w.length = int64(len(b) - i)
			w.newline = w.length == 0
			return n, nil
		}
		i := bytes.IndexByte(b, '\n')
		part := b
		if i >= 0 {
			part = b[:i]
		}
		w.length += int64(len(part))
		if room := MaxBytes + 1 - len(w.line); room > 0 && !w.full && w.total+1 >= w.from {
			w.line = append(w.line, part[:min(len(part), room)]...)
		}
		w.newline = i >= 0
		if i < 0 {
			return n, nil
		}
		w.endLine()
		b = b[i+1:]
	}
	return n, nil
}

func (w *lineWindow) endLine() {
	w.total++
	if !w.full && w.total >= w.from {
		w.keep()
	}
	w.line, w.length = w.line[:0], 0
}

func (w *lineWindow) keep() {
	size := w.size + len(w.line)
	if len(w.kept) > 0 {
		size++
	}
	switch {
	case len(w.kept) == w.limit:
		w.full = true
	case size > MaxBytes:
		w.full, w.cutBytes = true, true
		if len(w.kept) == 0 {
			w.tooLong = w.length
		}
	default:
		w.kept, w.size = append(w.kept, string(w.line)), size
	}
}

func (w *lineWindow) close() {
	if w.length > 0 {
		w.endLine()
	}
}
