package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
)

// The benchmarks move random blocks between two 1 GiB segments, both written
// before: the caches are cold, and no page is the kernel's zero page. Both ends
// are in this process, so cpu-s/GB is the sum of both.
const slabLen = 1 << 30

// queueDepth is how many batches are under way, as any transfer bench has it.
const queueDepth = 4

var cases = []struct {
	name        string
	size, batch int
}{{"1MiB_x16", 1 << 20, 16}, {"64KiB_x128", 64 << 10, 128}, {"4KiB_x128", 4 << 10, 128}}

var slabs = sync.OnceValue(func() (s [2][]byte) {
	for i := range s {
		mem, err := unix.Mmap(-1, 0, slabLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			panic(err)
		}
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		for at := 0; at < len(mem); at += 8 {
			binary.LittleEndian.PutUint64(mem[at:], rng.Uint64())
		}
		s[i] = mem
	}
	return s
})

// blocks is an endless random order of blocks.
type blocks struct {
	size  int
	order []int
	next  int
}

func newBlocks(size int, seed uint64) *blocks {
	return &blocks{size: size, order: rand.New(rand.NewPCG(seed, 2)).Perm(slabLen / size)}
}

func (b *blocks) offset() int {
	b.next++
	return b.order[b.next%len(b.order)] * b.size
}

// A mover moves batches one way until n bytes have moved.
type mover func(n int64) error

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(unix.TimevalToNsec(u.Utime)+unix.TimevalToNsec(u.Stime)) / 1e9
}

// rate is one measurement, in GB/s and CPU seconds per GB.
func rate(b *testing.B, move mover, n int64) (gbps, cpu float64) {
	b.Helper()
	c0, t0 := cpuSeconds(), time.Now()
	if err := move(n); err != nil {
		b.Fatal(err)
	}
	gb := float64(n) / 1e9
	return gb / time.Since(t0).Seconds(), (cpuSeconds() - c0) / gb
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkSlab sets the rail beside bare sockets, in turns of 1 GB, and
// reports the medians: x_bare is the median of the turns' ratios.
func BenchmarkSlab(b *testing.B) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, c := range cases {
			b.Run(fmt.Sprintf("%v/%s", op, c.name), func(b *testing.B) {
				slab, stopSlab := newSlabMover(b, op, c.size, c.batch)
				defer stopSlab()
				bare, stopBare := newBareMover(b, c.size, c.batch)
				defer stopBare()
				rate(b, slab, 1<<28)
				rate(b, bare, 1<<28)
				var slabs, bares, ratios, cpus, bareCPUs []float64
				for b.Loop() {
					s, sc := rate(b, slab, 1e9)
					r, rc := rate(b, bare, 1e9)
					slabs, bares, ratios = append(slabs, s), append(bares, r), append(ratios, s/r)
					cpus, bareCPUs = append(cpus, sc), append(bareCPUs, rc)
				}
				b.ReportMetric(median(slabs), "GB/s")
				b.ReportMetric(median(cpus), "cpu-s/GB")
				b.ReportMetric(median(bares), "bare-GB/s")
				b.ReportMetric(median(bareCPUs), "bare-cpu-s/GB")
				b.ReportMetric(median(ratios), "x_bare")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkBareSockets is what BenchmarkSlab compares with, alone.
func BenchmarkBareSockets(b *testing.B) {
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			bare, stop := newBareMover(b, c.size, c.batch)
			defer stop()
			rate(b, bare, 1<<28)
			var rates, cpus []float64
			for b.Loop() {
				r, c := rate(b, bare, 1e9)
				rates, cpus = append(rates, r), append(cpus, c)
			}
			b.ReportMetric(median(rates), "GB/s")
			b.ReportMetric(median(cpus), "cpu-s/GB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkLatency is an 8-byte WRITE, submitted, applied and acknowledged.
func BenchmarkLatency(b *testing.B) {
	ini, local, tgt, stop := newEngines(b)
	defer stop()
	req := []transport.Request{{Op: transport.Write, Local: local.Bytes()[:8]}}
	var lat []float64
	for b.Loop() {
		t0 := time.Now()
		batch := ini.Submit(tgt, req, transport.BatchOptions{})
		<-batch.Done()
		if err := batch.Err(); err != nil {
			b.Fatal(err)
		}
		lat = append(lat, float64(time.Since(t0).Nanoseconds())/1e3)
	}
	slices.Sort(lat)
	b.ReportMetric(lat[len(lat)/2], "p50-us")
	b.ReportMetric(lat[len(lat)*99/100], "p99-us")
}

// BenchmarkImmediate is a WRITE of 4 KiB, one at a time, with and without an immediate, in
// turns of 200: the medians of the turns' medians, and of their ratios.
func BenchmarkImmediate(b *testing.B) {
	ini, local, tgt, stop := newEngines(b)
	defer stop()
	req := []transport.Request{{Op: transport.Write, Local: local.Bytes()[:4096]}}
	turn := func(opt transport.BatchOptions) float64 {
		var took []float64
		for range 200 {
			t0 := time.Now()
			batch := ini.Submit(tgt, req, opt)
			<-batch.Done()
			if err := batch.Err(); err != nil {
				b.Fatal(err)
			}
			took = append(took, float64(time.Since(t0).Nanoseconds())/1e3)
		}
		return median(took)
	}
	var without, with, ratios []float64
	for b.Loop() {
		plain, imm := turn(transport.BatchOptions{}), turn(transport.BatchOptions{HasImm: true, Imm: 1})
		without, with, ratios = append(without, plain), append(with, imm), append(ratios, imm/plain)
	}
	b.ReportMetric(median(without), "p50-us")
	b.ReportMetric(median(with), "imm-p50-us")
	b.ReportMetric(median(ratios), "x_plain")
	b.ReportMetric(0, "ns/op")
}

func newEngines(b testing.TB) (ini *transport.Engine, local *transport.Segment, tgt *transport.Target, stop func()) {
	b.Helper()
	return newEnginesOf(b, func() *Rail { return newRail(b, "127.0.0.1:0") })
}

func newEnginesOf(b testing.TB, rail func() *Rail) (ini *transport.Engine, local *transport.Segment, tgt *transport.Target, stop func()) {
	b.Helper()
	engine := func() *transport.Engine {
		e, err := transport.New(transport.Config{Rails: []transport.Rail{rail()}})
		if err != nil {
			b.Fatal(err)
		}
		return e
	}
	ini, owner := engine(), engine()
	mem := slabs()
	local, err := ini.Register("local", mem[0], "cpu:0")
	if err != nil {
		b.Fatal(err)
	}
	remote, err := owner.Register("remote", mem[1], "cpu:0")
	if err != nil {
		b.Fatal(err)
	}
	if tgt, err = ini.Open(remote.Info()); err != nil {
		b.Fatal(err)
	}
	return ini, local, tgt, func() { ini.Close(); owner.Close() }
}

func newSlabMover(b *testing.B, op transport.Op, size, batch int) (mover, func()) {
	ini, local, tgt, stop := newEngines(b)
	return slabMover(ini, local, tgt, transport.BatchOptions{}, op, size, batch), stop
}

// slabMover keeps queueDepth batches under way.
func slabMover(ini *transport.Engine, local *transport.Segment, tgt *transport.Target, opt transport.BatchOptions, op transport.Op, size, batch int) mover {
	from, to := newBlocks(size, 1), newBlocks(size, 2)
	return func(n int64) error {
		var flight []*transport.Batch
		finish := func() error {
			<-flight[0].Done()
			err := flight[0].Err()
			flight = flight[1:]
			return err
		}
		for ; n > 0; n -= int64(size * batch) {
			reqs := make([]transport.Request, batch)
			for i := range reqs {
				at := from.offset()
				reqs[i] = transport.Request{Op: op, Local: local.Bytes()[at : at+size], Offset: int64(to.offset())}
			}
			flight = append(flight, ini.Submit(tgt, reqs, opt))
			if len(flight) == queueDepth {
				if err := finish(); err != nil {
					return err
				}
			}
		}
		for len(flight) > 0 {
			if err := finish(); err != nil {
				return err
			}
		}
		return nil
	}
}

// newBareMover sends blocks over one connection with the rail's socket
// options: a 16-byte header and a block each, one writev a batch, and at the
// other end io.ReadFull of the header and of the block into place. It answers
// nothing, so the receiver's count is the end.
func newBareMover(b *testing.B, size, batch int) (mover, func()) {
	b.Helper()
	cfg := Config{Name: "tcp/lo", Logger: slog.Default()}
	lc := net.ListenConfig{Control: cfg.control}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	d := net.Dialer{Control: cfg.control}
	tx, err := d.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	rx, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	ln.Close()
	mem := slabs()
	from, to := newBlocks(size, 1), newBlocks(size, 2)
	type result struct {
		n   int64
		err error
	}
	got := make(chan result)
	want := make(chan int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		var h [16]byte
		for n := range want {
			r := result{n: n}
			for left := n; left > 0 && r.err == nil; {
				if _, r.err = io.ReadFull(rx, h[:]); r.err != nil {
					break
				}
				at, l := binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])
				_, r.err = io.ReadFull(rx, mem[1][at:at+l])
				left -= int64(l)
			}
			got <- r
		}
	})
	heads := make([][16]byte, batch)
	return func(n int64) error {
			step := int64(size * batch)
			n = (n + step - 1) / step * step
			want <- n
			for sent := int64(0); sent < n; sent += step {
				bufs := make(net.Buffers, 0, 2*batch)
				for i := range heads {
					at := from.offset()
					binary.LittleEndian.PutUint64(heads[i][:], uint64(to.offset()))
					binary.LittleEndian.PutUint64(heads[i][8:], uint64(size))
					bufs = append(bufs, heads[i][:], mem[0][at:at+size])
				}
				if _, err := bufs.WriteTo(tx); err != nil {
					return err
				}
			}
			return (<-got).err
		}, func() {
			close(want)
			tx.Close()
			rx.Close()
			wg.Wait()
			runtime.GC()
		}
}
