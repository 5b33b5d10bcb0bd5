package rdma

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"kvferry/transport"
)

// A fabric is RDMA devices in memory: the twin of libibverbs. Each connection has
// a goroutine that carries its requests out one by one; faults are data.
type fabric struct {
	mu      sync.Mutex
	cond    *sync.Cond
	pairs   map[uint32]*memPairs // by queue pair number
	devices map[string]*memDevice
	gone    map[string]bool // devices that cannot be opened
	next    uint32
	// fault, if set, is asked about every request before it is carried out: OK
	// lets it pass, another status ends it with that.
	fault func(*workRequest) status
	// hold keeps requests from being carried out while it is true.
	hold bool
}

func newFabric() *fabric {
	f := &fabric{pairs: make(map[uint32]*memPairs), devices: make(map[string]*memDevice), gone: make(map[string]bool), next: 16}
	f.cond = sync.NewCond(&f.mu)
	return f
}

// with changes the fabric, and has everything that waits look again.
func (f *fabric) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.cond.Broadcast()
}

func (f *fabric) open(cfg *Config) (device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone[cfg.Device] {
		return nil, errors.New("no such device")
	}
	d := &memDevice{f: f, name: cfg.Device, regions: make(map[uint32]*memRegion), events: make(chan event, 16), over: make(chan struct{})}
	d.at = deviceInfo{
		port: port{num: 1, active: true, state: "active", mtu: 5}, netdev: "mem0",
		gid:        gid{index: 1, addr: netip.MustParseAddr("127.0.0.1").As16(), kind: gidRoCE2},
		maxMessage: 1 << 20, maxDepth: 1024, maxInline: 64,
	}
	f.devices[cfg.Device] = d
	return d, nil
}

type memDevice struct {
	f       *fabric
	name    string
	at      deviceInfo
	regions map[uint32]*memRegion
	events  chan event
	over    chan struct{}
	once    sync.Once
	live    int // regions and pairs that are not closed
}

type memRegion struct {
	d    *memDevice
	mem  []byte
	base uint64
	key  uint32

	release func() error // of a dma-buf
}

func (d *memDevice) info() deviceInfo { return d.at }

func (d *memDevice) register(mem []byte) (memory, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.next++
	d.live++
	g := &memRegion{d: d, mem: mem, base: address(mem), key: d.f.next}
	d.regions[g.key] = g
	return g, nil
}

// registerDMABuf has a memfd for a dma-buf: the device has it mapped.
func (d *memDevice) registerDMABuf(mem []byte, fd int, offset int64) (memory, error) {
	if page := uint64(os.Getpagesize()); address(mem)%page != uint64(offset)%page {
		return nil, fmt.Errorf("address %#x and offset %d: not at the same place of a page", address(mem), offset)
	}
	there, release, err := transport.MapFile(fd, offset, len(mem))
	if err != nil {
		return nil, err
	}
	m, err := d.register(there)
	g := m.(*memRegion)
	g.base, g.release = address(mem), release
	return g, err
}

func (g *memRegion) keys() (uint32, uint32) { return g.key, g.key }
func (g *memRegion) addr() uint64           { return g.base }

func (g *memRegion) close() error {
	g.d.f.with(func() { delete(g.d.regions, g.key); g.d.live-- })
	if g.release != nil {
		return g.release()
	}
	return nil
}

// find is the memory of a request on this device.
func (d *memDevice) find(key uint32, addr uint64, n uint32) []byte {
	if n == 0 {
		return []byte{}
	}
	g := d.regions[key]
	if g == nil || addr < g.base || addr+uint64(n) > g.base+uint64(len(g.mem)) {
		return nil
	}
	return g.mem[addr-g.base:][:n]
}

func (d *memDevice) event() (event, error) {
	select {
	case ev := <-d.events:
		return ev, nil
	case <-d.over:
		return 0, net.ErrClosed
	}
}

func (d *memDevice) close() error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.once.Do(func() { close(d.over) })
	if d.live != 0 {
		return fmt.Errorf("device closed with %d regions and connections in use", d.live)
	}
	return nil
}

type memPairs struct {
	d       *memDevice
	n       int
	depth   int
	mine    []pairAddr
	peers   []pairAddr
	posted  []workRequest
	cq      []completion
	recvs   []int
	failed  []bool
	woken   bool
	closed  bool
	stopped chan struct{}
}

func (d *memDevice) pairs(n, depth int) (pairs, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	p := &memPairs{d: d, n: n, depth: depth, failed: make([]bool, n), stopped: make(chan struct{})}
	for range n {
		d.f.next++
		p.mine = append(p.mine, pairAddr{d.f.next, d.f.next * 7})
		p.recvs = append(p.recvs, depth)
		d.f.pairs[d.f.next] = p
	}
	d.live++
	go p.run()
	return p, nil
}

func (p *memPairs) addrs() []pairAddr { return p.mine }

func (p *memPairs) start(peer []pairAddr, at portAddr) error {
	if at.mtu == 0 || at.gid == [16]byte{} {
		return fmt.Errorf("no address: %+v", at)
	}
	p.d.f.with(func() { p.peers = peer })
	return nil
}

func (p *memPairs) post(wrs []workRequest) error {
	p.d.f.mu.Lock()
	defer p.d.f.mu.Unlock()
	if p.closed {
		panic("post to destroyed queue pairs")
	}
	under := make([]int, p.n)
	for _, w := range p.posted {
		under[w.pair]++
	}
	for _, w := range wrs {
		if under[w.pair]++; under[w.pair] > p.depth {
			return errors.New("send queue overflow")
		}
		if w.flags&flagInline != 0 {
			if int(w.length) > p.d.at.maxInline || w.op == opRead {
				return errors.New("inline")
			}
			if g := p.d.regions[w.lkey]; g != nil && g.release != nil {
				return errors.New("inline, of memory that is not mapped")
			}
		}
	}
	p.posted = append(p.posted, wrs...)
	p.d.f.cond.Broadcast()
	return nil
}

func (p *memPairs) receive(pair, n int) error {
	p.d.f.mu.Lock()
	defer p.d.f.mu.Unlock()
	if p.closed {
		panic("receive on destroyed queue pairs")
	}
	if p.recvs[pair] += n; p.recvs[pair] > p.depth {
		return errors.New("receive queue overflow")
	}
	return nil
}

// run carries requests out.
func (p *memPairs) run() {
	defer close(p.stopped)
	f := p.d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		for !p.closed && (len(p.posted) == 0 || f.hold && !slices.Contains(p.failed, true)) {
			f.cond.Wait()
		}
		if p.closed {
			return
		}
		w := p.posted[0]
		p.posted = p.posted[1:]
		st := statusFlushed
		if !p.failed[w.pair] {
			st = p.carryOut(&w)
		}
		if st != statusOK {
			p.failed[w.pair] = true
		}
		if st != statusOK || w.flags&flagSignaled != 0 {
			p.complete(completion{id: w.id, status: st})
		}
		f.mu.Unlock() // others' turn
		f.mu.Lock()
	}
}

func (p *memPairs) complete(c completion) {
	if len(p.cq) == 2*p.n*p.depth {
		panic("completion queue overflow")
	}
	p.cq = append(p.cq, c)
	p.d.f.cond.Broadcast()
}

func (p *memPairs) carryOut(w *workRequest) status {
	f := p.d.f
	if f.fault != nil {
		if st := f.fault(w); st != statusOK {
			return st
		}
	}
	peer := f.pairs[p.peers[w.pair].number]
	if peer == nil || peer.failed[w.pair] {
		return statusRetry
	}
	if int64(w.length) > int64(p.d.at.maxMessage) {
		return statusLocalLength
	}
	local := p.d.find(w.lkey, w.local, w.length)
	if local == nil {
		return statusLocalProt
	}
	remote := peer.d.find(w.rkey, w.remote, w.length)
	if remote == nil {
		return statusRemoteAccess
	}
	switch w.op {
	case opRead:
		copy(local, remote)
		return statusOK
	case opWriteImm:
		if peer.recvs[w.pair] == 0 {
			return statusRNRRetry
		}
		peer.recvs[w.pair]--
		defer peer.complete(completion{id: receiveID | uint64(w.pair), imm: w.imm})
	}
	copy(remote, local)
	return statusOK
}

func (p *memPairs) take(out []completion) int {
	n := copy(out, p.cq)
	p.cq = p.cq[n:]
	return n
}

func (p *memPairs) poll(out []completion, spin time.Duration) (int, error) {
	p.d.f.mu.Lock()
	defer p.d.f.mu.Unlock()
	return p.take(out), nil
}

func (p *memPairs) arm(out []completion) (int, error) { return p.poll(out, 0) }

func (p *memPairs) sleep() error {
	p.d.f.mu.Lock()
	defer p.d.f.mu.Unlock()
	for len(p.cq) == 0 && !p.woken {
		p.d.f.cond.Wait()
	}
	p.woken = false
	return nil
}

func (p *memPairs) interrupt() { p.d.f.with(func() { p.woken = true }) }

func (p *memPairs) fail() error {
	p.d.f.with(func() {
		for i := range p.failed {
			p.failed[i] = true
		}
	})
	return nil
}

func (p *memPairs) close() error {
	p.d.f.with(func() {
		p.closed = true
		for _, a := range p.mine {
			delete(p.d.f.pairs, a.number)
		}
		p.d.live--
	})
	<-p.stopped
	return nil
}

// rail opens a rail on the fabric, its device named after a number.
func (f *fabric) rail(tb testing.TB, change ...func(*Config)) *Rail {
	tb.Helper()
	f.mu.Lock()
	f.next++
	cfg := Config{Name: fmt.Sprintf("rdma/mem%d", f.next), Poll: -1, Logger: discard}
	f.mu.Unlock()
	for _, c := range change {
		c(&cfg)
	}
	r, err := newRail(cfg, f.open)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
