package transporttest

import (
	"sync"

	"kvferry/transport"
	"kvferry/transport/descriptor"
)

// Exporting is a rail whose device takes memfds for dma-bufs, as those in memory do.
type Exporting interface {
	transport.DMABufRail
	TakesMemfds()
}

// A Device is a rail in memory that moves memory which is not mapped: that of memfds, which its device has mapped.
type Device struct{ *Rail }

// TakesMemfds implements Exporting.
func (Device) TakesMemfds() {}

// RegisterDMABuf implements transport.DMABufRail.
func (d Device) RegisterDMABuf(mem []byte, fd int, offset int64, access transport.Access) (transport.Key, error) {
	there, release, err := transport.MapFile(fd, offset, len(mem))
	if err != nil {
		return 0, err
	}
	key, err := d.Register(there, access)
	if err != nil {
		_ = release()
		return 0, err
	}
	devices.Store(key, deviceMemory{d.Rail, mem, there, release})
	return key, nil
}

// Deregister implements transport.Rail.
func (d Device) Deregister(key transport.Key) error {
	err := d.Rail.Deregister(key)
	if m, ok := devices.LoadAndDelete(key); ok {
		_ = m.(deviceMemory).release()
	}
	return err
}

// Close implements transport.Rail.
func (d Device) Close() error {
	err := d.Rail.Close()
	devices.Range(func(key, m any) bool {
		if m.(deviceMemory).of == d.Rail {
			devices.Delete(key)
			_ = m.(deviceMemory).release()
		}
		return true
	})
	return err
}

// devices have memory, by key.
var devices sync.Map

type deviceMemory struct {
	of         *Rail
	mem, there []byte
	release    func() error
}

// local is where the bytes of a slice's Local are, for the rail that carries it.
func (r *Rail) local(mem []byte) (there []byte) {
	m, offset := descriptor.Of(mem)
	if m == nil || m.Mapped {
		return mem
	}
	devices.Range(func(_, of any) bool {
		d := of.(deviceMemory)
		if other, at := descriptor.Of(d.mem); d.of == r && other == m && offset >= at && offset+int64(len(mem)) <= at+int64(len(d.mem)) {
			there = d.there[offset-at:][:len(mem)]
		}
		return there == nil
	})
	return there
}
