package harnesslib

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/treetar"
)

// TreeOptions says how to copy a tree.
type TreeOptions struct {
	// SkipEqual leaves out what is there already: files of the same size, time of change and permissions, links of the
	// same text. A copy that was cut off goes on so.
	SkipEqual bool
	// Checksum makes SkipEqual compare SHA-256 instead of times; it reads all files of the same size on both sides.
	Checksum bool
	// NoSync leaves out the sync to the sandbox's disk.
	NoSync bool
	// MaxBytes and MaxEntries bound what CopyOut takes from the sandbox; zero means no bound.
	MaxBytes, MaxEntries int64
	// Refused is told of a link of the sandbox that leads out of the tree and is left out; nil makes it the error of
	// CopyOut.
	Refused func(*UnsafeEntryError)
	// Progress is told what was copied; nil means nobody. It is called by one goroutine at a time.
	Progress func(TreeProgress)
}

// UnsafeEntryError says that a tree from a sandbox has an entry that is not taken, and by which rule.
type UnsafeEntryError = treetar.UnsafeError

// TreeProgress is how far a copy has come.
type TreeProgress struct {
	Name         string // the entry that is being copied
	Entries      int64
	Bytes        int64
	TotalEntries int64 // zero when unknown
	TotalBytes   int64 // zero when unknown
}

// TreeResult is what a copy did.
type TreeResult struct {
	Entries    int64  // copied
	Bytes      int64  // of the files that were copied
	Equal      int64  // left out because they were there already (SkipEqual)
	Special    int64  // FIFOs, sockets and devices, left out
	Vanished   int64  // gone before they could be read
	Unreadable int64  // left out because of an error, the first of which is
	FirstError string // text of the side that read
	Refused    int64  // links that lead out of the tree
}

// progress adds up what the copying tells.
type progress struct {
	tell func(TreeProgress)
	now  TreeProgress
}

func (p *progress) add(name string, n int64) {
	if p.tell == nil {
		return
	}
	if n == 0 {
		p.now.Entries++
		p.now.Name = name
	}
	p.now.Bytes += n
	p.tell(p.now)
}

// CopyIn copies the tree below a local directory into a directory of the sandbox, which is made when it is missing. What
// else is there stays. The archive that carries it is compared by its SHA-256. Links are copied as they are. Errors: as
// WriteFile; what could not be read here is counted in the result and is no error.
func (s *Sandbox) CopyIn(ctx context.Context, localDir, dir string, o TreeOptions) (TreeResult, error) {
	root, err := os.OpenRoot(localDir)
	if err != nil {
		return TreeResult{}, err
	}
	defer func() { _ = root.Close() }() // read only
	res := TreeResult{}
	pack := treetar.PackOptions{}
	total := &progress{tell: o.Progress}
	if o.SkipEqual {
		if pack.Names, res.Equal, err = s.differing(ctx, root, dir, o, total); err != nil {
			return res, err
		}
	}
	pack.Progress = total.add
	req := &sandbusv1.UnpackRequest{NoSync: o.NoSync}
	req.Path, req.PathRaw = bus.ToText(dir)
	resp := &sandbusv1.UnpackResponse{}
	sum := sha256.New()
	var stats treetar.Stats
	err = s.do(ctx, func(t bus.Target) error {
		pr, pw := io.Pipe()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer func() { _ = pr.CloseWithError(errCut) }() // lets the packer go
		wg.Go(func() {
			var err error
			stats, err = treetar.Pack(ctx, pw, root, pack)
			_ = pw.CloseWithError(err) // never fails
		})
		op := bus.NewOpID()
		req.Meta = &sandbusv1.RequestMeta{Op: string(op)}
		return s.upload(ctx, t, "fs.unpack", op, req, &onceReader{Reader: io.TeeReader(pr, sum)}, resp)
	})
	if err != nil {
		return res, pathError("copy", dir, err)
	}
	if !bytes.Equal(resp.GetSha256(), sum.Sum(nil)) {
		return res, &fs.PathError{Op: "copy", Path: dir, Err: fmt.Errorf("the sandbox received an archive with SHA-256 %x, sent was %x", resp.GetSha256(), sum.Sum(nil))}
	}
	res.count(stats)
	return res, nil
}

func (r *TreeResult) count(s treetar.Stats) {
	r.Entries += s.Entries
	r.Bytes += s.Bytes
	r.Special += s.Special
	r.Vanished += s.Vanished
	r.Unreadable += s.Unreadable
	if r.FirstError == "" {
		r.FirstError = bus.Printable(s.FirstError)
	}
}

// CopyOut copies the tree below a directory of the sandbox into a local directory, which is made when it is missing. What
// else is there stays. The sandbox is not trusted: nothing is written outside of localDir or through a link, and links
// that lead out of the tree are refused (*UnsafeEntryError), as is any entry that is no file, directory or link; files
// get no setuid bit. What was copied before an error stays. Errors: as ReadFile.
func (s *Sandbox) CopyOut(ctx context.Context, dir, localDir string, o TreeOptions) (TreeResult, error) {
	if err := os.MkdirAll(localDir, 0o777); err != nil {
		return TreeResult{}, err
	}
	root, err := os.OpenRoot(localDir)
	if err != nil {
		return TreeResult{}, err
	}
	defer func() { _ = root.Close() }() // every file was closed with its error
	res := TreeResult{}
	total := &progress{tell: o.Progress}
	if !o.SkipEqual {
		err := s.copyOut(ctx, dir, nil, root, o, total, &res)
		return res, err
	}
	names, equal, err := s.missing(ctx, root, dir, o, total)
	if err != nil {
		return res, err
	}
	res.Equal = equal
	for names := range slices.Chunk(names, packNames) {
		if err := s.copyOut(ctx, dir, names, root, o, total, &res); err != nil {
			return res, err
		}
	}
	return res, nil
}

// packNames is how many names one request asks for: with names of 255 bytes they fit into one message.
const packNames = 2000

// copyOut takes one archive.
func (s *Sandbox) copyOut(ctx context.Context, dir string, names []string, root *os.Root, o TreeOptions, total *progress, res *TreeResult) error {
	req := &sandbusv1.PackRequest{}
	req.Path, req.PathRaw = bus.ToText(dir)
	req.Names, req.NamesRaw = bus.ToTexts(names)
	extract := treetar.ExtractOptions{MaxBytes: o.MaxBytes, MaxEntries: o.MaxEntries, Progress: total.add}
	if o.Refused != nil {
		extract.Refused = func(e *treetar.UnsafeError) {
			res.Refused++
			o.Refused(e)
		}
	}
	var stats treetar.Stats
	var failed error
	err := s.do(ctx, func(t bus.Target) error {
		pr, pw := io.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			stats, failed = treetar.Extract(ctx, pr, root, extract)
			if failed == nil {
				_, failed = io.Copy(io.Discard, pr) // what pads the archive
			}
			_ = pr.CloseWithError(failed) // never fails
		})
		op := bus.NewOpID()
		err := s.hub.caller.Fetch(ctx, t, "fs.pack", op, req, &sandbusv1.PackResponse{}, pw)
		s.abandon(ctx, t, op, err)
		_ = pw.CloseWithError(err) // never fails
		wg.Wait()
		return err
	})
	res.count(stats)
	if _, unsafe := errors.AsType[*UnsafeEntryError](failed); unsafe {
		return failed
	}
	if err == nil {
		err = failed
	}
	return pathError("copy", dir, err)
}

// remoteTree describes all that is below a directory of the sandbox, by names relative to it. A directory that is
// missing is empty.
func (s *Sandbox) remoteTree(ctx context.Context, dir string) (map[string]fs.FileInfo, error) {
	tree := map[string]fs.FileInfo{}
	next := []string{"."}
	for len(next) > 0 {
		now := next[:min(len(next), listBatch)]
		next = next[len(now):]
		ops := make([]BatchOp, len(now))
		for i, name := range now {
			ops[i] = ListOp(path.Join(dir, name), 0)
		}
		results, err := s.Batch(ctx, ops...)
		if err != nil {
			return nil, err
		}
		for i, r := range results {
			entries := r.Entries
			switch {
			case now[i] == "." && errors.Is(r.Err, fs.ErrNotExist):
				return tree, nil
			case errors.Is(r.Err, fs.ErrNotExist), errors.Is(r.Err, fs.ErrPermission): // vanished, or for the packer to count
				continue
			case r.More || errors.Is(r.Err, ErrTooLarge):
				if entries, err = s.ReadDir(ctx, path.Join(dir, now[i])); err != nil {
					return nil, err
				}
			case r.Err != nil:
				return nil, r.Err
			}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					return nil, err
				}
				name := path.Join(now[i], e.Name())
				tree[name] = info
				if info.IsDir() {
					next = append(next, name)
				}
			}
			if len(tree) > maxReadDir {
				return nil, fmt.Errorf("%w: the tree below %s has more than %d entries, copy parts of it", ErrTooLarge, dir, maxReadDir)
			}
		}
	}
	return tree, nil
}

// listBatch is how many directories are listed in one request.
const listBatch = 256

// equalEntry compares what the two sides have under one name; sums says that only their content can tell.
func equalEntry(a, b fs.FileInfo, linkA, linkB string, checksum bool) (equal, sums bool) {
	switch {
	case a.Mode().Type() != b.Mode().Type():
		return false, false
	case a.IsDir():
		return a.Mode().Perm() == b.Mode().Perm(), false
	case a.Mode()&fs.ModeSymlink != 0:
		return linkA == linkB, false
	case !a.Mode().IsRegular() || a.Size() != b.Size() || a.Mode().Perm() != b.Mode().Perm():
		return false, false
	case checksum:
		return false, true
	}
	return a.ModTime().Equal(b.ModTime()), false
}

// linkOf is the text of a link of the sandbox.
func linkOf(info fs.FileInfo) string {
	if st, ok := info.Sys().(*FileStat); ok {
		return st.LinkTarget
	}
	return ""
}

// differing lists what CopyIn has to send.
func (s *Sandbox) differing(ctx context.Context, root *os.Root, dir string, o TreeOptions, total *progress) (names []string, equal int64, err error) {
	remote, err := s.remoteTree(ctx, dir)
	if err != nil {
		return nil, 0, err
	}
	names = []string{}
	var doubtful []string
	local := map[string]fs.FileInfo{}
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if name == "." || err != nil {
			if name != "." && e != nil && !e.IsDir() {
				names = append(names, name) // the packer says what is wrong with it
			}
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // vanished
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			link, _ = root.Readlink(name) // vanished: the packer finds out
		}
		if there, ok := remote[name]; ok {
			same, sums := equalEntry(info, there, link, linkOf(there), o.Checksum)
			if same {
				equal++
				return nil
			}
			if sums {
				doubtful = append(doubtful, name)
				local[name] = info
				return nil
			}
		}
		names = append(names, name)
		total.expect(info)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	changed, err := s.unequalSums(ctx, root, dir, doubtful)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range changed {
		total.expect(local[name])
	}
	equal += int64(len(doubtful) - len(changed))
	names = append(names, changed...)
	slices.SortFunc(names, treetar.Compare)
	return names, equal, nil
}

func (p *progress) expect(info fs.FileInfo) {
	p.now.TotalEntries++
	if info.Mode().IsRegular() {
		p.now.TotalBytes += info.Size()
	}
}

// missing lists what CopyOut has to fetch.
func (s *Sandbox) missing(ctx context.Context, root *os.Root, dir string, o TreeOptions, total *progress) (names []string, equal int64, err error) {
	remote, err := s.remoteTree(ctx, dir)
	if err != nil {
		return nil, 0, err
	}
	var doubtful []string
	for name, info := range remote {
		here, err := root.Lstat(name)
		if err == nil {
			link := ""
			if here.Mode()&fs.ModeSymlink != 0 {
				link, _ = root.Readlink(name) // vanished: it is fetched
			}
			same, sums := equalEntry(here, info, link, linkOf(info), o.Checksum)
			if same {
				equal++
				continue
			}
			if sums {
				doubtful = append(doubtful, name)
				continue
			}
		}
		names = append(names, name)
		total.expect(info)
	}
	changed, err := s.unequalSums(ctx, root, dir, doubtful)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range changed {
		total.expect(remote[name])
	}
	equal += int64(len(doubtful) - len(changed))
	names = append(names, changed...)
	slices.SortFunc(names, treetar.Compare)
	return names, equal, nil
}

// unequalSums compares files by their content.
func (s *Sandbox) unequalSums(ctx context.Context, root *os.Root, dir string, names []string) (unequal []string, err error) {
	for names := range slices.Chunk(names, listBatch) {
		ops := make([]BatchOp, len(names))
		for i, name := range names {
			ops[i] = HashOp(path.Join(dir, name), 0, 0)
		}
		results, err := s.Batch(ctx, ops...)
		if err != nil {
			return nil, err
		}
		for i, r := range results {
			sum := sha256.New()
			if r.Err != nil || hashLocal(root, names[i], sum) != nil || !bytes.Equal(sum.Sum(nil), r.SHA256[:]) {
				unequal = append(unequal, names[i])
			}
		}
	}
	return unequal, nil
}

func hashLocal(root *os.Root, name string, sum hash.Hash) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	_, err = io.Copy(sum, f)
	return err
}
