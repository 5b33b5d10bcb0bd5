package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/proto"
)

// lease keeps a node registered with the proxy.
type lease struct {
	node  *proto.NodeInfo
	proxy string
	load  func(context.Context) (*proto.Load, error) // of the node's loop, when it answers
	rails func() []*proto.RailLoad
	log   *slog.Logger
}

func (n *Node) lease() *lease {
	return &lease{node: n.info(), proxy: n.cfg.Proxy, load: n.w.freshLoad, rails: n.railLoads, log: n.w.log}
}

// What calls to the registry may take. A registration waits for a sign of life of the node
// that has this one's id, if one has: a heartbeat, or the end of a lease.
const (
	registerTimeout = 10 * time.Second
	renewTimeout    = 2 * time.Second
	// leaveTimeout is what deregistering may take, and before it a registration that is
	// under way.
	leaveTimeout = time.Second
)

// keep registers and renews until ctx ends, then deregisters. While the proxy is
// unreachable it tries again every second; a proxy that refuses the node is an
// error.
func (l *lease) keep(ctx context.Context) error {
	conn, err := grpc.NewClient(l.proxy, dialOptions()...)
	if err != nil {
		return fmt.Errorf("node %s: Proxy: %w", l.node.Id, err)
	}
	defer conn.Close()
	return l.hold(ctx, proto.NewRegistryClient(conn))
}

func (l *lease) hold(ctx context.Context, reg proto.RegistryClient) error {
	var id uint64
	var wait time.Duration
	complained := ""
	for {
		var err error
		if id == 0 {
			var r *proto.RegisterReply
			if r, err = l.register(ctx, reg); err == nil {
				id, wait = r.GetLease(), interval(r.GetTtlMs())
				l.log.Info("registered", "proxy", l.proxy)
				if r.GetProtocol() != proto.Protocol {
					l.leave(ctx, reg, id)
					return fmt.Errorf("node %s: version %s of kvferry speaks protocol %d, the proxy at %s has version %s and speaks %d: run the same version on both",
						l.node.Id, l.node.Version, proto.Protocol, l.proxy, cmp.Or(r.GetVersion(), "unknown"), r.GetProtocol())
				}
			}
		} else {
			var r *proto.KeepAliveReply
			if r, err = l.renew(ctx, reg, id); err == nil {
				wait = interval(r.GetTtlMs())
			}
		}
		if err == errSilent && ctx.Err() == nil {
			l.log.Error("the node's loop does not answer: its lease is not renewed", "for", renewTimeout)
			continue
		}
		switch status.Code(err) {
		case codes.OK:
			complained = ""
		case codes.NotFound:
			id, wait = 0, 0
		case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists:
			return fmt.Errorf("node %s: the proxy refuses it: %s", l.node.Id, status.Convert(err).Message())
		default:
			level, text, why := slog.LevelWarn, "proxy not reachable, trying again", ""
			if status.Code(err) == codes.Aborted {
				level, text, why = slog.LevelError, "the proxy cannot use this node yet, trying again", status.Convert(err).Message()
			}
			if ctx.Err() == nil && complained != text+why {
				l.log.Log(ctx, level, text, "proxy", l.proxy, "err", err)
				complained = text + why
			}
			wait = time.Second
		}
		select {
		case <-ctx.Done():
			if id != 0 {
				l.leave(ctx, reg, id)
			}
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// leave ends a lease, also once ctx is done.
func (l *lease) leave(ctx context.Context, reg proto.RegistryClient, id uint64) {
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if _, err := reg.Deregister(bye, &proto.DeregisterRequest{Lease: id}); err != nil {
		l.log.Warn("deregistering", "err", err)
	}
}

// register asks for a lease. When ctx ends the answer is waited for all the same, for
// leaveTimeout: it may be on its way, and a lease that nobody ends lasts.
func (l *lease) register(ctx context.Context, reg proto.RegistryClient) (*proto.RegisterReply, error) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), registerTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })()
	return reg.Register(call, &proto.RegisterRequest{Node: l.node}, grpc.WaitForReady(true))
}

var errSilent = errors.New("the node's loop does not answer")

// renew is a heartbeat. The error is errSilent if the node's own loop had no load to tell.
func (l *lease) renew(ctx context.Context, reg proto.RegistryClient, id uint64) (*proto.KeepAliveReply, error) {
	call, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	load, err := l.load(call)
	if err != nil {
		return nil, errSilent
	}
	return reg.KeepAlive(call, &proto.KeepAliveRequest{Lease: id, Load: load, Rails: l.rails()})
}

// interval renews three times a lease.
func interval(ttlMS uint32) time.Duration {
	return max(time.Duration(ttlMS)*time.Millisecond/3, 10*time.Millisecond)
}

// railLoads is what the rails have done for the transfers this node initiated.
func (n *Node) railLoads() []*proto.RailLoad {
	var all []*proto.RailLoad
	for _, r := range n.kv.Rails() {
		congestion := make(map[string]uint32, len(r.Congestion))
		for algorithm, n := range r.Congestion {
			congestion[algorithm] = uint32(n)
		}
		all = append(all, &proto.RailLoad{
			Rail: r.Name, BytesWritten: uint64(r.Write.Bytes), BytesRead: uint64(r.Read.Bytes), BytesResent: uint64(r.Resent),
			Errors: uint64(r.Errors), Downs: uint64(r.Downs), Paths: uint32(r.Paths), PathsUp: uint32(r.Up),
			BytesInFlight: uint64(r.InFlight), Rate: uint64(r.Rate),
			Strikes: uint64(r.Strikes), Rests: uint64(r.Rests), PathsResting: uint32(r.Resting),
			Congestion: congestion, CongestionChanges: uint64(r.Changes),
		})
	}
	return all
}
