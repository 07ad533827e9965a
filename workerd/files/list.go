package files

import (
	"errors"
	"os"
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
	given, abs, err := r.resolve(req)
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
	fd, err := unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, wrap("list", given, err)
	}
	d := os.NewFile(uintptr(fd), abs)
	defer func() { _ = d.Close() }() // read only
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, wrap("list", given, err)
	}
	slices.Sort(names)
	if after := bus.FromText(req.GetAfter(), req.GetAfterRaw()); after != "" {
		i, found := slices.BinarySearch(names, after)
		if found {
			i++
		}
		names = names[i:]
	}
	resp := &sandbusv1.ListResponse{}
	if len(names) > limit {
		names, resp.More = names[:limit], true
	}
	resp.Entries = make([]*sandbusv1.FileInfo, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue // has vanished meanwhile
		}
		if err != nil {
			return nil, wrap("list", given, err)
		}
		fi := info(name, &st)
		if fi.GetType() == sandbusv1.FileType_FILE_TYPE_SYMLINK {
			setTarget(fi, abs+"/"+name)
		}
		resp.Entries = append(resp.Entries, fi)
	}
	return resp, nil
}

// Remove answers fs.remove.
func (r *Root) Remove(req *sandbusv1.RemoveRequest) (*sandbusv1.RemoveResponse, error) {
	given, abs, err := r.resolve(req)
	if err != nil {
		return nil, err
	}
	if req.GetRecursive() {
		err = os.RemoveAll(abs)
	} else {
		err = os.Remove(abs)
	}
	if err != nil {
		return nil, wrap("remove", given, err)
	}
	return &sandbusv1.RemoveResponse{}, nil
}
