package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/node/byzantine"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/ahead"
	"kvferry/proxy/chunks"
	"kvferry/proxy/members"
	"kvferry/proxy/migration"
)

// byzantineWithin bounds how long a request may take on nodes of which one breaks the protocol, in virtual
// time, in which nothing else takes any: 2 s more than the progress deadline, which is 2 s and 3 steps
// for what depends on no other node, and 15 s where a node says that it waits for another one. Where all
// nodes of a role break it, that is for each of three attempts; and where none of them gets on, there is
// nowhere to go, and the request has the time that its client has given it.
const (
	byzantineWithin = 4*time.Second + 100*time.Millisecond
	byzantineMute   = 17*time.Second + 100*time.Millisecond
	byzantineGiven  = 60 * time.Second
	byzantinePaced  = time.Second // what requests that migrate take more
)

// TestByzantineNodes has a proxy serve requests on nodes of which one, or all of a role, break the
// protocol in one step: every hand-off that there could be, streams and whole answers. Each request
// gets its tokens or a clear error, in time, and nothing is left of it.
// KVFERRY_SEEDS=10000 makes it that many seeds.
func TestByzantineNodes(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 60
	}
	seeds := uint64(clocktest.Seeds(t, n))
	var sum byzantineTally
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { byzantineRun(t, seed, &sum) })
		if t.Failed() {
			break
		}
	}
	t.Logf("%d seeds: %+v", seeds, sum)
	if sum.Right == 0 || sum.Broke == 0 || sum.Errors == 0 || sum.Retried == 0 || sum.Migrated == 0 || sum.Ahead == 0 {
		t.Errorf("the runs met too little: %+v", sum)
	}
}

// A byzantineTally counts what the runs met.
type byzantineTally struct {
	Runs, Broke                     int // runs, and legs that broke the protocol
	Requests, Right, Errors, Broken int // broken off after tokens
	Timeouts                        int
	Retried, Migrated, Ahead        uint64
	Longest                         time.Duration
}

// memoryConn is a client's connection.
type memoryConn struct {
	net.Conn
	bytes.Buffer
}

func (c *memoryConn) Write(b []byte) (int, error)      { return c.Buffer.Write(b) }
func (c *memoryConn) Read(b []byte) (int, error)       { return c.Buffer.Read(b) }
func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }

func byzantineRun(t *testing.T, seed uint64, sum *byzantineTally) {
	r := rand.New(rand.NewPCG(seed, 30))
	hands := append(handofftest.Every(), handoff.None)
	h := hands[r.IntN(len(hands))]
	cfg := Config{HTTPAddr: "127.0.0.1:0", Membership: members.NewList(), Logger: slog.New(slog.DiscardHandler), EOS: eos.None, LeaseTTL: time.Second, Handoff: handoff.Pull.Name}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.handoff, p.clock = h, clock.Std()
	moves, pace := r.IntN(3) == 0, time.Duration(0)
	if moves {
		p.roster, pace = migration.New(placement.MigrationConfig{Policy: placement.Periodic}), 2*time.Millisecond
	}
	p.nodes = newNodes(p.ctx, p.cfg, p.clock, p.metrics)
	if r.IntN(2) == 0 { // prompts go ahead
		p.nodes.roundTrip = func(*ahead.Path) time.Duration { return 5 * time.Millisecond }
	}

	listeners := make(map[string]*bufconn.Listener)
	p.nodes.dial = []grpc.DialOption{grpc.WithContextDialer(func(_ context.Context, addr string) (net.Conn, error) { return listeners[addr].Dial() })}
	roles := []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE}
	if h == handoff.None {
		roles = []proto.Role{proto.Role_ROLE_NONDISAGG}
	}
	liar, all := roles[r.IntN(len(roles))], r.IntN(8) == 0
	fault := byzantine.Fault{Kind: byzantine.Kinds[r.IntN(len(byzantine.Kinds))], Seed: r.Uint64(), Once: r.IntN(2) == 0}
	if moves {
		fault.After = r.IntN(4)
	}
	wire := &byzantine.Wire{}
	var nodes []*byzantine.Node
	var infos []*proto.NodeInfo
	var servers []*grpc.Server
	var background sync.WaitGroup
	for _, role := range roles {
		for i := range 2 {
			f := byzantine.Fault{}
			if role == liar && (i == 0 || all) {
				f = fault
			}
			addr := fmt.Sprintf("127.0.0.1:%d", 1+len(infos))
			n := byzantine.New(fmt.Sprintf("%s-%d", proto.RoleName(role), i), role, addr, wire, f, fakeToken)
			n.Info.Instance = 0 // as nodes of before it
			n.Info.Handoffs, n.Pace = nil, pace
			listener := bufconn.Listen(1 << 16)
			listeners[addr] = listener
			s := grpc.NewServer()
			proto.RegisterWorkerServer(s, n)
			background.Go(func() { _ = s.Serve(listener) })
			nodes, infos, servers = append(nodes, n), append(infos, n.Info), append(servers, s)
		}
	}
	background.Go(func() { p.nodes.run(members.NewList(infos...)) })
	if moves {
		background.Go(func() { byzantineMoves(p, rand.New(rand.NewPCG(seed, 31))) })
	}
	synctest.Wait()
	if err := p.Ready(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}

	var clients sync.WaitGroup
	var mu sync.Mutex
	requests := 1 + r.IntN(3)
	for i := range requests {
		prompt := make([]string, 1+r.IntN(40))
		ids := make([]uint32, len(prompt))
		for k := range prompt {
			ids[k] = 1 + r.Uint32N(1000)
			prompt[k] = fmt.Sprint(ids[k])
		}
		want, stream := 1+r.IntN(8), r.IntN(2) == 0
		if moves {
			want += r.IntN(60)
		}
		body := fmt.Sprintf(`{"prompt":[%s],"max_tokens":%d,"stream":%v,"timeout":%g}`, strings.Join(prompt, ","), want, stream, byzantineGiven.Seconds())
		text := testTokenizer.Decode(fakeTokens(ids, want))
		clients.Go(func() {
			began := p.clock.Now()
			status, answer := byzantineAsk(t, p, fmt.Sprintf("req-%d", i), body, stream)
			took := p.clock.Now() - began
			mu.Lock()
			defer mu.Unlock()
			sum.Requests++
			sum.Longest = max(sum.Longest, took)
			within, broke := byzantineWithin, []string(nil)
			if moves {
				within += byzantinePaced
			}
			for _, n := range nodes {
				n.Lock()
				if broke = append(broke, n.Broke...); n.Mute {
					within = byzantineMute + byzantinePaced
				}
				n.Unlock()
			}
			// Requests that migrate may meet the same node in every attempt.
			everywhere := all || moves && !fault.Once
			if everywhere {
				within *= 3
			}
			where := fmt.Sprintf("seed %d, %v, %q: %+v of %v, all %v: %s: %d after %v: %s", seed, h, body, fault, liar, all, broke, status, took, answer)
			switch got, ended := byzantineText(t, answer, stream, status); {
			case everywhere && took == byzantineGiven && (status == http.StatusGatewayTimeout || !ended && strings.HasPrefix(text, got) && strings.Contains(answer, "deadline_exceeded")):
				sum.Timeouts++
			case took > within:
				t.Error(where)
			case status == http.StatusOK && ended && got == text:
				sum.Right++
			case status == http.StatusOK && !ended && strings.HasPrefix(text, got) && strings.Contains(answer, `"error"`) && everywhere:
				sum.Broken++
			case status >= 500 && strings.Contains(answer, fmt.Sprintf("req-%d", i)) && strings.Contains(answer, "-") && everywhere:
				sum.Errors++
			default:
				t.Errorf("%s, want %q", where, text)
			}
		})
	}
	clients.Wait()
	synctest.Wait()
	waiting, running := p.Requests()
	if waiting+running+p.unplaced != 0 {
		t.Errorf("seed %d: %d requests wait, %d run, %d tokens are unplaced", seed, waiting, running, p.unplaced)
	}
	for _, m := range p.nodes.snapshot() {
		tokens, _, _ := m.backlog.State(p.clock.Now())
		m.mu.Lock()
		stuck := m.progress
		if len(m.legs)+m.inFlight+tokens != 0 || stuck.Stalled(1<<62, 0) {
			t.Errorf("seed %d: %s is left with %d legs, %d in flight, %d tokens, %+v", seed, m.info.Id, len(m.legs), m.inFlight, tokens, stuck)
		}
		m.mu.Unlock()
	}
	sum.Runs++
	for _, n := range nodes {
		sum.Broke += len(n.Broke)
	}
	for line := range strings.Lines(byzantineGet(p, "/metrics")) {
		for name, count := range map[string]*uint64{"kvferry:request_retries_total": &sum.Retried, "kvferry:migrations_total": &sum.Migrated, "kvferry:prompts_ahead_total": &sum.Ahead} {
			if strings.HasPrefix(line, name) {
				n, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				*count += uint64(n)
			}
		}
	}
	p.stop(errors.New("over"))
	for _, s := range servers {
		s.Stop()
	}
	background.Wait()
	_ = p.httpListener.Close()
}

// byzantineMoves has requests go to other nodes until the proxy stops.
func byzantineMoves(p *Proxy, r *rand.Rand) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for p.ctx.Err() == nil {
		<-tick.C
		groups, blockTokens := p.nodes.generating()
		for _, nodes := range groups {
			if len(nodes) > 0 {
				nodes[r.IntN(len(nodes))].InFlight += 100
			}
		}
		p.roster.Step(groups, blockTokens)
	}
}

// byzantineAsk asks the proxy without a socket.
func byzantineAsk(t *testing.T, p *Proxy, id, body string, stream bool) (status int, answer string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", id)
	if !stream {
		p.serveGeneration(w, r, completions)
		return w.Code, w.Body.String()
	}
	x := &exchange{proxy: p, api: completions, requestID: id, accepted: p.clock.Now()}
	if err := p.accept(x, w, r); err != nil {
		p.refuse(w, id, err)
		return w.Code, w.Body.String()
	}
	defer p.leave(x)
	c := &memoryConn{}
	s := chunks.NewWriter(c, r, http.Header{})
	x.events.To(s)
	p.stream(p.ctx, x, s)
	resp, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		t.Errorf("%s: %v", id, err)
		return 0, ""
	}
	b, _ := io.ReadAll(resp.Body) // a stream that failed is cut short
	return resp.StatusCode, string(b)
}

func byzantineGet(p *Proxy, path string) string {
	w := httptest.NewRecorder()
	p.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.String()
}

// byzantineText is an answer's text as far as it came, and whether it ended well.
func byzantineText(t *testing.T, answer string, stream bool, status int) (text string, ended bool) {
	if status != http.StatusOK {
		return "", false
	}
	if !stream {
		var a struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal([]byte(answer), &a); err != nil || len(a.Choices) != 1 {
			t.Errorf("%s: %v", answer, err)
			return "", false
		}
		return a.Choices[0].Text, true
	}
	if strings.HasSuffix(answer, "data: [DONE]\n\n") {
		return streamText(t, answer), true
	}
	cut, _, _ := strings.Cut(answer, `data: {"error"`)
	return streamText(t, cut+"data: [DONE]\n\n"), false
}
