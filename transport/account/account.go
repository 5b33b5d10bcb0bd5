// Package account counts what a rail has done for its engine's batches. Its methods may be called from any
// goroutine.
package account

import (
	"sync"
	"sync/atomic"
)

// OpStats counts one direction of a rail, by the initiator.
type OpStats struct {
	Bytes  int64 // completed
	Slices int64 // completed
}

// Stats is what one rail has done so far. Posted slices are Write.Slices + Read.Slices + Errors + those
// in flight.
type Stats struct {
	Name       string
	Addr       string
	Write      OpStats
	Read       OpStats
	Immediates int64 // sent and acknowledged; also in Write.Slices
	Posted     int64 // slices given to the rail
	Errors     int64 // slices that completed with an error
	Retries    int64 // slices queued again, here or on another rail
	Dials      int64 // attempts to connect
	DialErrors int64
	Conns      int64 // connections open now
	InFlight   int64 // bytes queued and posted now
	ImmIn      int64 // immediates delivered to this engine over this rail
	ImmRepeats int64 // immediates that came again and were dropped
	Paths      int   // to peers, of open targets
	Up         int   // of them connected
	Downs      int64 // times that a path lost its connection or was given up
	Resent     int64 // bytes of slices that had been posted and were queued again
	Rate       int64 // bytes/s that its paths were last seen to deliver; 0 before
	Strikes    int64 // batches with wrong bytes that it carried a part of, see transport.Trail
	Rests      int64 // times that a path was put to rest for that
	Resting    int   // paths that rest now
	// Congestion are connections, made and served, by the algorithm of their congestion control,
	// and Changes how often one was given another; of a rail that is a transport.Congested.
	Congestion map[string]int
	Changes    int64
}

// An Account is the running count of one rail.
type Account struct {
	Write, Read         Op
	Imms, Conns         atomic.Int64
	ImmIn, ImmRepeats   atomic.Int64
	Downs               atomic.Int64
	Strikes, Rests      atomic.Int64
	Broken              sync.Once // says in the log that the rail is
	post, errors        atomic.Int64
	retries, resent     atomic.Int64
	dials, dialFailures atomic.Int64
}

// An Op counts what is completed of one direction.
type Op struct{ Bytes, Slices atomic.Int64 }

func (o *Op) stats() OpStats { return OpStats{Bytes: o.Bytes.Load(), Slices: o.Slices.Load()} }

// Posted counts slices that the rail has taken, and Failed those that it has completed with an error.
func (a *Account) Posted(n int) { a.post.Add(int64(n)) }

func (a *Account) Failed(n int) { a.errors.Add(int64(n)) }

// Retried counts a slice that had been posted and is queued again.
func (a *Account) Retried(bytes int64) {
	a.retries.Add(1)
	a.resent.Add(bytes)
}

// Dialed counts an attempt to connect.
func (a *Account) Dialed(err error) {
	a.dials.Add(1)
	if err != nil {
		a.dialFailures.Add(1)
	}
}

// Stats is what there is to know of a rail without its paths.
func (a *Account) Stats(name, addr string) Stats {
	return Stats{
		Name: name, Addr: addr,
		Write: a.Write.stats(), Read: a.Read.stats(), Immediates: a.Imms.Load(),
		Posted: a.post.Load(), Errors: a.errors.Load(), Retries: a.retries.Load(),
		Dials: a.dials.Load(), DialErrors: a.dialFailures.Load(), Conns: a.Conns.Load(),
		ImmIn: a.ImmIn.Load(), ImmRepeats: a.ImmRepeats.Load(),
		Downs: a.Downs.Load(), Resent: a.resent.Load(),
		Strikes: a.Strikes.Load(), Rests: a.Rests.Load(),
	}
}
