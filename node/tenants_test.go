package node

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/proto"
)

// mixing is a scheduler whose prefix cache takes no notice of adapters and salts.
type mixing struct{ engine.Scheduler }

func (m mixing) Step(now, notBefore time.Duration, events ...engine.Event) *engine.Ready {
	events = slices.Clone(events)
	for i, ev := range events {
		if add, ok := ev.(engine.Add); ok {
			add.Request.Adapter, add.Request.Salt = "", ""
			events[i] = add
		}
	}
	return m.Scheduler.Step(now, notBefore, events...)
}

// TestMixedTenants: if a prefill node's prefix cache took no notice of LoRA adapters or cache salts, a request would have
// KV of another one's, and another answer: the bytes of KV depend on both, though the tokens are the same. No digest
// finds that, since the bytes are as they were computed.
func TestMixedTenants(t *testing.T) {
	for _, hand := range []string{handoff.Layerwise.Name, handoff.Pull.Name} {
		for _, field := range []string{`"model":"sql"`, `"cache_salt":"mine"`} {
			t.Run(hand+"/"+field, func(t *testing.T) {
				t.Parallel()
				if apart, mixed := tenant(t, hand, field, false), tenant(t, hand, field, true); apart == mixed {
					t.Errorf("%s has the answer %q with its own KV and with another's", field, apart)
				}
			})
		}
	}
}

// tenant returns the answer to a prompt with a field, after the same prompt without it.
func tenant(t *testing.T, hand, field string, mix bool) string {
	s := startNodes(t, hand, func(c *Config) {
		c.TokensFromKV = true
		c.PrefixCaching = c.Role == proto.Role_ROLE_PREFILL
		if sched := *c; mix && c.PrefixCaching {
			c.NewScheduler = func(pool *kvcache.Pool) (engine.Scheduler, error) {
				inner, err := sched.scheduler(pool, nil)
				return mixing{inner}, err
			}
		}
	}, "prefill-0", "decode-0")
	defer s.end()
	url := "http://" + s.proxy.daemon.HTTPAddr()
	if status, body := s.post(url+"/v1/load_lora_adapter", `{"lora_name":"sql","lora_path":"16"}`); status != http.StatusOK {
		t.Fatal(status, body)
	}
	prompt, err := json.Marshal(tokensOf(1, 100))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Choices []struct{ Text string } }
	for _, with := range []string{"", "," + field} {
		status, body := s.post(url+"/v1/completions", `{"prompt":`+string(prompt)+`,"max_tokens":4,"ignore_eos":true`+with+"}")
		if err := json.Unmarshal([]byte(body), &answer); status != http.StatusOK || err != nil || s.bad() > 0 {
			t.Fatalf("%d %s, %v; %d blocks are bad", status, body, err, s.bad())
		}
	}
	return answer.Choices[0].Text
}

// post sends a body of JSON, and returns what comes back.
func (s *nodes) post(url, body string) (status int, answer string) {
	s.t.Helper()
	resp, err := s.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}
