// Package bar shows how far a run is. On a terminal that is a bar with the time left, which is
// overwritten in place, and lines that scroll by above it; in a file or a pipe there is no bar,
// and lines are all there is.
//
// What is shown is in the caller's units: requests, points, milliseconds of a schedule. Drawing
// costs CPU that the system under test may need, as both often run on the same cores: so a
// caller has the bar drawn at a period ([Bar.Every]), or at most so often ([Look.Throttle]).
//
// A Bar owns the goroutine of Every and no more; the writer stays its caller's.
package bar

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// defaultWidth leaves half of a line of 80 characters for what the bar is of, and for the times.
const defaultWidth = 24

// A Look is what a bar shows, and how.
type Look struct {
	Max      int64         // what the run comes to, in the caller's units; -1 if that is not known
	What     string        // stands before the bar
	Width    int           // of the bar alone, in characters; 0: 24
	Count    bool          // how many of how many stands behind the bar
	ASCII    bool          // made of = and >, not of blocks
	Throttle time.Duration // drawn at most this often; 0: at every change
}

// A Bar is one line of a terminal that is overwritten, or nothing elsewhere. Its methods may be
// called from several goroutines, but for Show, Every and Wipe, which are for one.
type Bar struct {
	w        io.Writer
	terminal bool

	stop   chan struct{} // ends Every's goroutine; nil without one
	drawer sync.WaitGroup

	mu    sync.Mutex // of what is below and of what is written
	bar   *progressbar.ProgressBar
	known bool // Look.Max was
}

// New is a bar on w, if that is a terminal. Nothing is drawn before Show.
func New(w io.Writer, terminal bool) *Bar { return &Bar{w: w, terminal: terminal} }

// Show begins a bar at 0, in place of the one before. Where there is no terminal it does nothing.
func (b *Bar) Show(look Look) {
	if !b.terminal {
		return
	}
	known := look.Max >= 0
	if known {
		look.Max = max(look.Max, 1) // the library has no bar of length 0
	}
	options := []progressbar.Option{
		progressbar.OptionSetWriter(b.w),
		progressbar.OptionSetWidth(cmp.Or(look.Width, defaultWidth)),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(look.Throttle),
		progressbar.OptionSetDescription(look.What),
		// The library turns the wheel of a bar without an end by a goroutine that never ends, and
		// would go on to draw over the report. Without a period it turns when it is drawn.
		progressbar.OptionSetSpinnerChangeInterval(0),
	}
	if look.Count {
		options = append(options, progressbar.OptionShowCount())
	}
	if look.ASCII {
		options = append(options, progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar, b.known = progressbar.NewOptions64(look.Max, options...), known
}

// Shown reports whether there is a bar: on a terminal, from Show on.
func (b *Bar) Shown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bar != nil
}

// Every calls draw once a period, in a goroutine of its own, until Wipe. It does so without a
// bar too: draw may write a line instead.
func (b *Bar) Every(period time.Duration, draw func()) {
	stop := make(chan struct{})
	b.stop = stop
	b.drawer.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				draw()
			case <-stop:
				return
			}
		}
	})
}

// Wipe ends what Every began, and takes the bar off the terminal, so that a report can be
// printed. A bar that is set again, or described, is drawn again.
func (b *Bar) Wipe() {
	if b.stop != nil {
		close(b.stop)
		b.stop = nil
	}
	b.drawer.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
}

// clear is Wipe for who holds mu.
func (b *Bar) clear() {
	if b.bar != nil {
		_ = b.bar.Clear() // a terminal that is gone is no reason to end a run; so below
	}
}

// Set moves the bar. What is beyond its end is shown as just before it: at its end a bar is
// finished for good, and a run is not over until Wipe.
func (b *Bar) Set(at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar == nil {
		return
	}
	if b.known {
		at = min(at, b.bar.GetMax64()-1)
	}
	_ = b.bar.Set64(max(at, 0))
}

// Describe sets what stands before the bar, and draws it.
func (b *Bar) Describe(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		b.bar.Describe(what)
	}
}

// Lengthen adds to what the run comes to, if that is known.
func (b *Bar) Lengthen(by int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil && b.known {
		b.bar.ChangeMax64(b.bar.GetMax64() + by)
	}
}

// Say writes a line, above the bar if there is one.
func (b *Bar) Say(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	fmt.Fprintln(b.w, line)
}
