package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandbus/sandbus/harnesslib"
)

// copying is one run of cp.
type copying struct {
	app       *app
	sb        *harnesslib.Sandbox
	recursive bool
	checksum  bool
	quiet     bool
}

func newCp(a *app) *cobra.Command {
	k := &copying{app: a}
	c := &cobra.Command{
		Use:   "cp [-r] SOURCE DESTINATION",
		Short: "Copy files to or from a sandbox",
		Long: `cp copies a file, or with -r a directory. ID:PATH is a path in a sandbox, :PATH one in the only sandbox, all else is
a path here; "-" is standard input or output. A destination that is a directory gets an entry of the source's name; with
"/." behind a source directory its content is copied instead. Each file appears at its place whole or not at all.

With -r, files that are there already (same size, time and permissions) are skipped, so that a copy that was cut off goes
on by the same command; so does one of a single large file. From a sandbox, links that lead out of the directory are not
taken.`,
		Example: `  sandbus cp box1:/var/log/build.log .
  sandbus cp patch.diff box1:/tmp/
  sandbus cp -r src box1:/work/`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			src, err := parseOperand(args[0])
			if err != nil {
				return err
			}
			dst, err := parseOperand(args[1])
			if err != nil {
				return err
			}
			if src.remote == dst.remote {
				return &usageError{errors.New("want one path in a sandbox (ID:PATH or :PATH) and one here")}
			}
			return a.withSandbox(c.Context(), or(src.sandbox, dst.sandbox), func(sb *harnesslib.Sandbox) error {
				k.sb = sb
				if src.remote {
					return k.from(c.Context(), src.path, dst.path)
				}
				return k.to(c.Context(), src.path, dst.path)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&k.recursive, "recursive", "r", false, "copy directories with all that is below them")
	f.BoolVar(&k.checksum, "checksum", false, "with -r: compare content instead of times to find what is there already")
	f.BoolVarP(&k.quiet, "quiet", "q", false, "show no progress")
	a.sandboxFlag(c)
	return c
}

// resumable is the size from which a single file is copied so that another run can go on with it.
const resumable = 8 << 20

// partID names a copy of one content to one place, for this run and the next.
func partID(place string, fi fs.FileInfo) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", place, fi.Size(), fi.ModTime().UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// into is where a source goes: into the destination when that is a directory.
func into(dst string, isDir bool, src string, join func(...string) string) string {
	if base := path.Base(filepath.ToSlash(src)); isDir && !strings.HasSuffix(src, "/.") && base != "." && base != ".." && base != "/" {
		return join(dst, base)
	}
	return dst
}

func (k *copying) from(ctx context.Context, src, dst string) error {
	if dst == "-" {
		return k.sb.CopyFrom(ctx, src, k.app.stdout)
	}
	fi, err := k.sb.Stat(ctx, src)
	if err != nil {
		return err
	}
	here, err := os.Stat(dst)
	dst = into(dst, err == nil && here.IsDir(), src, filepath.Join)
	if fi.IsDir() {
		return k.tree(src, func(o harnesslib.TreeOptions) (harnesslib.TreeResult, error) { return k.sb.CopyOut(ctx, src, dst, o) })
	}
	if strings.HasSuffix(dst, "/") {
		return fmt.Errorf("copy to %s: is no directory", dst)
	}
	if fi.Size() < resumable {
		return k.small(ctx, src, dst, fi)
	}
	// A part of a large file has a name that the next run finds.
	part := filepath.Join(filepath.Dir(dst), ".sandbus-"+partID(k.sb.ID()+":"+src, fi)+".part")
	to, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	p := k.progress(fi.Size())
	err = k.sb.Download(ctx, src, to, harnesslib.DownloadOptions{Progress: p.set})
	p.finish()
	if err == nil {
		err = to.Chmod(fi.Mode().Perm())
	}
	err = errors.Join(err, to.Close())
	if err == nil {
		err = os.Rename(part, dst)
	}
	return err
}

// small copies a file from the sandbox in one request; it may grow meanwhile.
func (k *copying) small(ctx context.Context, src, dst string, fi fs.FileInfo) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(dst), ".sandbus-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()           // the error that counts is err
			_ = os.Remove(tmp.Name()) // likewise
		}
	}()
	if err := k.sb.CopyFrom(ctx, src, tmp); err != nil {
		return err
	}
	if err := tmp.Chmod(fi.Mode().Perm()); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), dst)
}

func (k *copying) to(ctx context.Context, src, dst string) error {
	there, err := k.sb.Stat(ctx, dst)
	isDir := err == nil && there.IsDir() || strings.HasSuffix(dst, "/")
	if src == "-" {
		if isDir {
			return fmt.Errorf("copy to %s: is a directory, and standard input has no name", dst)
		}
		return k.sb.CopyTo(ctx, dst, k.app.stdin, 0o644)
	}
	dst = into(dst, isDir, src, path.Join)
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case fi.IsDir():
		return k.tree(src, func(o harnesslib.TreeOptions) (harnesslib.TreeResult, error) { return k.sb.CopyIn(ctx, src, dst, o) })
	case !fi.Mode().IsRegular() || fi.Size() < resumable:
		return k.sb.CopyTo(ctx, dst, f, fi.Mode().Perm())
	}
	p := k.progress(fi.Size())
	defer p.finish()
	return k.sb.Upload(ctx, dst, f, fi.Size(), harnesslib.UploadOptions{ID: partID(dst, fi), Perm: fi.Mode().Perm(), Progress: p.set})
}

// tree copies a directory, and makes an error of what was left out.
func (k *copying) tree(src string, run func(harnesslib.TreeOptions) (harnesslib.TreeResult, error)) error {
	if !k.recursive {
		return fmt.Errorf("copy %s: is a directory; use -r", src)
	}
	p := k.progress(-1)
	var refused []error
	res, err := run(harnesslib.TreeOptions{
		SkipEqual: true, Checksum: k.checksum, Progress: p.tree,
		Refused: func(e *harnesslib.UnsafeEntryError) { refused = append(refused, errors.New(plain(e.Error()))) },
	})
	p.finish()
	if err != nil {
		return err
	}
	if res.Special > 0 {
		_, _ = fmt.Fprintf(k.app.stderr, "sandbus: %d FIFOs, sockets or devices were left out\n", res.Special) // a note
	}
	if res.Unreadable > 0 {
		refused = append(refused, fmt.Errorf("%d entries could not be read: %s", res.Unreadable, plain(res.FirstError)))
	}
	if len(refused) > maxRefusals {
		n := len(refused) - maxRefusals
		refused = append(refused[:maxRefusals], fmt.Errorf("and %d more", n))
	}
	return errors.Join(refused...)
}

// maxRefusals is how many entries that were left out are named.
const maxRefusals = 20

// bar shows progress on a terminal; on all else it does nothing. What it cannot write does not matter.
type bar struct{ *progressbar.ProgressBar }

// progress begins to show it; a total of -1 is unknown.
func (k *copying) progress(total int64) bar {
	f, ok := k.app.stderr.(*os.File)
	if k.quiet || !ok || !term.IsTerminal(int(f.Fd())) {
		return bar{}
	}
	return bar{progressbar.NewOptions64(total, progressbar.OptionSetWriter(f), progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true))}
}

func (b bar) set(done, _ int64) {
	if b.ProgressBar != nil {
		_ = b.Set64(done)
	}
}

func (b bar) tree(p harnesslib.TreeProgress) {
	if b.ProgressBar != nil {
		b.ChangeMax64(max(p.TotalBytes, p.Bytes, 1))
		_ = b.Set64(p.Bytes)
	}
}

func (b bar) finish() {
	if b.ProgressBar != nil {
		_ = b.Finish()
	}
}
