package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/engine/eos"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// words are the texts of a fake node's answer, token by token.
func words(prompt []uint32, variant uint64, n int) []string {
	var all []string
	for _, id := range fakeVariant(prompt, variant, n) {
		all = append(all, testTokenizer.Decode([]uint32{id}))
	}
	return all
}

// choicesOf collects an answer, streamed or not, by choice.
type choiceOf struct {
	Text, Finish string
	Stop         any
	Events       int
}

func choicesOf(t *testing.T, body string) (map[int]*choiceOf, map[string]any) {
	t.Helper()
	all := map[int]*choiceOf{}
	var usage map[string]any
	evs := []string{body}
	if strings.HasPrefix(body, "data: ") {
		evs = events(t, body)
		if evs[len(evs)-1] != "[DONE]" {
			t.Fatalf("no [DONE] at the end of %q", body)
		}
		evs = evs[:len(evs)-1]
	}
	for _, e := range evs {
		var c struct {
			Choices []struct {
				Index          int
				Text           string
				Delta, Message struct{ Content string }
				FinishReason   *string `json:"finish_reason"`
				StopReason     any     `json:"stop_reason"`
			}
			Usage map[string]any
		}
		if err := json.Unmarshal([]byte(e), &c); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		for _, ch := range c.Choices {
			of := all[ch.Index]
			if of == nil {
				of = &choiceOf{}
				all[ch.Index] = of
			}
			if of.Finish != "" {
				t.Errorf("choice %d goes on after its end: %s", ch.Index, e)
			}
			of.Events++
			of.Text += ch.Text + ch.Delta.Content + ch.Message.Content
			if ch.FinishReason != nil {
				of.Finish, of.Stop = *ch.FinishReason, ch.StopReason
			}
		}
		if c.Usage != nil {
			usage = c.Usage
		}
	}
	return all, usage
}

// TestChoices: several prompts and several answers to each, streamed and not.
func TestChoices(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	one, two := []uint32{1, 2, 3}, []uint32{4, 5}
	text := func(prompt []uint32, variant uint64, n int) string {
		return strings.Join(words(prompt, variant, n), "")
	}
	const seeded = (7 + 1) << 16
	for _, tc := range []struct {
		name, body string
		want       []string
		prompt     int // tokens of all prompts
	}{
		{"n", `"prompt":[1,2,3],"max_tokens":4,"n":3`, []string{text(one, 0, 4), text(one, 1, 4), text(one, 2, 4)}, 3},
		{"prompts", `"prompt":[[1,2,3],[4,5]],"max_tokens":4`, []string{text(one, 0, 4), text(two, 0, 4)}, 5},
		{"both", `"prompt":[[1,2,3],[4,5]],"max_tokens":2,"n":2,"best_of":2`, []string{text(one, 0, 2), text(one, 1, 2), text(two, 0, 2), text(two, 1, 2)}, 5},
		{"seed", `"prompt":[1,2,3],"max_tokens":3,"n":2,"seed":7`, []string{text(one, seeded, 3), text(one, seeded^1, 3)}, 3},
		{"texts", `"prompt":["hi there","a"],"max_tokens":2`, []string{text(helloPrompt, 0, 2), text(testTokenizer.Encode("a"), 0, 2)}, 3},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", tc.name, stream), func(t *testing.T) {
				status, body, err := c.post("/v1/completions", fmt.Sprintf(`{%s,"stream":%v,"stream_options":{"include_usage":true}}`, tc.body, stream))
				if status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
				got, usage := choicesOf(t, body)
				tokens := 0
				for i, want := range tc.want {
					n := strings.Count(want, " ")
					tokens += n
					switch c := got[i]; {
					case c == nil || c.Text != want || c.Finish != "length" || c.Stop != nil:
						t.Errorf("choice %d: %+v, want %q", i, c, want)
					case stream && c.Events != n:
						t.Errorf("choice %d: %d events for %d tokens", i, c.Events, n)
					}
				}
				if len(got) != len(tc.want) {
					t.Errorf("choices %v, want %d", slices.Sorted(maps.Keys(got)), len(tc.want))
				}
				want := map[string]any{"prompt_tokens": float64(tc.prompt), "completion_tokens": float64(tokens), "total_tokens": float64(tc.prompt + tokens)}
				for field, v := range want {
					if usage[field] != v {
						t.Errorf("usage %v, want %v", usage, want)
					}
				}
			})
		}
	}
	// A chat has a turn for each choice.
	_, body, _ := c.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"n":2,"stream":true}`)
	if got, _ := choicesOf(t, body); len(got) != 2 || got[0].Events != 3 || got[1].Events != 3 || got[0].Text == got[1].Text || strings.Count(body, `"role":"assistant"`) != 2 {
		t.Errorf("%s", body)
	}
	c.waitInFlight(0)
}

// TestContinuousUsageOfChoices: every event counts its own choice, as vLLM's do.
func TestContinuousUsageOfChoices(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	_, body, _ := c.post("/v1/completions", `{"prompt":[[1,2,3],[4]],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	last := map[int]int{}
	evs := events(t, body)
	for _, e := range evs[:len(evs)-2] {
		var k struct {
			Choices []struct{ Index int }
			Usage   struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(e), &k); err != nil || len(k.Choices) != 1 {
			t.Fatalf("%s: %v", e, err)
		}
		i := k.Choices[0].Index
		last[i]++
		if k.Usage.Completion != last[i] || k.Usage.Prompt != []int{3, 1}[i] {
			t.Errorf("%s: want %d tokens of choice %d", e, last[i], i)
		}
	}
	if last[0] != 3 || last[1] != 3 || !strings.Contains(evs[len(evs)-2], `"prompt_tokens":4,"total_tokens":10,"completion_tokens":6`) {
		t.Errorf("%s", body)
	}
}

// TestChoicesFailTogether: what ends one choice for good ends the request, nothing of it is
// left, and its failure counts once, not once a choice.
func TestChoicesFailTogether(t *testing.T) {
	const choices = 6 // more than the failures after which a node rests
	logs := &clocktest.Log{}
	c := newTestCluster(t, Config{MaxRetries: -1, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	var mu sync.Mutex
	var second uint64 // the id of choice 1
	there := 0
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		mu.Lock()
		defer mu.Unlock()
		if s.Variant == 1 {
			second = s.Id
		}
		if there++; there == choices {
			send(failMessage(second, proto.FailCode_FAIL_INTERNAL, false))
		} // the others never end by themselves
	})
	status, body, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":4,"n":%d}`, choices))
	if message, _, _ := errorOf(t, body); status != 502 || !strings.Contains(message, "choice 1: ") {
		t.Errorf("%d %s", status, body)
	}
	for range choices - 1 {
		clocktest.Receive(t, n.cancels, "the others' cancel")
	}
	c.waitInFlight(0)
	if text := logs.String(); strings.Contains(text, "quarantined") {
		t.Errorf("the node failed once, and rests:\n%s", text)
	}
}

// TestQueueCountsChoices: each of them waits, so a request may ask for more than there is room.
func TestQueueCountsChoices(t *testing.T) {
	c := newTestCluster(t, Config{MaxQueue: 4})
	c.addPair()
	if status, body, _ := c.post("/v1/completions", `{"prompt":[1],"max_tokens":2,"n":4}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := c.post("/v1/completions", `{"prompt":[1],"max_tokens":2,"n":5}`); status != 400 || !strings.Contains(body, "--max-queue") {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := c.post("/v1/completions", `{"prompt":[`+strings.Repeat(`"a",`, 2000)+`"a"],"n":1}`); status != 400 || !strings.Contains(body, "at most 1024 in a request") {
		t.Errorf("%d %s", status, body)
	}
}

// TestEOS: answers end where the lengths say, unless they are told to ignore it, and no node is
// asked for more.
func TestEOS(t *testing.T) {
	lengths := eos.Lengths{Median: 6, Sigma: 0.5, Seed: 2}
	c := newTestCluster(t, Config{EOS: lengths})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	prompt := []uint32{1, 2, 3}
	drawn := lengths.Draw(prompt, 0)
	for _, tc := range []struct {
		body   string
		tokens int
		finish string
	}{
		{`"max_tokens":100`, drawn, "stop"},
		{`"max_tokens":100,"ignore_eos":true`, 100, "length"},
		{fmt.Sprintf(`"max_tokens":%d`, drawn), drawn, "stop"}, // its last token is the end
		{fmt.Sprintf(`"max_tokens":%d`, drawn-1), drawn - 1, "length"},
		{`"max_tokens":100,"min_tokens":40`, 40, "stop"},
		{`"max_tokens":100,"seed":5`, lengths.Draw(prompt, 6<<16), "stop"},
	} {
		for _, stream := range []bool{false, true} {
			status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],%s,"stream":%v}`, tc.body, stream))
			if status != 200 || err != nil {
				t.Fatalf("%s: %d %s %v", tc.body, status, body, err)
			}
			got, _ := choicesOf(t, body)
			if n := strings.Count(got[0].Text, " "); n != tc.tokens || got[0].Finish != tc.finish || got[0].Stop != nil {
				t.Errorf("%s, stream %v: %d tokens, %+v; want %d, %s", tc.body, stream, n, got[0], tc.tokens, tc.finish)
			}
			if s := clocktest.Receive(t, n.submits, "the request"); int(s.MaxTokens) != tc.tokens {
				t.Errorf("%s: the node was asked for %d tokens", tc.body, s.MaxTokens)
			}
		}
	}
	// A chat without max_tokens ends too.
	_, body, _ := c.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`)
	if got, _ := choicesOf(t, body); strings.Count(got[0].Text, " ") != lengths.Draw(helloChat, 0) || got[0].Finish != "stop" {
		t.Errorf("%s", body)
	}
}

// lastEnds is a stream whose client leaves with the last end of several choices.
type lastEnds struct {
	eventStream
	ends  atomic.Int32
	leave context.CancelFunc
}

func (s *lastEnds) Tokens(_ int, t openai.Tokens) error {
	if t.End.Finish != "" && s.ends.Add(1) == 2 {
		s.leave()
	}
	return nil
}

// TestChoicesThatEndedAreServed: what happens to a client once all of its choices are complete
// makes no failure of them, though a node has not said yet what they took.
func TestChoicesThatEndedAreServed(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(tokenMessage(s.Id, 0, fakeVariant(promptOf(s), s.Variant, int(s.MaxTokens))...))
	})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := openai.Completion.Parse([]byte(`{"prompt":[1,2,3],"max_tokens":2,"n":2,"stream":true}`), c.proxy.model(testClusterInfo))
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{
		proxy: c.proxy, req: req, metrics: c.proxy.metrics.Model(testModel),
		api: api{events: func(*openai.Request, string, time.Time) eventStream { return &lastEnds{leave: cancel} }},
	}
	x.prepare()
	if err := c.proxy.admit(x); err != nil {
		t.Fatal(err)
	}
	defer c.proxy.leave(x)
	if err := x.run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("%v; the client has left: %v", err, ctx.Err())
	}
}
