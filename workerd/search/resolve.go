package search

import (
	"os"
	"os/user"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/text/unicode/norm"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/files"
)

// spaces are the characters that look like a space, and are meant as one by whoever copies a name.
var spaces = strings.NewReplacer(
	"\u00a0", " ", "\u2000", " ", "\u2001", " ", "\u2002", " ", "\u2003", " ", "\u2004", " ", "\u2005", " ", "\u2006", " ",
	"\u2007", " ", "\u2008", " ", "\u2009", " ", "\u200a", " ", "\u202f", " ", "\u205f", " ", "\u3000", " ",
)

var quotes = strings.NewReplacer("\u2018", "'", "\u2019", "'", "\u201a", "'", "\u201b", "'", "\u201c", `"`, "\u201d", `"`, "\u201e", `"`, "\u201f", `"`)

// likeness is what two names have in common that a reader cannot tell apart: macOS decomposes names and puts U+202F
// before AM and PM of its screenshots, and its dialogs make curly quotes.
func likeness(name string) string { return quotes.Replace(spaces.Replace(norm.NFC.String(name))) }

// Resolve answers fs.resolve.
func (r *Root) Resolve(req *sandbusv1.ResolveRequest) (*sandbusv1.ResolveResponse, error) {
	given := bus.FromText(req.GetPath(), req.GetPathRaw())
	if err := checkPath(given); err != nil {
		return nil, err
	}
	dir := bus.FromText(req.GetDir(), req.GetDirRaw())
	if dir == "" {
		dir = r.dir
	} else if err := checkPath(dir); err != nil {
		return nil, err
	}
	dir = r.abs(dir)
	written := strings.TrimPrefix(given, "@")
	if written == "" {
		return nil, invalid("path %q: there is nothing behind the @", given)
	}
	path, err := r.expand(dir, spaces.Replace(written))
	if err != nil {
		return nil, err
	}
	if !req.GetExact() && !r.there(path) {
		path = r.firstThere(path, r.similar(path), r.at(dir, given))
	}
	resp := &sandbusv1.ResolveResponse{}
	resp.Path, resp.PathRaw = bus.ToText(path)
	mode, size, err := r.look(path, true)
	if err != nil { // a broken link is something, too; why nothing can be seen is for the operation itself to say
		mode, size, err = r.look(path, false)
	}
	if err == nil {
		resp.Exists, resp.Type, resp.Size = true, files.TypeOf(mode), size
	}
	return resp, nil
}

func (r *Root) there(path string) bool {
	_, _, err := r.look(path, false)
	return err == nil
}

// firstThere is the first of the others that exists, else the path.
func (r *Root) firstThere(path string, others ...string) string {
	for _, o := range others {
		if r.there(o) {
			return o
		}
	}
	return path
}

func (r *Root) at(dir, path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return strings.TrimSuffix(dir, "/") + "/" + path
}

// expand puts the home directory for "~" and the directory before a relative path.
func (r *Root) expand(dir, path string) (string, error) {
	if path != "~" && !strings.HasPrefix(path, "~/") {
		return r.at(dir, path), nil
	}
	home := os.Getenv("HOME")
	if home == "" {
		u, err := user.Current()
		if err != nil || u.HomeDir == "" {
			return "", invalid("path %q: the worker's user has no home directory", path)
		}
		home = u.HomeDir
	}
	return home + path[1:], nil
}

// similar is the path with each name that does not exist replaced by one that looks the same.
func (r *Root) similar(path string) string {
	now := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		next := now + "/" + part
		if part != "" && part != "." && part != ".." && !r.there(next) {
			if name, ok := r.lookAlike(now+"/", part); ok {
				next = now + "/" + name
			}
		}
		now = next
	}
	return now
}

func (r *Root) lookAlike(dir, name string) (string, bool) {
	d, err := r.open(dir, unix.O_DIRECTORY)
	if err != nil {
		return "", false
	}
	defer func() { _ = d.Close() }() // read only
	names, err := d.Readdirnames(-1)
	if err != nil {
		return "", false
	}
	slices.Sort(names)
	want := likeness(name)
	for _, n := range names {
		if likeness(n) == want {
			return n, true
		}
	}
	return "", false
}
