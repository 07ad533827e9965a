package bus

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

func TestShapeOfAnswers(t *testing.T) {
	list := (&sandbusv1.ListResponse{}).ProtoReflect().Descriptor()
	honest := &sandbusv1.ListResponse{}
	for range 100_000 {
		honest.Entries = append(honest.Entries, &sandbusv1.FileInfo{Name: "some-name", Size: 1})
	}
	b, err := proto.Marshal(honest)
	require.NoError(t, err)
	require.NoError(t, checkShape(b, list))

	number := list.Fields().ByName("entries").Number()
	empty := []byte{byte(number<<3 | 2), 0} // an entry without anything takes two bytes
	var se *StreamError
	require.ErrorAs(t, checkShape([]byte(strings.Repeat(string(empty), maxElements+1)), list), &se)
	require.NoError(t, checkShape([]byte(strings.Repeat(string(empty), maxElements)), list))

	grep := (&sandbusv1.GrepResponse{}).ProtoReflect().Descriptor()
	file := &sandbusv1.GrepFile{}
	for range maxElements {
		file.Lines = append(file.Lines, &sandbusv1.GrepLine{})
	}
	b, err = proto.Marshal(&sandbusv1.GrepResponse{Files: []*sandbusv1.GrepFile{file}})
	require.NoError(t, err)
	require.ErrorAs(t, checkShape(b, grep), &se, "also further in")

	data, err := proto.Marshal(&sandbusv1.ReadResponse{Data: make([]byte, 1<<20)})
	require.NoError(t, err)
	require.NoError(t, checkShape(data, (&sandbusv1.ReadResponse{}).ProtoReflect().Descriptor()), "bytes are one part")
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ü, 日本, two\n\tlines": "plain, ü, 日本, two\n\tlines",
		"\x1b]0;title\a\x1b[2J":      `\x1b]0;title\a\x1b[2J`,
		"\u009b31m":                  `\u009b31m`,
		"a\rb\bc\x7f":                `a\rb\bc\x7f`,
		"\xff\xfe":                   `\xff\xfe`,
		"\u202eevil":                 `\u202eevil`,
	} {
		require.Equal(t, want, Printable(in))
	}
	require.LessOrEqual(t, len(Printable(strings.Repeat("x", 1<<20))), maxErrorMessage+4)
}
