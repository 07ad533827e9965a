package tools

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/gif" // decoder
	"image/jpeg"
	"image/png"

	_ "golang.org/x/image/bmp" // decoder
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // decoder
)

const (
	// MaxImageSide is how many pixels an image has at most in each direction.
	MaxImageSide = 2000
	// MaxImageBytes is how many bytes an image has at most: 4.5 MiB.
	MaxImageBytes = 9 << 19
	// maxPixels bounds what is decoded: a small file can claim to be huge.
	maxPixels = 64 << 20
)

// Image is an image as a model can take it.
type Image struct {
	MediaType     string // image/jpeg, image/png, image/gif or image/webp
	Data          []byte
	Width, Height int
	// OriginalWidth and OriginalHeight are the file's, turned upright; the same as Width and Height when it was not
	// resized.
	OriginalWidth, OriginalHeight int
}

// note tells the model what it sees.
func (m *Image) note() string {
	text := fmt.Sprintf("Read image file [%s]", m.MediaType)
	if m.Width != m.OriginalWidth || m.Height != m.OriginalHeight {
		text += fmt.Sprintf("\n[Original %dx%d, shown at %dx%d. Multiply coordinates by %.2f to map them to the original]",
			m.OriginalWidth, m.OriginalHeight, m.Width, m.Height, float64(m.OriginalWidth)/float64(m.Width))
	}
	return text
}

// mediaType knows images by their first bytes; empty for all else.
func mediaType(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(b, []byte("GIF87a")), bytes.HasPrefix(b, []byte("GIF89a")):
		return "image/gif"
	case len(b) >= 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		return "image/webp"
	case len(b) >= 14 && string(b[:2]) == "BM":
		return "image/bmp"
	}
	return ""
}

// newImage decodes a file, turns it upright and makes it small enough. Errors: it cannot be decoded.
func newImage(data []byte) (*Image, error) {
	cfg, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if cfg.Width <= 0 || cfg.Height <= 0 || cfg.Width > maxPixels/cfg.Height {
		return nil, fmt.Errorf("%d x %d pixels, the bound is %d in all", cfg.Width, cfg.Height, maxPixels)
	}
	src, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	media := mediaType(data)
	turn := 1
	if media == "image/jpeg" {
		turn = orientation(data)
	}
	src = upright(src, turn)
	w, h := src.Bounds().Dx(), src.Bounds().Dy()
	out := &Image{MediaType: media, Data: data, Width: w, Height: h, OriginalWidth: w, OriginalHeight: h}
	if turn == 1 && media != "image/bmp" && w <= MaxImageSide && h <= MaxImageSide && len(data) <= MaxImageBytes {
		return out, nil
	}
	return out, out.shrink(src)
}

// shrink encodes an image so that it keeps both bounds.
func (m *Image) shrink(src image.Image) error {
	side := MaxImageSide
	for side > 0 {
		img := fit(src, side)
		for _, enc := range []func(*bytes.Buffer) error{
			func(b *bytes.Buffer) error { m.MediaType = "image/png"; return png.Encode(b, img) },
			func(b *bytes.Buffer) error {
				m.MediaType = "image/jpeg"
				return jpeg.Encode(b, onWhite(img), &jpeg.Options{Quality: 85})
			},
		} {
			var b bytes.Buffer
			if err := enc(&b); err != nil {
				return err
			}
			if b.Len() <= MaxImageBytes {
				m.Data, m.Width, m.Height = b.Bytes(), img.Bounds().Dx(), img.Bounds().Dy()
				return nil
			}
		}
		side = side * 3 / 4
	}
	return errors.New("cannot be made small enough")
}

// fit scales an image down until no side is longer.
func fit(src image.Image, side int) image.Image {
	w, h := src.Bounds().Dx(), src.Bounds().Dy()
	if w <= side && h <= side {
		return src
	}
	if w >= h {
		w, h = side, max(1, h*side/w)
	} else {
		w, h = max(1, w*side/h), side
	}
	dst := image.NewNRGBA(image.Rect(0, 0, w, h))
	draw.CatmullRom.Scale(dst, dst.Bounds(), src, src.Bounds(), draw.Src, nil)
	return dst
}

// onWhite is an image without transparency, which JPEG has not.
func onWhite(src image.Image) image.Image {
	if o, ok := src.(interface{ Opaque() bool }); ok && o.Opaque() {
		return src
	}
	dst := image.NewRGBA(image.Rect(0, 0, src.Bounds().Dx(), src.Bounds().Dy()))
	draw.Draw(dst, dst.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(dst, dst.Bounds(), src, src.Bounds().Min, draw.Over)
	return dst
}

// upright turns an image as its EXIF orientation (1 to 8) says.
func upright(src image.Image, orientation int) image.Image {
	if orientation == 1 {
		return src
	}
	b := src.Bounds()
	w, h := b.Dx(), b.Dy()
	dst := image.NewNRGBA(image.Rect(0, 0, w, h))
	if orientation >= 5 {
		dst = image.NewNRGBA(image.Rect(0, 0, h, w))
	}
	for y := range h {
		for x := range w {
			dx, dy := x, y
			switch orientation {
			case 2:
				dx = w - 1 - x
			case 3:
				dx, dy = w-1-x, h-1-y
			case 4:
				dy = h - 1 - y
			case 5:
				dx, dy = y, x
			case 6:
				dx, dy = h-1-y, x
			case 7:
				dx, dy = h-1-y, w-1-x
			case 8:
				dx, dy = y, w-1-x
			}
			dst.Set(dx, dy, src.At(b.Min.X+x, b.Min.Y+y))
		}
	}
	return dst
}

// orientation is the EXIF orientation of a JPEG file, 1 when it says none. (JEITA CP-3451: APP1, TIFF header, tag
// 0x0112 of the first directory.)
func orientation(data []byte) int {
	for i := 2; i+4 <= len(data) && data[i] == 0xff; {
		marker, size := data[i+1], int(binary.BigEndian.Uint16(data[i+2:]))
		if marker == 0xda || size < 2 || i+2+size > len(data) { // the picture itself begins
			return 1
		}
		if body := data[i+4 : i+2+size]; marker == 0xe1 && bytes.HasPrefix(body, []byte("Exif\x00\x00")) {
			return tiffOrientation(body[6:])
		}
		i += 2 + size
	}
	return 1
}

func tiffOrientation(b []byte) int {
	if len(b) < 8 {
		return 1
	}
	var order binary.ByteOrder = binary.LittleEndian
	if string(b[:2]) == "MM" {
		order = binary.BigEndian
	}
	at := int(order.Uint32(b[4:]))
	if at < 8 || at > len(b)-2 {
		return 1
	}
	for n, at := int(order.Uint16(b[at:])), at+2; n > 0 && at+12 <= len(b); n, at = n-1, at+12 {
		if order.Uint16(b[at:]) == 0x0112 {
			if v := int(order.Uint16(b[at+8:])); v >= 1 && v <= 8 {
				return v
			}
			return 1
		}
	}
	return 1
}
