package files

import (
	"errors"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	defaultEntries = 10_000
	maxEntries     = 100_000
)

// List answers fs.list: types, sizes, modes and link targets of a directory in one go.
func (r *Root) List(req *sandbusv1.ListRequest) (*sandbusv1.ListResponse, error) {
	p, err := r.placeOf(req)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = defaultEntries
	}
	if limit < 0 || limit > maxEntries {
		return nil, bus.Errorf(sandbusv1.Code_CODE_INVALID, "limit %d: want 1 to %d, or 0 for %d", limit, maxEntries, defaultEntries)
	}
	dir, err := r.open(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, r.wrap("list", p, err)
	}
	defer dir.close()
	resp := &sandbusv1.ListResponse{}
	for after := bus.FromText(req.GetAfter(), req.GetAfterRaw()); ; {
		names, more, err := namesAfter(dir.fd, after, limit)
		if err != nil {
			return nil, r.wrap("list", p, err)
		}
		if resp.Entries, err = describe(dir.fd, names); err != nil {
			return nil, r.wrap("list", p, err)
		}
		if !more {
			return resp, nil
		}
		after = names[len(names)-1]
		if len(resp.GetEntries()) > 0 { // else all have vanished: a page without entries would look like the end
			resp.More = true
			resp.Next, resp.NextRaw = bus.ToText(after)
			return resp, nil
		}
	}
}

// namesAfter returns the first names behind one, in the order of their bytes, and whether there are more. Its memory is
// bounded by limit, not by the directory.
func namesAfter(fd int, after string, limit int) (names []string, more bool, err error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, false, err
	}
	keep := func() {
		slices.Sort(names)
		if len(names) > limit {
			more = true
			clear(names[limit:])
			names = names[:limit]
		}
	}
	buf := make([]byte, 32<<10)
	all := make([]string, 0, 64)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENOENT) { // the directory itself was removed: nothing is in it
			n, err = 0, nil
		}
		if err != nil {
			return nil, false, err
		}
		if n <= 0 {
			keep()
			return names, more, nil
		}
		_, _, all = unix.ParseDirent(buf[:n], -1, all[:0])
		for _, name := range all {
			if name > after {
				names = append(names, name)
			}
		}
		if len(names) > 2*limit+1024 {
			keep()
		}
	}
}

// describe looks at the names of a directory. Those that have vanished are left out; those that may not be looked at
// have nothing but their name.
func describe(fd int, names []string) ([]*sandbusv1.FileInfo, error) {
	entries := make([]*sandbusv1.FileInfo, 0, len(names))
	block := make([]sandbusv1.FileInfo, len(names)) // one allocation for all
	for i, name := range names {
		var st unix.Stat_t
		err := ignoringEINTR(func() error { return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
		fi := &block[i]
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case errors.Is(err, unix.EACCES): // the directory may be read and not searched
			fi.Name, fi.NameRaw = bus.ToText(name)
		case err != nil:
			return nil, err
		default:
			setInfo(fi, name, &st)
		}
		if fi.GetType() == sandbusv1.FileType_FILE_TYPE_SYMLINK {
			if link, err := readlinkAt(fd, name); err == nil { // one that has just vanished has no text
				fi.LinkTarget, fi.LinkTargetRaw = bus.ToText(link)
			}
		}
		entries = append(entries, fi)
	}
	return entries, nil
}

// Remove answers fs.remove.
func (r *Root) Remove(req *sandbusv1.RemoveRequest) (*sandbusv1.RemoveResponse, error) {
	p, err := r.changing("remove", req)
	if err != nil {
		return nil, err
	}
	remove := os.Remove
	if req.GetRecursive() {
		remove = os.RemoveAll
	}
	if r.cage != nil {
		remove = r.cage.root.Remove
		if req.GetRecursive() {
			remove = r.cage.root.RemoveAll
		}
	}
	if err := removable(p); err != nil {
		return nil, err
	}
	if err := remove(p.path); err != nil {
		return nil, r.wrap("remove", p, err)
	}
	return &sandbusv1.RemoveResponse{}, nil
}

// removable refuses what can only be a mistake, as rm does.
func removable(p place) error {
	_, last := p.split()
	if clean := path.Clean(p.path); clean == "/" || clean == "." || last == "." || last == ".." {
		return &bus.Error{
			Code: sandbusv1.Code_CODE_INVALID, Path: p.given,
			Message: "remove " + printable(p.given) + `: the root directory, "." and ".." are not removed`,
		}
	}
	return nil
}
