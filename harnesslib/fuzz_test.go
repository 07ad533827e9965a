package harnesslib

import (
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

// encoded is a seed: a message as it stands on the wire.
func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	require.NoError(tb, err)
	return b
}

// below says that a name, joined to a directory, stays in it.
func below(t *testing.T, name string) {
	t.Helper()
	require.True(t, strings.HasPrefix(path.Join("/dir", name), "/dir/"), "%q", name)
	require.NotContains(t, name, "\x00")
}

func FuzzDirectoryListing(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.ListResponse{Entries: []*sandbusv1.FileInfo{{Name: "a", Mode: 0o7777}, {NameRaw: []byte("\xff")}}}), "")
	f.Add(encoded(f, &sandbusv1.ListResponse{Entries: []*sandbusv1.FileInfo{{Name: ".."}}}), "a")
	f.Fuzz(func(t *testing.T, b []byte, after string) {
		var m sandbusv1.ListResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		entries, err := dirEntries(m.GetEntries(), after)
		if err != nil {
			return
		}
		for _, e := range entries {
			below(t, e.Name())
			require.NotContains(t, e.Name(), "/")
			require.Greater(t, e.Name(), after)
			after = e.Name()
			info, err := e.Info()
			require.NoError(t, err)
			_ = fs.FormatFileInfo(info)
		}
	})
}

func FuzzTreeListing(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.WalkResponse{Entries: []*sandbusv1.WalkEntry{{Path: "a/b"}, {PathRaw: []byte("a/../../x")}}}), true)
	f.Fuzz(func(t *testing.T, b []byte, details bool) {
		var m sandbusv1.WalkResponse
		var l Listing
		if proto.Unmarshal(b, &m) != nil || l.add("walk", "/dir", m.GetEntries(), details) != nil {
			return
		}
		for _, e := range l.Entries {
			below(t, e.Path)
		}
	})
}

func FuzzGrepResult(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.GrepResponse{Files: []*sandbusv1.GrepFile{{Path: "a", Lines: []*sandbusv1.GrepLine{{Text: "x", MatchStart: 5, MatchEnd: -3}}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m sandbusv1.GrepResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r, err := grepResult("/dir", &m)
		if err != nil {
			return
		}
		for _, file := range r.Files {
			below(t, file.Path)
			for _, l := range file.Lines {
				_ = l.Text[l.Match[0]:l.Match[1]] // a caller's own code
			}
		}
	})
}

func FuzzBatchResult(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Read{Read: &sandbusv1.ReadResponse{Data: []byte("x")}}}))
	f.Add(encoded(f, &sandbusv1.BatchResult{Result: &sandbusv1.BatchResult_Hash{Hash: &sandbusv1.HashResponse{Sha256: []byte("x")}}}))
	ops := []BatchOp{StatOp("x"), ReadOp("x", 0, 0), ListOp("x", 0), ReadLinkOp("x"), HashOp("x", 0, 0), MIMEOp("x")}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m sandbusv1.BatchResult
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		taken := 0
		for _, op := range ops {
			r := batchResult(op, &m)
			if r.Err == nil {
				taken++
			}
			for _, e := range r.Entries {
				below(t, e.Name())
			}
		}
		require.LessOrEqual(t, taken, 1, "a result is of one kind")
	})
}

// FuzzExecEnd reads the end of an exec: a success is what says so, and nothing else.
func FuzzExecEnd(f *testing.F) {
	exited := sandbusv1.OutcomeKind_OUTCOME_KIND_EXITED
	f.Add(encoded(f, &sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: exited}}))
	f.Add(encoded(f, &sandbusv1.StreamEnd{Outcome: &sandbusv1.Outcome{Kind: 99, Code: 1 << 30, Message: "\x1b"}, Timing: &sandbusv1.Timing{RunUs: 1 << 62}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Cmd{ctx: t.Context()}
		err := c.finish(bus.Frame{Kind: bus.FrameEnd, Body: b})
		if err == nil && !c.Running {
			require.Equal(t, Outcome{
				Kind: Exited, Message: c.Outcome.Message, Signal: c.Outcome.Signal, Stage: c.Outcome.Stage,
				Clock: c.Outcome.Clock, Errno: c.Outcome.Errno,
			}, c.Outcome)
		}
		if err != nil {
			require.NotContains(t, err.Error(), "\x1b")
		}
	})
}

func FuzzExecList(f *testing.F) {
	f.Add(encoded(f, &sandbusv1.ExecListResponse{Execs: []*sandbusv1.ExecInfo{{ExecId: "a", Pid: -1, Outcome: &sandbusv1.Outcome{Kind: 99}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m sandbusv1.ExecListResponse
		if proto.Unmarshal(b, &m) == nil {
			require.Len(t, execInfos(&m), len(m.GetExecs()))
		}
	})
}
