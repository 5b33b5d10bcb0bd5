package proxy

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestStops: an answer ends at a stop string or token, its usage counts what was generated,
// and the nodes are told to stop.
func TestStops(t *testing.T) {
	prompt := []uint32{1, 2, 3}
	w := words(prompt, 0, 8)
	ids := fakeTokens(prompt, 8)
	across := w[2][3:] + w[3][:2] // ends in the fourth token
	for _, hand := range handoff.Names() {
		c := newTestCluster(t, Config{Handoff: hand})
		c.addPair()
		for _, tc := range []struct {
			name, body string
			text       string
			tokens     int
			finish     string
			stop       any
		}{
			{"in a token", fmt.Sprintf(`"stop":%q`, w[2][2:]), w[0] + w[1] + w[2][:2], 3, "stop", w[2][2:]},
			{"across two", fmt.Sprintf(`"stop":["nowhere",%q]`, across), w[0] + w[1] + w[2][:3], 4, "stop", across},
			{"included", fmt.Sprintf(`"stop":[%q],"include_stop_str_in_output":true`, across), strings.Join(w[:3], "") + w[3][:2], 4, "stop", across},
			{"a token id", fmt.Sprintf(`"stop_token_ids":[%d]`, ids[4]), strings.Join(w[:4], ""), 5, "stop", float64(ids[4])},
			{"not before min_tokens", fmt.Sprintf(`"stop":%q,"min_tokens":5`, across), strings.Join(w, ""), 8, "length", nil},
			{"never", `"stop":["nowhere"],"stop_token_ids":[]`, strings.Join(w, ""), 8, "length", nil},
			{"at the last token", fmt.Sprintf(`"stop":%q`, w[7][1:]), strings.Join(w[:7], "") + w[7][:1], 8, "stop", w[7][1:]},
		} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/stream=%v", hand, tc.name, stream), func(t *testing.T) {
					status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":8,%s,"stream":%v,"stream_options":{"include_usage":true}}`, tc.body, stream))
					if status != 200 || err != nil {
						t.Fatalf("%d %s %v", status, body, err)
					}
					got, usage := choicesOf(t, body)
					if g := got[0]; g.Text != tc.text || g.Finish != tc.finish || g.Stop != tc.stop || usage["completion_tokens"] != float64(tc.tokens) {
						t.Errorf("%+v, usage %v; want %q, %d tokens, %s %v", g, usage, tc.text, tc.tokens, tc.finish, tc.stop)
					}
				})
			}
		}
		c.waitInFlight(0)
	}
}

// TestStopCancels: a node that would go on is told that nobody wants more, and the client has
// its answer before that.
func TestStopCancels(t *testing.T) {
	c := newTestCluster(t, Config{})
	prompt := []uint32{1, 2, 3}
	w := words(prompt, 0, 3)
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(tokenMessage(s.Id, 0, fakeTokens(prompt, 3)...)) // and no more ever comes
	})
	_, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":500,"stop":%q}`, w[2]))
	if got, _ := choicesOf(t, body); err != nil || got[0].Text != w[0]+w[1] || got[0].Finish != "stop" {
		t.Errorf("%s %v", body, err)
	}
	clocktest.Receive(t, n.cancels, "the cancel")
	c.waitInFlight(0)
}

// TestEcho: the prompt stands before the answer, as it came, or what its ids are.
func TestEcho(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	for prompt, want := range map[string]string{
		`"hello\tworld \"x\""`: "hello\tworld \"x\"",
		`[5,6]`:                testTokenizer.Decode([]uint32{5, 6}),
	} {
		for _, stream := range []bool{false, true} {
			_, plain, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":2,"n":2}`, prompt))
			_, body, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":2,"n":2,"echo":true,"stream":%v}`, prompt, stream))
			without, _ := choicesOf(t, plain)
			got, _ := choicesOf(t, body)
			for i := range 2 {
				if got[i].Text != want+without[i].Text {
					t.Errorf("%s, stream %v, choice %d: %q, want %q and then %q", prompt, stream, i, got[i].Text, want, without[i].Text)
				}
			}
		}
	}
}
