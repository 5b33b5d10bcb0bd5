//go:build cgo && linux

package rdma

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"kvferry/transport"
)

// TestLabPerftest sets the rail beside perftest: same device, same sizes, same run,
// in turns. Medians, as an emulated host is anything but steady.
func TestLabPerftest(t *testing.T) {
	device := os.Getenv("KVFERRY_RDMA")
	if device == "" || os.Getenv("KVFERRY_PERFTEST") == "" {
		t.Skip("KVFERRY_RDMA names no device, or KVFERRY_PERFTEST is not set: make bench-roce runs this")
	}
	const rounds = 5
	x := newVerbsPair(t, device, 4<<20)
	row := func(what, unit string, ours, theirs []float64) {
		slices.Sort(ours)
		slices.Sort(theirs)
		a, b := ours[len(ours)/2], theirs[len(theirs)/2]
		fmt.Printf("%-22s %9.1f %9.1f %-5s %5.2f   ours %.1f, perftest %.1f\n", what, a, b, unit, a/b, ours, theirs)
	}
	fmt.Printf("%-22s %9s %9s %5s %5s\n", "", "rail", "perftest", "", "ratio")
	for _, c := range []struct {
		tool string
		op   transport.Op
		size int
		n    int
	}{
		{"ib_write_bw", transport.Write, 64 << 10, 800},
		{"ib_write_bw", transport.Write, 1 << 20, 60},
		{"ib_read_bw", transport.Read, 64 << 10, 800},
		{"ib_read_bw", transport.Read, 1 << 20, 60},
	} {
		var ours, theirs []float64
		for range rounds {
			theirs = append(theirs, perftest(t, device, 3, c.tool, "-s", strconv.Itoa(c.size), "-n", strconv.Itoa(c.n)))
			ours = append(ours, x.bandwidth(t, c.op, c.size, c.n))
		}
		row(fmt.Sprintf("%v %d KiB", c.op, c.size>>10), "MiB/s", ours, theirs)
	}
	// A run of either is at 30 µs or at 45 and more, as the emulated CPUs happen to
	// share the work: it takes some runs to see the same of both.
	var ours, theirs []float64
	for range 3 * rounds {
		theirs = append(theirs, perftest(t, device, 4, "ib_write_lat", "-s", "8", "-n", "5000"))
		ours = append(ours, x.pingPong(t, 5000))
	}
	row("write 8 B, one way", "us", ours, theirs)
}

// perftest runs a tool against itself and returns a column of its result.
func perftest(t *testing.T, device string, column int, tool string, args ...string) float64 {
	t.Helper()
	args = append([]string{"-d", device, "-x", "1", "-F"}, args...)
	server := exec.Command(tool, args...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	var out []byte
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		<-time.After(200 * time.Millisecond) // the server has to listen first
		var err error
		if out, err = exec.Command(tool, append(args, "127.0.0.1")...).CombinedOutput(); err == nil {
			break
		}
	}
	lines := strings.Split(string(out), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, " #bytes") && i+1 < len(lines) {
			if f := strings.Fields(lines[i+1]); len(f) > column {
				if v, err := strconv.ParseFloat(f[column], 64); err == nil {
					return v
				}
			}
		}
	}
	t.Fatalf("%s printed no result:\n%s", tool, out)
	return 0
}

// bandwidth is MiB/s, with up to 128 slices under way, as perftest has them.
func (x *verbsPair) bandwidth(t *testing.T, op transport.Op, size, n int) float64 {
	t.Helper()
	free := make(chan error, 128)
	done := func(_ *transport.Slice, err error) { free <- err }
	under := 0
	take := func() {
		if err := <-free; err != nil {
			t.Fatal(err)
		}
		under--
	}
	start := time.Now()
	for range n {
		for under == 128 {
			take()
		}
		for {
			k, err := x.ep.Post([]*transport.Slice{transport.NewSlice(op, x.src[:size], x.key, 0, done)})
			if err != nil {
				t.Fatal(err)
			}
			if k == 1 {
				break
			}
			take()
		}
		under++
	}
	for under > 0 {
		take()
	}
	return float64(size) * float64(n) / (1 << 20) / time.Since(start).Seconds()
}

// pingPong is what an 8-byte write takes until the other side sees it, in µs: half
// a round trip, both sides looking at their memory, as ib_write_lat measures it.
func (x *verbsPair) pingPong(t *testing.T, n int) float64 {
	t.Helper()
	a, b := (*uint64)(unsafe.Pointer(&x.src[64])), (*uint64)(unsafe.Pointer(&x.dst[128]))
	atomic.StoreUint64(a, 0)
	atomic.StoreUint64(b, 0)
	write := func(ep transport.Endpoint, mem []byte, key transport.Key, at int64) {
		s := transport.NewSlice(transport.Write, mem, key, at, func(_ *transport.Slice, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		for k := 0; k == 0; {
			var err error
			if k, err = ep.Post([]*transport.Slice{s}); err != nil {
				t.Error(err)
				return
			}
		}
	}
	const spins = 1000
	await := func(p *uint64, v uint64) {
		for i := 1; atomic.LoadUint64(p) != v; i++ {
			if i%spins == 0 {
				runtime.Gosched() // the pollers need a turn now and then
			}
		}
	}
	pong := make(chan struct{})
	out, in := x.dst[256:264], x.src[256:264]
	go func() {
		defer close(pong)
		for i := range uint64(n) {
			await(b, i+1)
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&out[0])), i+1)
			write(x.back, out, x.backKey, 64)
		}
	}()
	took := make([]float64, n)
	for i := range uint64(n) {
		start := time.Now()
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&in[0])), i+1)
		write(x.ep, in, x.key, 128)
		await(a, i+1)
		took[i] = float64(time.Since(start).Nanoseconds()) / 2e3
	}
	<-pong
	slices.Sort(took)
	return took[n/2] // ib_write_lat's t_typical
}

type verbsPair struct {
	ep, back     transport.Endpoint
	src, dst     []byte
	key, backKey transport.Key
}

func newVerbsPair(t *testing.T, device string, n int) *verbsPair {
	t.Helper()
	rail := func() *Rail {
		r, err := New(Config{Name: "rdma/" + device, Logger: discard})
		if err != nil {
			t.Fatal(err)
		}
		r.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	a, b := rail(), rail()
	x := &verbsPair{src: make([]byte, n), dst: make([]byte, n)}
	var err error
	if x.backKey, err = a.Register(x.src, transport.Whole(int64(n))); err != nil {
		t.Fatal(err)
	}
	if x.key, err = b.Register(x.dst, transport.Whole(int64(n))); err != nil {
		t.Fatal(err)
	}
	if x.ep, err = a.Dial(t.Context(), b.Addr()); err != nil {
		t.Fatal(err)
	}
	if x.back, err = b.Dial(t.Context(), a.Addr()); err != nil {
		t.Fatal(err)
	}
	return x
}
