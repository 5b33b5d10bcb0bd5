package transport_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestTooManyPaths: sets of paths hold 64. A peer whose description makes more is refused with the numbers, and so is a
// configuration; 64 carry.
func TestTooManyPaths(t *testing.T) {
	n := transporttest.NewNetwork()
	rails := func(side string, count int) (rs []transport.Rail) {
		for i := range count {
			rs = append(rs, n.Rail(fmt.Sprint(side, i)))
		}
		return rs
	}
	many := transport.Config{Rails: rails("many", 65)}
	if err := many.Validate(); err == nil || !strings.Contains(err.Error(), "Rails: 65") || !strings.Contains(err.Error(), "64") {
		t.Errorf("a configuration of 65 rails: %v", err)
	}
	open := func(cfg transport.Config) *transport.Engine {
		e, err := transport.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return e
	}
	a, b := open(transport.Config{Rails: rails("a", 40)}), open(transport.Config{Rails: rails("b", 64)})
	src, dst := register(t, a, "src", 1<<20), register(t, b, "dst", 1<<20)
	info := dst.Info()
	to, err := a.Open(info)
	if err != nil {
		t.Fatal(err)
	}
	batch := a.Submit(to, []transport.Request{{Op: transport.Write, Local: src.Bytes()}}, transport.BatchOptions{})
	if <-batch.Done(); batch.Err() != nil {
		t.Error(batch.Err())
	}
	for i := range 2000 { // what a peer may make up
		info.Rails = append(info.Rails, transport.RailAddr{Rail: "mem/x", Addr: fmt.Sprint("nowhere", i), Key: 1})
	}
	for _, count := range []int{65, 2064} {
		info.Rails = info.Rails[:count]
		_, err := a.Open(info)
		info.Rails = info.Rails[:cap(info.Rails)][:2064]
		if !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(count)) || !strings.Contains(err.Error(), "64") {
			t.Errorf("%d rails: %v", count, err)
		}
	}
}
