package bus

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSubject(t *testing.T) {
	inst := "7f9c24e8-3b12-4fef-91e0-5f3f4f1d2a3b"
	for _, c := range []struct {
		text string
		want Subject
	}{
		{"sbx.main.box1." + inst + ".fs.read", Subject{Kind: SubjectRequest, Zone: "main", Sandbox: "box1", Instance: InstanceID(inst), Verb: "fs.read"}},
		{"sbx.main.box1.i.health", Subject{Kind: SubjectRequest, Zone: "main", Sandbox: "box1", Instance: "i", Verb: "health"}},
		{"sbx.z.b.i.op.o1.abort", Subject{Kind: SubjectControl, Zone: "z", Sandbox: "b", Instance: "i", Op: "o1", Control: "abort"}},
		{"rep.z.b.h.c.o", Subject{Kind: SubjectReply, Zone: "z", Sandbox: "b", Harness: "h", Conn: "c", Op: "o"}},
		{"hb.z.b", Subject{Kind: SubjectBeat, Zone: "z", Sandbox: "b"}},
		{"evt.z.b.hello", Subject{Kind: SubjectEvent, Zone: "z", Sandbox: "b", Event: "hello"}},
		{"bc.z", Subject{Kind: SubjectBeatNow, Zone: "z"}},
	} {
		got, err := ParseSubject(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got)
		require.Equal(t, c.text, got.String())
	}
}

func TestParseSubjectRefuses(t *testing.T) {
	for _, s := range []string{
		"", "sbx", "sbx.z", "sbx.z.b.i", "sbx.z.b.i.", "sbx.z..i.v", "sbx.z.*.i.v", "sbx.z.b.i.>", "sbx.z.b.i.op", "sbx.z.b.i.op.o",
		"sbx.z.b.i.a.b.c.d", "rep.z.b.h.c", "rep.z.b.h.c.o.x", "hb.z", "hb.z.b.c", "evt.z.b", "bc", "bc.z.z", "foo.z.b",
		"hb.Z.b", "hb.z.b\x00", "hb.z. b", "hb.z._b", "hb.z.-b", "hb.z.bé", "hb.z." + strings.Repeat("b", 64),
		"sbx." + strings.Repeat("z", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("i", 63) + "." + strings.Repeat("v", 63) + ".x",
	} {
		_, err := ParseSubject(s)
		require.ErrorIs(t, err, ErrSubject, "%q", s)
	}
}

func TestSubjectStringOfAnIllegalValueIsEmpty(t *testing.T) {
	require.Empty(t, Subject{}.String())
	require.Empty(t, Subject{Kind: SubjectBeat, Zone: "a.b", Sandbox: "c"}.String())
	require.Empty(t, Subject{Kind: SubjectRequest, Zone: "z", Sandbox: "b", Instance: "i", Verb: "op.x.abort"}.String())
	require.Empty(t, Subject{Kind: SubjectBeat, Zone: "z", Sandbox: "b", Verb: "left"}.String())
}

func TestIDs(t *testing.T) {
	for _, ok := range []string{"a", "0", "box-1_x", strings.Repeat("a", 63)} {
		id, err := ParseSandboxID(ok)
		require.NoError(t, err)
		require.Equal(t, SandboxID(ok), id)
	}
	for _, bad := range []string{"", "A", "a.b", "*", ">", "a b", "-a", "_a", "a\x00", "é", strings.Repeat("a", 64)} {
		_, err := ParseSandboxID(bad)
		var ie *IDError
		require.ErrorAs(t, err, &ie, "%q", bad)
		require.Contains(t, err.Error(), "63")
	}
	require.NotEqual(t, NewOpID(), NewOpID())
	for _, id := range []string{string(NewOpID()), string(NewConnID()), string(NewInstanceID())} {
		require.True(t, isToken(id), id)
	}
}

func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"sbx.z.b.i.fs.read", "sbx.z.b.i.op.o.ack", "rep.z.b.h.c.o", "hb.z.b", "evt.z.b.bye", "bc.z", "a..b", "sbx.>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		subj, err := ParseSubject(s)
		if err != nil {
			require.ErrorIs(t, err, ErrSubject)
			return
		}
		require.LessOrEqual(t, len(s), MaxSubject)
		require.Equal(t, s, subj.String())
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add(Frame{Seq: 1, Kind: FrameStdout, Body: []byte("x")}.Append(nil))
	f.Add(ackFrame(FrameAck, 3, 9))
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := ParseFrame(b)
		if err != nil {
			var se *StreamError
			require.ErrorAs(t, err, &se)
			return
		}
		require.Equal(t, b, fr.Append(nil))
		require.True(t, isFrame(b))
	})
}
