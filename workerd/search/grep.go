package search

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

const (
	// batchFiles are handed to a core together: handing over one by one costs more than searching a small file.
	batchFiles = 16
	// maxBatches may be on their way: enough that no core waits while another is busy with a large file.
	maxBatches = 64
	// maxPending bounds the text that was found ahead of its turn, in bytes; each core may pass it by one file's
	// maxAnswerBytes.
	maxPending = 32 << 20
)

// grep is a GrepRequest that was checked.
type grep struct {
	pattern       *pattern
	choice        *choice
	scope         scope
	mode          sandbusv1.GrepMode
	before, after int
	limit         int
	maxLine       int
}

func newGrep(req *sandbusv1.GrepRequest) (g *grep, err error) {
	g = &grep{mode: req.GetMode()}
	if g.mode == sandbusv1.GrepMode_GREP_MODE_UNSPECIFIED {
		g.mode = sandbusv1.GrepMode_GREP_MODE_LINES
	}
	if _, known := sandbusv1.GrepMode_name[int32(g.mode)]; !known {
		return nil, invalid("mode %d: this worker knows 0 to %d", g.mode, len(sandbusv1.GrepMode_name)-1)
	}
	if err := checkCase(req.GetCaseMode()); err != nil {
		return nil, err
	}
	if g.pattern, err = newPattern(req); err != nil {
		return nil, err
	}
	if g.choice, err = newChoice(req.GetGlobs()); err != nil {
		return nil, err
	}
	if g.scope, err = newScope(req.GetScope()); err != nil {
		return nil, err
	}
	if g.limit, err = bounded("limit", req.GetLimit(), defaultMatches, maxMatches); err != nil {
		return nil, err
	}
	if g.maxLine, err = bounded("max_line", req.GetMaxLine(), defaultLine, maxLine); err != nil {
		return nil, err
	}
	if g.before, err = bounded("before", req.GetBefore(), 0, maxContext); err != nil {
		return nil, err
	}
	g.after, err = bounded("after", req.GetAfter(), 0, maxContext)
	return g, err
}

// Grep answers fs.grep.
func (r *Root) Grep(ctx context.Context, req *sandbusv1.GrepRequest) (*sandbusv1.GrepResponse, error) {
	given := bus.FromText(req.GetPath(), req.GetPathRaw())
	if err := checkPath(given); err != nil {
		return nil, err
	}
	g, err := newGrep(req)
	if err != nil {
		return nil, err
	}
	abs := r.abs(given)
	mode, _, err := r.look(abs, true)
	if err != nil {
		return nil, r.wrap(ctx, "grep", given, err)
	}
	if t := mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR { // whose writer would notice an open
		return nil, notSearched(given)
	}
	f, err := r.open(abs, 0)
	if err != nil {
		return nil, r.wrap(ctx, "grep", given, err)
	}
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close() // read only
		return nil, r.wrap(ctx, "grep", given, err)
	}
	a := &answer{g: g, resp: &sandbusv1.GrepResponse{Limit: int32(g.limit)}}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := g.tree(ctx, r, newDir(f, abs), a); err != nil {
			return nil, r.wrap(ctx, "grep", given, err)
		}
	case unix.S_IFREG:
		res := newScanner(g).file(ctx, fd)
		_ = f.Close() // read only
		if err := context.Cause(ctx); err != nil {
			return nil, r.wrap(ctx, "grep", given, err)
		}
		a.add(filepath.Base(given), res)
	default:
		_ = f.Close() // read only
		return nil, notSearched(given)
	}
	a.resp.Skipped = a.skipped.message()
	return a.resp, nil
}

func notSearched(given string) error {
	return &bus.Error{Code: sandbusv1.Code_CODE_NOT_REGULAR, Path: given, Message: given + ": is no regular file and no directory"}
}

// batch is some files in order.
type batch struct {
	number  int
	files   []entry
	walked  []skipped // what the walker had left out before each file
	results []fileResult
	done    chan struct{} // closed when results are there
}

// tree searches all files below a root, which it closes.
func (g *grep) tree(ctx context.Context, r *Root, root *dir, a *answer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &pipeline{
		g: g, ctx: ctx,
		jobs: make(chan *batch),
		// As many as may be on their way: this is the bound.
		order: make(chan *batch, maxBatches),
	}
	p.turn.L = &p.mu
	defer context.AfterFunc(ctx, p.wake)()
	var all sync.WaitGroup
	w := &walker{ctx: ctx, root: r, scope: g.scope, emit: p.take}
	all.Go(func() { p.walk(w, root) })
	for range max(1, runtime.GOMAXPROCS(0)) {
		all.Go(p.search)
	}
	err := p.collect(a)
	cancel(errStop)
	all.Wait()
	switch {
	case errors.Is(err, errStop):
		return nil
	case err != nil:
		return err
	case p.walkErr != nil:
		return p.walkErr
	}
	a.walked = w.skipped
	a.skipped = a.sum()
	return nil
}

// pipeline takes files from one walker to the cores and their results back into the walker's order.
type pipeline struct {
	g       *grep
	ctx     context.Context //nolint:containedctx // the search's own life
	jobs    chan *batch
	order   chan *batch
	now     *batch // being filled
	made    int
	w       *walker
	walkErr error

	mu      sync.Mutex // guards the fields below
	turn    sync.Cond  // pending or head has changed, or ctx has ended
	pending int        // bytes of results that were not collected
	head    int        // number of the batch that is collected next
}

func (p *pipeline) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn.Broadcast()
}

func (p *pipeline) walk(w *walker, root *dir) {
	defer close(p.jobs)
	defer close(p.order)
	p.w = w
	err := w.walk(root)
	if err == nil && p.now != nil {
		err = p.flush()
	}
	if err != nil && p.now != nil {
		p.now.release()
	}
	if !errors.Is(err, errStop) {
		p.walkErr = err
	}
}

// take is the walker's emit.
func (p *pipeline) take(e entry) error {
	switch e.typ {
	case sandbusv1.FileType_FILE_TYPE_REGULAR:
	case sandbusv1.FileType_FILE_TYPE_DIRECTORY:
		return nil
	case sandbusv1.FileType_FILE_TYPE_SYMLINK:
		if p.g.choice.match(e.name, e.rel) {
			p.w.skipped.links++
		}
		return nil
	default:
		if p.g.choice.match(e.name, e.rel) {
			p.w.skipped.special++
		}
		return nil
	}
	if !p.g.choice.match(e.name, e.rel) {
		return nil
	}
	if p.now == nil {
		p.now = &batch{
			number: p.made, files: make([]entry, 0, batchFiles), walked: make([]skipped, 0, batchFiles), done: make(chan struct{}),
		}
		p.made++
	}
	e.dir.refs.Add(1)
	p.now.files = append(p.now.files, e)
	p.now.walked = append(p.now.walked, p.w.skipped)
	if len(p.now.files) == batchFiles {
		return p.flush()
	}
	return nil
}

func (p *pipeline) flush() error {
	select {
	case p.order <- p.now:
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	select {
	case p.jobs <- p.now:
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	p.now = nil
	return nil
}

func (b *batch) release() {
	for _, e := range b.files {
		e.dir.release()
	}
}

// search is one core.
func (p *pipeline) search() {
	s := newScanner(p.g)
	for b := range p.jobs {
		b.results = make([]fileResult, len(b.files))
		for i, e := range b.files {
			if !p.mayGoOn(b.number) {
				break
			}
			b.results[i] = s.open(p.ctx, e)
			p.hold(b.results[i].bytes)
		}
		b.release()
		close(b.done)
	}
}

// mayGoOn waits while too much was found ahead of its turn; false: the search is over.
func (p *pipeline) mayGoOn(number int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.pending > maxPending && p.head != number && p.ctx.Err() == nil {
		p.turn.Wait()
	}
	return p.ctx.Err() == nil
}

func (p *pipeline) hold(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending += n
}

// collected says that a batch has had its turn.
func (p *pipeline) collected(b *batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range b.results {
		p.pending -= r.bytes
	}
	p.head = b.number + 1
	p.turn.Broadcast()
}

func (s *scanner) open(ctx context.Context, e entry) fileResult {
	fd, err := opened(e.dir.fd, e.name, unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return fileResult{gone: true}
	}
	if err != nil {
		return fileResult{failed: true}
	}
	res := s.file(ctx, fd)
	_ = unix.Close(fd) // read only
	return res
}

// collect takes the results in order. Errors: errStop when the answer is full.
func (p *pipeline) collect(a *answer) error {
	for b := range p.order {
		select {
		case <-b.done:
		case <-p.ctx.Done():
			return context.Cause(p.ctx)
		}
		if err := context.Cause(p.ctx); err != nil {
			return err // the batch may be incomplete
		}
		for i, e := range b.files {
			a.walked = b.walked[i]
			if !a.add(e.rel, b.results[i]) {
				a.skipped = a.sum()
				return errStop
			}
		}
		p.collected(b)
	}
	return context.Cause(p.ctx)
}
