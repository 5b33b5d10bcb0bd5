package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// compareNative replaces what differs from run to run, and <0>, <0><1> and so on in want by the texts
// of a fake node's tokens, {0} by their ids.
func compareNative(t *testing.T, got, want string) {
	t.Helper()
	if got, want := untimed(got, want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// untimed is both with the time taken out of one, and the tokens put into the other.
func untimed(got, want string) (string, string) {
	got = regexp.MustCompile(`"e2e_latency":\d+\.\d{6}`).ReplaceAllString(got, `"e2e_latency":0`)
	for i, id := range fakeTokens(helloPrompt, 3) {
		want = strings.ReplaceAll(want, fmt.Sprintf("<%d>", i), testTokenizer.Decode([]uint32{id}))
		want = strings.ReplaceAll(want, fmt.Sprintf("{%d}", i), fmt.Sprint(id))
	}
	return got, want
}

// withCached is an event that may have left before the count of cached tokens was read, with that count.
func withCached(event string) string {
	return strings.Replace(event, `"cached_tokens":0`, `"cached_tokens":1`, 1)
}

// TestGenerate holds SGLang's own answers to every byte. The fields are those of SGLang 0.5.23
// (srt/managers/tokenizer_manager.py), without total_retractions, which nobody here counts.
func TestGenerate(t *testing.T) {
	const (
		meta    = `"weight_version":"default",`
		going   = `"meta_info":{"id":"req-1","finish_reason":null,"prompt_tokens":2,` + meta
		length  = `"finish_reason":{"type":"length","length":3},"prompt_tokens":2,` + meta + `"completion_tokens":3,"cached_tokens":1,"e2e_latency":0}`
		whole   = `{"text":"<0><1><2>","output_ids":[{0},{1},{2}],"meta_info":{"id":"req-1",` + length + `}`
		renamed = `{"text":"<0><1><2>","output_ids":[{0},{1},{2}],"meta_info":{"id":"mine",` + length + `}`
	)
	c := newTestCluster(t, Config{Handoff: handoff.V0.Name})
	c.addPair()
	ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(helloPrompt), " ", ","), "[]")
	stop := words(helloPrompt, 0, 3)[1]
	for _, tc := range []struct{ name, body, want string }{
		// As sglang.bench_serving sends it.
		{"text", `{"text":"hi there","sampling_params":{"temperature":0.0,"max_new_tokens":3,"ignore_eos":true},"stream":false,"lora_path":"","return_logprob":false,"return_routed_experts":false,"logprob_start_len":-1}`, whole},
		{"ids", `{"input_ids":[` + ids + `],"sampling_params":{"max_new_tokens":3}}`, whole},
		{"a list of one", `{"text":["hi there"],"sampling_params":[{"max_new_tokens":3}],"rid":["mine"]}`, "[" + renamed + "]"},
		{"rid", `{"text":"hi there","sampling_params":{"max_new_tokens":3},"rid":"mine"}`, renamed},
		{
			"stop", fmt.Sprintf(`{"text":"hi there","sampling_params":{"max_new_tokens":3,"stop":[%q]}}`, stop),
			`{"text":"<0>","output_ids":[{0},{1}],"meta_info":{"id":"req-1","finish_reason":{"type":"stop","matched":"<1>"},"prompt_tokens":2,` + meta + `"completion_tokens":2,"cached_tokens":1,"e2e_latency":0}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body, err := c.post("/generate", tc.body)
			if status != 200 || err != nil {
				t.Fatalf("%d %s %v", status, body, err)
			}
			compareNative(t, body, tc.want)
		})
	}

	// Streamed, each event has all of it so far. A node that says a token at a time makes an
	// event of each.
	one := newTestCluster(t, Config{})
	one.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil).behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		out := fakeVariant(promptOf(s), s.Variant, int(s.MaxTokens))
		m := tokenMessage(s.Id, 0, out...)
		m.Finished = []*proto.Finished{{Id: s.Id, CachedTokens: 1}}
		send(m)
	})
	// It may have been read before all of what came together was there, of which the count of cached tokens is the last:
	// then it is asked again.
	clocktest.Until(t, "an event with all of it", func() bool {
		_, body, err := one.post("/generate", `{"text":"hi there","sampling_params":{"max_new_tokens":3},"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		events := strings.SplitAfter(body, "\n\n")
		got, want := untimed(strings.Join(events[max(0, len(events)-3):], ""), "data: "+whole+"\n\ndata: [DONE]\n\n")
		if withCached(got) != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		return got == want
	})

	step := make(chan struct{}, 3)
	one.nodes[0].behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		go func() {
			for i, id := range fakeTokens(promptOf(s), int(s.MaxTokens)) {
				<-step
				m := tokenMessage(s.Id, uint32(i), id)
				if i == int(s.MaxTokens)-1 {
					m.Finished = []*proto.Finished{{Id: s.Id, CachedTokens: 1}}
				}
				send(m)
			}
		}()
	})
	step <- struct{}{} // nothing is answered before the first token
	resp, err := one.client.Do(one.request(t.Context(), "/generate", `{"text":"hi there","sampling_params":{"max_new_tokens":3},"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	compareNative(t, readEvents(t, resp, 1), `data: {"text":"<0>","output_ids":[{0}],`+going+`"completion_tokens":1,"cached_tokens":0}}`+"\n\n")
	step <- struct{}{}
	compareNative(t, readEvents(t, resp, 1), `data: {"text":"<0><1>","output_ids":[{0},{1}],`+going+`"completion_tokens":2,"cached_tokens":0}}`+"\n\n")
	step <- struct{}{}
	compareNative(t, withCached(readAll(t, resp)), "data: "+whole+"\n\ndata: [DONE]\n\n")
}

// TestGenerateSeveral: lists of prompts, sampling_params for each, and n answers.
func TestGenerateSeveral(t *testing.T) {
	lengths := eos.Lengths{Median: 5, Seed: 9} // without spread
	c := newTestCluster(t, Config{EOS: lengths, LoRAs: []LoRA{{Name: "sql", Path: "/adapters/sql"}}})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	type answer struct {
		Text  string
		IDs   []uint32 `json:"output_ids"`
		Index *int
		Meta  struct {
			ID     string
			Finish *struct {
				Type    string
				Matched any
				Length  int
			} `json:"finish_reason"`
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"meta_info"`
	}
	_, body, _ := c.post("/generate", `{"input_ids":[[1,2,3],[4]],"sampling_params":[{"max_new_tokens":9},{"max_new_tokens":2,"n":1,"ignore_eos":true}],"lora_path":["sql",null],"extra_key":[null,"mine"],"rid":["a","b"]}`)
	var all []answer
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all) != 2 {
		t.Fatalf("%s: %v", body, err)
	}
	first, second := fakeTokens([]uint32{1, 2, 3}, 5), fakeTokens([]uint32{4}, 2)
	if a := all[0]; a.Meta.ID != "a_0" || !slices.Equal(a.IDs, first) || a.Meta.Finish.Type != "stop" || a.Meta.Finish.Matched != float64(first[4]) || a.Meta.Prompt != 3 || a.Meta.Completion != 5 {
		t.Errorf("%+v, want %v, stopped by the model", a, first)
	}
	if a := all[1]; a.Meta.ID != "b_1" || !slices.Equal(a.IDs, second) || a.Meta.Finish.Type != "length" || a.Meta.Finish.Length != 2 || a.Meta.Prompt != 1 {
		t.Errorf("%+v, want %v", a, second)
	}
	tenants := map[[2]string]bool{} // adapter and salt
	for range 2 {
		m := clocktest.Receive(t, n.submits, "a submit")
		tenants[[2]string{m.Adapter, m.CacheSalt}] = true
	}
	if !tenants[[2]string{"sql", ""}] || !tenants[[2]string{"", "mine"}] {
		t.Errorf("adapters and salts %v", tenants)
	}

	_, body, _ = c.post("/generate", `{"text":"hi there","sampling_params":{"max_new_tokens":3,"n":2,"sampling_seed":7},"stream":true}`)
	last := map[int]answer{}
	evs := events(t, body)
	for _, e := range evs[:len(evs)-1] {
		var a answer
		if err := json.Unmarshal([]byte(e), &a); err != nil || a.Index == nil {
			t.Fatalf("%s: %v", e, err)
		}
		if !strings.HasPrefix(a.Text, last[*a.Index].Text) {
			t.Errorf("%q follows %q", a.Text, last[*a.Index].Text)
		}
		last[*a.Index] = a
	}
	for i := range 2 {
		want := fakeVariant(helloPrompt, uint64(8<<16^i), 3)
		if a := last[i]; !slices.Equal(a.IDs, want) || a.Text != testTokenizer.Decode(want) || a.Meta.Finish == nil {
			t.Errorf("answer %d: %+v, want %v", i, a, want)
		}
	}
	c.waitInFlight(0)
}

// TestGenerateSeeds: each prompt of a list has the seed of its own sampling_params.
func TestGenerateSeeds(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	status, body, err := c.post("/generate", `{"text":["hi there","hi there","hi there"],
"sampling_params":[{"max_new_tokens":1,"n":2,"sampling_seed":1},{"max_new_tokens":1,"n":2,"sampling_seed":2},{"max_new_tokens":1,"n":2}]}`)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, body, err)
	}
	var got []uint64
	for range 6 {
		got = append(got, clocktest.Receive(t, n.submits, "a submit").Variant)
	}
	slices.Sort(got)
	if want := []uint64{0, 1, 2 << 16, 2<<16 ^ 1, 3 << 16, 3<<16 ^ 1}; !slices.Equal(got, want) {
		t.Errorf("variants %v, want %v", got, want)
	}
}
