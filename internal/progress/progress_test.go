package progress

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// screen returns the lines that a terminal shows after text. A \r moves to the start of the line, to overwrite it.
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

// TestTerminal: the bar is the last line while it is shown, lines stand whole above it, and nothing is left of it after
// Stop.
func TestTerminal(t *testing.T) {
	for _, c := range []struct {
		start  State
		want   string // after three periods
		longer string // after two more drawings, with a Total two and a half times as large
	}{
		{State{What: "asking", Total: 10, Unit: "requests"}, "drawn 3 times: 12 of 10 requests", "20 of 25 requests, 2 failed  80% |"}, // of which the bar shows 9
		{State{What: "loading", Total: 40}, "drawn 3 times  30% |", "2 failed  20% |"},
		{State{What: "length not known", Unit: "points"}, "drawn 3 times: 12 points", "20 points, 2 failed"},
	} {
		t.Run(c.start.What, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				p := New(&out, true)
				p.Say("before")
				p.Start(c.start)
				last := func(want string) {
					t.Helper()
					synctest.Wait()
					if lines := screen(out.String()); !strings.Contains(lines[len(lines)-1], want) {
						t.Errorf("on the terminal: %q, want %q", lines, want)
					}
				}
				last(c.start.What)
				n := int64(0)
				p.Poll(func(s *State) {
					s.What, s.Done = fmt.Sprintf("drawn %d times", n), 4*n
					n++
				})
				<-time.After(3*barPeriod + time.Millisecond)
				last(c.want)
				p.Say("a line")
				last("drawn 4 times")
				p.Update(func(s *State) { s.Total, s.Failed = 5*s.Total/2, 2 })
				p.Log("not on a terminal")
				p.Pause(func() { out.WriteString("another line\n") })
				last(c.longer)
				p.Stop()
				written := out.Len()
				<-time.After(time.Minute)
				synctest.Wait()
				if out.Len() != written {
					t.Errorf("%d bytes are drawn after Stop", out.Len()-written)
				}
				p.Say("after")
				if got := screen(out.String()); strings.Join(got, "/") != "before/a line/another line/after" {
					t.Errorf("left on the terminal: %q", got)
				}
			})
		})
	}
}

// TestTimeLeft: a bar has the time left by the rate of the changes, however far apart they are.
func TestTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, true)
		p.Start(State{What: "turns", Total: 10, Unit: "turns"})
		for range 5 {
			<-time.After(time.Minute)
			p.Add(1)
		}
		<-time.After(20 * time.Second)
		synctest.Wait()
		if lines := screen(out.String()); !regexp.MustCompile(`\[5m20s:(5m0|4m59)s]$`).MatchString(lines[0]) { // it rounds down
			t.Errorf("%q", lines)
		}
		p.Stop()
	})
}

// TestFile: where there is no terminal, a line is written once a period in which there was no other.
func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, false)
		p.Start(State{What: "warming up"})
		<-time.After(linePeriod + time.Second)
		p.Start(State{What: "asking", Total: 100, Unit: "requests"})
		p.Set(3)
		p.Describe("asking the server")
		<-time.After(linePeriod + 5*time.Second)
		p.Log("a point")
		p.Update(func(s *State) { s.Done, s.Failed = 25, 2 })
		<-time.After(linePeriod - time.Second)
		p.Say("a line")
		<-time.After(linePeriod + time.Second)
		p.Stop()
		p.Say("after")
		<-time.After(time.Minute)
		synctest.Wait()
		const want = `warming up, 10s
asking the server: 3 of 100 requests, 10s
a point
a line
asking the server: 25 of 100 requests, 2 failed, 34s, about 1m42s left
after
`
		if out.String() != want {
			t.Errorf("%s", out.String())
		}
	})
}

// TestLine: the time left is the caller's, or follows from the rate once a tenth is done.
func TestLine(t *testing.T) {
	for want, s := range map[string]State{
		"x: 9 % of all, 20s":                   {What: "x", Done: 99, Total: 1000},
		"x: 10 % of all, 20s, about 3m0s left": {What: "x", Done: 100, Total: 1000},
		"x: 0 of 3 turns, 20s":                 {What: "x", Total: 3, Unit: "turns"},
		"x: 1 of 3 turns, 20s, about 40s left": {What: "x", Done: 1, Total: 3, Unit: "turns"},
		"x: 1 of 3 turns, 20s, about 5s left":  {What: "x", Done: 1, Total: 3, Unit: "turns", Left: 5 * time.Second},
		"x: 3 of 3 turns, 20s":                 {What: "x", Done: 3, Total: 3, Unit: "turns"},
		"x: 4 of 3 turns, 1 failed, 20s":       {What: "x", Done: 4, Total: 3, Unit: "turns", Failed: 1},
		"x: 7 turns, 20s":                      {What: "x", Done: 7, Unit: "turns"},
		"x: 50 % of all, 20s, about 20s left":  {What: "x", Done: 1 << 50, Total: 1 << 51},
	} {
		if got := s.line(20 * time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestConcurrentUse: all methods may be called at once, which the race detector watches.
func TestConcurrentUse(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := New(&out, terminal)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					p.Start(State{Total: 10, Unit: "requests"})
					p.Poll(func(s *State) { s.Done++ })
					<-time.After(linePeriod)
					p.Add(1)
					p.Say("a line" + p.Left())
					p.Stop()
				})
			}
			all.Wait()
			written := out.Len()
			<-time.After(time.Minute)
			if out.Len() != written {
				t.Error("something is written after Stop")
			}
		})
	}
}
