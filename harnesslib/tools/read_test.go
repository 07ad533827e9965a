package tools

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
	"golang.org/x/image/bmp"
)

func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestReadText(t *testing.T) {
	wide := strings.Repeat(strings.Repeat("x", 99)+"\n", 600) // 100 bytes each: 512 lines are 51,199 bytes with newlines between
	for _, c := range []struct {
		name, content string
		p             ReadParams
		want          string
	}{
		{"whole", "a\nb\n", ReadParams{}, "a\nb\n"},
		{"no final newline", "a\nb", ReadParams{}, "a\nb"},
		{"empty", "", ReadParams{}, ""},
		{"one newline", "\n", ReadParams{}, "\n"},
		{"BOM and CR stay", "\ufeffa\r\nb\r\n", ReadParams{}, "\ufeffa\r\nb\r\n"},
		{"offset", "a\nb\nc\n", ReadParams{Offset: 2}, "b\nc\n"},
		{"negative offset is the start", "a\nb\n", ReadParams{Offset: -5}, "a\nb\n"},
		{"last line", "a\nb\n", ReadParams{Offset: 2}, "b\n"},
		{"limit", "a\nb\nc\nd\n", ReadParams{Limit: 2}, "a\nb\n\n[2 more lines in file. Use offset=3 to continue]"},
		{"limit is the rest", "a\nb\n", ReadParams{Limit: 2}, "a\nb\n"},
		{"offset and limit", "a\nb\nc\nd", ReadParams{Offset: 2, Limit: 1}, "b\n\n[2 more lines in file. Use offset=3 to continue]"},
		{"exactly 2,000 lines", numbered(1, 2000), ReadParams{}, numbered(1, 2000)},
		{
			"2,001 lines", numbered(1, 2001),
			ReadParams{},
			strings.TrimSuffix(numbered(1, 2000), "\n") + "\n\n[Showing lines 1-2000 of 2001. Use offset=2001 to continue]",
		},
		{"the rest of 2,001 lines", numbered(1, 2001), ReadParams{Offset: 2001}, "line 2001\n"},
		{
			"a limit over 2,000", numbered(1, 2500),
			ReadParams{Limit: 2400},
			strings.TrimSuffix(numbered(1, 2000), "\n") + "\n\n[Showing lines 1-2000 of 2500. Use offset=2001 to continue]",
		},
		{
			"bytes", wide,
			ReadParams{},
			wide[:51199] + "\n\n[Showing lines 1-512 of 600 (50.0KB limit). Use offset=513 to continue]",
		},
		{"exactly 51,200 bytes", strings.Repeat("x", 51200) + "\n", ReadParams{}, strings.Repeat("x", 51200) + "\n"},
		{
			"a first line over the limit", strings.Repeat("x", 51201) + "\nb\n",
			ReadParams{Path: "/it's"},
			`[Line 1 is 50.0KB, over the 50.0KB limit. Use bash for a part of it: sed -n '1p' '/it'\''s' | head -c 51200]`,
		},
		{
			"a line over the limit at the offset", "a\n" + strings.Repeat("x", 1<<20) + "\nb\n",
			ReadParams{Offset: 2},
			`[Line 2 is 1.0MB, over the 50.0KB limit. Use bash for a part of it: sed -n '2p' '/f' | head -c 51200]`,
		},
		{"a line over the limit later", "a\n" + strings.Repeat("x", 1<<20), ReadParams{}, "a\n\n[Showing lines 1-1 of 2 (50.0KB limit). Use offset=2 to continue]"},
		{"invalid UTF-8 stays", "a\xffb", ReadParams{}, "a\xffb"},
		{"a NUL behind 8 KiB is text", strings.Repeat("x\n", 4096) + "\x00", ReadParams{Offset: 4096}, "x\n\x00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.p.Path == "" {
				c.p.Path = "/f"
			}
			f := newFakeFiles(map[string]string{c.p.Path: c.content})
			r, err := f.tools(Config{}).Read(t.Context(), c.p)
			require.NoError(t, err)
			require.Equal(t, c.want, r.Text)
			require.Nil(t, r.Image)
			lines := strings.Count(c.content, "\n")
			if c.content != "" && !strings.HasSuffix(c.content, "\n") {
				lines++
			}
			require.Equal(t, lines, r.TotalLines)
			require.Equal(t, strings.Contains(c.want, "offset=") || strings.Contains(c.want, "sed -n"), r.NextOffset > 0)
			require.Empty(t, f.asked, "a plain path that is there needs no resolving")
		})
	}
}

func TestReadRefusals(t *testing.T) {
	f := newFakeFiles(map[string]string{
		"/f": "a\nb\n", "/empty": "", "/bin": "\x7fELF\x02\x01\x00\x00", "/utf32": "\xff\xfe\x00\x00a\x00\x00\x00", "/png": "\x89PNG\r\n\x1a\n\x00\x00",
	})
	for _, c := range []struct {
		p    ReadParams
		want string
	}{
		{ReadParams{Path: "/f", Offset: 3}, "read /f: offset 3 is beyond the end of the file (2 lines)"},
		{ReadParams{Path: "/empty", Offset: 2}, "read /empty: offset 2 is beyond the end of the file (0 lines)"},
		{ReadParams{Path: "/f", Limit: -1}, "read: limit -1: want 1 or more, or none for 2000"},
		{ReadParams{Path: ""}, "the path is empty"},
		{ReadParams{Path: "/nowhere"}, "read /nowhere: file does not exist"},
		{ReadParams{Path: "/bin"}, "read /bin: is a binary file (application/octet-stream, 8B) and not shown"},
		{ReadParams{Path: "/utf32"}, "is a binary file"},
		{ReadParams{Path: "/png"}, "is a binary file"},
	} {
		_, err := f.tools(Config{}).Read(t.Context(), c.p)
		require.ErrorContains(t, err, c.want)
	}
	_, err := New(Config{}).Read(t.Context(), ReadParams{Path: "/f"})
	require.ErrorContains(t, err, "has no such tool")
}

func TestReadUTF16(t *testing.T) {
	text := "é\n" + strings.Repeat("日本 😀\r\n", 3000)
	for name, order := range map[string]binary.AppendByteOrder{"UTF-16LE": binary.LittleEndian, "UTF-16BE": binary.BigEndian} {
		data := order.AppendUint16(nil, 0xfeff)
		for _, u := range utf16.Encode([]rune(text)) {
			data = order.AppendUint16(data, u)
		}
		r, err := newFakeFiles(map[string]string{"/f": string(data)}).tools(Config{}).Read(t.Context(), ReadParams{Path: "/f", Offset: 3000})
		require.NoError(t, err)
		require.Equal(t, "日本 😀\r\n日本 😀\r\n\n[Transcoded from "+name+"]", r.Text)
		require.Equal(t, name, r.Encoding)
		require.Equal(t, 3001, r.TotalLines)
	}
}

func TestReadPaths(t *testing.T) {
	f := newFakeFiles(map[string]string{"/home/me/x": "home", "/w/caf\u0065\u0301": "nfd", "/w/It’s": "curly", "/w/plain": "plain"})
	f.alike = map[string]string{"~/x": "/home/me/x", "café": "/w/cafe\u0301", "It's": "/w/It’s", "@plain": "/w/plain"}
	for _, c := range []struct {
		path, want string
		asked      int
	}{
		{"~/x", "home", 1},
		{"café", "nfd", 1},
		{"It's", "curly", 1},
		{"@plain", "plain", 1},
		{"plain", "plain", 0},
		{"/w/plain", "plain", 0},
	} {
		f.asked = nil
		r, err := f.tools(Config{Dir: "/w"}).Read(t.Context(), ReadParams{Path: c.path})
		require.NoError(t, err)
		require.Equal(t, c.want, r.Text)
		require.Len(t, f.asked, c.asked, c.path)
	}
}

func testImage(w, h int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for x := range w / 2 {
		for y := range h / 2 {
			img.Set(x, y, color.NRGBA{255, 0, 0, 255}) // red in the upper left
		}
	}
	return img
}

func encoded(t *testing.T, media string, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	switch media {
	case "image/png":
		require.NoError(t, png.Encode(&b, img))
	case "image/jpeg":
		require.NoError(t, jpeg.Encode(&b, img, nil))
	case "image/gif":
		require.NoError(t, gif.Encode(&b, img, nil))
	case "image/bmp":
		require.NoError(t, bmp.Encode(&b, img))
	}
	return b.Bytes()
}

// tinyWebP is a lossless image of one pixel.
const tinyWebP = "RIFF\x1a\x00\x00\x00WEBPVP8L\r\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00"

// withOrientation puts an EXIF segment into a JPEG file.
func withOrientation(data []byte, value byte, order string) []byte {
	tiff := "II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00" + string(value) + "\x00\x00\x00\x00\x00\x00\x00"
	if order == "MM" {
		tiff = "MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00" + string(value) + "\x00\x00\x00\x00\x00\x00"
	}
	body := "Exif\x00\x00" + tiff
	seg := append([]byte{0xff, 0xe1, 0, byte(len(body) + 2)}, body...)
	return append(append(append([]byte{}, data[:2]...), seg...), data[2:]...)
}

func read(t *testing.T, data []byte) *ReadResult {
	t.Helper()
	r, err := newFakeFiles(map[string]string{"/f": string(data)}).tools(Config{}).Read(t.Context(), ReadParams{Path: "/f"})
	require.NoError(t, err)
	return r
}

func TestReadImages(t *testing.T) {
	for _, media := range []string{"image/png", "image/jpeg", "image/gif"} {
		data := encoded(t, media, testImage(40, 20))
		r := read(t, data)
		require.Equal(t, "Read image file ["+media+"]", r.Text)
		require.Equal(t, &Image{MediaType: media, Data: data, Width: 40, Height: 20, OriginalWidth: 40, OriginalHeight: 20}, r.Image)
	}
	r := read(t, []byte(tinyWebP))
	require.Equal(t, "image/webp", r.Image.MediaType)
	r = read(t, encoded(t, "image/bmp", testImage(40, 20)))
	require.Equal(t, "image/png", r.Image.MediaType, "models take no BMP")
	require.Equal(t, 40, r.Image.Width)

	r = read(t, encoded(t, "image/png", testImage(4000, 1000)))
	require.Equal(t, "Read image file [image/png]\n[Original 4000x1000, shown at 2000x500. Multiply coordinates by 2.00 to map them to the original]", r.Text)
	img, _, err := image.Decode(bytes.NewReader(r.Image.Data))
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, 2000, 500), img.Bounds())

	noise := image.NewNRGBA(image.Rect(0, 0, 1200, 1200))
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range noise.Pix {
		noise.Pix[i] = byte(rnd.Uint32())
	}
	data := encoded(t, "image/png", noise)
	require.Greater(t, len(data), MaxImageBytes)
	r = read(t, data)
	require.LessOrEqual(t, len(r.Image.Data), MaxImageBytes)

	require.Equal(t, "BM is how this text begins", read(t, []byte("BM is how this text begins")).Text)
	require.Equal(t, "GIF89a is how this text begins", read(t, []byte("GIF89a is how this text begins")).Text)
}

// TestOrientation holds that the corner that is red is where EXIF says that it is.
func TestOrientation(t *testing.T) {
	data := encoded(t, "image/jpeg", testImage(64, 32))
	for value, want := range map[byte]image.Point{
		1: {8, 8}, 2: {56, 8}, 3: {56, 24}, 4: {8, 24}, 5: {8, 8}, 6: {24, 8}, 7: {24, 56}, 8: {8, 56},
	} {
		for _, order := range []string{"II", "MM"} {
			r := read(t, withOrientation(data, value, order))
			img, _, err := image.Decode(bytes.NewReader(r.Image.Data))
			require.NoError(t, err)
			if value >= 5 {
				require.Equal(t, image.Rect(0, 0, 32, 64), img.Bounds())
			}
			red, _, _, _ := img.At(want.X, want.Y).RGBA()
			require.Greater(t, red, uint32(0xc000), "orientation %d", value)
		}
	}
}

func FuzzImage(f *testing.F) {
	f.Add([]byte(tinyWebP))
	f.Add(withOrientation([]byte("\xff\xd8\xff\xda\x00\x02"), 6, "MM"))
	f.Add([]byte("GIF89a\x01\x00\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if o := orientation(data); o < 1 || o > 8 {
			t.Fatalf("orientation %d", o)
		}
		if mediaType(data) == "" || len(data) > 1<<12 {
			return
		}
		m, err := newImage(data)
		if err != nil {
			return
		}
		require.LessOrEqual(t, max(m.Width, m.Height), MaxImageSide)
		require.LessOrEqual(t, len(m.Data), MaxImageBytes)
	})
}
