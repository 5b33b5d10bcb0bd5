package rail

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// ends are two memories of blocks, and the shapes of either end.
func ends(read bool, block int64) (initiator, target ReferenceShape, mem [2][]byte) {
	const blocks = 4
	at := func(side int) func(i int) []byte {
		mem[side] = bytes.Repeat([]byte{byte('a' + side)}, int(block)*blocks)
		return func(i int) []byte {
			from := int64(i%blocks) * block
			return mem[side][from : from+block]
		}
	}
	initiator = ReferenceShape{Read: read, Block: block, Memory: at(0)}
	target = ReferenceShape{Read: read, Block: block, Memory: at(1)}
	return initiator, target, mem
}

// TestBare: blocks arrive, in the direction that was asked for, and every ping is counted.
func TestBare(t *testing.T) {
	for _, read := range []bool{false, true} {
		for _, block := range []int64{1, 4096, 3 << 20} {
			initiator, target, mem := ends(read, block)
			s, err := ServeReference(Bare, ReferencePath{Host: "127.0.0.1"}, target)
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			f, err := MeasureReference(t.Context(), Bare, ReferencePath{Host: "127.0.0.1"}, initiator, 50*time.Millisecond, func() (string, error) { asked++; return s.Addr, nil })
			if err != nil || asked != 1 {
				t.Fatal(asked, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			want := byte('a')
			if read {
				want = 'b'
			}
			if mem[0][0] != want || mem[1][0] != want {
				t.Errorf("read %v: %q and %q", read, mem[0][0], mem[1][0])
			}
			if f.Samples < 1 || f.GBps <= 0 || f.Samples > 1 && (f.P50US == nil || *f.P50US <= 0) || f.Samples < 1000 && f.P999US != nil {
				t.Errorf("%+v", f)
			}
		}
	}
}

// TestBareEnds: a server that nobody came to is closed, one whose client has gone too, and a
// client whose context is done or whose server has gone does not hang.
func TestBareEnds(t *testing.T) {
	initiator, target, _ := ends(false, 64)
	s, err := ServeReference(Bare, ReferencePath{Host: "127.0.0.1"}, target)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for name, gone := range map[string]func(cancel func(), s *ReferenceServer){
		"canceled": func(cancel func(), _ *ReferenceServer) { cancel() },
		"closed":   func(_ func(), s *ReferenceServer) { _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := ServeReference(Bare, ReferencePath{Host: "127.0.0.1"}, target)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pinged, in := make(chan struct{}), initiator
			in.Memory = func(i int) []byte {
				if i == 100 {
					close(pinged)
				}
				return initiator.Memory(i)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := MeasureReference(ctx, Bare, ReferencePath{Host: "127.0.0.1"}, in, time.Hour, func() (string, error) { return s.Addr, nil })
				ended <- err
			}()
			<-pinged
			gone(cancel, s)
			select {
			case err := <-ended:
				if err == nil || name == "canceled" && !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
			case <-time.After(patience):
				t.Fatal("it hangs")
			}
			_ = s.Close()
		})
	}
}

// TestPrograms measures with what is installed here, by name.
func TestPrograms(t *testing.T) {
	for _, name := range []string{UCX, Iperf3} {
		for _, read := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				if err := ReferenceInstalled(name); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
				p := ReferencePath{Kind: "tcp", NIC: "lo", Host: "127.0.0.1"}
				initiator, target, _ := ends(read, 4096)
				var s *ReferenceServer
				defer func() {
					if s != nil {
						_ = s.Close()
					}
				}()
				f, err := MeasureReference(t.Context(), name, p, initiator, 100*time.Millisecond, func() (addr string, err error) {
					if s != nil {
						_ = s.Close()
					}
					if s, err = ServeReference(name, p, target); err != nil {
						return "", err
					}
					return s.Addr, nil
				})
				if err != nil || f.GBps <= 0 || name == UCX && (f.P50US == nil || *f.P50US <= 0) {
					t.Errorf("%+v, %v", f, err)
				}
			})
		}
	}
}

func TestParses(t *testing.T) {
	r, err := parseUCX("[1.2] UCX WARN x\niterations,99.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n  2000,20.947,12.6,12.627,309.36,309.37,79197,79197\n")
	if err != nil || r != (ucxResult{20.947, 309.37}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{"", "a,b\n", "a,b\n1,2\n", "iterations,overall_lat\n2,x\n", "a\n1,2\n"} {
		if r, err := parseUCX(text); err == nil {
			t.Errorf("%q: %+v", text, r)
		}
	}
	if g, err := parseIperf3(`{"end":{"sum_received":{"bits_per_second":8e9}}}`); err != nil || g != 1 {
		t.Error(g, err)
	}
	for text, want := range map[string]string{`{"error":"unable to connect"}`: "unable to connect", "iperf3: usage": "no JSON", "{}": "iperf3"} {
		if _, err := parseIperf3(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "netperf"} {
		if _, err := ParseReference(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// FuzzParseUCX: whatever the program prints, it is figures or an error.
func FuzzParseUCX(f *testing.F) {
	f.Add("iterations,99.0_percentile_lat,overall_lat,overall_bw\n2000,20.947,12.6,12.627\n")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := parseUCX(text); err == nil && (r.rank < 0 || r.mbps < 0) {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
