package bus

import (
	"bytes"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// The bounds of what a worker remembers of the ops that have ended.
const (
	// maxOutcomes is more than the ops that one worker can end while a late request or abort is on its way.
	maxOutcomes = 8192
	// maxAnswers bounds the answers that are kept, in bytes; the oldest go first. Their ops stay known.
	maxAnswers = 16 << 20
	// keepAnswers is how long an answer is kept: longer than any caller repeats.
	keepAnswers = 10 * time.Minute
	// maxJoined bounds those that wait for one op's answer on reply subjects of their own.
	maxJoined = 16
)

// memory knows the latest ops that have ended, with their answers, and those that must not start. Its user holds the lock
// that guards it.
type memory struct {
	outcomes map[OpID]*outcome
	order    []OpID     // as they came
	answers  []*outcome // those that have an answer, by their ends
	bytes    int        // of the answers
}

// outcome is what is known of an op that is not under way.
type outcome struct {
	stillborn bool // aborted before it came: it will not start
	harness   HarnessID
	content   uint64 // of the request
	json      bool
	answer    []byte // nil when it was none, or is not kept any more
	at        time.Time
}

func (m *memory) ended(id OpID) bool {
	o := m.outcomes[id]
	return o != nil && !o.stillborn
}

func (m *memory) aborted(id OpID) bool {
	o := m.outcomes[id]
	return o != nil && o.stillborn
}

func (m *memory) abort(id OpID) { m.put(id, &outcome{stillborn: true}) }

// end notes how an op ended.
func (m *memory) end(id OpID, o *outcome) {
	m.put(id, o)
	if o.answer == nil {
		return
	}
	o.at = time.Now()
	m.answers = append(m.answers, o)
	m.bytes += len(o.answer)
	for len(m.answers) > 0 && (m.answers[0].answer == nil || m.bytes > maxAnswers || time.Since(m.answers[0].at) > keepAnswers) {
		m.drop(m.answers[0])
		m.answers[0] = nil
		m.answers = m.answers[1:]
	}
}

func (m *memory) drop(o *outcome) {
	m.bytes -= len(o.answer)
	o.answer = nil
}

func (m *memory) put(id OpID, o *outcome) {
	if old := m.outcomes[id]; old == nil {
		m.order = append(m.order, id)
	} else {
		m.drop(old) // it stays in answers, empty, until its turn
	}
	m.outcomes[id] = o
	if len(m.order) > maxOutcomes {
		m.drop(m.outcomes[m.order[0]])
		delete(m.outcomes, m.order[0])
		m.order = m.order[1:]
	}
}

// errKnown says that a request needs no handler: it came before, and was answered, or will be. Fail says nothing of it.
var errKnown = errors.New("the request came before")

// known says whether anybody can ask for the op again.
func (r *Request) known() bool { return !r.unnamed || r.renamed }

// content tells the request from another one under the same op.
func (r *Request) content() uint64 { return maphash.Bytes(r.srv.seed, r.msg.Data) }

// repeated says whether a request came before, and then has answered it.
func (s *Server) repeated(r *Request) bool {
	s.mu.Lock()
	if s.ops[r.Op] == nil && s.past.outcomes[r.Op] == nil {
		s.mu.Unlock()
		return false
	}
	err := s.knownLocked(r, r.Op, r.content())
	s.mu.Unlock()
	if err != nil {
		r.Fail(err)
	}
	return err != nil
}

// knownLocked looks for an op that a request may not start. Errors: errKnown when the same request is under way, and goes
// on, or has got its answer again; CODE_CONFLICT for another one; CODE_FORGOTTEN when nobody knows the answer any more.
func (s *Server) knownLocked(r *Request, id OpID, content uint64) error {
	if op := s.ops[id]; op != nil {
		same := op.content == content && op.harness == r.Harness
		switch {
		case same && op.reply == r.msg.Reply:
			op.remind()
			return errKnown
		case r.handler.again: // in place of the one before
			return nil
		case !same || !op.join(r.msg.Reply):
			return Errorf(sandbusv1.Code_CODE_CONFLICT, "op %s is under way: an op names one request for good", id)
		}
		op.stillHere()
		return errKnown
	}
	o := s.past.outcomes[id]
	switch {
	case o == nil || o.stillborn || r.handler.again:
		return nil
	case o.content != content || o.harness != r.Harness:
		return Errorf(sandbusv1.Code_CODE_CONFLICT, "op %s was used before: an op names one request for good", id)
	case o.answer != nil:
		if err := s.publishAnswer(r.msg.Reply, o.json, o.answer); err != nil {
			s.log.Warn("answer not sent again", "verb", r.Verb, "op", string(id), "error", err) // it will be asked for again
		}
		return errKnown
	case r.handler.reads:
		return nil
	}
	return Errorf(sandbusv1.Code_CODE_FORGOTTEN, "op %s has ended and its answer is not kept any more", id)
}

// join has a reply subject get the op's answer, too. It says no to one too many, and when the op is answered by a stream,
// which has one reader.
func (op *Op) join(reply string) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.out != nil || op.in != nil {
		return false
	}
	if slices.Contains(op.also, reply) {
		return true
	}
	if len(op.also) == maxJoined {
		return false
	}
	op.also = append(op.also[:len(op.also):len(op.also)], reply)
	return true
}

// remember keeps the answer of an op for those who ask again, and says who waits for it elsewhere.
func (r *Request) remember(answer []byte) (also []string) {
	if r.op == nil || r.handler.again {
		return nil
	}
	if r.known() {
		r.answer = bytes.Clone(answer)
	}
	r.op.mu.Lock()
	defer r.op.mu.Unlock()
	return r.op.also
}
