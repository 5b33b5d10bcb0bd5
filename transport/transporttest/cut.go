package transporttest

import (
	"context"
	"sync/atomic"

	"kvferry/transport"
)

// A cutting rail has the peer end the connection once it has posted so many slices, while those are on their way.
type cutting struct {
	transport.Rail
	peer  transport.Rail
	after atomic.Int64 // slices until then; negative: none
	cuts  atomic.Int64
}

func (r *cutting) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	ep, err := r.Rail.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &cuttingEndpoint{ep, r}, nil
}

type cuttingEndpoint struct {
	transport.Endpoint
	r *cutting
}

func (e *cuttingEndpoint) Post(slices []*transport.Slice) (int, error) {
	n, err := e.Endpoint.Post(slices)
	if left := e.r.after.Add(int64(-n)); n > 0 && left < 0 && left+int64(n) >= 0 {
		e.r.cuts.Add(1)
		go e.r.peer.Fence(e.Secret())
	}
	return n, err
}
