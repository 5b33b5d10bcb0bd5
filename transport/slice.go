package transport

import (
	"errors"
	"sync/atomic"
	"time"
)

// A Slice is what one rail carries in one operation. The exported fields are
// for the rail to read; they do not change while the slice is posted. Slice and Local
// are the rail's from Post until it completes the slice, which is the last that it does
// with either.
type Slice struct {
	Op       Op
	HasImm   bool   // only with Write
	Local    []byte // empty for a slice that only carries an immediate
	LocalKey Key    // of the registered memory around Local, on the rail that carries the slice
	Key      Key    // of the target region, on the peer's rail
	Offset   int64  // in the target region
	Imm      Imm    // if HasImm: delivered once the bytes of this slice are applied; its Text is up to MaxText long
	// Behind, if HasImm, says that as many slices were posted just before this one, with its
	// Key, and that the immediate is theirs too: if one of them is refused, so is this one.
	Behind int
	// Run says with which others the slice is in order: nil with all, Loose with none.
	Run *Run

	sink    sink
	batch   *Batch
	request int      // of the batch's, that Local is of
	from    int      // where in that it begins
	seg     *Segment // holds Local
	target  *Target  // has Key
	tries   int
	posted  time.Duration              // when, by the engine's clock; of its path
	conn    atomic.Pointer[connection] // where it is posted; nil while queued
	stale   *connection                // lost, and may still apply these bytes; guarded by its path's mu
	done    atomic.Bool
}

// A Run is slices with an immediate behind them. An endpoint of several connections carries them in
// order, over one of them, which it notes here; what is Loose it may carry over any.
type Run struct{ Conn any }

// Loose is the run of slices that no immediate rides behind.
var Loose = &Run{}

// A sink takes the completions of the slices it posted.
type sink interface {
	// completed takes a run of slices that share this sink.
	completed(run []*Slice, err error)
	// again takes a slice that a rail has completed before: the rail is broken.
	again(s *Slice)
}

// errTwice is what is wrong with a rail that completes a slice more than once.
var errTwice = errors.New("completed twice")

// NewSlice returns a slice that calls done when it completes; if a rail completes it
// again, done is called again, with an error. Rails' tests use it, and rails that wrap
// others; the engine makes its own.
func NewSlice(op Op, local []byte, key Key, offset int64, done func(*Slice, error)) *Slice {
	return &Slice{Op: op, Local: local, Key: key, Offset: offset, sink: doneFunc(done)}
}

type doneFunc func(*Slice, error)

func (f doneFunc) completed(run []*Slice, err error) {
	for _, s := range run {
		f(s, err)
	}
}

func (f doneFunc) again(s *Slice) { f(s, errTwice) }

// Complete ends the slice: nil means applied at the destination. A rail calls
// it exactly once for each posted slice and does not touch the slice or its
// memory afterwards. It calls back into the engine, which may post more and does not
// block; the rail holds no lock that its Post needs.
func (s *Slice) Complete(err error) {
	one := [1]*Slice{s}
	CompleteAll(one[:], err)
}

// CompleteAll completes several slices alike. It costs one pass over the
// engine's locks for a run of slices posted together, where Complete costs one
// for each.
func CompleteAll(slices []*Slice, err error) {
	start := 0
	flush := func(end int) {
		if start < end {
			slices[start].sink.completed(slices[start:end], err)
		}
	}
	for i, s := range slices {
		if s.done.Swap(true) {
			flush(i)
			start = i + 1
			s.sink.again(s)
		} else if i > start && !sameSink(slices[start].sink, s.sink) {
			flush(i)
			start = i
		}
	}
	flush(len(slices))
}

// sameSink is false for functions, which cannot be compared.
func sameSink(a, b sink) bool {
	p, ok := a.(*path)
	return ok && b == sink(p)
}
