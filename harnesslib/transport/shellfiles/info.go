package shellfiles

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/harnesslib"
)

type fileInfo struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
	sys   harnesslib.FileStat
}

func (f *fileInfo) Name() string       { return f.name }
func (f *fileInfo) Size() int64        { return f.size }
func (f *fileInfo) Mode() fs.FileMode  { return f.mode }
func (f *fileInfo) ModTime() time.Time { return f.mtime }
func (f *fileInfo) IsDir() bool        { return f.mode.IsDir() }
func (f *fileInfo) Sys() any           { return &f.sys }
func (f *fileInfo) String() string     { return fs.FormatFileInfo(f) }

// Stat describes what a path leads to. The FileInfo's Sys is a *harnesslib.FileStat.
func (f *Files) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "stat", name, "-L")
}

// Lstat is Stat that describes a symbolic link itself.
func (f *Files) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.stat(ctx, "lstat", name, "")
}

func (f *Files) stat(ctx context.Context, op, name, follow string) (fs.FileInfo, error) {
	res, err := f.call(ctx, request{op: op, name: name, fn: fnStat, args: []string{arg(name), follow}, read: true})
	if err != nil {
		return nil, err
	}
	line, link, _ := strings.Cut(string(res.Stdout), "\n")
	info, rest, err := parse(line)
	if err != nil || rest != "" {
		return nil, &fs.PathError{Op: op, Path: name, Err: fmt.Errorf("the sandbox's stat says %s", printable(line))}
	}
	info.name, info.sys.LinkTarget = path.Base(name), link
	return info, nil
}

// parse reads what stat -c '%f %s %Y %u %g %h %i %d' says, and returns what stands behind it.
func parse(line string) (info *fileInfo, rest string, err error) {
	var nums [8]int64
	rest = line
	for i := range nums {
		var word string
		word, rest, _ = strings.Cut(rest, " ")
		base := 10
		if i == 0 {
			base = 16
		}
		if i >= 6 { // inodes and devices have all 64 bits
			var u uint64
			u, err = strconv.ParseUint(word, base, 64)
			nums[i] = int64(u)
		} else {
			nums[i], err = strconv.ParseInt(word, base, 64)
		}
		if err != nil {
			return nil, "", err
		}
	}
	info = &fileInfo{size: nums[1], mode: fileMode(nums[0]), mtime: time.Unix(nums[2], 0)}
	info.sys = harnesslib.FileStat{
		UID: uint32(nums[3]), GID: uint32(nums[4]), Links: uint64(nums[5]), Inode: uint64(nums[6]), Device: uint64(nums[7]),
	}
	return info, rest, nil
}

// fileMode is io/fs's form of st_mode, as Linux has it.
func fileMode(raw int64) fs.FileMode {
	m := fs.FileMode(raw & 0o777)
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if raw&bit != 0 {
			m |= flag
		}
	}
	switch raw & 0o170000 {
	case 0o100000:
	case 0o040000:
		m |= fs.ModeDir
	case 0o120000:
		m |= fs.ModeSymlink
	case 0o010000:
		m |= fs.ModeNamedPipe
	case 0o140000:
		m |= fs.ModeSocket
	case 0o020000:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case 0o060000:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	return m
}

// ReadDir returns a directory's entries, sorted by name; symbolic links are described themselves. Entries that vanish
// meanwhile are left out. A directory whose list is longer than 256 MiB is refused with harnesslib.ErrTooLarge.
func (f *Files) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	word := rand.Text()
	res, err := f.call(ctx, request{op: "readdir", name: name, fn: fnList, args: []string{arg(name), word}, read: true, limit: maxList})
	if err != nil {
		return nil, err
	}
	text := string(res.Stdout)
	entries := []fs.DirEntry{}
	for record := range strings.SplitSeq(text, word+" ") {
		if record == "" {
			continue
		}
		info, file, err := parse(record)
		file, ok := strings.CutPrefix(strings.TrimSuffix(file, "\n"), "./")
		if err != nil || !ok || file == "" || file == "." || file == ".." || strings.ContainsAny(file, "/\x00") {
			return nil, &fs.PathError{Op: "readdir", Path: name, Err: fmt.Errorf("the sandbox sent an entry %s", printable(record))}
		}
		info.name = file
		entries = append(entries, fs.FileInfoToDirEntry(info))
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return slices.CompactFunc(entries, func(a, b fs.DirEntry) bool { return a.Name() == b.Name() }), nil
}
