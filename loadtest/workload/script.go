package workload

import (
	"context"
	"strings"
)

// Shell runs shell text in a sandbox and returns its standard output; an exit code other than 0 is an error.
type Shell func(ctx context.Context, script string) ([]byte, error)

// Do does the operation by shell text, as a harness must whose transport has nothing else: an edit is a read and a
// write. It checks the answer.
func (s Shell) Do(ctx context.Context, o *Op) error {
	if o.Kind == Edit {
		text, err := s(ctx, "cat -- "+Quote(o.Path))
		if err != nil {
			return err
		}
		if n := strings.Count(string(text), o.Old); n != 1 {
			return wrong("edit %s: %q is there %d times, want once", o.Path, o.Old, n)
		}
		_, err = s(ctx, write(o.Path, strings.Replace(string(text), o.Old, o.New, 1)))
		return err
	}
	out, err := s(ctx, o.Shell())
	if err != nil {
		return err
	}
	return o.Check(out)
}

func write(path, data string) string { return "printf %s " + Quote(data) + " > " + Quote(path) }

// Shell is the operation as POSIX shell text; not for an edit.
func (o *Op) Shell() string {
	path := Quote(o.Path)
	switch o.Kind {
	case Read:
		return "cat -- " + path
	case Write:
		return write(o.Path, string(o.Data))
	case Ls:
		return "ls -1A -- " + path
	case Stat:
		return "stat -c '%s %Y %f' -- " + path
	case Find:
		return "find " + path + " -name " + Quote(o.Pattern)
	case Grep:
		return "grep -rnF -e " + Quote(o.Pattern) + " -- " + path
	case Exec, Stream, Converge:
		return o.Script
	case Edit:
	}
	panic("kind " + string(o.Kind) + " is no single piece of shell text")
}
