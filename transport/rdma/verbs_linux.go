//go:build cgo

package rdma

/*
#cgo CFLAGS: -O2 -Wall
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/Mellanox/rdmamap"

	"kvferry/transport"
)

// The requests of Go are those of C: what follows does not compile where sizes differ.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(workRequest{})-C.sizeof_struct_kv_wr]
	_ = [1]struct{}{}[unsafe.Sizeof(completion{})-C.sizeof_struct_kv_wc]
)

// verbsDevice is a port of a device of libibverbs. What C allocates for it is freed by close and
// by nothing else; ibv_ functions of one context may be called from several threads.
type verbsDevice struct {
	ctx    *C.struct_ibv_context
	pd     *C.struct_ibv_pd
	at     deviceInfo
	limits C.struct_ibv_device_attr
	async  *os.File // a duplicate of the context's descriptor of events
	sys    string   // its folder, for as long as it is there
}

// openDevice opens the device that the configuration names, or whose network
// interface it names.
func openDevice(cfg *Config) (device, error) {
	if err := library(); err != nil {
		return nil, err
	}
	name, err := deviceName(cfg.Device)
	if err != nil {
		return nil, err
	}
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, fmt.Errorf("listing RDMA devices: %w: is ib_uverbs loaded (modprobe ib_uverbs)?", err)
	}
	defer C.ibv_free_device_list(list)
	d := &verbsDevice{}
	var names []string
	for _, dev := range unsafe.Slice(list, int(n)) {
		names = append(names, C.GoString(&dev.name[0]))
		if names[len(names)-1] != name {
			continue
		}
		if d.ctx, err = C.ibv_open_device(dev); d.ctx == nil {
			return nil, explainOpen(name, err)
		}
	}
	if d.ctx == nil {
		return nil, fmt.Errorf("libibverbs has no driver for %s, only for: %s: apt-get install ibverbs-providers", name, orNone(names))
	}
	if err := d.prepare(cfg, name); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// deviceName is the RDMA device of that name, or of the network interface of that
// name.
func deviceName(name string) (string, error) {
	devices := rdmamap.GetRdmaDeviceList()
	if slices.Contains(devices, name) {
		return name, nil
	}
	if _, err := net.InterfaceByName(name); err != nil {
		return "", noDevice(name, devices)
	}
	dev, err := rdmamap.GetRdmaDeviceForNetdevice(name)
	if err != nil || dev == "" {
		return "", fmt.Errorf("network interface %s has no RDMA device (there are: %s): rdma link add rxe0 type rxe netdev %s makes a software one", name, orNone(devices), name)
	}
	return dev, nil
}

func noDevice(name string, devices []string) error {
	return fmt.Errorf("no RDMA device is named %q (there are: %s): rdma link shows them, and rdma link add rxe0 type rxe netdev eth0 makes a software one", name, orNone(devices))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func explainOpen(name string, err error) error {
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("opening %s: %w: no permission on /dev/infiniband/uverbs*: run as root, or join its group (ls -l /dev/infiniband)", name, err)
	}
	return fmt.Errorf("opening %s: %w", name, err)
}

// prepare chooses port and GID and makes what all connections share. After an error the caller
// closes the device, which frees what there is of it.
func (d *verbsDevice) prepare(cfg *Config, name string) error {
	if rc := C.ibv_query_device(d.ctx, &d.limits); rc != 0 {
		return fmt.Errorf("querying %s: %w", name, syscall.Errno(rc))
	}
	ports := make([]port, int(d.limits.phys_port_cnt))
	largest := make([]int, len(ports)+1)
	for i := range ports {
		p, most, err := d.port(i + 1)
		if err != nil {
			return fmt.Errorf("querying %s port %d: %w", name, i+1, err)
		}
		ports[i], largest[i+1] = p, most
	}
	chosen, g, why, err := choose(cfg, ports)
	if err != nil {
		return err
	}
	if g.netdev == "" {
		g.netdev = netdevOf(name)
	}
	d.at = deviceInfo{
		port: chosen, gid: g, netdev: g.netdev, maxMessage: largest[chosen.num],
		// Requests and receives of a pair share the completion queue.
		maxDepth: min(int(d.limits.max_qp_wr), int(d.limits.max_cqe)/2),
	}
	if d.pd, err = C.ibv_alloc_pd(d.ctx); d.pd == nil {
		return fmt.Errorf("protection domain on %s: %w", name, err)
	}
	// No query says how much a device takes inline: a pair is made and asked. 220 bytes are
	// what perftest asks for; a letter needs 40.
	for _, inline := range []int{220, 64} {
		p, err := d.newPairs(1, 1, inline)
		if err != nil {
			return err
		}
		d.at.maxInline = max(d.at.maxInline, int(p.c.max_inline))
		if err := p.close(); err != nil {
			return err
		}
		if d.at.maxInline > 0 {
			break
		}
	}
	d.sys = "/sys/class/infiniband_verbs/" + C.GoString(&d.ctx.device.dev_name[0])
	if d.async, err = pollable(int(d.ctx.async_fd), name); err != nil {
		return err
	}
	cfg.Logger.Info("transport/rdma: "+why, "rail", cfg.Name, "device", name, "netdev", g.netdev,
		"mtu", 128<<chosen.mtu, "max_message", d.at.maxMessage, "max_inline", d.at.maxInline, "max_mr_size", uint64(d.limits.max_mr_size))
	return nil
}

// pollable is a descriptor that the Go poller waits for; closing it leaves the
// original.
func pollable(fd int, name string) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	syscall.ForkLock.RLock()
	dup, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(dup)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), name), nil
}

// port is what a port has, and the largest message that it takes, in bytes.
func (d *verbsDevice) port(num int) (port, int, error) {
	var a C.struct_ibv_port_attr
	if rc := C.kv_query_port(d.ctx, C.uint8_t(num), &a); rc != 0 {
		return port{}, 0, syscall.Errno(rc)
	}
	p := port{
		num: num, lid: uint16(a.lid), mtu: uint8(a.active_mtu), active: a.state == C.IBV_PORT_ACTIVE,
		state: strings.TrimPrefix(C.GoString(C.ibv_port_state_str(a.state)), "PORT_"), infini: a.link_layer == C.IBV_LINK_LAYER_INFINIBAND,
	}
	for i := range int(a.gid_tbl_len) {
		var e C.struct_ibv_gid_entry
		if C._ibv_query_gid_ex(d.ctx, C.uint32_t(num), C.uint32_t(i), &e, 0, C.sizeof_struct_ibv_gid_entry) != 0 {
			continue // an empty entry
		}
		g := gid{index: i, addr: *(*[16]byte)(unsafe.Pointer(&e.gid)), kind: gidKind(e.gid_type)}
		if dev, err := net.InterfaceByIndex(int(e.ndev_ifindex)); err == nil {
			g.netdev = dev.Name
		}
		if g.kind <= gidRoCE2 { // others are of kinds that no rail here speaks
			p.gids = append(p.gids, g)
		}
	}
	return p, int(a.max_msg_sz), nil
}

// netdevOf is the network interface of a device, where its GIDs do not say.
func netdevOf(name string) string {
	all, _ := net.Interfaces()
	for _, i := range all {
		if dev, err := rdmamap.GetRdmaDeviceForNetdevice(i.Name); err == nil && dev == name {
			return i.Name
		}
	}
	return ""
}

func (d *verbsDevice) info() deviceInfo { return d.at }

// verbsMemory is a memory region.
type verbsMemory struct {
	mr   *C.struct_ibv_mr
	base uint64 // what addr says
}

func (d *verbsDevice) register(mem []byte) (memory, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: empty memory", transport.ErrInvalid)
	}
	if most := uint64(d.limits.max_mr_size); uint64(len(mem)) > most {
		return nil, fmt.Errorf("%w: %d bytes are more than the device registers at once (max_mr_size %d): use a smaller segment", transport.ErrInvalid, len(mem), most)
	}
	mr, err := C.kv_reg_mr(d.pd, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
	if mr == nil {
		return nil, explainPin(len(mem), err)
	}
	return &verbsMemory{mr, address(mem)}, nil
}

// explainPin says what to do about memory that cannot be pinned. The kernel counts pinned pages
// against RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK, and says ENOMEM for either limit.
func explainPin(n int, err error) error {
	var l syscall.Rlimit
	const memlock = 8 // RLIMIT_MEMLOCK
	if errors.Is(err, syscall.ENOMEM) && syscall.Getrlimit(memlock, &l) == nil && l.Cur != ^uint64(0) {
		return fmt.Errorf("pinning %d bytes: %w: locked memory is limited to %d bytes: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, docker run --ulimit memlock=-1), or use a smaller KV pool", n, err, l.Cur)
	}
	if errors.Is(err, syscall.ENOMEM) {
		return fmt.Errorf("pinning %d bytes: %w: registered memory must fit into RAM: use a smaller KV pool", n, err)
	}
	return fmt.Errorf("registering %d bytes: %w", n, err)
}

func (d *verbsDevice) registerDMABuf(mem []byte, fd int, offset int64) (memory, error) {
	mr, err := C.kv_reg_dmabuf_mr(d.pd, C.int(fd), C.uint64_t(offset), C.size_t(len(mem)), C.uint64_t(address(mem)))
	if mr == nil {
		return nil, fmt.Errorf("registering a dma-buf of %d bytes: %w: libibverbs must be of rdma-core 34 or later, and its driver and the NIC's must support peer-to-peer access", len(mem), err)
	}
	return &verbsMemory{mr, address(mem)}, nil
}

func (m *verbsMemory) keys() (lkey, rkey uint32) { return uint32(m.mr.lkey), uint32(m.mr.rkey) }

func (m *verbsMemory) addr() uint64 { return m.base }

func (m *verbsMemory) close() error { return errno("deregistering memory", C.ibv_dereg_mr(m.mr)) }

// errno is the error of a call that returns 0 or an errno.
func errno(what string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", what, syscall.Errno(rc))
}

// lookEvery is how often event looks whether the device is still there. A driver
// that cannot take its hardware away from a process (rxe) says nothing when the
// device is to be removed: the kernel waits until nobody has it open.
const lookEvery = 300 * time.Millisecond

// event implements device.
func (d *verbsDevice) event() (event, error) {
	for {
		var typ, num C.int
		if err := d.async.SetReadDeadline(time.Now().Add(lookEvery)); err != nil {
			return 0, net.ErrClosed
		}
		err := await(d.async, func() bool { return C.kv_async(d.ctx, &typ, &num) == 0 })
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if _, err := os.Stat(d.sys); errors.Is(err, os.ErrNotExist) {
				return deviceGone, nil
			}
			continue
		case err != nil:
			return 0, net.ErrClosed
		}
		// What happens to a queue pair comes as a completion, too: such events are left alone.
		mine := int(num) == d.at.port.num
		switch {
		case typ == C.IBV_EVENT_PORT_ERR && mine:
			return portDown, nil
		case typ == C.IBV_EVENT_PORT_ACTIVE && mine:
			return portUp, nil
		case typ == C.IBV_EVENT_DEVICE_FATAL:
			return deviceGone, nil
		}
	}
}

// await calls try whenever f may have something to read, until it is true: a goroutine waits,
// not a thread.
func await(f *os.File, try func() bool) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(uintptr) bool { return try() })
}

func (d *verbsDevice) close() error {
	var errs []error
	if d.async != nil {
		errs = append(errs, d.async.Close())
	}
	if d.pd != nil {
		errs = append(errs, errno("freeing the protection domain", C.ibv_dealloc_pd(d.pd)))
	}
	return errors.Join(append(errs, errno("closing the device", C.ibv_close_device(d.ctx)))...)
}

// verbsPairs are queue pairs, see verbs.h.
type verbsPairs struct {
	d     *verbsDevice
	c     *C.struct_kv_pairs
	n     int
	psn   uint32      // of the first packet: 24 bits, at random, so that late packets of others are none of ours
	ready *os.File    // a duplicate of the completion channel's descriptor
	woken atomic.Bool // by interrupt, and not yet seen by sleep
}

func (d *verbsDevice) pairs(n, depth int) (pairs, error) {
	p, err := d.newPairs(n, depth, d.at.maxInline)
	if err != nil {
		return nil, err
	}
	if p.ready, err = pollable(int(p.c.channel.fd), "completions"); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// newPairs makes pairs that cannot be slept for: those of pairs, or of prepare's trial.
func (d *verbsDevice) newPairs(n, depth, inline int) (*verbsPairs, error) {
	p := &verbsPairs{d: d, n: n, psn: rand.Uint32() & 0xffffff}
	rc := C.kv_pairs_new(d.ctx, d.pd, C.uint8_t(d.at.port.num), C.int(n), C.int(depth), C.int(inline), &p.c)
	if rc != 0 {
		return nil, fmt.Errorf("making %d queue pairs of depth %d: %w", n, depth, syscall.Errno(rc))
	}
	return p, nil
}

func (p *verbsPairs) addrs() []pairAddr {
	var all []pairAddr
	for i := range p.n {
		all = append(all, pairAddr{uint32(p.c.qp[i].qp_num), p.psn})
	}
	return all
}

func (p *verbsPairs) start(peer []pairAddr, at portAddr) error {
	var global C.int
	// RoCE always has a global route header; InfiniBand where the peer has no local address.
	if !p.d.at.port.infini || at.lid == 0 {
		global = 1
	}
	// Reads under way: as initiator, and as target. Both sides offer what their devices
	// have, at most 16 as perftest does.
	reads := C.uint8_t(min(int(p.d.limits.max_qp_init_rd_atom), 16))
	theirs := C.uint8_t(min(int(p.d.limits.max_qp_rd_atom), 16))
	for i, a := range peer {
		rc := C.kv_pairs_start(p.c, C.int(i), C.uint8_t(p.d.at.port.num), C.uint8_t(p.d.at.gid.index), global,
			(*C.uint8_t)(&at.gid[0]), C.uint16_t(at.lid), C.uint8_t(at.mtu), C.uint32_t(a.number), C.uint32_t(a.psn), C.uint32_t(p.psn), reads, theirs)
		if rc != 0 {
			return fmt.Errorf("connecting queue pair %d: %w", i, syscall.Errno(rc))
		}
	}
	return nil
}

func (p *verbsPairs) post(wrs []workRequest) error {
	return errno("ibv_post_send", C.kv_post(p.c, (*C.struct_kv_wr)(unsafe.Pointer(&wrs[0])), C.int(len(wrs))))
}

func (p *verbsPairs) receive(pair, n int) error {
	return errno("ibv_post_recv", C.kv_receive(p.c, C.int(pair), C.int(n)))
}

func (p *verbsPairs) poll(out []completion, spin time.Duration) (int, error) {
	return polled(C.kv_poll(p.c, (*C.struct_kv_wc)(unsafe.Pointer(&out[0])), C.int(len(out)), C.int64_t(spin)))
}

func (p *verbsPairs) arm(out []completion) (int, error) {
	return polled(C.kv_arm(p.c, (*C.struct_kv_wc)(unsafe.Pointer(&out[0])), C.int(len(out))))
}

func polled(n C.int) (int, error) {
	if n < 0 {
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// sleep takes an event off the completion channel.
func (p *verbsPairs) sleep() error {
	_ = p.ready.SetReadDeadline(time.Time{})
	if p.woken.Swap(false) {
		return nil
	}
	err := await(p.ready, func() bool { return C.kv_event(p.c) == 0 })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.woken.Store(false)
		return nil
	}
	return err
}

// interrupt moves the deadline of sleep into the past, after the mark that a sleep
// which is about to move it away looks for.
func (p *verbsPairs) interrupt() {
	p.woken.Store(true)
	_ = p.ready.SetReadDeadline(time.Unix(1, 0))
}

func (p *verbsPairs) fail() error { return errno("failing queue pairs", C.kv_pairs_fail(p.c)) }

func (p *verbsPairs) close() error {
	if p.ready != nil {
		_ = p.ready.Close()
	}
	return errno("destroying queue pairs", C.kv_pairs_free(p.c))
}
