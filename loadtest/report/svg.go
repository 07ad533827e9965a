package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/sandbus/sandbus/loadtest/record"
)

// The charts' measures, in the units of their own drawing.
const (
	chartWidth, chartHeight            = 620, 340
	plotLeft, plotTop                  = 70, 40
	plotRight, plotBottom              = chartWidth - 130, chartHeight - 40
	barHeight, barGap, maxBars, barTop = 16, 5, 200, 40
)

// palette tells arms apart, also for eyes that do not tell red from green.
var palette = []string{"#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6a00", "#000000", "#8c564b", "#7f7f7f"}

func colour(i int) string { return palette[i%len(palette)] }

// drawing is an SVG image under way.
type drawing struct {
	b      strings.Builder
	height int
}

func draw(title string, height int) *drawing {
	d := &drawing{height: height}
	fmt.Fprintf(&d.b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, height, html.EscapeString(title))
	d.text(12, 22, "title", "start", title)
	return d
}

func (d *drawing) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(&d.b, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(s))
}

func (d *drawing) line(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(&d.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`, x1, y1, x2, y2, stroke)
}

func (d *drawing) bar(x, y, w, h float64, fill, title string) {
	fmt.Fprintf(&d.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>`, x, y, w, h, fill, html.EscapeString(title))
}

func (d *drawing) done() template.HTML {
	return template.HTML(d.b.String() + "</svg>") //nolint:gosec // G203: every text in it was escaped
}

// lines draws a column by concurrency, a line for each arm, both axes logarithmic.
func lines(title, unit string, rungs []*record.Rung, column func(*record.Rung) *float64) template.HTML {
	d := draw(title+" ("+unit+") by operations in flight", chartHeight)
	var values []float64
	for _, r := range rungs {
		if v := column(r); v != nil && *v > 0 {
			values = append(values, *v)
		}
	}
	if len(values) == 0 {
		d.text(plotLeft, plotTop+20, "axis", "start", "not measured")
		return d.done()
	}
	cs := concurrencies(rungs)
	x := scale(math.Log2(float64(cs[0])), math.Log2(float64(cs[len(cs)-1])), plotLeft+10, plotRight-10)
	low, high := math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
	if low == high {
		high++
	}
	y := scale(low, high, plotBottom, plotTop)
	for e := low; e <= high; e++ {
		d.line(plotLeft, y(e), plotRight, y(e), "#e3e8ee")
		d.text(plotLeft-6, y(e)+4, "axis", "end", short(math.Pow(10, e)))
	}
	for _, c := range cs {
		d.text(x(math.Log2(float64(c))), plotBottom+18, "axis", "middle", fmt.Sprint(c))
	}
	for i, arm := range armsOf(rungs) {
		var points []string
		for _, r := range rungs {
			v := column(r)
			if r.Arm != arm || v == nil || *v <= 0 {
				continue
			}
			px, py := x(math.Log2(float64(r.Concurrency))), y(math.Log10(*v))
			points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
			fill := colour(i)
			if len(r.Marks) > 0 {
				fill = "#fff" // a hollow point has a mark
			}
			fmt.Fprintf(&d.b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s" stroke="%s"><title>%s</title></circle>`, px, py, fill, colour(i),
				html.EscapeString(fmt.Sprintf("%s, c=%d: %.4g %s %s", arm, r.Concurrency, *v, unit, strings.Join(r.Marks, ", "))))
		}
		fmt.Fprintf(&d.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, strings.Join(points, " "), colour(i))
		d.legend(i, arm, colour(i))
	}
	return d.done()
}

func (d *drawing) legend(i int, name, fill string) {
	y := float64(plotTop + 18*i)
	d.bar(plotRight+12, y, 10, 10, fill, name)
	d.text(plotRight+28, y+9, "axis", "start", name)
}

// scale maps from low..high to a..b; everything to the middle when low is high.
func scale(low, high, a, b float64) func(float64) float64 {
	return func(v float64) float64 {
		if low == high {
			return (a + b) / 2
		}
		return a + (v-low)/(high-low)*(b-a)
	}
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}

// rows is a drawing with a line for each of n things.
func rows(title string, n int) *drawing {
	return draw(title, barTop+min(n, maxBars)*(barHeight+barGap)+30)
}

func rowY(i int) float64 { return float64(barTop + i*(barHeight+barGap)) }

// nameWidth is where bars begin, to the right of their names.
const nameWidth = 150

// knees draws a bar for each arm's knee.
func knees(list []record.Knee) template.HTML {
	d := rows("Knee: highest healthy concurrency", len(list))
	most := 1
	for _, k := range list {
		most = max(most, k.Concurrency)
	}
	x := scale(0, math.Log2(float64(most))+1, 0, chartWidth-nameWidth-150)
	for i, k := range list {
		y := rowY(i)
		d.text(nameWidth-8, y+12, "axis", "end", k.Arm)
		w := 0.0
		if k.Concurrency > 0 {
			w = x(math.Log2(float64(k.Concurrency)) + 1)
		}
		d.bar(nameWidth, y, w, barHeight, colour(i), k.Why)
		d.text(nameWidth+w+6, y+12, "axis", "start", k.String())
	}
	return d.done()
}

// bounds shows what bounds each rung.
func bounds(rungs []*record.Rung) template.HTML {
	arms, cs := armsOf(rungs), concurrencies(rungs)
	d := rows("What bounds each rung", len(arms)+1)
	cell := float64(chartWidth-nameWidth-10) / float64(max(1, len(cs)))
	names := []string{
		record.BoundSandbox, record.BoundHarness, record.BoundScheduler, record.BoundHub, record.BoundRelay, record.BoundLeases,
		record.BoundGenerator, record.BoundUnattributed,
	}
	for j, c := range cs {
		d.text(nameWidth+(float64(j)+0.5)*cell, rowY(0)+12, "axis", "middle", fmt.Sprint(c))
	}
	for i, arm := range arms {
		d.text(nameWidth-8, rowY(i+1)+12, "axis", "end", arm)
		for _, r := range rungs {
			j, n := slices.Index(cs, r.Concurrency), slices.Index(names, r.Bound)
			if r.Arm != arm || n < 0 {
				continue
			}
			fill := colour(n)
			if r.Bound == record.BoundUnattributed {
				fill = "#d5dbe1"
			}
			x := nameWidth + float64(j)*cell
			d.bar(x+1, rowY(i+1), cell-2, barHeight, fill, bound(r))
			d.text(x+cell/2, rowY(i+1)+12, "axis", "middle", shorten(r.Bound, int(cell/7)))
		}
	}
	return d.done()
}

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:max(0, n)]
}

// tiers draws the processors' time by tier, a bar for each rung.
func tiers(rungs []*record.Rung) template.HTML {
	parts := []struct {
		name string
		of   func(*record.Rung) *float64
	}{
		{"sandbox", func(r *record.Rung) *float64 { return r.SandboxCPUShare }},
		{"harness", func(r *record.Rung) *float64 { return r.HarnessCPUShare }},
		{"hub", func(r *record.Rung) *float64 { return r.HubCPUShare }},
		{"relay", func(r *record.Rung) *float64 { return r.RelayCPUShare }},
	}
	d := rows("Share of the machine's processors by tier", len(rungs)+1)
	for i, p := range parts {
		d.bar(nameWidth+float64(i)*90, rowY(0), 10, 10, colour(i), p.name)
		d.text(nameWidth+float64(i)*90+14, rowY(0)+9, "axis", "start", p.name)
	}
	width := float64(chartWidth - nameWidth - 60)
	for i, r := range rungs[:min(len(rungs), maxBars-1)] {
		y := rowY(i + 1)
		d.text(nameWidth-8, y+12, "axis", "end", fmt.Sprintf("%s c=%d", r.Arm, r.Concurrency))
		x := float64(nameWidth)
		for j, p := range parts {
			v := p.of(r)
			if v == nil {
				continue
			}
			w := min(*v, 1.2) * width / 1.2
			d.bar(x, y, w, barHeight, colour(j), fmt.Sprintf("%s %.1f%%", p.name, *v*100))
			x += w
		}
	}
	return d.done()
}
