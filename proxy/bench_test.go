package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/proto"
	"kvferry/proxy/chunks"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
	"kvferry/proxy/openai"
)

// batchNode is a node that, like an engine, emits one token for every running
// request in one message an iteration.
func batchNode(interval time.Duration, stop <-chan struct{}) script {
	type running struct {
		id        uint64
		next, max uint32
	}
	var mu sync.Mutex
	var batch []running
	wake := make(chan struct{}, 1)
	var once sync.Once
	return func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		mu.Lock()
		batch = append(batch, running{id: s.Id, max: s.MaxTokens})
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
		once.Do(func() {
			go func() {
				next := time.Now()
				for {
					m := &proto.FromNode{}
					mu.Lock()
					kept := batch[:0]
					for _, r := range batch {
						m.Ids, m.Tokens, m.Positions = append(m.Ids, r.id), append(m.Tokens, r.next), append(m.Positions, r.next)
						if r.next++; r.next < r.max {
							kept = append(kept, r)
						} else {
							m.Finished = append(m.Finished, &proto.Finished{Id: r.id, Reason: proto.FinishReason_FINISH_LENGTH})
						}
					}
					batch = kept
					n := len(batch)
					mu.Unlock()
					if len(m.Ids) > 0 {
						send(m)
					}
					if n == 0 {
						select {
						case <-wake:
						case <-stop:
							return
						}
						next = time.Now()
					}
					if interval > 0 {
						next = next.Add(interval)
						select {
						case <-time.After(time.Until(next)):
						case <-stop:
							return
						}
					}
				}
			}()
		})
	}
}

// rawStream asks for a stream on an open connection and reads it to its end,
// as cheaply as can be: it is the client's cost that hides the proxy's.
func rawStream(r *bufio.Reader, conn net.Conn, tokens int) error {
	body := fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStream is the serving path at concurrency 32 with nodes that emit
// as fast as they can: CPU per token of proxy, fake node and client together,
// which share the process. Compare with BenchmarkStreamFloor.
func BenchmarkStream(b *testing.B) {
	const concurrency, tokens = 32, 128
	stop := make(chan struct{})
	defer close(stop)
	c := newTestCluster(b, Config{})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, batchNode(0, stop))
	benchmarkStreams(b, c.proxy.HTTPAddr(), concurrency, tokens)
}

// BenchmarkStreamFloor is a bare net/http handler that writes and flushes the
// same bytes for each token: what the proxy cannot be cheaper than on net/http
// unless it joins events that are ready together.
func BenchmarkStreamFloor(b *testing.B) {
	const concurrency, tokens = 32, 128
	event := []byte(`data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1800000000,"model":"test-model","choices":[{"index":0,"text":" bobad","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}` + "\n\n")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn := http.NewResponseController(w)
		for range tokens {
			_, _ = w.Write(event)
			_ = conn.Flush()
		}
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	benchmarkStreams(b, l.Addr().String(), concurrency, tokens)
}

func benchmarkStreams(b *testing.B, addr string, concurrency, tokens int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var clients sync.WaitGroup
	b.ResetTimer()
	cpu := cpuTime()
	for range concurrency {
		clients.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			r := bufio.NewReaderSize(conn, 64<<10)
			for left.Add(-1) >= 0 {
				if err := rawStream(r, conn, tokens); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N*tokens)/1e3, "cpu-us/token")
	b.ReportMetric(float64(b.N*tokens)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkDispatch is the proxy's part without sockets: one iteration's
// message of 32 tokens to 32 requests, read, ordered and rendered.
func BenchmarkDispatch(b *testing.B) {
	const batch = 32
	all := metrics.New()
	counts := all.Model(testModel)
	m := newMember(context.Background(), members.Node{Info: &proto.NodeInfo{Id: "both-1"}, Incarnation: 1})
	m.metrics, m.clock, m.up = all.Engine(testModel, "both-1"), clock.Precise(), true
	p := &Proxy{clock: m.clock}
	msg := &proto.FromNode{}
	var flights []*flight
	var attempts []*submission
	for i := range batch {
		req := &openai.Request{Model: testModel, Tokenizer: testTokenizer, N: 1, Choices: []openai.Choice{{Prompt: []uint32{1, 2, 3}}}, Stream: true}
		x := &exchange{proxy: p, req: req, metrics: counts, events: openai.NewEvents(req, "id", time.Unix(0, 0))}
		f := &flight{exchange: x, choice: &req.Choices[0], inbox: newInbox(1)}
		f.events.To(chunks.NewWriter(discardConn{}, &http.Request{ProtoMajor: 1, ProtoMinor: 1}, http.Header{}))
		l := &leg{kind: proto.Leg_LEG_FULL, inbox: f.inbox}
		if err := m.submit(l, &proto.Submit{}); err != nil {
			b.Fatal(err)
		}
		msg.Ids, msg.Tokens, msg.Positions = append(msg.Ids, l.id), append(msg.Tokens, uint32(i)), append(msg.Positions, 0)
		flights, attempts = append(flights, f), append(attempts, &submission{Attempt: attempt.New(handoff.None, 1<<31), compute: l})
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := m.receive(msg); err != nil {
			b.Fatal(err)
		}
		for i, f := range flights {
			<-f.inbox.ready
			if _, err := f.advance(context.Background(), attempts[i]); err != nil {
				b.Fatal(err)
			}
			f.delivered = f.delivered[:1]
			msg.Positions[i]++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/token")
}

// discardConn takes everything.
type discardConn struct{ net.Conn }

func (discardConn) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkEvents is what a token costs in each format, with stop strings to look for or
// without: no memory is allocated for one but what the answer grows by. Answers are of 128
// tokens; SGLang's events have all of it so far.
func BenchmarkEvents(b *testing.B) {
	req := &openai.Request{Model: testModel, Tokenizer: testTokenizer, N: 1, Choices: []openai.Choice{{Prompt: []uint32{1, 2, 3}, MaxTokens: 128}}, Stream: true}
	stop := &openai.Stop{Strings: []string{"nowhere", "\n\n"}, Tokens: []uint32{9}}
	for _, bench := range []struct {
		name string
		api  api
		stop *openai.Stop
	}{{"completion", completions, nil}, {"completion with stops", completions, stop}, {"native", native, nil}, {"native with stops", native, stop}} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			var s tokenStream
			first, _ := testTokenizer.Words()
			out := openai.Tokens{IDs: []uint32{first + 7}}
			for i := 0; b.Loop(); i++ {
				if i%128 == 0 {
					s = bench.api.events(req, "id", time.Unix(0, 0)).(tokenStream)
					s.To(chunks.NewWriter(discardConn{}, &http.Request{ProtoMajor: 1, ProtoMinor: 1}, http.Header{}))
					if bench.stop != nil {
						out.Cut = openai.NewCut(testTokenizer, bench.stop, 0)
					}
				}
				if out.Cut != nil {
					out.Cut.Add(out.IDs, false)
				}
				if err := s.Tokens(0, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
