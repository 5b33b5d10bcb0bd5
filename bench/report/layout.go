package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Layout writes the lines that both tools' reports are made of, which Python writes with
// "{:<40} {:<10}", "{:<40} {:<10.2f}" and "{s:{c}^{n}}" of 50 characters.
type Layout struct{ strings.Builder }

// Heading writes a title in the middle of a line of fill.
func (l *Layout) Heading(title string, fill string) {
	left := max(0, (50-len(title))/2)
	right := max(0, 50-len(title)-left)
	l.WriteString(strings.Repeat(fill, left) + title + strings.Repeat(fill, right) + "\n")
}

// Word writes a line of text.
func (l *Layout) Word(label, v string) { fmt.Fprintf(l, "%-40s %-10s\n", label, v) }

// Count writes a line of a whole number.
func (l *Layout) Count(label string, n int) { fmt.Fprintf(l, "%-40s %-10d\n", label, n) }

// Number writes a line of a number with two decimals.
func (l *Layout) Number(label string, v float64) {
	if math.IsNaN(v) {
		l.Word(label, "nan")
		return
	}
	fmt.Fprintf(l, "%-40s %-10.2f\n", label, v)
}

// pyFloat is a float as Python's str has it: 4.0, 0.5, 1e-05, inf.
func pyFloat(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	case math.IsNaN(v):
		return "nan"
	}
	if size := math.Abs(v); v != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// percentileWord is how vLLM calls a percentile: 99, 99.9.
func percentileWord(p float64) string { return strings.TrimSuffix(pyFloat(p), ".0") }
