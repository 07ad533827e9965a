package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandbus/sandbus/bus"
)

const (
	minToken     = 16      // bytes; a shorter one can be guessed
	maxTokenFile = 4 << 20 // bytes
)

// Tokens says who may attach and who may run commands. It is read from a file of lines
//
//	sandbox ID TOKEN              a worker with TOKEN may attach as sandbox ID
//	harness NAME TOKEN [ID...]    a harness with TOKEN may use these sandboxes; none named means all
//
// Empty lines and lines that begin with # do not count. The file is read again when it has changed; while it cannot be
// read, nobody is let in. It may be used by several goroutines.
type Tokens struct {
	path string

	mu      sync.Mutex // guards the fields below
	entries []tokenEntry
	seen    fileStamp
	err     error // why nobody is let in
}

type fileStamp struct {
	size    int64
	changed time.Time
}

type tokenEntry struct {
	digest    [sha256.Size]byte // of the token: all have one length, and no token stays in memory
	worker    bool
	name      string   // sandbox id of a worker, name of a harness
	sandboxes []string // of a harness; empty means all
}

// OpenTokens reads a file of tokens. Errors name the file and the line.
func OpenTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshLocked()
	return t, t.err
}

// refreshLocked reads the file when it has changed.
func (t *Tokens) refreshLocked() {
	fi, err := os.Stat(t.path)
	if err != nil {
		t.entries, t.seen, t.err = nil, fileStamp{}, fmt.Errorf("tokens: %w", err)
		return
	}
	stamp := fileStamp{fi.Size(), fi.ModTime()}
	if stamp == t.seen {
		return
	}
	t.seen = stamp
	t.entries, t.err = readTokens(t.path, fi)
	if t.err != nil {
		t.entries = nil
	}
}

func readTokens(path string, fi os.FileInfo) ([]tokenEntry, error) {
	switch {
	case !fi.Mode().IsRegular() || fi.Size() > maxTokenFile:
		return nil, fmt.Errorf("tokens %s: want a regular file of at most %d bytes", path, maxTokenFile)
	case fi.Mode().Perm()&0o007 != 0: // a group may: it is how Kubernetes hands secrets to a user that is not root
		return nil, fmt.Errorf("tokens %s: everybody may read it (mode %04o): want 0600, or 0640", path, fi.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	entries, err := parseTokens(b)
	if err != nil {
		return nil, fmt.Errorf("tokens %s: %w", path, err)
	}
	return entries, nil
}

// parseTokens reads the lines of a file. Errors never contain a token.
func parseTokens(b []byte) ([]tokenEntry, error) {
	var entries []tokenEntry
	for i, line := range bytes.Split(b, []byte("\n")) {
		f := strings.Fields(string(line))
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		e, err := parseTokenLine(f)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		for _, other := range entries {
			if other.digest == e.digest && (other.worker != e.worker || !e.worker) {
				return nil, fmt.Errorf("line %d: the token of %s again: want one token for each harness", i+1, other.name)
			}
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil, errors.New(`no token: want lines "sandbox ID TOKEN" and "harness NAME TOKEN [ID...]"`)
	}
	return entries, nil
}

func parseTokenLine(f []string) (tokenEntry, error) {
	var e tokenEntry
	if (f[0] != "sandbox" && f[0] != "harness") || len(f) < 3 || (f[0] == "sandbox" && len(f) > 3) {
		return e, errors.New(`want "sandbox ID TOKEN" or "harness NAME TOKEN [ID...]"`)
	}
	e.worker, e.name, e.sandboxes = f[0] == "sandbox", f[1], f[3:]
	ids := e.sandboxes
	if e.worker {
		ids = []string{e.name}
	} else if _, err := bus.ParseHarnessID(e.name); err != nil {
		return e, err
	}
	for _, id := range ids {
		if _, err := bus.ParseSandboxID(id); err != nil {
			return e, err
		}
	}
	if len(f[2]) < minToken {
		return e, fmt.Errorf("the token of %s has %d bytes: want at least %d", e.name, len(f[2]), minToken)
	}
	e.digest = sha256.Sum256([]byte(f[2]))
	return e, nil
}

// find returns the entries that a call's token has. All are compared, each in constant time.
func (t *Tokens) find(ctx context.Context) ([]tokenEntry, error) {
	digest, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.refreshLocked()
	entries, err := t.entries, t.err
	t.mu.Unlock()
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, "the gateway has no tokens that it can read: nobody is let in")
	}
	var found []tokenEntry
	for _, e := range entries {
		if subtle.ConstantTimeCompare(e.digest[:], digest[:]) == 1 {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, status.Error(codes.Unauthenticated, "the token is refused")
	}
	return found, nil
}

// bearer is the digest of a call's token.
func bearer(ctx context.Context) ([sha256.Size]byte, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return [sha256.Size]byte{}, status.Errorf(codes.Unauthenticated, "%d values of metadata authorization: want one, \"Bearer <token>\"", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return [sha256.Size]byte{}, status.Error(codes.Unauthenticated, `metadata authorization: want "Bearer <token>"`)
	}
	return sha256.Sum256([]byte(token)), nil
}

// harness returns the name of the harness that calls, when it may use a sandbox.
func (t *Tokens) harness(ctx context.Context, sandbox string) (string, error) {
	found, err := t.find(ctx)
	if err != nil {
		return "", err
	}
	if found[0].worker { // then all of them are: a harness shares its token with nobody
		return "", status.Error(codes.PermissionDenied, "the token is a sandbox's: running commands needs a harness's")
	}
	if allowed := found[0].sandboxes; len(allowed) > 0 && !slices.Contains(allowed, sandbox) {
		return "", status.Errorf(codes.PermissionDenied, "harness %s may not use sandbox %.63q", found[0].name, sandbox)
	}
	return found[0].name, nil
}

// anyWorker says whether a call's token is some sandbox's.
func (t *Tokens) anyWorker(ctx context.Context) error {
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	if !found[0].worker {
		return status.Error(codes.PermissionDenied, "the token is a harness's: attaching needs the sandbox's")
	}
	return nil
}

// worker says whether a call's token is that of a sandbox.
func (t *Tokens) worker(ctx context.Context, sandbox string) error {
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	for _, e := range found {
		if e.worker && e.name == sandbox {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "the token is not that of sandbox %.63q", sandbox)
}
