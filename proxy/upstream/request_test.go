package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/internal/clock"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

func parse(t *testing.T, kind openai.Kind, body string) *Request {
	t.Helper()
	r := NewRequest(kind, httptest.NewRequest("POST", "/v1/completions", nil))
	if _, err := r.Parse([]byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	r.More = func(int64) bool { return true }
	return r
}

// TestWords: prompts are told apart by what they begin with, in ids or in text.
func TestWords(t *testing.T) {
	r := parse(t, openai.Completion, `{"prompt":[7,8,9]}`)
	if got := r.asked.Choices[0].Prompt; !slices.Equal(got, []uint32{7, 8, 9}) || !r.single || r.size != 3 {
		t.Errorf("%v, %d words", got, r.size)
	}
	text := strings.Repeat("to be or ", 30)
	for _, c := range []struct {
		kind openai.Kind
		body string
	}{{openai.Completion, `{"prompt":"` + text + `<end>"}`}, {openai.Chat, `{"messages":[{"role":"user","content":"` + text + `<end>"}]}`}} {
		a, b := parse(t, c.kind, strings.ReplaceAll(c.body, "<end>", "not")), parse(t, c.kind, strings.ReplaceAll(c.body, "<end>", "yes"))
		if n := len(a.prefix); n < 4 || a.size < 60 || a.size > 90 || !a.single || !slices.Equal(a.prefix[:n-1], b.prefix[:n-1]) {
			t.Errorf("%d words, %d blocks", a.size, n)
		}
		salted := parse(t, c.kind, strings.Replace(c.body, "{", `{"cache_salt":"mine",`, 1))
		if !bytes.Contains(salted.body, []byte("mine")) || len(salted.prefix) < 4 || salted.prefix[0] == a.prefix[0] {
			t.Errorf("a salt is kept from engines, or its prefix is taken for the others': %s", salted.body)
		}
	}
	for _, body := range []string{`{"prompt":["a"]}`, `{"prompt":[[1,2]]}`, `{"prompt":"a","n":2}`, `{}`, `{"prompt":[]}`} {
		if parse(t, openai.Completion, body).single {
			t.Errorf("%s is one prompt with one answer", body)
		}
	}
}

// TestFields: fields are read as vLLM reads them, and what cannot be read so is left to it.
func TestFields(t *testing.T) {
	for body, want := range map[string]struct {
		stream, breakdown, single bool
		most                      uint32
		timeout                   time.Duration
	}{
		`{"prompt":"a","max_tokens":16,"stream":true,"timeout":2,"return_breakdown":true}`:              {true, true, true, 16, 2 * time.Second},
		`{"prompt":"a","max_tokens":16.0,"n":1.0,"stream":"true","timeout":"1.5","return_breakdown":1}`: {true, true, true, 16, 1500 * time.Millisecond},
		`{"prompt":"a","max_tokens":"16","n":"2","stream":0}`:                                           {most: 16},
		`{"prompt":"a","max_tokens":null,"n":null,"stream":null,"timeout":null,"echo":"yes"}`:           {},
		`{"prompt":"a","max_tokens":-3,"stream":"off","best_of":2}`:                                     {},
		`{"prompt":"a","max_tokens":[1],"n":{},"stream":"perhaps","model":7}`:                           {single: true},
	} {
		r := parse(t, openai.Completion, body)
		if r.asked.Stream != want.stream || r.asked.Breakdown != want.breakdown || r.single != want.single || r.asked.Choices[0].MaxTokens != want.most || r.asked.Timeout != want.timeout {
			t.Errorf("%s: %+v, single %v", body, r.asked, r.single)
		}
	}
	for _, timeout := range []string{"0", "-1", `"x"`, `"nan"`, "[]"} {
		r := NewRequest(openai.Completion, httptest.NewRequest("POST", "/v1/completions", nil))
		if _, err := r.Parse([]byte(`{"prompt":"x","timeout":` + timeout + `}`)); err == nil {
			t.Errorf("a timeout of %s", timeout)
		}
	}
}

// TestBreakdownOfAny: an answer is a JSON object with the breakdown, whatever the engine's was.
func TestBreakdownOfAny(t *testing.T) {
	for _, answer := range []string{"{}", " { } \n", `{"a":1}`, "{\"a\":1\n}\n"} {
		r := &Request{answer: []byte(answer)}
		var got map[string]any
		if text := r.Answer(openai.Usage{Breakdown: &openai.Breakdown{Breakdown: &proto.Breakdown{}}}); json.Unmarshal(text, &got) != nil || got["breakdown"] == nil || len(got) > 2 {
			t.Errorf("%s becomes %s", answer, text)
		}
	}
}

// TestAccount: the parts add up to the time to the first token, whatever is known of them.
func TestAccount(t *testing.T) {
	for name, tc := range map[string]struct {
		gave    string // by the prefill engine
		took    string // by the decode engine
		atOnce  bool
		unknown []string
		parts   [7]uint32 // proxy, queue, prefill, post, wire, land, first decode; ms
	}{
		"nothing":       {`null`, `null`, false, []string{"queue_us", "post_us", "wire_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 0, 0, 20}},
		"of another":    {`{"remote_host":"x"}`, `null`, false, []string{"queue_us", "post_us", "wire_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 0, 0, 20}},
		"the wire only": {`null`, `{"kvferry":{"wire_us":8000,"kv_bytes":0}}`, false, []string{"queue_us", "post_us", "land_us", "kv_blocks_checked", "kv_blocks_bad"}, [7]uint32{5, 0, 50, 0, 8, 0, 12}},
		"all":           {`{"kvferry":{"queue_us":30000}}`, `{"kvferry":{"queue_us":4000,"post_us":1000,"wire_us":8000,"land_us":2000,"kv_bytes":9,"kv_blocks_checked":2,"kv_blocks_bad":0}}`, false, nil, [7]uint32{5, 34, 20, 1, 8, 2, 5}},
		"its own queue": {`null`, `{"kvferry":{"queue_us":4000,"post_us":1000,"wire_us":8000,"land_us":2000,"kv_bytes":9,"kv_blocks_checked":2,"kv_blocks_bad":0}}`, false, nil, [7]uint32{5, 4, 50, 1, 8, 2, 5}},
		"more than was": {`null`, `{"kvferry":{"wire_us":90000}}`, false, []string{"queue_us", "post_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 90, 0, 0}},
		"at once":       {`null`, `{"kvferry":{"queue_us":1000,"post_us":1000,"wire_us":60000,"land_us":2000,"kv_bytes":9,"kv_blocks_checked":2,"kv_blocks_bad":0}}`, true, nil, [7]uint32{5, 1, 48, 1, 12, 2, 6}},
		"at once, late": {`null`, `{"kvferry":{"queue_us":60000,"post_us":1000,"wire_us":3000,"land_us":2000,"kv_bytes":9,"kv_blocks_checked":2,"kv_blocks_bad":0}}`, true, nil, [7]uint32{5, 60, 0, 1, 3, 2, 4}},
		"at once, mute": {`null`, `null`, true, []string{"queue_us", "post_us", "wire_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 0, 0, 20}},
	} {
		r := &Request{Arrived: time.Second, moved: true, atOnce: tc.atOnce, computing: 50 * time.Millisecond, answering: 20 * time.Millisecond}
		r.asked.Stream, r.Begun, r.First = true, true, time.Second+75*time.Millisecond
		r.gave.report(json.RawMessage(tc.gave))
		r.took.report(json.RawMessage(tc.took))
		r.account(time.Hour)
		b := &r.Breakdown
		got := [7]uint32{uint32(r.Proxy.Milliseconds()), b.QueueUs / 1000, b.PrefillUs / 1000, b.PostUs / 1000, b.WireUs / 1000, b.LandUs / 1000, b.FirstDecodeUs / 1000}
		if got != tc.parts || !slices.Equal(r.Unknown, tc.unknown) {
			t.Errorf("%s: %v, unknown %v", name, got, r.Unknown)
		}
	}
}

// aging is a clock on which an hour passes with each look.
type aging struct{ clock.Clock }

var hours atomic.Int64

func (aging) Now() time.Duration { return time.Duration(hours.Add(1)) * time.Hour }

type nobody struct{}

func (nobody) FirstToken(time.Duration) {}
func (nobody) NextToken(time.Duration)  {}
func (nobody) Retried()                 {}

// newUp has engines that are up, and that nobody asks how they are.
func newUp(t *testing.T, clock clock.Clock, urls URLs) *Engines {
	t.Helper()
	e, err := New(Config{URLs: urls, Together: true, Alone: true, Placement: placement.RoundRobin, Clock: clock, Logger: slog.New(slog.DiscardHandler), Listens: func() string { return "127.0.0.1:1" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.client.CloseIdleConnections)
	for _, en := range e.all {
		e.settle(en, nil)
	}
	return e
}

// TestOldOffer: KV is not taken that its owner may hold no more: the prompt is computed again.
func TestOldOffer(t *testing.T) {
	for _, tc := range []struct {
		clock    clock.Clock
		computed int32
	}{{clock.Std(), 1}, {aging{}, 2}} {
		var computed atomic.Int32
		p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"remote_block_ids":[%d]}}`, computed.Add(1))
		}))
		defer p.Close()
		var taken atomic.Value
		d := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			taken.Store(string(body))
			fmt.Fprint(w, wholeAnswer)
		}))
		defer d.Close()
		gone := httptest.NewServer(nil)
		gone.Close()
		e := newUp(t, tc.clock, URLs{Prefill: []string{p.URL}, Decode: []string{gone.URL, d.URL}})
		r := parse(t, openai.Completion, `{"prompt":"x"}`)
		if err := e.Serve(t.Context(), r, nobody{}, func() {}); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`"remote_block_ids":[%d]`, tc.computed); computed.Load() != tc.computed || !strings.Contains(taken.Load().(string), want) {
			t.Errorf("computed %d times, and taken by %s; want %d", computed.Load(), taken.Load(), tc.computed)
		}
	}
}

// TestEndlessEvent: an event that does not end is not kept for ever, and looking for its end takes no
// more than a look at each byte.
func TestEndlessEvent(t *testing.T) {
	r := parse(t, openai.Completion, `{"prompt":"x","stream":true}`)
	w := httptest.NewRecorder()
	r.events.To(recorder{w})
	answer := &http.Response{Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(endless{})}
	if err := (&Engines{mark: "m"}).stream(r, &visit{engine: &engine{}}, answer, func() error { return nil }); !errors.Is(err, errEndless) || w.Body.Len() > 0 {
		t.Errorf("%v after %d bytes", err, w.Body.Len())
	}
	text := "data: 1\r\n\r\ndata: 2\n\n"
	for from := range 8 {
		if at, length := eventEnd([]byte(text), from); at != 7 || length != 4 {
			t.Errorf("from %d the end is at %d, %d bytes", from, at, length)
		}
	}
	if at, length := eventEnd([]byte(text), 8); at != len(text)-2 || length != 2 {
		t.Errorf("the second ends at %d, %d bytes", at, length)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

type recorder struct{ *httptest.ResponseRecorder }

func (recorder) FlushError() error { return nil }
func (recorder) End() error        { return nil }
