package upstream

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/proxy/openai"
)

func parse(t *testing.T, kind openai.Kind, body string) *Request {
	t.Helper()
	r := NewRequest(kind, httptest.NewRequest("POST", "/v1/completions", nil))
	if _, err := r.Parse([]byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// TestWords: prompts are told apart by what they begin with, in ids or in text.
func TestWords(t *testing.T) {
	r := parse(t, openai.Completion, `{"prompt":[7,8,9]}`)
	if !slices.Equal(r.words, []uint32{7, 8, 9}) || !r.single {
		t.Errorf("%v", r.words)
	}
	text := strings.Repeat("to be or ", 30)
	for _, c := range []struct {
		kind openai.Kind
		body string
	}{{openai.Completion, `{"prompt":"` + text + `<end>"}`}, {openai.Chat, `{"messages":[{"role":"user","content":"` + text + `<end>"}]}`}} {
		a, b := parse(t, c.kind, strings.ReplaceAll(c.body, "<end>", "not")), parse(t, c.kind, strings.ReplaceAll(c.body, "<end>", "yes"))
		if n := len(a.prefix); n < 4 || len(a.words) < 60 || len(a.words) > 90 || !a.single || !slices.Equal(a.prefix[:n-1], b.prefix[:n-1]) {
			t.Errorf("%d words, %d blocks", len(a.words), n)
		}
	}
	for _, body := range []string{`{"prompt":["a"]}`, `{"prompt":[[1,2]]}`, `{"prompt":"a","n":2}`, `{}`, `{"prompt":[]}`} {
		if parse(t, openai.Completion, body).single {
			t.Errorf("%s is one prompt with one answer", body)
		}
	}
}

// TestAccount: the parts add up to the time to the first token, whatever is known of them.
func TestAccount(t *testing.T) {
	for name, tc := range map[string]struct {
		said    string
		unknown []string
		parts   [7]uint32 // proxy, queue, prefill, post, wire, land, first decode; ms
	}{
		"nothing":       {`null`, []string{"queue_us", "post_us", "wire_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 0, 0, 20}},
		"of another":    {`{"remote_host":"x"}`, []string{"queue_us", "post_us", "wire_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 0, 0, 20}},
		"the wire only": {`{"kvferry":{"wire_us":8000,"kv_bytes":0}}`, []string{"queue_us", "post_us", "land_us", "kv_blocks_checked", "kv_blocks_bad"}, [7]uint32{5, 0, 50, 0, 8, 0, 12}},
		"all":           {`{"kvferry":{"queue_us":30000,"post_us":1000,"wire_us":8000,"land_us":2000,"kv_bytes":9,"kv_blocks_checked":2,"kv_blocks_bad":0}}`, nil, [7]uint32{5, 30, 20, 1, 8, 2, 9}},
		"more than was": {`{"kvferry":{"wire_us":90000}}`, []string{"queue_us", "post_us", "land_us", "kv_blocks_checked", "kv_blocks_bad", "kv_bytes"}, [7]uint32{5, 0, 50, 0, 90, 0, 0}},
	} {
		r := &Request{Arrived: time.Second, moved: true, computing: 50 * time.Millisecond, answering: 20 * time.Millisecond}
		r.asked.Stream, r.Begun, r.First = true, true, time.Second+75*time.Millisecond
		r.report(json.RawMessage(tc.said))
		r.account(time.Hour)
		b := &r.Breakdown
		got := [7]uint32{uint32(r.Proxy.Milliseconds()), b.QueueUs / 1000, b.PrefillUs / 1000, b.PostUs / 1000, b.WireUs / 1000, b.LandUs / 1000, b.FirstDecodeUs / 1000}
		if got != tc.parts || !slices.Equal(r.Unknown, tc.unknown) {
			t.Errorf("%s: %v, unknown %v", name, got, r.Unknown)
		}
	}
}
