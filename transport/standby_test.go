package transport_test

import (
	"bytes"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A neighbour is a rail of another kind, which reaches every address as it says.
type neighbour struct {
	*transporttest.Rail
	name  string
	reach transport.Reach
}

func (n neighbour) Name() string                           { return n.name }
func (n neighbour) Route(string) (transport.Reach, string) { return n.reach, "" }

// TestStandbyByMemory: a path that stands by carries what the one that it stands by for must not.
func TestStandbyByMemory(t *testing.T) {
	for _, sel := range transport.Selections {
		t.Run(string(sel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := transporttest.NewNetwork()
				rails := func(at string) []transport.Rail {
					return []transport.Rail{neighbour{network.Rail(at + "tcp"), "tcp/0", transport.OnLink}, neighbour{network.Rail(at + "shm"), "shm/0", transport.OneSided}}
				}
				rank := func(location, rail string) int {
					if location == "gpu:0" && rail == "shm/0" {
						return -1
					}
					return 0
				}
				a := engine(t, transport.Config{Rails: rails("a"), Clock: clock.Std(), Select: sel, Rank: rank})
				b := engine(t, transport.Config{Rails: rails("b"), Clock: clock.Std()})
				dst := register(t, b, "dst", 1<<20)
				target, err := a.Open(dst.Info())
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for i, location := range []string{"gpu:0", "cpu:0"} {
					src, err := a.Register(location, make([]byte, 1<<20), location)
					if err != nil {
						t.Fatal(err)
					}
					defer src.Close()
					before := a.Rails()
					if err := wait(t, a.Submit(target, []transport.Request{{Op: transport.Write, Local: src.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second, HasImm: true})); err != nil {
						t.Fatal(err)
					}
					after := a.Rails()
					if after[i].Write.Bytes-before[i].Write.Bytes != 1<<20 {
						t.Errorf("%s: rail %d does not carry it: %+v", location, i, after)
					}
				}
			})
		})
	}
}

// TestStandby: of the rails of two processes of one machine, the one-sided one carries everything. When that is
// lost, the other from memory to memory does, and the NIC when both are; and back.
func TestStandby(t *testing.T) {
	for _, sel := range transport.Selections {
		t.Run(string(sel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := transporttest.NewNetwork()
				var here []*transporttest.Rail
				rails := func(at string) (rs []transport.Rail) {
					for _, k := range []struct {
						kind  string
						reach transport.Reach
					}{{"tcp", transport.OnLink}, {"cma", transport.Beside}, {"shm", transport.OneSided}} {
						r := network.Rail(at + k.kind)
						if at == "a" {
							here = append(here, r)
						}
						rs = append(rs, neighbour{r, k.kind + "/0", k.reach})
					}
					return rs
				}
				quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
				a := engine(t, transport.Config{Rails: rails("a"), Clock: clock.Std(), Logger: quiet, Select: sel})
				b := engine(t, transport.Config{Rails: rails("b"), Clock: clock.Std(), Logger: quiet})
				src, dst := register(t, a, "src", 1<<20), register(t, b, "dst", 1<<20)
				target, err := a.Open(dst.Info())
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				carried := func() (n [3]int) {
					for i, r := range here {
						n[i] = r.Carried()
					}
					return n
				}
				// used is the rail that carries a batch and its immediate, and no other does.
				used := func(value byte) int {
					t.Helper()
					before := carried()
					copy(src.Bytes(), bytes.Repeat([]byte{value}, 1<<20))
					batch := a.Submit(target, []transport.Request{{Op: transport.Write, Local: src.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second, HasImm: true})
					<-batch.Done()
					if batch.Err() != nil || !bytes.Equal(src.Bytes(), dst.Bytes()) {
						t.Fatal("not carried: ", batch.Err())
					}
					at := -1
					for i, n := range carried() {
						if n > before[i] && at >= 0 {
							t.Fatalf("carried by two rails: %v, %v before", carried(), before)
						} else if n > before[i] {
							at = i
						}
					}
					return at
				}
				lose := func(i int, on bool) {
					here[i].BlackHole(on)
					if on {
						here[i].Sever()
					}
					<-time.After(10 * time.Second)
				}
				for _, r := range a.Rails() {
					if r.Paths != 1 || r.Up != 1 {
						t.Errorf("%s has %d paths and %d of them connected: to stand by is not to be down", r.Name, r.Paths, r.Up)
					}
				}
				for i, step := range []struct {
					lose, want int
					on         bool
				}{{-1, 2, false}, {2, 1, true}, {1, 0, true}, {1, 1, false}, {2, 2, false}} {
					if step.lose >= 0 {
						lose(step.lose, step.on)
					}
					if got := used(byte(i + 1)); got != step.want {
						t.Errorf("step %d: rail %d carries, want %d", i, got, step.want)
					}
				}
			})
		})
	}
}
