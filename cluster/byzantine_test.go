package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"kvferry/engine/eos"
	"kvferry/internal/clock/clocktest"
	"kvferry/node/byzantine"
	"kvferry/proto"
	"kvferry/proxy"
	"kvferry/proxy/openai"
)

// byzantineToken follows a sequence: a word, as nodes draw them.
func byzantineToken(sequence []uint32) uint32 {
	h := uint64(30)
	for _, t := range sequence {
		h = (h ^ uint64(t)) * 1099511628211
	}
	first, n := openai.NewTokenizer(byzantine.Vocab).Words()
	return first + uint32((h^h>>29)%uint64(n))
}

// TestByzantineNodes is the proxy's test of that name between processes: for each hand-off a proxy,
// and for each seed nodes of its own, of which one breaks the protocol in one step. Every request
// gets its tokens before its time is over. KVFERRY_SEEDS=200 makes it that many seeds.
func TestByzantineNodes(t *testing.T) {
	seeds := uint64(clocktest.Seeds(t, 10))
	var longest time.Duration
	broke, right := 0, 0
	var mu sync.Mutex
	hands := append(slices.Clone(handoffs), "")
	var all sync.WaitGroup
	for i, hand := range hands {
		all.Go(func() {
			p := byzantineProxy(t, hand)
			for seed := uint64(i); seed < seeds && !t.Failed(); seed += uint64(len(hands)) {
				took, legs, answers := p.run(t, seed)
				mu.Lock()
				longest, broke, right = max(longest, took), broke+legs, right+answers
				mu.Unlock()
			}
			p.done()
		})
	}
	all.Wait()
	t.Logf("%d seeds: %d legs broke the protocol, %d answers were right, the longest took %v", seeds, broke, right, longest.Round(time.Millisecond))
	if broke == 0 || right == 0 {
		t.Error("no node broke the protocol, or no answer was right")
	}
}

// A lone proxy is a process without nodes.
type lone struct {
	*Cluster
	hand     string
	registry proto.RegistryClient
	done     func()
}

func byzantineProxy(t *testing.T, hand string) *lone {
	logs := &clocktest.Log{}
	cfg := Spec{Prefill: 1, Decode: 1, Log: logs, StopTimeout: patience, Proxy: proxy.Config{Handoff: hand, RequestTimeout: patience, LeaseTTL: patience, EOS: eos.None}}
	if hand == "" {
		cfg.Proxy.Handoff, cfg.Prefill, cfg.Decode, cfg.Nondisagg = handoffs[0], 0, 0, 1
	}
	c, err := newCluster(cfg)
	if err != nil {
		t.Error(err)
		return &lone{done: func() {}}
	}
	p := &lone{Cluster: c, hand: hand}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	hello, err := p.spawnProxy(ctx)
	if err != nil {
		t.Errorf("%v\n%s", err, logs)
		return p
	}
	p.http, p.grpc = hello.HTTP, hello.GRPC
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return p
	}
	p.registry = proto.NewRegistryClient(conn)
	p.done = func() {
		conn.Close()
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if text := logs.String(); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic") {
			t.Errorf("the proxy crashed or raced:\n%s", text)
		}
	}
	return p
}

// run has a request served by nodes of a seed.
func (p *lone) run(t *testing.T, seed uint64) (took time.Duration, broke, right int) {
	r := rand.New(rand.NewPCG(seed, 31))
	roles := []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE}
	if p.hand == "" {
		roles = []proto.Role{proto.Role_ROLE_NONDISAGG}
	}
	liar := roles[r.IntN(len(roles))]
	fault := byzantine.Fault{Kind: byzantine.Kinds[r.IntN(len(byzantine.Kinds))], Seed: r.Uint64()}
	wire := &byzantine.Wire{}
	var nodes []*byzantine.Node
	var leases []uint64
	var servers sync.WaitGroup
	defer servers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, role := range roles {
		for i := range 2 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Error(err)
				return
			}
			f := byzantine.Fault{}
			if role == liar && i == 0 {
				f = fault
			}
			n := byzantine.New(fmt.Sprintf("%s-%d-%d", proto.RoleName(role), seed, i), role, l.Addr().String(), wire, f, byzantineToken)
			n.Info.Instance, n.Info.Handoffs = 0, nil
			server := grpc.NewServer()
			proto.RegisterWorkerServer(server, n)
			servers.Go(func() { _ = server.Serve(l) })
			defer server.Stop()
			reply, err := p.registry.Register(ctx, &proto.RegisterRequest{Node: n.Info})
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return
			}
			nodes, leases = append(nodes, n), append(leases, reply.Lease)
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C { // until all are up: the proxy opens a stream to each
		resp, err := http.Get(p.URL() + "/metrics")
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			return
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		up := 0
		for _, role := range roles {
			up += int(value(string(b), fmt.Sprintf(`kvferry:nodes{role=%q}`, proto.RoleName(role))))
		}
		if up == len(nodes) {
			break
		}
		if ctx.Err() != nil {
			t.Errorf("seed %d: %d of %d nodes are up", seed, up, len(nodes))
			return
		}
	}
	for k := range 3 {
		ids := prompt(int(seed)*10+k, 1+r.IntN(40))
		sequence := make([]uint32, len(ids))
		for i, id := range ids {
			sequence[i] = uint32(id)
		}
		want, stream := 1+r.IntN(8), r.IntN(2) == 0
		text := openai.NewTokenizer(byzantine.Vocab).Decode(byzantine.Tokens(byzantineToken, sequence, want))
		body, _ := json.Marshal(map[string]any{"prompt": ids, "max_tokens": want, "stream": stream, "timeout": 60})
		began := time.Now()
		got, answer, err := p.text(ctx, body, stream)
		took = max(took, time.Since(began))
		if err != nil || got != text {
			t.Errorf("seed %d, %q, %s: %+v of %v after %v: %v: %s, want %q", seed, p.hand, body, fault, liar, took, err, answer, text)
		} else {
			right++
		}
	}
	for i, n := range nodes {
		if _, err := p.registry.Deregister(ctx, &proto.DeregisterRequest{Lease: leases[i]}); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		n.Lock()
		broke += len(n.Broke)
		n.Unlock()
	}
	return took, broke, right
}

// text asks, and returns the text of an answer that ended well.
func (p *lone) text(ctx context.Context, body []byte, stream bool) (text, answer string, err error) {
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+"/v1/completions", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if answer = string(b); err != nil || resp.StatusCode != http.StatusOK {
		return "", answer, fmt.Errorf("%s: %v", resp.Status, err)
	}
	events := []string{answer}
	if stream {
		cut, whole := strings.CutSuffix(answer, "data: [DONE]\n\n")
		if !whole {
			return "", answer, fmt.Errorf("no end")
		}
		events = strings.Split(strings.TrimSuffix(cut, "\n\n"), "\n\n")
	}
	for _, e := range events {
		var a struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal([]byte(strings.TrimPrefix(e, "data: ")), &a); err != nil || len(a.Choices) != 1 {
			return "", answer, fmt.Errorf("%q: %v", e, err)
		}
		text += a.Choices[0].Text
	}
	return text, answer, nil
}
