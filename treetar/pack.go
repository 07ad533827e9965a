package treetar

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Stats counts what an archive holds and what was left out of it.
type Stats struct {
	Entries    int64  `json:"entries"`
	Bytes      int64  `json:"bytes"`      // of the files' content
	Special    int64  `json:"special"`    // FIFOs, sockets and devices, left out
	Vanished   int64  `json:"vanished"`   // gone before they could be read
	Unreadable int64  `json:"unreadable"` // left out because of an error, the first of which is
	FirstError string `json:"first_error,omitempty"`
}

// PackOptions says what to pack.
type PackOptions struct {
	// Names are what to pack, without what is below them; nil means the whole tree.
	Names []string
	// Skip leaves out an entry, and with a directory nothing but its own entry; nil leaves out none.
	Skip func(name string, info fs.FileInfo) bool
	// Progress is told of each entry as it begins (with 0) and of its content's bytes; nil means nobody.
	Progress func(name string, bytes int64)
}

// summaryRecord is the PAX record in which Stats travel.
const summaryRecord = "SANDBUS.summary"

// Pack writes the tree below root as an archive. What cannot be read is counted and left out. Errors: w's, the
// context's cause, a file that became shorter while it was read.
func Pack(ctx context.Context, w io.Writer, root *os.Root, o PackOptions) (Stats, error) {
	if o.Skip == nil {
		o.Skip = func(string, fs.FileInfo) bool { return false }
	}
	if o.Progress == nil {
		o.Progress = func(string, int64) {}
	}
	p := &packer{ctx: ctx, tw: tar.NewWriter(w), o: o, buf: make([]byte, 128<<10)}
	var err error
	if o.Names == nil {
		err = p.dir(root, "")
	} else {
		err = p.names(root)
	}
	if err != nil {
		return p.stats, err
	}
	text, err := json.Marshal(p.stats)
	if err != nil {
		return p.stats, err
	}
	err = p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "summary", PAXRecords: map[string]string{summaryRecord: string(text)}})
	return p.stats, errors.Join(err, p.tw.Close())
}

type packer struct {
	ctx   context.Context //nolint:containedctx // for the length of one Pack
	tw    *tar.Writer
	o     PackOptions
	stats Stats
	buf   []byte
}

// passOver counts what cannot be read.
func (p *packer) passOver(name string, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		p.stats.Vanished++
		return
	}
	p.stats.Unreadable++
	if p.stats.FirstError == "" {
		p.stats.FirstError = strings.ToValidUTF8(fmt.Sprintf("%s: %v", name, err), "\uFFFD")
	}
}

// dir packs what is in a directory; prefix is its name in the archive with a slash.
func (p *packer) dir(root *os.Root, prefix string) error {
	d, err := root.Open(".")
	if err != nil {
		p.passOver(prefix, err)
		return nil
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close() // read only
	if err != nil {
		p.passOver(prefix, err)
	}
	slices.Sort(names)
	for _, name := range names {
		isDir, err := p.entry(root, name, prefix+name)
		if err != nil {
			return err
		}
		if !isDir {
			continue
		}
		sub, err := root.OpenRoot(name)
		if err != nil {
			p.passOver(prefix+name, err)
			continue
		}
		err = p.dir(sub, prefix+name+"/")
		_ = sub.Close() // read only
		if err != nil {
			return err
		}
	}
	return nil
}

// names packs single entries. Those of one directory should stand together.
func (p *packer) names(root *os.Root) error {
	dir, at := root, "."
	defer func() {
		if dir != root {
			_ = dir.Close() // read only
		}
	}()
	for _, name := range p.o.Names {
		if err := checkName(name); err != nil {
			return err
		}
		if parent := path.Dir(name); parent != at {
			if dir != root {
				_ = dir.Close() // read only
				dir, at = root, "."
			}
			if parent != "." {
				sub, err := root.OpenRoot(parent)
				if err != nil {
					p.passOver(name, err)
					continue
				}
				dir, at = sub, parent
			}
		}
		if _, err := p.entry(dir, path.Base(name), name); err != nil {
			return err
		}
	}
	return nil
}

// entry packs one entry, without what is below it.
func (p *packer) entry(dir *os.Root, base, name string) (isDir bool, err error) {
	if p.ctx.Err() != nil {
		return false, context.Cause(p.ctx)
	}
	info, err := dir.Lstat(base)
	if err != nil {
		p.passOver(name, err)
		return false, nil
	}
	h := &tar.Header{Name: name, Mode: int64(modeBits(info.Mode())), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch mode := info.Mode(); {
	case mode.IsDir():
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		return true, p.header(h, name, info)
	case mode&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = dir.Readlink(base); err != nil {
			p.passOver(name, err)
			return false, nil
		}
		return false, p.header(h, name, info)
	case mode.IsRegular():
		return false, p.file(dir, base, name, h)
	}
	p.stats.Special++
	return false, nil
}

func (p *packer) header(h *tar.Header, name string, info fs.FileInfo) error {
	if p.o.Skip(name, info) {
		return nil
	}
	p.o.Progress(name, 0)
	p.stats.Entries++
	return p.tw.WriteHeader(h)
}

func (p *packer) file(dir *os.Root, base, name string, h *tar.Header) error {
	// Without O_NONBLOCK a FIFO that has come in between would block here.
	f, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		p.passOver(name, err)
		return nil
	}
	defer func() { _ = f.Close() }() // read only
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		p.passOver(name, errors.Join(err, fs.ErrNotExist))
		return nil
	}
	if p.o.Skip(name, info) {
		return nil
	}
	h.Typeflag, h.Size, h.ModTime, h.Mode = tar.TypeReg, info.Size(), info.ModTime(), int64(modeBits(info.Mode()))
	p.o.Progress(name, 0)
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	p.stats.Entries++
	for left := h.Size; left > 0; {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		n, err := f.Read(p.buf[:min(left, int64(len(p.buf)))])
		if n > 0 {
			if _, err := p.tw.Write(p.buf[:n]); err != nil {
				return err
			}
			left -= int64(n)
			p.stats.Bytes += int64(n)
			p.o.Progress(name, int64(n))
			continue
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("became %d bytes shorter while it was read", left)
		}
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}

// modeBits are the bits of chmod(2).
func modeBits(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// Compare orders names so that what is below a directory stands right behind it.
func Compare(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return int(a[i]) - int(b[i])
		}
	}
	return len(a) - len(b)
}
