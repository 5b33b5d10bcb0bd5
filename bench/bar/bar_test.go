package bar

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// screen is what a terminal shows of text: \r goes back to the line's begin, to write over it.
func screen(text string) []string {
	lines := [][]rune{nil}
	at := 0
	for _, r := range text {
		last := &lines[len(lines)-1]
		switch {
		case r == '\r':
			at = 0
		case r == '\n':
			lines, at = append(lines, nil), 0
		case at < len(*last):
			(*last)[at] = r
			at++
		default:
			*last = append(*last, r)
			at++
		}
	}
	var shown []string
	for _, l := range lines {
		if s := strings.TrimRight(string(l), " "); s != "" {
			shown = append(shown, s)
		}
	}
	return shown
}

// TestTerminal: the bar is the last line while it is shown, lines stand above it whole, and after
// Wipe nothing is left of it.
func TestTerminal(t *testing.T) {
	for _, look := range []Look{
		{Max: 10, What: "requests", Count: true},
		{Max: 10, ASCII: true, Width: 16},
		{Max: 0, What: "no length"},
		{Max: -1, What: "length not known", Count: true},
	} {
		t.Run(look.What, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				b := New(&out, true)
				if b.Say("before"); b.Shown() {
					t.Error("a bar before Show")
				}
				b.Show(look)
				n := int64(0)
				b.Every(time.Second, func() {
					n++
					b.Describe(fmt.Sprintf("drawn %d times", n))
					b.Set(4 * n)
				})
				<-time.After(3500 * time.Millisecond) // to 12, of 10
				synctest.Wait()
				if last := screen(out.String()); !b.Shown() || !strings.Contains(last[len(last)-1], "drawn 3 times") {
					t.Errorf("after three periods: %q", last)
				}
				b.Say("a line")
				b.Describe("once more")
				b.Lengthen(5)
				b.Say("another line")
				b.Wipe()
				said := out.Len()
				<-time.After(time.Minute)
				synctest.Wait()
				if out.Len() != said {
					t.Errorf("%d bytes are drawn after Wipe", out.Len()-said)
				}
				if got := screen(out.String()); strings.Join(got, "/") != "before/a line/another line" {
					t.Errorf("left on the terminal: %q", got)
				}
			})
		})
	}
}

// TestFile: where there is no terminal, lines are all that is written.
func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := New(&out, false)
		b.Show(Look{Max: 10, What: "requests"})
		b.Every(10*time.Second, func() { b.Say("ten seconds more") })
		b.Set(3)
		b.Describe("anything")
		b.Lengthen(1)
		<-time.After(25 * time.Second)
		synctest.Wait()
		b.Wipe()
		if b.Shown() || out.String() != "ten seconds more\nten seconds more\n" {
			t.Errorf("%q, shown: %v", out.String(), b.Shown())
		}
	})
}
