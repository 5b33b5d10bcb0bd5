//go:build linux

package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// sendImm queues an immediate without bytes and carries it, and returns how it ends.
func sendImm(t *testing.T, ep transport.Endpoint, key transport.Key, value uint64) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	s := transport.NewSlice(transport.Write, nil, key, 0, func(_ *transport.Slice, err error) { ended <- err })
	s.HasImm, s.Imm = true, transport.Imm{Source: 1, Seq: value, Value: value}
	if n, err := ep.(transport.Carrier).Queue([]*transport.Slice{s}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	ep.(transport.Carrier).Carry()
	return ended
}

func register(t *testing.T, r *Rail) transport.Key {
	t.Helper()
	key, err := r.Register(make([]byte, 64), transport.Whole(64))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func dial(t *testing.T, r *Rail, addr string) transport.Endpoint {
	t.Helper()
	ep, err := r.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// TestRing: more immediates than the ring is long come in order, each once, and the counts of them may begin again.
func TestRing(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	next, queued := uint64(0), make(chan bool)
	b.HandleImmediates(func(_ transport.Key, m transport.Imm) error {
		<-queued
		if m.Value != next {
			t.Errorf("immediate %d comes, want %d", m.Value, next)
		}
		next++
		if m.Value%1000 == 7 {
			return transport.ErrDelivered
		}
		return nil
	})
	key := register(t, b)
	ep := dial(t, a, b.Addr())
	var s *served
	for deadline := time.Now().Add(patience); s == nil || s.uncut() == nil; runtime.Gosched() {
		b.mu.Lock()
		for s = range b.conns {
		}
		b.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatal("nobody is connected")
		}
	}
	const before, rounds = 1<<32 - 1000, 3000 // then they begin again
	s.ring.Lock()
	s.handled = before
	s.ring.Unlock()
	e := ep.(*endpoint)
	e.mu.Lock()
	e.acked = before
	atomic.StoreUint32(e.ctl.half(wordAnswered), before)
	atomic.StoreUint32(e.ctl.half(wordPut), before)
	e.mu.Unlock()
	var all []<-chan error
	for i := range uint64(rounds) {
		all = append(all, sendImm(t, ep, key, i))
	}
	close(queued)
	for i, c := range all {
		err := ends(t, c, "an immediate")
		if refused := i%1000 == 7; refused != errors.Is(err, transport.ErrDelivered) || !refused && err != nil {
			t.Fatalf("immediate %d: %v", i, err)
		}
	}
	if next != rounds {
		t.Errorf("%d immediates came", next)
	}
}

// TestBusyTarget: who sends an immediate is not held up by the target, nor are other connections by one whose
// immediate takes long; and its answer comes when it comes.
func TestBusyTarget(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	busy, free := make(chan bool), make(chan bool)
	b.HandleImmediates(func(_ transport.Key, m transport.Imm) error {
		if m.Value == 1 {
			close(busy)
			<-free
		}
		return nil
	})
	key := register(t, b)
	first, second := dial(t, a, b.Addr()), dial(t, a, b.Addr())
	late := sendImm(t, first, key, 1)
	ends(t, busy, "the way of the first immediate")
	behind := sendImm(t, first, key, 2)
	for i := range uint64(10) {
		if err := ends(t, sendImm(t, second, key, 3+i), "an immediate of another connection"); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-late:
		t.Errorf("an immediate ends before it is handled: %v", err)
	case err := <-behind:
		t.Errorf("an immediate ends before the one that it is behind: %v", err)
	default:
	}
	close(free)
	for _, c := range []<-chan error{late, behind} {
		if err := ends(t, c, "an immediate that waits"); err != nil {
			t.Error(err)
		}
	}
}

// TestAnswerBesideBulk: an answer is seen although there is always more to copy.
func TestAnswerBesideBulk(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	mem, key := lend(t, b)
	ep := dial(t, a, b.Addr())
	begun, rest := make(chan bool), make(chan bool)
	var stop atomic.Bool
	local, moved := make([]byte, len(mem)/8), 0
	var bulk func(*transport.Slice, error)
	bulk = func(_ *transport.Slice, err error) {
		if err != nil {
			t.Error(err)
		}
		if moved++; moved == 2 { // from here on it goes on by itself
			close(begun)
		}
		if err != nil || stop.Load() {
			close(rest)
			return
		}
		if n, err := ep.Post([]*transport.Slice{transport.NewSlice(transport.Write, local, key, 0, bulk)}); n != 1 || err != nil {
			t.Error(n, err)
		}
	}
	bulk(nil, nil)
	ends(t, begun, "bulk")
	imm := sendImm(t, ep, key, 1)
	select {
	case err := <-imm:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the immediate has not ended beside bulk")
	}
	stop.Store(true)
	ends(t, rest, "the end of bulk")
}

// TestSpoiledBell: a peer that writes what it likes into the page that all share makes others' immediates
// later, and loses none.
func TestSpoiledBell(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	var came atomic.Int64
	b.HandleImmediates(func(transport.Key, transport.Imm) error { came.Add(1); return nil })
	key := register(t, b)
	ep := dial(t, a, b.Addr())
	x := connect(t, b)
	x.greet()
	rng := rand.New(rand.NewPCG(1, 2))
	const rounds = 200
	for i := range uint64(rounds) {
		for w := range x.bell.bits {
			atomic.StoreUint64(&x.bell.bits[w], rng.Uint64()*(i%3))
		}
		atomic.StoreUint32(&x.bell.words[wordAsleep], uint32(i%2))
		ended := sendImm(t, ep, key, i)
		clear := func() { // what was rung
			for w := range x.bell.bits {
				atomic.StoreUint64(&x.bell.bits[w], 0)
			}
		}
		clear()
		if err := ends(t, ended, "an immediate"); err != nil {
			t.Fatal(err)
		}
	}
	if came.Load() != rounds {
		t.Errorf("%d immediates came, want %d", came.Load(), rounds)
	}
}

// TestBellTurnedBack: a peer that turns the count of the bell back while the target looks elsewhere does not keep the
// rail from closing.
func TestBellTurnedBack(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	b := newRail(t)
	busy, free := make(chan bool), make(chan bool)
	b.HandleImmediates(func(transport.Key, transport.Imm) error { close(busy); <-free; return nil })
	key := register(t, b)
	x := connect(t, b)
	x.greet()
	x.ctl.put(0, key, transport.Imm{})
	x.bell.ring(x.number)
	ends(t, busy, "the way of the immediate")
	rung := atomic.LoadUint32(&x.bell.words[wordRung])
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	for deadline := time.Now().Add(patience); atomic.LoadUint32(&x.bell.words[wordRung]) == rung; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nobody rings when the rail closes")
		}
	}
	atomic.StoreUint32(&x.bell.words[wordRung], rung)
	close(free)
	if err := ends(t, closed, "Close"); err != nil {
		t.Error(err)
	}
}

// TestFullBell: a connection for which there is no number is dropped, and takes none from another.
func TestFullBell(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	b := newRail(t)
	other := new(served)
	b.bell.mu.Lock()
	b.bell.guests = slices.Repeat([]*served{other}, maxRings)
	b.bell.mu.Unlock()
	x := connect(t, b)
	if err := send(x.c, appendHello(nil, transport.NewSecret().Name()), -1); err != nil {
		t.Fatal(err)
	}
	x.dropped("a connection without a number")
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if b.bell.guest(0) != other {
		t.Error("another connection's number was given back")
	}
}

// TestFullRing: an initiator that says that it has put more than there is room for is hung up on, whether
// it rings or knocks.
func TestFullRing(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	b := newRail(t)
	defer b.Close()
	b.HandleImmediates(func(transport.Key, transport.Imm) error { t.Error("an immediate is handled"); return nil })
	for _, n := range []uint32{ringLen + 1, 1<<32 - 1} {
		for name, tell := range map[string]func(x *stranger){
			"bell":  func(x *stranger) { x.bell.ring(x.number) },
			"knock": func(x *stranger) { _ = send(x.c, []byte{typeKnock}, -1) },
		} {
			x := connect(t, b)
			x.greet()
			atomic.StoreUint32(x.ctl.half(wordPut), n)
			tell(x)
			x.dropped(fmt.Sprintf("%d immediates, by %s", n, name))
		}
	}
}

// TestHostileAnswers: a target that answers immediates that were not sent, or with no answer there is,
// breaks its own connection.
func TestHostileAnswers(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	for name, spoil := range map[string]func(ctl *control){
		"more than were sent": func(ctl *control) { atomic.StoreUint32(ctl.half(wordAnswered), 2) },
		"fewer than none":     func(ctl *control) { atomic.StoreUint32(ctl.half(wordAnswered), 1<<32-1) },
		"no answer there is":  func(ctl *control) { ctl.answer(0, codeFull) },
	} {
		t.Run(name, func(t *testing.T) {
			ep, played := dialHostile(t, r, func(c *net.UnixConn, f *file) error {
				var b [maxMessage]byte
				if _, err := receive(c, b[:], nil); err != nil { // a knock: it is late
					return err
				}
				spoil(&control{page: page{f: f}, words: wordsOf(f.mem)})
				return send(c, []byte{typeTold}, -1)
			})
			if err := ends(t, sendImm(t, ep, 1, 1), "the immediate"); !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("the immediate ends with %v", err)
			}
			if err := ends(t, played, "the target"); err != nil {
				t.Error(err)
			}
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStoppedTarget: who sends immediates to a process that stands still goes on, and when that goes on they
// are answered; when it is killed they end.
func TestStoppedTarget(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	child, addr, key := transporttest.StartTarget(t)
	r := newRail(t)
	defer r.Close()
	ep := dial(t, r, addr)
	signal := func(sig syscall.Signal) {
		t.Helper()
		if err := child.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	seq := uint64(0)
	some := func() (all []<-chan error) {
		for range 1000 { // more than a socket has room for
			seq++
			all = append(all, sendImm(t, ep, key, seq))
		}
		return all
	}
	signal(syscall.SIGSTOP)
	held := some()
	signal(syscall.SIGCONT)
	for _, c := range held {
		if err := ends(t, c, "an immediate"); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	held = some()
	signal(syscall.SIGKILL)
	_ = child.Wait()
	last := error(nil)
	for _, c := range held { // it may have stopped only after the first ones
		last = ends(t, c, "an immediate to a killed process")
	}
	if !errors.Is(last, transport.ErrUnreachable) {
		t.Errorf("the last immediate: %v", last)
	}
}
