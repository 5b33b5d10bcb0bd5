package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/proto"
)

// A fakeRegistry writes down when it is called, how long the caller would wait, and what
// the node's log says in between. Its faults are by number of the call, from 1.
type fakeRegistry struct {
	began  time.Time
	ttls   [2]uint32 // in ms, of the answers to a registration and to a renewal
	faults map[int]error
	takes  map[int]time.Duration
	calls  int
	leases uint64
	older  uint32 // by how many versions the proxy's protocol is
	said   []string
}

func (r *fakeRegistry) say(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf("%v ", time.Since(r.began))+fmt.Sprintf(format, args...))
}

func (r *fakeRegistry) call(ctx context.Context, format string, args ...any) error {
	limit, _ := ctx.Deadline()
	r.say(format+", within %v", append(args, time.Until(limit))...)
	r.calls++
	answer := time.NewTimer(r.takes[r.calls])
	defer answer.Stop()
	select {
	case <-answer.C:
		return r.faults[r.calls]
	case <-ctx.Done():
		r.say("given up")
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (r *fakeRegistry) Register(ctx context.Context, in *proto.RegisterRequest, opts ...grpc.CallOption) (*proto.RegisterReply, error) {
	if !slices.Contains(opts, grpc.WaitForReady(true)) {
		r.say("a registration that does not wait for the proxy")
	}
	if err := r.call(ctx, "register %s", in.Node.Id); err != nil {
		return nil, err
	}
	r.leases++
	return &proto.RegisterReply{Lease: r.leases, TtlMs: r.ttls[0], Protocol: proto.Protocol - r.older, Version: "v0.9"}, nil
}

func (r *fakeRegistry) KeepAlive(ctx context.Context, in *proto.KeepAliveRequest, _ ...grpc.CallOption) (*proto.KeepAliveReply, error) {
	if err := r.call(ctx, "renew %d, load %d, %d rails", in.Lease, in.Load.GetSeq(), len(in.Rails)); err != nil {
		return nil, err
	}
	return &proto.KeepAliveReply{TtlMs: r.ttls[1]}, nil
}

func (r *fakeRegistry) Deregister(ctx context.Context, in *proto.DeregisterRequest, _ ...grpc.CallOption) (*proto.DeregisterReply, error) {
	if ctx.Err() != nil {
		r.say("a call that has ended before it began")
	}
	return &proto.DeregisterReply{}, r.call(ctx, "leave %d", in.Lease)
}

// Write takes a line of the log.
func (r *fakeRegistry) Write(line []byte) (int, error) {
	r.say("%s", strings.TrimSpace(strings.TrimPrefix(string(line), "level=")))
	return len(line), nil
}

func TestLease(t *testing.T) {
	gone := status.Error(codes.Unavailable, "nobody there")
	for name, c := range map[string]struct {
		ttls   [2]uint32
		faults map[int]error
		takes  map[int]time.Duration // the calls
		stands int                   // the renewal to which the node's loop has no answer, from 1
		until  time.Duration         // then the node leaves
		older  uint32
		want   string
		err    string
	}{
		"renewed three times a lease": {
			ttls: [2]uint32{3000, 3000}, until: 2500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				1s renew 1, load 1, 2 rails, within 2s
				2s renew 1, load 2, 2 rails, within 2s
				2.5s leave 1, within 1s`,
		},
		"of the length that the last answer gave": {
			ttls: [2]uint32{3000, 9000}, until: 5 * time.Second,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				1s renew 1, load 1, 2 rails, within 2s
				4s renew 1, load 2, 2 rails, within 2s
				5s leave 1, within 1s`,
		},
		"of next to nothing": {
			ttls: [2]uint32{6, 30_000}, until: 15 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				10ms renew 1, load 1, 2 rails, within 2s
				15ms leave 1, within 1s`,
		},
		"the proxy is not there yet": {
			ttls: [2]uint32{3000, 3000}, faults: map[int]error{1: gone, 2: gone}, until: 2500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s WARN msg="proxy not reachable, trying again" proxy=proxy:1 err="rpc error: code = Unavailable desc = nobody there"
				1s register decode-0, within 10s
				2s register decode-0, within 10s
				2s INFO msg=registered proxy=proxy:1
				2.5s leave 1, within 1s`,
		},
		"it leaves while it registers": {
			ttls: [2]uint32{3000, 3000}, takes: map[int]time.Duration{1: 300 * time.Millisecond}, until: 100 * time.Millisecond,
			want: `0s register decode-0, within 10s
				300ms INFO msg=registered proxy=proxy:1
				300ms leave 1, within 1s`,
		},
		"it leaves while nobody answers": {
			takes: map[int]time.Duration{1: time.Hour}, until: 100 * time.Millisecond,
			want: `0s register decode-0, within 10s
				1.1s given up`,
		},
		"it is away twice": {
			ttls: [2]uint32{9000, 9000}, faults: map[int]error{2: gone, 3: gone, 5: gone, 6: gone}, until: 9500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				3s renew 1, load 1, 2 rails, within 2s
				3s WARN msg="proxy not reachable, trying again" proxy=proxy:1 err="rpc error: code = Unavailable desc = nobody there"
				4s renew 1, load 2, 2 rails, within 2s
				5s renew 1, load 3, 2 rails, within 2s
				8s renew 1, load 4, 2 rails, within 2s
				8s WARN msg="proxy not reachable, trying again" proxy=proxy:1 err="rpc error: code = Unavailable desc = nobody there"
				9s renew 1, load 5, 2 rails, within 2s
				9.5s leave 1, within 1s`,
		},
		"it has never been there": {
			faults: map[int]error{1: gone}, until: 500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s WARN msg="proxy not reachable, trying again" proxy=proxy:1 err="rpc error: code = Unavailable desc = nobody there"`,
		},
		"over before it was renewed": {
			ttls: [2]uint32{3000, 3000}, faults: map[int]error{2: status.Error(codes.NotFound, "")}, until: 2500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				1s renew 1, load 1, 2 rails, within 2s
				1s register decode-0, within 10s
				1s INFO msg=registered proxy=proxy:1
				2s renew 2, load 2, 2 rails, within 2s
				2.5s leave 2, within 1s`,
		},
		"the node's loop stands still": {
			ttls: [2]uint32{3000, 3000}, stands: 2, until: 4500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				1s renew 1, load 1, 2 rails, within 2s
				4s ERROR msg="the node's loop does not answer: its lease is not renewed" for=2s
				4s renew 1, load 3, 2 rails, within 2s
				4.5s leave 1, within 1s`,
		},
		"and the node leaves": {
			ttls: [2]uint32{3000, 3000}, stands: 1, until: 1500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				1.5s leave 1, within 1s`,
		},
		"it leaves, and the proxy is not there": {
			ttls: [2]uint32{3000, 3000}, faults: map[int]error{2: gone}, until: 500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				500ms leave 1, within 1s
				500ms WARN msg=deregistering err="rpc error: code = Unavailable desc = nobody there"`,
		},
		"another node has the id": {
			faults: map[int]error{1: status.Error(codes.AlreadyExists, "it is taken")}, until: time.Minute,
			want: `0s register decode-0, within 10s`,
			err:  "node decode-0: the proxy refuses it: it is taken",
		},
		"a field makes no sense": {
			faults: map[int]error{1: status.Error(codes.InvalidArgument, "what?")}, until: time.Minute,
			want: `0s register decode-0, within 10s`,
			err:  "node decode-0: the proxy refuses it: what?",
		},
		"it has no partner yet": {
			ttls: [2]uint32{3000, 3000}, faults: map[int]error{1: status.Error(codes.Aborted, "node.rails: tcp, shm"), 2: status.Error(codes.Aborted, "node.rails: tcp, shm")}, until: 2500 * time.Millisecond,
			want: `0s register decode-0, within 10s
				0s ERROR msg="the proxy cannot use this node yet, trying again" proxy=proxy:1 err="rpc error: code = Aborted desc = node.rails: tcp, shm"
				1s register decode-0, within 10s
				2s register decode-0, within 10s
				2s INFO msg=registered proxy=proxy:1
				2.5s leave 1, within 1s`,
		},
		"the proxy is older": {
			ttls: [2]uint32{3000, 3000}, older: 1, until: time.Minute,
			want: `0s register decode-0, within 10s
				0s INFO msg=registered proxy=proxy:1
				0s leave 1, within 1s`,
			err: "node decode-0: version v1.0 of kvferry speaks protocol 1, the proxy at proxy:1 has version v0.9 and speaks 0: run the same version on both",
		},
		"it does not fit": {
			faults: map[int]error{1: status.Error(codes.FailedPrecondition, "a10, not h100")}, until: time.Minute,
			want: `0s register decode-0, within 10s`,
			err:  "node decode-0: the proxy refuses it: a10, not h100",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &fakeRegistry{began: time.Now(), ttls: c.ttls, faults: c.faults, takes: c.takes, older: c.older}
				asked := 0
				l := &lease{
					node: &proto.NodeInfo{Id: "decode-0", Version: "v1.0"}, proxy: "proxy:1", rails: func() []*proto.RailLoad { return make([]*proto.RailLoad, 2) },
					log: slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
						if a.Key == slog.TimeKey {
							return slog.Attr{}
						}
						return a
					}})),
					load: func(ctx context.Context) (*proto.Load, error) {
						if asked++; asked == c.stands {
							<-ctx.Done()
							return nil, context.Cause(ctx)
						}
						return &proto.Load{Seq: uint64(asked)}, nil
					},
				}
				ctx, leave := context.WithCancel(t.Context())
				defer time.AfterFunc(c.until, leave).Stop()
				defer leave()
				err := l.hold(ctx, r)
				if c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && err != ctx.Err() {
					t.Errorf("%v, want %q", err, c.err)
				}
				if got, want := strings.Join(r.said, "\n"), strings.ReplaceAll(strings.TrimSpace(c.want), "\t", ""); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		})
	}
}
