package transporttest_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A counted rail is a rail of one's own: another one, whose slices it counts. It has all
// of the other's methods but the one that it changes.
type counted struct {
	transport.Rail
	slices *atomic.Int64
}

func (c counted) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	ep, err := c.Rail.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return counting{ep, c.slices}, nil
}

type counting struct {
	transport.Endpoint
	slices *atomic.Int64
}

func (c counting) Post(slices []*transport.Slice) (int, error) {
	n, err := c.Endpoint.Post(slices)
	c.slices.Add(int64(n))
	return n, err
}

// The contract, run against the rail of one's own.
func TestCounted(t *testing.T) {
	network := transporttest.NewNetwork()
	var names, slices atomic.Int64
	transporttest.TestRail(t, func(testing.TB) transport.Rail {
		return counted{network.Rail(strconv.FormatInt(names.Add(1), 10)), &slices}
	}, transporttest.Checked)
	if slices.Load() == 0 {
		t.Error("nothing was counted")
	}
}

// An engine over a rail of one's own.
func Example() {
	network := transporttest.NewNetwork()
	var slices atomic.Int64
	var engines []*transport.Engine
	var segments []*transport.Segment
	for _, name := range []string{"a", "b"} {
		e, err := transport.New(transport.Config{Rails: []transport.Rail{counted{network.Rail(name), &slices}}, SliceSize: 4096})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer e.Close()
		s, err := e.Register(name, make([]byte, 64<<10), "cpu:0")
		if err != nil {
			fmt.Println(err)
			return
		}
		engines, segments = append(engines, e), append(segments, s)
	}
	target, err := engines[0].Open(segments[1].Info())
	if err != nil {
		fmt.Println(err)
		return
	}
	b := engines[0].Submit(target, []transport.Request{{Op: transport.Write, Local: segments[0].Bytes()}}, transport.BatchOptions{})
	<-b.Done()
	fmt.Println(b.Status(), b.Bytes(), "bytes in", slices.Load(), "slices")
	// Output: completed 65536 bytes in 16 slices
}
