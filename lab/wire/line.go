package wire

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// A Line is one direction of a link: frames come in, and come out when they are due. It is a
// pure function of what it is told and of its seed. It has no lock and keeps the frames that
// it is given.
type Line struct {
	conditions Conditions
	luck       *rand.Rand
	waiting    queue
	taken      uint64 // frames so far: of those due at once the first goes first
	held       int64  // bytes that wait
	counts     Counts
}

// Counts are packets so far.
type Counts struct {
	Packets    int64 // that came in
	Lost       int64 // by Conditions.Loss
	Reordered  int64
	Duplicated int64
	Corrupted  int64
	Overflowed int64 // lost because mostHeld bytes waited
}

// mostHeld is what may wait in a line: 100 Gbit/s for 80 ms. More is lost, and counted.
const mostHeld = 1 << 30

// NewLine is a line whose luck is that of a seed.
func NewLine(seed uint64) *Line { return &Line{luck: rand.New(rand.NewPCG(seed, 0))} }

// Change has other conditions from the next frame on. What waits stays as it is.
func (l *Line) Change(c Conditions) { l.conditions = c }

// Counts returns what has happened so far.
func (l *Line) Counts() Counts { return l.counts }

// Take takes a frame that came in now.
func (l *Line) Take(now time.Duration, f Frame) {
	c := l.conditions
	n := f.packets()
	l.counts.Packets += int64(n)
	if c == (Conditions{Delay: c.Delay}) {
		l.put(now+c.Delay, f)
		return
	}
	// Packets to which nothing happens stay together in one frame, from plain on.
	plain := 0
	together := func(to int) {
		if plain < to {
			l.put(now+l.delay(), f.cut(plain, to))
		}
	}
	for i := range n {
		lost, early, twice, wrong := l.happens(c.Loss), l.happens(c.Reorder), l.happens(c.Duplicate), l.happens(c.Corrupt)
		if !lost && !early && !twice && !wrong && c.Jitter == 0 {
			continue
		}
		together(i)
		plain = i + 1
		if lost {
			l.counts.Lost++
			continue
		}
		packet, due := f.cut(i, i+1), now
		if early {
			l.counts.Reordered++
		} else {
			due += l.delay()
		}
		if wrong {
			l.counts.Corrupted++
			packet.seal()
			packet.spoil(l.luck.Uint64())
		}
		if twice {
			l.counts.Duplicated++
			l.put(due, append(Frame(nil), packet...))
		}
		l.put(due, packet)
	}
	together(n)
}

func (l *Line) happens(share float64) bool { return share > 0 && l.luck.Float64() < share }

func (l *Line) delay() time.Duration {
	c := l.conditions
	if c.Jitter == 0 {
		return c.Delay
	}
	return c.Delay - c.Jitter + time.Duration(l.luck.Int64N(2*int64(c.Jitter)+1))
}

func (l *Line) put(due time.Duration, f Frame) {
	if l.held+int64(len(f)) > mostHeld {
		l.counts.Overflowed += int64(f.packets())
		return
	}
	l.held += int64(len(f))
	l.taken++
	heap.Push(&l.waiting, entry{due: due, number: l.taken, frame: f})
}

// Due takes a frame out that is due by now, the earliest first.
func (l *Line) Due(now time.Duration) (Frame, bool) {
	if len(l.waiting) == 0 || l.waiting[0].due > now {
		return nil, false
	}
	f := heap.Pop(&l.waiting).(entry).frame
	l.held -= int64(len(f))
	return f, true
}

// Next is when a frame is due next; false if none waits.
func (l *Line) Next() (time.Duration, bool) {
	if len(l.waiting) == 0 {
		return 0, false
	}
	return l.waiting[0].due, true
}

// Cut loses all that is on the way, as a cable does that is pulled.
func (l *Line) Cut() { l.waiting, l.held = nil, 0 }

type entry struct {
	due    time.Duration
	number uint64
	frame  Frame
}

type queue []entry

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return q[i].due < q[j].due || q[i].due == q[j].due && q[i].number < q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(e any)   { *q = append(*q, e.(entry)) }
func (q *queue) Pop() any {
	n := len(*q) - 1
	e := (*q)[n]
	(*q)[n] = entry{}
	*q = (*q)[:n]
	return e
}
