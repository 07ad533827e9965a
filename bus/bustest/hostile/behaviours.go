package hostile

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// Behaviour is one way not to keep to the protocol.
type Behaviour struct {
	Name string // what the sandbox does
	Verb string // of the request that it answers so
	// Want is a part of the harness's error; empty means that the behaviour is harmless, and the request succeeds.
	Want   string
	Answer func(*Request)
}

const flood = 50_000 // messages of a flood

// Behaviours are all that are known.
func Behaviours() []Behaviour {
	var all []Behaviour
	for _, of := range []struct {
		verb string
		list []Behaviour
	}{{"exec.start", execs()}, {"shell.run", fast()}, {"fs.read", reads()}, {"fs.list", lists()}} {
		for _, b := range of.list {
			b.Verb = of.verb
			all = append(all, b)
		}
	}
	return append(all, others()...)
}

// number is the body of a gap, an ack or a nak.
func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func started(then func(*Request)) func(*Request) {
	return func(r *Request) {
		r.Frame(bus.FrameStarted, nil)
		then(r)
	}
}

func raw(payload string) func(*Request) {
	return func(r *Request) { r.Raw([]byte(payload)) }
}

const garbage = "\xff\xff\xff\xff not a message"

// execs are answers to exec.start.
func execs() []Behaviour {
	chunk := make([]byte, bus.ChunkBytes)
	return []Behaviour{
		{Name: "output without credit", Want: "on a credit of", Answer: started(func(r *Request) {
			for range 2048 { // 64 MiB, whether anybody listens or not
				r.Frame(bus.FrameStdout, chunk)
			}
		})},
		{Name: "a frame over the bound", Want: "at most 131072 bytes", Answer: started(func(r *Request) { r.Frame(bus.FrameStdout, make([]byte, 200_000)) })},
		{Name: "a number far ahead", Want: "came when 1 was expected", Answer: started(func(r *Request) { r.FrameAt(1<<40, bus.FrameStdout, chunk) })},
		{Name: "a gap that is never filled", Want: "not confirmed", Answer: started(func(r *Request) {
			for range flood {
				r.FrameAt(5, bus.FrameStdout, []byte("x"))
			}
		})},
		{Name: "keep-alives for ever", Want: "not confirmed", Answer: started(func(r *Request) {
			for range flood {
				r.FrameAt(1, bus.FrameKeepAlive, nil)
			}
		})},
		{Name: "two ends", Want: "follows the end frame", Answer: started(func(r *Request) {
			r.Frame(bus.FrameStdout, []byte("x"))
			r.Exited()
			r.End(&sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: 1}})
			r.Flushed()
		})},
		{Name: "output before the start", Want: "begins with a started frame", Answer: func(r *Request) { r.Frame(bus.FrameStdout, chunk) }},
		{Name: "started twice", Want: "a started frame is the first", Answer: started(started(func(*Request) {}))},
		{Name: "a kind that does not exist", Want: "unknown kind 99", Answer: started(func(r *Request) { r.Frame(99, chunk) })},
		{Name: "half a frame", Want: "is no Failure", Answer: raw("\x00\x00\x00\x00\x00")},
		{Name: "a number beyond all", Want: "is no Failure", Answer: func(r *Request) { r.FrameAt(1<<63, bus.FrameStarted, nil) }},
		{Name: "a message of garbage", Want: "is no Failure", Answer: raw(garbage)},
		{Name: "a message where a stream belongs", Want: "a message came", Answer: raw("")},
		{Name: "an end of garbage", Want: "no StreamEnd", Answer: started(func(r *Request) { r.Frame(bus.FrameEnd, []byte(garbage)) })},
		{Name: "an outcome that does not exist", Want: "outcome of kind 77", Answer: started(func(r *Request) {
			r.End(&sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: 77}})
		})},
		{Name: "an exit code of 4711", Want: "code 4711", Answer: started(func(r *Request) {
			r.End(&sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED, Code: 4711}})
		})},
		{Name: "an ack of what was never sent", Want: "was acknowledged", Answer: started(func(r *Request) { r.FrameAt(1000, bus.FrameAck, number(1<<40)) })},
		{Name: "an ack without a number", Want: "has 8 bytes", Answer: started(func(r *Request) { r.FrameAt(0, bus.FrameAck, nil) })},
		{Name: "a gap of exabytes", Want: "2^56", Answer: started(func(r *Request) { r.Frame(bus.FrameGap, number(1<<63)) })},
		{Name: "frames without bytes", Want: "carries no bytes", Answer: started(func(r *Request) { r.Frame(bus.FrameStdout, nil) })},
		{Name: "data where output belongs", Want: "no frames of kind 4", Answer: started(func(r *Request) { r.Frame(bus.FrameData, chunk) })},
		{Name: "the end of data twice", Want: "no frames of kind 7", Answer: started(func(r *Request) {
			r.Frame(bus.FrameEOF, nil)
			r.Frame(bus.FrameEOF, nil)
		})},
		{Name: "nobody there, forged", Want: "does not answer", Answer: func(r *Request) {
			m := nats.NewMsg(r.reply)
			m.Header.Set("Status", "503")
			_ = r.worker.nc.PublishMsg(m) // fails only when the worker is closed
		}},
		{Name: "an error that takes the terminal", Want: `\x1b]0;`, Answer: func(r *Request) {
			r.Message(&sandbusv1.Failure{Error: &sandbusv1.Error{
				Code: sandbusv1.Code_CODE_INTERNAL, Message: "\x1b]0;owned\a\r" + strings.Repeat("x", 900_000),
			}})
		}},
		{Name: "a start that failed and takes the terminal", Want: `\x1b[2J`, Answer: func(r *Request) {
			r.End(&sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{
				Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_START_FAILED, Code: 127, Stage: "exec", Message: "\x1b[2J" + strings.Repeat("y", 100_000),
			}})
		}},
		{Name: "one frame over and over", Answer: started(func(r *Request) {
			for range flood {
				r.FrameAt(0, bus.FrameStarted, nil)
			}
			r.Exited()
		})},
		{Name: "answers to nobody", Answer: started(func(r *Request) {
			base := r.reply[:strings.LastIndexByte(r.reply, '.')+1]
			for i := range flood {
				r.publish(fmt.Sprint(base, "op", i), make([]byte, 256))
			}
			r.Exited()
		})},
		{Name: "answers in the name of another", Answer: started(func(r *Request) {
			t := strings.Split(r.reply, ".")
			t[2] = "good"
			for range 100 {
				r.publish(strings.Join(t, "."), bus.Frame{Seq: 1, Kind: bus.FrameEnd}.Append(nil))
			}
			r.Exited()
		})},
		{Name: "beats of garbage", Answer: started(func(r *Request) {
			for range flood / 10 {
				r.publish(fmt.Sprintf("hb.%s.%s", r.worker.target.Zone, r.worker.target.Sandbox), []byte(garbage))
				r.publish(fmt.Sprintf("evt.%s.%s.hello", r.worker.target.Zone, r.worker.target.Sandbox), []byte(garbage))
			}
			r.Exited()
		})},
	}
}

// fast are answers to shell.run.
func fast() []Behaviour {
	return []Behaviour{
		{Name: "an answer of garbage", Want: "is no ShellRunResponse", Answer: raw(garbage)},
		{Name: "an answer without an outcome", Want: "outcome of kind 0", Answer: raw("")},
		{Name: "an answer without an end", Want: "at most 67108864 bytes", Answer: func(r *Request) {
			r.Data(bus.FrameData, make([]byte, bus.MaxFrameBody), 65<<20)
		}},
		{Name: "an answer whose end says less", Want: "the end says", Answer: func(r *Request) {
			r.Data(bus.FrameData, []byte("data"), 4)
			r.End(&sandbusv1.StreamEnd{StdoutBytes: 3})
		}},
		{Name: "output in an answer", Want: "no frames of kind 2", Answer: func(r *Request) { r.Frame(bus.FrameStdout, []byte("x")) }},
		{Name: "a stream that begins and stays", Want: "not confirmed", Answer: func(r *Request) {
			for range flood {
				r.FrameAt(1, bus.FrameKeepAlive, nil)
			}
		}},
	}
}

// reads are answers to fs.read of the first 10 bytes.
func reads() []Behaviour {
	return []Behaviour{
		{Name: "more than was asked for, at once", Want: "10 bytes were asked for", Answer: func(r *Request) {
			r.Message(&sandbusv1.ReadResponse{Data: make([]byte, 900_000)})
		}},
		{Name: "more than was asked for, without an end", Want: "more bytes came", Answer: func(r *Request) {
			r.Frame(bus.FrameStarted, []byte{})
			r.Data(bus.FrameData, make([]byte, bus.MaxFrameBody), 1<<30)
		}},
		{Name: "other bytes than its sum says", Want: "SHA-256", Answer: func(r *Request) {
			r.Frame(bus.FrameStarted, []byte{})
			r.Data(bus.FrameData, []byte("data"), 4)
			r.End(&sandbusv1.StreamEnd{StdoutBytes: 4, Sha256: make([]byte, 32)})
		}},
	}
}

// lists are answers to fs.list.
func lists() []Behaviour {
	entries := func(names ...string) *sandbusv1.ListResponse {
		m := &sandbusv1.ListResponse{}
		for _, name := range names {
			m.Entries = append(m.Entries, &sandbusv1.FileInfo{Name: name})
		}
		return m
	}
	return []Behaviour{
		{Name: "a name that is a path", Want: `"../../etc"`, Answer: func(r *Request) { r.Message(entries("../../etc")) }},
		{Name: "names out of order", Want: `"a" behind "b"`, Answer: func(r *Request) { r.Message(entries("b", "a")) }},
		{Name: "a list without an end", Want: "goes on at", Answer: func(r *Request) {
			m := entries()
			m.More, m.Next = true, "a"
			r.Message(m)
		}},
		{Name: "entries of two bytes", Want: "at most 524288 parts", Answer: func(r *Request) {
			entry := []byte{byte((&sandbusv1.ListResponse{}).ProtoReflect().Descriptor().Fields().ByName("entries").Number()<<3 | 2), 0}
			all := bytes.Repeat(entry, 32<<10)
			total := 0
			for range 20 {
				r.Data(bus.FrameData, all, len(all))
				total += len(all)
			}
			r.End(&sandbusv1.StreamEnd{StdoutBytes: int64(total)})
		}},
	}
}

// archive is an answer to fs.pack.
func archive(write func(*tar.Writer) error) func(*Request) {
	return func(r *Request) {
		var b bytes.Buffer
		if err := write(tar.NewWriter(&b)); err != nil {
			panic(err) // a bug of the test double
		}
		r.Frame(bus.FrameStarted, []byte{})
		r.Data(bus.FrameData, b.Bytes(), b.Len())
		r.End(&sandbusv1.StreamEnd{StdoutBytes: int64(b.Len())})
	}
}

func others() []Behaviour {
	return []Behaviour{
		{Verb: "fs.walk", Name: "a path that leads out", Want: `"../x"`, Answer: func(r *Request) {
			r.Message(&sandbusv1.WalkResponse{Entries: []*sandbusv1.WalkEntry{{Path: "../x"}}})
		}},
		{Verb: "fs.grep", Name: "matches of garbage", Want: "is no GrepResponse", Answer: raw(garbage)},
		{Verb: "fs.pack", Name: "a file above the tree", Want: `".."`, Answer: archive(func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../x"})
		})},
		{Verb: "fs.pack", Name: "a link out of the tree and a file through it", Want: "absolute", Answer: archive(func(w *tar.Writer) error {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}); err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a/passwd"})
		})},
		{Verb: "fs.pack", Name: "an archive of garbage", Want: "archive", Answer: func(r *Request) {
			r.Frame(bus.FrameStarted, []byte{})
			r.Data(bus.FrameData, []byte(strings.Repeat(garbage, 100)), 1)
			r.End(&sandbusv1.StreamEnd{StdoutBytes: int64(len(garbage)) * 100})
		}},
		{Verb: "fs.batch", Name: "results of another number", Want: "2 results for a batch of 1", Answer: func(r *Request) {
			r.Message(&sandbusv1.BatchResponse{Results: make([]*sandbusv1.BatchResult, 2)})
		}},
		{Verb: "fs.batch", Name: "results of another kind", Want: "of another kind", Answer: func(r *Request) {
			r.Message(&sandbusv1.BatchResponse{Results: make([]*sandbusv1.BatchResult, 1)})
		}},
		{Verb: "fs.watch", Name: "events of garbage", Want: "no WatchBatch", Answer: started(func(r *Request) { r.Frame(bus.FrameData, []byte(garbage)) })},
		{Verb: "net.dial", Name: "an address that is none", Want: "IP:PORT", Answer: func(r *Request) {
			b := []byte{1<<3 | 2, 4, '\x1b', '[', '2', 'J'} // field 1, a string
			r.Frame(bus.FrameStarted, b)
		}},
		{Verb: "exec.list", Name: "a list of garbage", Want: "is no ExecListResponse", Answer: raw(garbage)},
		{Verb: "session.open", Name: "a session of garbage", Want: "is no SessionOpenResponse", Answer: raw(garbage)},
		{Verb: "fs.write", Name: "a write of garbage", Want: "is no WriteResponse", Answer: raw(garbage)},
	}
}
