package files

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
)

func BenchmarkStat(b *testing.B) {
	r := New(b.TempDir())
	require.NoError(b, os.WriteFile(r.dir+"/f", make([]byte, 3600), 0o644))
	req := &sandbusv1.StatRequest{Path: "f"}
	b.ReportAllocs()
	for b.Loop() {
		_, err := r.Stat(req)
		require.NoError(b, err)
	}
}

func BenchmarkRead(b *testing.B) {
	r := New(b.TempDir())
	for _, size := range []int{0, 3600, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			require.NoError(b, os.WriteFile(r.dir+"/f", make([]byte, size), 0o644))
			req := &sandbusv1.ReadRequest{Path: "f"}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				_, _, err := r.read(req)
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	r := New(b.TempDir())
	for _, size := range []int{3600, 1 << 20} {
		for _, noSync := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/no_sync=%t", size, noSync), func(b *testing.B) {
				req := &sandbusv1.WriteRequest{Path: "f", NoSync: noSync}
				data := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					_, err := r.write(req, &inline{data})
					require.NoError(b, err)
				}
			})
		}
	}
}

// BenchmarkEdit changes one line of a file of 1 MiB; compare with BenchmarkWrite/1048576.
func BenchmarkEdit(b *testing.B) {
	for _, fuzzy := range []bool{false, true} {
		for _, noSync := range []bool{false, true} {
			b.Run(fmt.Sprintf("fuzzy=%t/no_sync=%t", fuzzy, noSync), func(b *testing.B) {
				r := New(b.TempDir())
				var content bytes.Buffer
				for i := 0; content.Len() < 1<<20; i++ {
					_, _ = fmt.Fprintf(&content, "line %06d of a file that is neither short nor long\n", i)
				}
				require.NoError(b, os.WriteFile(r.dir+"/f", content.Bytes(), 0o644))
				quote := ""
				if fuzzy {
					quote = "  \n" // a trailing space that the file does not have
				}
				b.SetBytes(int64(content.Len()))
				b.ReportAllocs()
				now, next := "line", "LINE"
				for b.Loop() {
					resp, err := r.Edit(&sandbusv1.EditRequest{Path: "f", NoSync: noSync, Edits: []*sandbusv1.Edit{
						{OldText: now + " 010000 of a file that is neither short nor long" + quote, NewText: next + " 010000 of a file that is neither short nor long" + strings.TrimLeft(quote, " ")},
					}})
					require.NoError(b, err)
					require.Nil(b, resp.GetError())
					now, next = next, now
				}
			})
		}
	}
}

func BenchmarkList(b *testing.B) {
	r := New(b.TempDir())
	for i := range 100 {
		require.NoError(b, os.WriteFile(fmt.Sprintf("%s/file-%d.go", r.dir, i), make([]byte, i), 0o644))
	}
	req := &sandbusv1.ListRequest{Path: "."}
	b.ReportAllocs()
	for b.Loop() {
		_, err := r.List(req)
		require.NoError(b, err)
	}
}

// BenchmarkListEncoded adds what the wire costs.
func BenchmarkListEncoded(b *testing.B) {
	r := New(b.TempDir())
	for i := range 100 {
		require.NoError(b, os.WriteFile(fmt.Sprintf("%s/file-%d.go", r.dir, i), make([]byte, i), 0o644))
	}
	req := &sandbusv1.ListRequest{Path: "."}
	b.ReportAllocs()
	for b.Loop() {
		resp, err := r.List(req)
		require.NoError(b, err)
		_, err = proto.Marshal(resp)
		require.NoError(b, err)
	}
}
