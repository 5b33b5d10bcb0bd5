package bundle

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A rail is one in memory whose endpoints have several connections.
type rail struct {
	*transporttest.Rail
	conns int
}

func (r rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	ep, err := Dial(ctx, r.conns, func(ctx context.Context) (transport.Endpoint, error) { return r.Rail.Dial(ctx, addr) })
	if err != nil {
		return nil, err
	}
	return ep, nil
}

func TestContract(t *testing.T) {
	network := transporttest.NewNetwork()
	var names atomic.Int64
	transporttest.TestRail(t, func(testing.TB) transport.Rail {
		return rail{network.Rail(strconv.FormatInt(names.Add(1), 10)), 4}
	}, transporttest.Checked)
}

// A fake connection takes slices until it is told to complete them.
type fake struct {
	secret transport.Secret
	over   chan struct{}

	mu     sync.Mutex
	posted []*transport.Slice
	most   int // slices
	flow   transport.Flow
	err    error
	lost   int64 // under way when it broke
}

func newFake() *fake {
	return &fake{secret: transport.NewSecret(), over: make(chan struct{}), most: 1 << 20}
}

func (f *fake) Secret() transport.Secret { return f.secret }
func (f *fake) Over() <-chan struct{}    { return f.over }
func (f *fake) Gauge() transport.Flow    { return f.flow }
func (f *fake) Poke()                    {}

func (f *fake) UnderWay() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = f.lost
	for _, s := range f.posted {
		n += int64(len(s.Local)) + 1
	}
	return n
}

func (f *fake) Post(list []*transport.Slice) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, f.err
	}
	n := min(len(list), f.most-len(f.posted))
	f.posted = append(f.posted, list[:n]...)
	return n, nil
}

// complete ends what was posted.
func (f *fake) complete(err error) {
	f.mu.Lock()
	posted := f.posted
	f.posted = nil
	f.mu.Unlock()
	transport.CompleteAll(posted, err)
}

func (f *fake) fail(err error) {
	under := f.UnderWay()
	f.mu.Lock()
	first := f.err == nil
	if first {
		f.err, f.lost = err, under
	}
	f.mu.Unlock()
	if first {
		f.complete(err)
		close(f.over)
	}
}

func (f *fake) Close() error {
	f.fail(net.ErrClosed)
	return nil
}

// bundled is an endpoint of n fakes.
func bundled(t *testing.T, n int) (*Endpoint, []*fake) {
	t.Helper()
	fakes := make([]*fake, n)
	for i := range fakes {
		fakes[i] = newFake()
	}
	next := 0
	one := func(context.Context) (transport.Endpoint, error) {
		next++
		return fakes[next-1], nil
	}
	ep, err := Dial(t.Context(), 1, one)
	for range n - 1 { // one after the other: the order is known
		err = errors.Join(err, ep.Grow(t.Context(), 1, one))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep, fakes
}

// listOf makes n of so many bytes.
func listOf(n, size int, run *transport.Run, done func(*transport.Slice, error)) []*transport.Slice {
	list := make([]*transport.Slice, n)
	for i := range list {
		list[i] = transport.NewSlice(transport.Write, make([]byte, size), 1, 0, done)
		list[i].Run = run
	}
	return list
}

func ignore(*transport.Slice, error) {}

func post(t *testing.T, ep *Endpoint, list []*transport.Slice) {
	t.Helper()
	if n, err := ep.Post(list); n != len(list) || err != nil {
		t.Fatalf("%d of %d slices were taken: %v", n, len(list), err)
	}
}

// TestLoose: what is in no order goes to who has the least, small slices together.
func TestLoose(t *testing.T) {
	ep, fakes := bundled(t, 4)
	post(t, ep, listOf(16, 1<<20, transport.Loose, ignore))
	for i, f := range fakes {
		if len(f.posted) != 4 {
			t.Errorf("connection %d has %d of 16 slices", i, len(f.posted))
		}
		if i > 0 {
			f.complete(nil)
		}
	}
	post(t, ep, listOf(100, 4096, transport.Loose, ignore))
	if n := len(fakes[0].posted); n != 4 {
		t.Errorf("the one that is busy got %d more", n-4)
	}
	used := 0
	for _, f := range fakes[1:] {
		used += min(len(f.posted), 1)
	}
	if used != 1 {
		t.Errorf("100 slices of 4 KiB went over %d connections", used)
	}
}

// TestRuns: a run goes over one connection, whenever its slices are posted, and another over another;
// what says nothing goes over the first.
func TestRuns(t *testing.T) {
	ep, fakes := bundled(t, 3)
	runs := make([]transport.Run, 3)
	for range 2 {
		for i := range runs {
			post(t, ep, listOf(5, 3<<20, &runs[i], ignore))
		}
	}
	for i, f := range fakes {
		if len(f.posted) != 10 {
			t.Errorf("connection %d has %d of 30 slices", i, len(f.posted))
		}
		for _, s := range f.posted {
			if s.Run != f.posted[0].Run {
				t.Fatalf("connection %d has slices of several runs", i)
			}
		}
	}
	post(t, ep, listOf(7, 1, nil, ignore))
	if n := len(fakes[0].posted); n != 17 {
		t.Errorf("%d of 7 slices in order went over the first", n-10)
	}
	// A run that was begun on a connection which is gone begins again.
	other, _ := bundled(t, 2)
	post(t, other, listOf(1, 1, &runs[0], ignore))
}

// TestGrown: what was begun over the only connection goes on there when there are more: its immediate would
// go past its bytes otherwise.
func TestGrown(t *testing.T) {
	ep, fakes := bundled(t, 1)
	fakes[0].most = 3
	var run transport.Run
	list := listOf(5, 1<<20, &run, ignore)
	if n, err := ep.Post(list); n != 3 || err != nil {
		t.Fatalf("%d slices were taken: %v", n, err)
	}
	more := newFake()
	if err := ep.Grow(t.Context(), 1, func(context.Context) (transport.Endpoint, error) { return more, nil }); err != nil {
		t.Fatal(err)
	}
	if n, err := ep.Post(list[3:]); n != 0 || err != nil {
		t.Errorf("%d slices went over another connection: %v", n, err)
	}
	fakes[0].most = 5
	post(t, ep, list[3:])
	post(t, ep, listOf(1, 1, transport.Loose, ignore))
	if len(fakes[0].posted) != 5 || len(more.posted) != 1 {
		t.Errorf("%d and %d slices, want 5 and 1", len(fakes[0].posted), len(more.posted))
	}
}

// TestFull: what one connection does not take is not given to another behind its back.
func TestFull(t *testing.T) {
	ep, fakes := bundled(t, 2)
	fakes[0].most = 3
	list := append(listOf(5, 1, nil, ignore), listOf(5, 1, transport.Loose, ignore)...)
	if n, err := ep.Post(list); n != 3 || err != nil {
		t.Errorf("%d slices were taken: %v", n, err)
	}
	if n := len(fakes[1].posted); n > 0 {
		t.Errorf("%d slices went past others", n)
	}
}

// TestOneLost: one connection lost is all lost: every slice ends, nothing more is taken, and the first
// reason stands.
func TestOneLost(t *testing.T) {
	ep, fakes := bundled(t, 4)
	var ended sync.WaitGroup
	ended.Add(8)
	var good atomic.Int64
	post(t, ep, listOf(8, 1<<20, transport.Loose, func(_ *transport.Slice, err error) {
		if err == nil {
			good.Add(1)
		}
		ended.Done()
	}))
	why := errors.New("cable was cut")
	fakes[2].fail(why)
	ended.Wait()
	if good.Load() > 0 {
		t.Errorf("%d slices completed", good.Load())
	}
	for range 2 {
		if n, err := ep.Post(listOf(1, 1, transport.Loose, ignore)); n != 0 || !errors.Is(err, why) {
			t.Errorf("Post took %d: %v", n, err)
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := ep.Look(); ok {
		t.Error("it looks well")
	}
	late := newFake()
	err := ep.Grow(t.Context(), 1, func(context.Context) (transport.Endpoint, error) { return late, nil })
	if !errors.Is(err, why) || late.err == nil {
		t.Errorf("a connection is added to what is lost: %v, and it is closed: %v", err, late.err)
	}
}

// TestDial: the connections are made at the same time; those that cannot be made are not waited for, and
// are none.
func TestDial(t *testing.T) {
	why := errors.New("no room")
	var calls atomic.Int64
	var all sync.WaitGroup // each waits for all
	all.Add(3)
	ep, err := Dial(t.Context(), 3, func(context.Context) (transport.Endpoint, error) {
		all.Done()
		all.Wait()
		if calls.Add(1) == 2 {
			return nil, why
		}
		return newFake(), nil
	})
	if ep == nil || !errors.Is(err, why) || len(ep.Secrets()) != 2 || ep.Secret() != ep.Secrets()[0] {
		t.Fatalf("%v, %v", ep, err)
	}
	ep.Close()
	if ep, err := Dial(t.Context(), 3, func(context.Context) (transport.Endpoint, error) { return nil, why }); ep != nil || !errors.Is(err, why) {
		t.Errorf("%v, %v", ep, err)
	}
}

// TestMost: there are no more than a hello can name, those that are retired counted.
func TestMost(t *testing.T) {
	ep, fakes := bundled(t, Most)
	ep.Shrink()
	more := newFake()
	if err := ep.Grow(t.Context(), 1, func(context.Context) (transport.Endpoint, error) { return more, nil }); err == nil || more.err == nil || len(ep.Secrets()) != Most {
		t.Errorf("%v: %d connections of %d", err, len(ep.Secrets()), len(fakes))
	}
}

// TestIdleLost: a connection that is lost with nothing under way is not missed, unless it is the last; nor
// is it if that shows only when something is posted on it.
func TestIdleLost(t *testing.T) {
	why := errors.New("no room for you")
	ep, fakes := bundled(t, 4)
	post(t, ep, listOf(8, 1<<20, transport.Loose, ignore))
	for _, f := range fakes {
		f.flow.Moved = 10
	}
	ep.Gauge()
	fakes[1].complete(nil)
	fakes[1].fail(why)
	for fakes[2].UnderWay() > 0 {
		fakes[2].complete(nil)
	}
	fakes[2].err = why // and it is not over yet
	post(t, ep, listOf(8, 1<<20, transport.Loose, ignore))
	fakes[2].err = nil
	fakes[2].fail(why)
	if n := len(fakes[0].posted) + len(fakes[3].posted); n != 12 {
		t.Errorf("two connections have %d slices", n)
	}
	if l, ok := ep.Look(); !ok || l.Conns != 2 || l.Moved != 40 {
		t.Errorf("%+v, %v", l, ok)
	}
	for _, i := range []int{0, 3} {
		fakes[i].complete(nil)
		fakes[i].fail(why)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, ok := ep.Look(); !ok {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("without a connection it looks well")
		}
	}
}

// TestSecrets: the peer is asked to end all connections that may carry anything.
func TestSecrets(t *testing.T) {
	ep, fakes := bundled(t, 4)
	ep.Close()
	all := ep.Secrets()
	if len(all) != 4 || all[0] != ep.Secret() || all[0] != fakes[0].secret {
		t.Fatalf("%d secrets of 4 connections", len(all))
	}
	for _, f := range fakes {
		if !slices.Contains(all, f.secret) {
			t.Errorf("of a connection it is not named: %x", f.secret)
		}
	}
}

// TestGauge: a path is the sum of its connections, and loses nothing when one goes.
func TestGauge(t *testing.T) {
	ep, fakes := bundled(t, 3)
	for i, f := range fakes {
		f.flow = transport.Flow{
			Moved: 100, Resent: 2, RoundTrip: time.Duration(i + 1), Jitter: time.Duration(3 - i), Window: 10,
			Asked: i == 1, Unheard: time.Duration(10 - i),
		}
	}
	want := transport.Flow{Moved: 300, Resent: 6, RoundTrip: 3, Jitter: 3, Window: 30, Asked: true, Unheard: 8}
	if got := ep.Gauge(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	fakes[1].flow.Window, want.Window = -1, -1
	if got := ep.Gauge(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	ep.Shrink()
	for range atRest {
		ep.Look()
	}
	if got := ep.Gauge(); got.Moved != 300 || got.Resent != 6 {
		t.Errorf("with one less: %+v", got)
	}
}

// TestShrink: a connection that is retired takes nothing new, keeps what it has, and goes when it has been
// at rest for a while. The first stays.
func TestShrink(t *testing.T) {
	ep, fakes := bundled(t, 2)
	var run transport.Run
	post(t, ep, listOf(1, 1<<20, transport.Loose, ignore)) // over one
	post(t, ep, listOf(1, 1<<20, &run, ignore))            // over the other
	var last, first *fake
	for _, f := range fakes {
		if f.posted[0].Run == &run {
			last = f
		} else {
			first = f
		}
	}
	if first != fakes[0] {
		t.Fatal("the first connection is not the first that is chosen")
	}
	ep.Shrink()
	ep.Shrink()
	post(t, ep, listOf(3, 1<<20, transport.Loose, ignore))
	post(t, ep, listOf(1, 1<<20, &run, ignore))
	if len(first.posted) != 4 || len(last.posted) != 2 {
		t.Errorf("%d and %d slices, want 4 and 2", len(first.posted), len(last.posted))
	}
	for range 2 * atRest {
		if l, ok := ep.Look(); !ok || l.Conns != 1 || !l.Busy {
			t.Fatalf("%+v, %v", l, ok)
		}
	}
	last.complete(nil)
	for i := range atRest {
		if last.err != nil {
			t.Fatalf("closed after %d looks", i)
		}
		ep.Look()
	}
	if last.err == nil || len(ep.Secrets()) != 1 {
		t.Errorf("after %d looks it is open", atRest)
	}
	if _, err := ep.Post(listOf(1, 1, nil, ignore)); err != nil {
		t.Errorf("the endpoint went with it: %v", err)
	}
	first.complete(nil)
	ep.Look()
	if l, ok := ep.Look(); !ok || l.Busy || l.Conns != 1 {
		t.Errorf("%+v, %v", l, ok)
	}
}

// TestShrinkLost: if the connections that are not retired are lost, idle, a retired one takes their place.
func TestShrinkLost(t *testing.T) {
	ep, fakes := bundled(t, 3)
	ep.Shrink()
	ep.Shrink()
	for range atRest - 1 {
		ep.Look()
	}
	fakes[0].fail(errors.New("no room for you"))
	for deadline := time.Now().Add(time.Minute); len(ep.Secrets()) > 2; {
		if time.Now().After(deadline) {
			t.Fatal("it is not noticed")
		}
		runtime.Gosched()
	}
	for range atRest {
		ep.Look()
	}
	if l, ok := ep.Look(); !ok || l.Conns != 1 || len(ep.Secrets()) != 1 {
		t.Errorf("%+v, %v: %d connections", l, ok, len(ep.Secrets()))
	}
	ep.Poke()
	post(t, ep, listOf(3, 1<<20, transport.Loose, ignore))
	if n := len(fakes[1].posted); n != 3 {
		t.Errorf("the one that is left has %d slices", n)
	}
}

// TestLostInDial: a connection may be lost before the others are made.
func TestLostInDial(t *testing.T) {
	why := errors.New("no room for you")
	for range 20 {
		var calls atomic.Int64
		ep, err := Dial(t.Context(), 3, func(context.Context) (transport.Endpoint, error) {
			f := newFake()
			if calls.Add(1) == 1 {
				f.fail(why)
			}
			return f, nil
		})
		if err != nil || ep.Secret() == (transport.Secret{}) {
			t.Fatalf("%v, %v", ep, err)
		}
		ep.Close()
	}
}
