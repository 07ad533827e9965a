package record

// ptr is a figure that was measured.
func ptr(v float64) *float64 { return new(v) }
