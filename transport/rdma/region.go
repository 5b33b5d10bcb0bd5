package rdma

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"kvferry/transport"
)

// regions is what peers may touch, by key, and what is pinned for it. Keys are
// many and memory is pinned once: a node gives each transfer a key of its own to
// the same slab, and pinning 14 GB takes seconds. So what ends with a key is not
// a registration but the permission, see Rail.Deregister.
type regions struct {
	pinning sync.Mutex // held while memory is pinned and released, which can take long

	version atomic.Uint64 // changes when a registration goes, so that what was found can be kept until then

	mu    sync.RWMutex
	byKey map[transport.Key]*region // nil once closed
	pins  []*pin
}

// A region is what a key stands for.
type region struct {
	pin    *pin
	offset uint64 // in the pin
	length int64
	local  bool                 // for this rail's own slices; peers are not told
	peers  map[*served]struct{} // that were told how to reach it
}

// A pin is registered memory. mem and buf stay as they are, the others are guarded by regs.mu.
type pin struct {
	mem  []byte
	buf  *dmaBuf // nil: mem is mapped
	mr   memory  // nil while the device is gone
	refs int     // keys
}

// A dmaBuf is memory that another driver, a GPU's, exports by a descriptor: nothing is at its addresses here.
type dmaBuf struct {
	fd     int   // stays open for as long as there is a key
	offset int64 // of the memory's first byte
}

func (p *pin) register(dev device) (memory, error) {
	if p.buf != nil {
		return dev.registerDMABuf(p.mem, p.buf.fd, p.buf.offset)
	}
	return dev.register(p.mem)
}

// at is where mem begins in the pin, or false if it is not inside.
func (p *pin) at(mem []byte) (uint64, bool) {
	base, addr := address(p.mem), address(mem)
	return addr - base, addr >= base && addr+uint64(len(mem)) <= base+uint64(len(p.mem))
}

// address is where memory begins, as the device is told. What is registered or posted does not move.
func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// add gives the pin's memory a key. It holds regs.pinning.
func (regs *regions) add(p *pin, offset uint64, length int64, local bool) (transport.Key, error) {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	if regs.byKey == nil {
		return 0, net.ErrClosed
	}
	if p.refs == 0 {
		regs.pins = append(regs.pins, p)
	}
	p.refs++
	key := transport.NewKey()
	regs.byKey[key] = &region{pin: p, offset: offset, length: length, local: local}
	return key, nil
}

// pinned is the pin that mem lies in, or nil.
func (regs *regions) pinned(mem []byte) (*pin, uint64) {
	regs.mu.RLock()
	defer regs.mu.RUnlock()
	for _, p := range regs.pins {
		if at, ok := p.at(mem); ok {
			return p, at
		}
	}
	return nil, 0
}

// local is what requests say of local memory.
type local struct {
	lkey       uint32
	addr       uint64 // of base, in requests
	base, size uint64
	ok         bool
	unmapped   bool   // only the device can reach it
	version    uint64 // of the regions
}

// holds reports whether memory lies in what was found for the slice before: slices of one
// transfer mostly do, and are spared the search.
func (l *local) holds(mem []byte) bool {
	a := address(mem)
	return a >= l.base && a+uint64(len(mem)) <= l.base+l.size
}

// local finds the registered memory around mem: first by the key that the slice came with, then
// among all pins, of which there are few.
func (regs *regions) local(key transport.Key, mem []byte) local {
	regs.mu.RLock()
	defer regs.mu.RUnlock()
	use := func(p *pin) (l local) {
		if _, in := p.at(mem); in && p.mr != nil {
			lkey, _ := p.mr.keys()
			l = local{lkey: lkey, addr: p.mr.addr(), base: address(p.mem), size: uint64(len(p.mem)), ok: true, unmapped: p.buf != nil}
		}
		return l
	}
	if g := regs.byKey[key]; g != nil {
		if l := use(g.pin); l.ok {
			return l
		}
	}
	for _, p := range regs.pins {
		if l := use(p); l.ok {
			return l
		}
	}
	return local{}
}

// resolve tells a peer how to reach a key's memory, and remembers that it knows.
// The answer is queued before any revocation can be. It returns whether the key is known.
func (regs *regions) resolve(key transport.Key, peer *served) (known bool) {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	f := frame{typ: frameResolved, key: key, length: -1}
	if g := regs.byKey[key]; g != nil && !g.local && g.pin.mr != nil {
		_, rkey := g.pin.mr.keys()
		f.memory, f.length = remoteMemory{g.pin.mr.addr() + g.offset, rkey}, g.length
		if g.peers == nil {
			g.peers = make(map[*served]struct{})
		}
		g.peers[peer] = struct{}{}
		peer.knows[key] = struct{}{}
		peer.known = true
	}
	peer.send(f)
	return f.length >= 0
}

// uses reports whether a peer may have something under way with a key: one that it was told of,
// or one that it was asked for and has not given back.
func (regs *regions) uses(key transport.Key, peer *served) bool {
	regs.mu.RLock()
	defer regs.mu.RUnlock()
	_, knows := peer.knows[key]
	return knows || peer.revoking[key] != nil
}

// revoke forgets a key and tells the peers that know it. Each answers, or is over.
func (regs *regions) revoke(key transport.Key) (*pin, []revocation, error) {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	if regs.byKey == nil {
		return nil, nil, net.ErrClosed
	}
	g := regs.byKey[key]
	if g == nil {
		return nil, nil, transport.ErrBadKey
	}
	delete(regs.byKey, key)
	var asked []revocation
	for peer := range g.peers {
		delete(peer.knows, key)
		r := revocation{peer, make(chan struct{})}
		peer.revoking[key] = r.done
		peer.send(frame{typ: frameRevoke, key: key})
		asked = append(asked, r)
	}
	return g.pin, asked, nil
}

// A revocation is what Deregister waits for: done is closed by the peer's answer.
type revocation struct {
	peer *served
	done chan struct{}
}

// revoked is a peer's answer; false if nothing had been asked.
func (regs *regions) revoked(key transport.Key, peer *served) bool {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	done := peer.revoking[key]
	if done == nil {
		return false
	}
	delete(peer.revoking, key)
	peer.idle = time.Now()
	close(done)
	return true
}

// forget drops a peer that is over.
func (regs *regions) forget(peer *served) {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	for key := range peer.knows {
		if g := regs.byKey[key]; g != nil {
			delete(g.peers, peer)
		}
	}
	clear(peer.knows)
}

// release takes one key off the pin, and unpins memory that no key stands for any more. The
// caller holds pinning; mu is not held while the device deregisters, which takes long.
func (regs *regions) release(p *pin) error {
	regs.mu.Lock()
	p.refs--
	mr := p.mr
	last := p.refs == 0
	if last {
		regs.version.Add(1)
		p.mr = nil
		regs.pins = slices.DeleteFunc(regs.pins, func(q *pin) bool { return q == p })
	}
	regs.mu.Unlock()
	if last && mr != nil {
		return mr.close()
	}
	return nil
}

// lost lets go of the registrations of a device that is gone.
func (regs *regions) lost() {
	regs.mu.Lock()
	defer regs.mu.Unlock()
	regs.version.Add(1)
	for _, p := range regs.pins {
		if p.mr != nil {
			_ = p.mr.close()
			p.mr = nil
		}
	}
}

// restore registers everything with a device that is back, or nothing. lkeys and rkeys are new:
// peers have lost their connections with the device, and ask again.
func (regs *regions) restore(dev device) error {
	regs.pinning.Lock()
	defer regs.pinning.Unlock()
	regs.mu.RLock()
	pins := slices.Clone(regs.pins)
	regs.mu.RUnlock()
	for _, p := range pins {
		mr, err := p.register(dev)
		if err != nil {
			regs.lost()
			return err
		}
		regs.mu.Lock()
		p.mr = mr
		regs.mu.Unlock()
	}
	return nil
}

// close forgets all keys and unpins everything.
func (regs *regions) close() {
	regs.pinning.Lock()
	defer regs.pinning.Unlock()
	regs.lost()
	regs.mu.Lock()
	defer regs.mu.Unlock()
	regs.byKey, regs.pins = nil, nil
}
