package wire

import (
	"math"
	"strings"
	"testing"
	"time"
)

// plain is a frame of one packet that is told by its number.
func plain(number int) Frame {
	f := make(Frame, prefix+ethernet+100)
	f[prefix+ethernet] = byte(number)
	f[prefix+ethernet+1] = byte(number >> 8)
	return f
}

func number(f Frame) int { return int(f[prefix+ethernet]) | int(f[prefix+ethernet+1])<<8 }

const ms = time.Millisecond

// TestDelay: frames come as late as they should, in order, and not before.
func TestDelay(t *testing.T) {
	l := NewLine(1)
	l.Change(Conditions{Delay: 5 * ms})
	for i := range 3 {
		l.Take(time.Duration(i)*ms, plain(i))
	}
	if _, ok := l.Due(5*ms - 1); ok {
		t.Fatal("a frame came early")
	}
	for i := range 3 {
		if next, ok := l.Next(); !ok || next != time.Duration(5+i)*ms {
			t.Fatalf("frame %d is due at %v, %v", i, next, ok)
		}
		f, ok := l.Due(time.Duration(5+i) * ms)
		if !ok || number(f) != i {
			t.Fatalf("frame %d: %v", i, ok)
		}
	}
	if _, ok := l.Next(); ok {
		t.Error("something is left")
	}
	for i := range 9 { // at once: in order
		l.Take(9*ms, plain(i))
	}
	for i := range 9 {
		if f, ok := l.Due(14 * ms); !ok || number(f) != i {
			t.Fatalf("frame %d of nine that came together: %v", i, ok)
		}
	}
	// A shorter delay from now on does not hold up what waits, and overtakes it.
	l.Take(10*ms, plain(1))
	l.Change(Conditions{})
	l.Take(11*ms, plain(2))
	if f, ok := l.Due(11 * ms); !ok || number(f) != 2 {
		t.Error("a frame without delay waits for one with")
	}
	l.Cut()
	if _, ok := l.Next(); ok || l.held != 0 {
		t.Error("a cable that is pulled keeps frames")
	}
}

// TestShares: of 100,000 packets, alone and in large frames, as many are lost and so on as
// was asked for, within five standard deviations; and the same seed has the same luck.
func TestShares(t *testing.T) {
	want := Conditions{Delay: 10 * ms, Loss: 0.01, Reorder: 0.02, Duplicate: 0.005, Corrupt: 0.003}
	run := func(frames, packets int) Counts {
		l := NewLine(7)
		l.Change(want)
		out := int64(0)
		for i := range frames {
			at := time.Duration(i) * ms
			l.Take(at, tcp(packets*1000, 1000, 0))
			for {
				f, ok := l.Due(at)
				if !ok {
					break
				}
				out += int64(f.packets())
			}
		}
		for {
			f, ok := l.Due(time.Hour)
			if !ok {
				break
			}
			out += int64(f.packets())
		}
		c := l.Counts()
		if out != c.Packets-c.Lost+c.Duplicated {
			t.Errorf("%d packets came out: %+v", out, c)
		}
		for _, s := range []struct {
			name  string
			got   int64
			share float64
		}{{"lost", c.Lost, want.Loss}, {"early", c.Reordered, want.Reorder * (1 - want.Loss)}, {"twice", c.Duplicated, want.Duplicate * (1 - want.Loss)}, {"wrong", c.Corrupted, want.Corrupt * (1 - want.Loss)}} {
			n := float64(c.Packets)
			if d := math.Abs(float64(s.got) - n*s.share); d > 5*math.Sqrt(n*s.share) {
				t.Errorf("%s: %d of %d packets for a share of %v", s.name, s.got, c.Packets, s.share)
			}
		}
		return c
	}
	if n := run(100_000, 1).Packets; n != 100_000 {
		t.Errorf("%d packets", n)
	}
	if a, b := run(2_500, 40), run(2_500, 40); a.Packets != 100_000 || a != b {
		t.Errorf("the same seed has other luck: %+v, %+v", a, b)
	}
}

// TestJitter: delays are spread evenly over their range, each packet's by itself, and packets
// overtake others.
func TestJitter(t *testing.T) {
	l := NewLine(3)
	l.Change(Conditions{Delay: 5 * ms, Jitter: 2 * ms})
	const n = 20_000
	l.Take(0, tcp(40*1000, 1000, 0))
	if first, _ := l.Next(); len(l.waiting) != 40 || first < 3*ms {
		t.Errorf("a frame of 40 packets makes %d, the first at %v", len(l.waiting), first)
	}
	l.Cut()
	var sum, least, most time.Duration = 0, time.Hour, 0
	overtaken := 0
	for i := range n {
		l.Take(0, plain(i))
	}
	for last := -1; ; {
		due, ok := l.Next()
		if !ok {
			break
		}
		f, _ := l.Due(due)
		sum, least, most = sum+due, min(least, due), max(most, due)
		if number(f) < last {
			overtaken++
		}
		last = number(f)
	}
	mean := sum / n
	if least < 3*ms || least > 3*ms+ms/100 || most > 7*ms || most < 7*ms-ms/100 || mean < 5*ms-ms/20 || mean > 5*ms+ms/20 {
		t.Errorf("from %v to %v, mean %v", least, most, mean)
	}
	if overtaken < n/3 {
		t.Errorf("%d of %d come before one that was sent earlier", overtaken, n)
	}
}

// TestFull: what a line cannot hold is lost and counted.
func TestFull(t *testing.T) {
	l := NewLine(1)
	l.Change(Conditions{Delay: time.Second})
	f := tcp(60_000, 1500, 0)
	n := mostHeld/len(f) + 3
	for range n {
		l.Take(0, f)
	}
	if over := l.Counts().Overflowed; over != 3*40 {
		t.Errorf("%d packets lost", over)
	}
}

func TestConditions(t *testing.T) {
	links := make([]Link, 2)
	for name, text := range map[string]string{"delay": "5ms,20ms/1ms", "loss": "0.1%", "jitter": "1ms", "corrupt": "0.2%"} {
		if err := ParseLinks(links, name, text); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := links[1].String(), "delay=20ms jitter=1ms loss=0.1% corrupt=0.2% / delay=1ms jitter=1ms loss=0.1% corrupt=0.2%"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if (Link{}).String() != "clean" || !(Link{}).Clean() || links[0].Clean() {
		t.Error("clean")
	}
	for _, l := range links {
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
	}
	var l Link
	if err := l.Set("delay", "5ms/20ms", 1); err != nil || l[0].Delay != 20*ms || l[1].Delay != 5*ms {
		t.Errorf("from host 2: %v, %v", l, err)
	}
	for name, texts := range map[string][]string{
		"delay": {"", "5", "-1ms", "11s", "5ms,5ms,5ms", "5ms/", "NaN"},
		"loss":  {"", "-1%", "101%", "1.1", "0.1", "1", "NaN%", "0.1%/x", "x"},
		"speed": {"1"},
	} {
		for _, text := range texts {
			before := links[0]
			if err := ParseLinks(links, name, text); err == nil || links[0] != before {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
	}
	for want, c := range map[string]Conditions{
		"Jitter":  {Delay: ms, Jitter: 2 * ms},
		"Reorder": {Reorder: 0.1},
		"Loss":    {Loss: math.NaN()},
		"Delay":   {Delay: -1},
	} {
		if err := (Link{{}, c}).Validate(); err == nil || !strings.Contains(err.Error(), "lab/wire.Link."+want+": what host 2 sends") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
