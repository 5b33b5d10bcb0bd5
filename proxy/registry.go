package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/clock"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/health"
	"kvferry/proxy/openai"
)

// clusterInfo is what all nodes of a cluster agree on.
type clusterInfo struct {
	Model       string
	BlockTokens uint32
	KVGeometry  string
	Vocab       uint32 // token ids are in [0, Vocab)
	MaxModelLen uint32 // the least of the nodes'

	// The nodes' profile. With AllowMixedProfiles they may differ: then all names,
	// and no fingerprint.
	Profile            string
	ProfileFingerprint string
}

// model is what requests are checked against.
func (c clusterInfo) model() openai.Model {
	return openai.Model{Name: c.Model, MaxModelLen: c.MaxModelLen, Vocab: c.Vocab}
}

// registry is the Registry service: the nodes that hold a lease, by role. A
// node's lease and its Serve stream are both needed for it to be placed on;
// either one ending is the node's loss.
type registry struct {
	proto.UnimplementedRegistryServer

	ttl     time.Duration
	mode    string
	handoff string
	mixed   bool // nodes of different profiles may join
	log     *slog.Logger
	clock   clock.Clock
	metrics *proxyMetrics
	name    string // of the placement policy

	ctx     context.Context // every member's parent
	members sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	byID       map[string]*member
	byLease    map[uint64]*member
	byRole     map[proto.Role][]*member        // sorted by id
	places     map[proto.Role]placement.Policy // once there was a node to place on
	cluster    clusterInfo                     // the last one's, when all nodes are gone
	changed    chan struct{}                   // closed at the next change of who is usable
	terms      *health.Terms                   // of the leases
	quarantine *health.Quarantine
	waiting    int // requests, for nodes that are not there
}

func newRegistry(ctx context.Context, cfg Config, c clock.Clock, metrics *proxyMetrics) *registry {
	return &registry{
		ttl:        cfg.LeaseTTL,
		mode:       cfg.Mode,
		handoff:    cfg.Handoff,
		mixed:      cfg.AllowMixedProfiles,
		log:        cfg.Logger,
		clock:      c,
		metrics:    metrics,
		name:       cfg.Placement,
		places:     make(map[proto.Role]placement.Policy),
		ctx:        ctx,
		byID:       make(map[string]*member),
		byLease:    make(map[uint64]*member),
		byRole:     make(map[proto.Role][]*member),
		changed:    make(chan struct{}),
		terms:      health.NewTerms(c.Now(), cfg.LeaseTTL),
		quarantine: health.NewQuarantine(),
	}
}

// watch ends leases that are over, and leaves nodes that do not get on, until ctx
// ends.
func (r *registry) watch(ctx context.Context) {
	tick := time.NewTicker(r.terms.Every())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.step(r.clock.Now())
		case <-ctx.Done():
			return
		}
	}
}

func (r *registry) step(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over, stood := r.terms.Step(now)
	if stood > 0 {
		r.log.Warn("this proxy stood still: all leases get a fresh term", "for", stood.Round(time.Millisecond))
		for _, m := range r.byLease {
			m.excuse(now)
		}
	}
	for _, lease := range over {
		m := r.byLease[lease]
		if at := m.lastHeard(); m.connected() && now < at+r.ttl {
			// Ten thousand requests that come at once may hold a heartbeat up for longer
			// than a lease. Who is heard over its stream lives.
			r.terms.Grant(at, lease)
			continue
		}
		r.remove(m, errLeaseExpired)
	}
	r.leaveStalled(now)
}

// Register grants a lease. INVALID_ARGUMENT names a field that makes no sense,
// FAILED_PRECONDITION one that does not fit the cluster, and ALREADY_EXISTS another node
// that lives and has the id; a node gives up on all three.
//
// An id belongs to the instance that has it for as long as that lives. A successor need
// not wait: that its predecessor is dead shows at once when its stream is broken and its
// port closed, or taken over. Where neither is the case, the answer waits for the
// holder's next heartbeat, or the end of its lease.
func (r *registry) Register(ctx context.Context, req *proto.RegisterRequest) (*proto.RegisterReply, error) {
	info := req.GetNode()
	if err := checkNodeInfo(info); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var rival *member // has the id, and may live
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, status.Error(codes.Unavailable, errProxyDrains.Error())
		}
		if err := r.fits(info); err != nil {
			r.mu.Unlock()
			r.log.Warn("node refused", "node", info.Id, "err", err)
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		old := r.byID[info.Id]
		if old == nil || old.sameAs(info) || old.info.GrpcAddr == info.GrpcAddr {
			lease := r.admit(info, old)
			r.mu.Unlock()
			return &proto.RegisterReply{Lease: lease, TtlMs: uint32(r.ttl.Milliseconds())}, nil
		}
		changed := r.changed
		r.mu.Unlock()

		if rival != old {
			rival = old
			r.log.Warn("a second node asks for an id: waiting for a sign of life of the first", "node", info.Id, "first", old.info.GrpcAddr, "second", info.GrpcAddr)
		}
		if !old.connected() && !answers(ctx, old.info.GrpcAddr) {
			r.mu.Lock()
			if r.byID[info.Id] == old {
				r.remove(old, errReplaced)
			}
			r.mu.Unlock()
			continue
		}
		select {
		case <-old.beat():
			err := fmt.Errorf("node.id: %s belongs to a live node at %s: give this one another --id, or stop that one", info.Id, old.info.GrpcAddr)
			r.log.Warn("node refused", "node", info.Id, "err", err)
			return nil, status.Error(codes.AlreadyExists, err.Error())
		case <-old.ctx.Done():
		case <-changed: // its stream broke, perhaps
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// answers reports whether somebody listens at an address.
func answers(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// admit makes a node a member, in the place of old if that is not nil, and returns its
// lease. The caller holds mu.
func (r *registry) admit(info *proto.NodeInfo, old *member) uint64 {
	if old != nil {
		r.remove(old, errReplaced)
	}
	lease := rand.Uint64()
	for lease == 0 || r.byLease[lease] != nil {
		lease = rand.Uint64()
	}
	m := newMember(r.ctx, info, lease)
	m.log, m.clock, m.metrics, m.changed = r.log, r.clock, r.metrics.engine(info.Model, info.Id), r.notify
	r.terms.Grant(r.clock.Now(), lease)
	r.byID[info.Id], r.byLease[lease] = m, m
	list := append(r.byRole[info.Role], m)
	slices.SortFunc(list, func(a, b *member) int { return cmp.Compare(a.info.Id, b.info.Id) })
	r.byRole[info.Role] = list
	r.agree()
	r.members.Go(m.run)
	return lease
}

func checkNodeInfo(info *proto.NodeInfo) error {
	switch {
	case info == nil:
		return errors.New("node: missing")
	case info.Id == "":
		return errors.New("node.id: empty: want a name unique in the cluster, such as decode-1")
	case info.Model == "":
		return fmt.Errorf("node.model: empty: node %s must name the model it serves", info.Id)
	case info.BlockTokens == 0:
		return errors.New("node.block_tokens: 0: want the tokens in a KV block, such as 16")
	case info.MaxModelLen < 2:
		return fmt.Errorf("node.max_model_len: %d: want at least 2 tokens", info.MaxModelLen)
	case info.MaxModelLen > proto.MaxModelLen:
		return fmt.Errorf("node.max_model_len: %d: the proxy takes %d at most: lower max_model_len in profile %q", info.MaxModelLen, proto.MaxModelLen, info.Profile)
	case info.Vocab < 1 || info.Vocab > openai.MaxVocab:
		return fmt.Errorf("node.vocab: %d: the proxy's tokenizer takes 1 to %d token ids: lower vocab in profile %q (0 is from a node of an older version)", info.Vocab, openai.MaxVocab, info.Profile)
	case info.Role != proto.Role_ROLE_PREFILL && info.Role != proto.Role_ROLE_DECODE && info.Role != proto.Role_ROLE_NONDISAGG:
		return fmt.Errorf("node.role: %v: want prefill, decode or nondisagg", info.Role)
	}
	host, port, err := net.SplitHostPort(info.GrpcAddr)
	if err != nil {
		return fmt.Errorf("node.grpc_addr: %w: want host:port", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || port == "0" {
		return fmt.Errorf("node.grpc_addr: %q is not an address others can dial: have the node advertise one", info.GrpcAddr)
	}
	return nil
}

// fits reports why a node cannot join the nodes that are there. The caller
// holds mu.
func (r *registry) fits(info *proto.NodeInfo) error {
	if info.Role != proto.Role_ROLE_NONDISAGG && len(info.Handoffs) > 0 && !slices.Contains(info.Handoffs, r.handoff) {
		return fmt.Errorf("node.handoffs: %s knows %v, the proxy runs %q: start both with the same hand-off", info.Id, info.Handoffs, r.handoff)
	}
	for id := range r.byID {
		if id == info.Id {
			continue // it is to be replaced, or the node is refused
		}
		if info.Model != r.cluster.Model {
			return fmt.Errorf("node.model: %s serves %q, the cluster %q: use another proxy for another model", info.Id, info.Model, r.cluster.Model)
		}
		if info.BlockTokens != r.cluster.BlockTokens {
			return fmt.Errorf("node.block_tokens: %s has %d, the cluster %d: all nodes need the same", info.Id, info.BlockTokens, r.cluster.BlockTokens)
		}
		if info.KvGeometry != r.cluster.KVGeometry {
			return fmt.Errorf("node.kv_geometry: %s has %q, the cluster %q: its KV could not be used: start all nodes with the same --profile", info.Id, info.KvGeometry, r.cluster.KVGeometry)
		}
		if info.Vocab != r.cluster.Vocab {
			return fmt.Errorf("node.vocab: %s has %d token ids, the cluster %d: start all nodes with the same --profile", info.Id, info.Vocab, r.cluster.Vocab)
		}
		if info.ProfileFingerprint != r.cluster.ProfileFingerprint || info.ProfileFingerprint == "" {
			if !r.mixed {
				return fmt.Errorf("node.profile: %s has %q (fingerprint %s), the cluster %q (%s): start all nodes with the same --profile, or the proxy with --allow-mixed-profiles",
					info.Id, info.Profile, cmp.Or(info.ProfileFingerprint, "none"), r.cluster.Profile, cmp.Or(r.cluster.ProfileFingerprint, "none"))
			}
			r.log.Warn("nodes of different profiles", "node", info.Id, "profile", info.Profile, "fingerprint", info.ProfileFingerprint, "cluster", r.profiles())
			break
		}
	}
	return nil
}

// profiles lists the nodes' profiles: "decode-1: a10 (0123456789abcdef)". The caller
// holds mu.
func (r *registry) profiles() []string {
	var all []string
	for _, m := range r.byID {
		all = append(all, fmt.Sprintf("%s: %s (%s)", m.info.Id, m.info.Profile, m.info.ProfileFingerprint))
	}
	slices.Sort(all)
	return all
}

// agree sets what the nodes agree on. The caller holds mu.
func (r *registry) agree() {
	first := true
	blockTokens := r.cluster.BlockTokens
	var profiles []string
	for _, m := range r.byID {
		if first {
			r.cluster = clusterInfo{
				Model: m.info.Model, BlockTokens: m.info.BlockTokens, KVGeometry: m.info.KvGeometry, Vocab: m.info.Vocab,
				MaxModelLen: m.info.MaxModelLen, ProfileFingerprint: m.info.ProfileFingerprint,
			}
			first = false
		}
		r.cluster.MaxModelLen = min(r.cluster.MaxModelLen, m.info.MaxModelLen)
		if r.cluster.ProfileFingerprint != m.info.ProfileFingerprint {
			r.cluster.ProfileFingerprint = ""
		}
		profiles = append(profiles, m.info.Profile)
	}
	if !first {
		slices.Sort(profiles)
		r.cluster.Profile = strings.Join(slices.Compact(profiles), ", ")
	}
	if r.cluster.BlockTokens != blockTokens {
		clear(r.places) // they count in the blocks of nodes that are gone
	}
}

// KeepAlive renews a lease.
func (r *registry) KeepAlive(_ context.Context, req *proto.KeepAliveRequest) (*proto.KeepAliveReply, error) {
	r.mu.Lock()
	m := r.byLease[req.Lease]
	if m != nil {
		r.terms.Grant(r.clock.Now(), req.Lease)
	}
	r.mu.Unlock()
	if m == nil {
		return nil, status.Errorf(codes.NotFound, "lease %d: unknown or expired: register again", req.Lease)
	}
	m.beats(req)
	return &proto.KeepAliveReply{TtlMs: uint32(r.ttl.Milliseconds())}, nil
}

// Deregister ends a lease. The node's stream stays open for the legs it has,
// so that a node that deregisters and then drains loses none; a node that goes
// at once breaks the stream, and its legs are placed elsewhere.
func (r *registry) Deregister(_ context.Context, req *proto.DeregisterRequest) (*proto.DeregisterReply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.byLease[req.Lease]; m != nil {
		r.remove(m, nil)
	}
	return &proto.DeregisterReply{}, nil
}

// remove ends a lease: at once and with its legs lost if cause is not nil. The
// caller holds mu.
func (r *registry) remove(m *member, cause error) {
	r.terms.End(m.lease)
	delete(r.byID, m.info.Id)
	delete(r.byLease, m.lease)
	r.quarantine.Forget(m.info.Id)
	r.byRole[m.info.Role] = slices.DeleteFunc(r.byRole[m.info.Role], func(o *member) bool { return o == m })
	r.agree()
	switch {
	case cause == nil:
		r.log.Info("node left", "node", m.info.Id)
		m.leave()
	case r.closed:
		m.cancel(cause)
	default:
		r.log.Warn("node lost", "node", m.info.Id, "err", cause)
		m.cancel(cause)
	}
	r.notifyLocked()
}

// close ends every lease and waits for the streams.
func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	for _, m := range r.byLease {
		r.remove(m, errProxyDrains)
	}
	r.mu.Unlock()
	r.members.Wait()
}

func (r *registry) notify() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notifyLocked()
}

func (r *registry) notifyLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// info is what the cluster serves; false before the first node.
func (r *registry) info() (clusterInfo, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cluster, r.cluster.Model != ""
}

// wait returns once the cluster can serve, or with the reason it cannot when
// ctx ends.
func (r *registry) wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		_, err := r.servingLocked()
		changed := r.changed
		r.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// snapshot lists the members, for metrics.
func (r *registry) snapshot() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*member
	for _, role := range []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE, proto.Role_ROLE_NONDISAGG} {
		all = append(all, r.byRole[role]...)
	}
	return all
}
