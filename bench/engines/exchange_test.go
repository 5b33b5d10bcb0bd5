package engines

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A line of a transcript: what an instance says when, and what is asked then.
type line struct {
	at   time.Duration
	from role
	event
	asked string
}

func counted(cpu float64, computed, received int) event {
	return event{Event: saysCounted, CPU: cpu, Computed: computed, Received: received}
}

// written are orders as JSON, those of P first.
func written(all orders) string {
	var parts []string
	for _, r := range []role{prefill, decode} {
		if o, ok := all[r]; ok {
			text, _ := json.Marshal(o)
			parts = append(parts, fmt.Sprintf("%v%s", r, text))
		}
	}
	return strings.Join(parts, " ")
}

func setting(t *testing.T, name string) *Setting {
	t.Helper()
	for i := range Settings {
		if Settings[i].Name == name {
			return &Settings[i]
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

func newExchange(s *Setting) *exchange {
	return &exchange{
		setting: s, fill: values{p: "127.0.0.1:7001", folder: "/shared", request: "q"}.fill(), id: "q", prompt: []int{5, 6, 7, 8}, answer: []int{1, 2, 3}, output: 3, block: event{BlockTokens: 2, BlockBytes: 100},
		sample: Sample{Setting: s.Name, Rail: s.Rail, Prompt: 9},
	}
}

const (
	countAll   = `P{"do":"count"} D{"do":"count"}`
	ms1        = time.Millisecond
	askD       = `D{"do":"generate","id":"q","tokens":[5,6,7,8],"max_tokens":3`
	digestThem = `P{"do":"digest","id":"q","tokens":3} D{"do":"digest","id":"q","tokens":3}`
)

// TestExchange: the ways of a prompt, by transcripts.
func TestExchange(t *testing.T) {
	for name, c := range map[string]struct {
		begin string
		lines []line
		want  Sample
	}{
		Mono: {
			begin: `D{"do":"count"}`,
			lines: []line{
				{10 * ms1, decode, counted(1, 100, 0), askD + `}`},
				{30 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{40 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 3}}, `D{"do":"count"}`},
				{50 * ms1, decode, counted(1.5, 104, 0), `D{"do":"digest","id":"q","tokens":3}`},
				{60 * ms1, decode, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{TTFT: 20, TPOT: 5, CPU: 0.5, Tokens: []int{1, 2, 3}, Digest: "a", DigestsEqual: true, Computed: 4},
		},
		"nixl-ucx": { // what P has answered is D's
			begin: countAll,
			lines: []line{
				{1 * ms1, decode, counted(1, 5, 30), ""},
				{2 * ms1, prefill, counted(2, 50, 0), `P{"do":"generate","id":"q","tokens":[5,6,7,8],"max_tokens":1,"params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":null,"remote_engine_id":null,"remote_host":null,"remote_port":null}}`},
				{9 * ms1, prefill, event{Event: saysFirst, ID: "q"}, ""},
				{12 * ms1, prefill, event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`{"remote_port":8}`)}, askD + `,"params":{"remote_port":8}}`},
				{22 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{32 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 3}}, countAll},
				{33 * ms1, prefill, counted(2.25, 54, 0), ""},
				{34 * ms1, decode, counted(1.5, 6, 33), digestThem},
				{35 * ms1, prefill, event{Event: saysDigested, Digest: "a"}, ""},
				{36 * ms1, decode, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{TTFT: 20, Prefill: 10, Handoff: 10, TPOT: 5, CPU: 0.75, Tokens: []int{1, 2, 3}, Digest: "a", DigestsEqual: true, Computed: 1, KVBytes: 200},
		},
		"kvferry-pull": { // what P has answered is D's, and D's answer says where the time went
			begin: countAll,
			lines: []line{
				{1 * ms1, decode, counted(0, 0, 0), ""},
				{2 * ms1, prefill, counted(0, 0, 0), `P{"do":"generate","id":"q","tokens":[5,6,7,8],"max_tokens":1,"params":{"do_remote_decode":true,"do_remote_prefill":false}}`},
				{12 * ms1, prefill, event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`{"hold":8}`)}, askD + `,"params":{"hold":8}}`},
				{22 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{32 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 3}, Params: json.RawMessage(`{"kvferry":{"request_id":"q-1","queue_us":1,"post_us":2,"wire_us":3,"land_us":4,"kv_bytes":200,"kv_blocks_checked":5,"kv_blocks_bad":6}}`)}, countAll},
				{33 * ms1, prefill, counted(0, 4, 0), ""},
				{34 * ms1, decode, counted(0, 1, 4), digestThem},
				{35 * ms1, prefill, event{Event: saysDigested, Digest: "a"}, ""},
				{36 * ms1, decode, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{
				TTFT: 20, Prefill: 10, Handoff: 10, TPOT: 5, Tokens: []int{1, 2, 3}, Digest: "a", DigestsEqual: true, Computed: 1, KVBytes: 200,
				Parts: &Parts{Queue: 1, Post: 2, Wire: 3, Land: 4, KVBytes: 200, BlocksChecked: 5, BlocksBad: 6},
			},
		},
		"kvferry-layerwise": { // D is asked with P, and is first
			begin: countAll,
			lines: []line{
				{1 * ms1, decode, counted(0, 0, 0), ""},
				{2 * ms1, prefill, counted(0, 0, 0), `P{"do":"generate","id":"q","tokens":[5,6,7,8],"max_tokens":1,"params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"q"}}` +
					" " + askD + `,"params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://127.0.0.1:7001","transfer_id":"q"}}`},
				{9 * ms1, prefill, event{Event: saysFirst, ID: "q"}, ""},
				{12 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{22 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 3}}, ""},
				{24 * ms1, prefill, event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`{"unasked":1}`)}, countAll},
				{33 * ms1, prefill, counted(0, 4, 0), ""},
				{34 * ms1, decode, counted(0, 1, 4), digestThem},
				{35 * ms1, prefill, event{Event: saysDigested, Digest: "a"}, ""},
				{36 * ms1, decode, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{TTFT: 10, Prefill: 22, Handoff: -12, TPOT: 5, Tokens: []int{1, 2, 3}, Digest: "a", DigestsEqual: true, Computed: 1, KVBytes: 200},
		},
		"mooncake": { // P answers nothing, and D's KV is another
			begin: countAll,
			lines: []line{
				{1 * ms1, decode, counted(0, 0, 0), ""},
				{2 * ms1, prefill, counted(0, 0, 0), `P{"do":"generate","id":"q","tokens":[5,6,7,8],"max_tokens":1,"params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"q"}}`},
				{
					12 * ms1, prefill,
					event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`null`)},
					askD + `,"params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://127.0.0.1:7001","remote_engine_id":"prefill","transfer_id":"q"}}`,
				},
				{22 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{32 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{1, 2, 3}}, countAll},
				{33 * ms1, prefill, counted(0, 4, 0), ""},
				{34 * ms1, decode, counted(0, 1, 4), digestThem},
				{35 * ms1, decode, event{Event: saysDigested, Digest: "b"}, ""},
				{36 * ms1, prefill, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{TTFT: 20, Prefill: 10, Handoff: 10, TPOT: 5, Tokens: []int{1, 2, 3}, Digest: "b", Computed: 1, KVBytes: 200},
		},
		"example": { // both are asked for two tokens of mono's answer too, and D gives the third and fourth
			begin: countAll,
			lines: []line{
				{1 * ms1, decode, counted(0, 0, 0), ""},
				{2 * ms1, prefill, counted(0, 0, 0), `P{"do":"generate","id":"q","tokens":[5,6,7,8,1,2],"max_tokens":1}`},
				{12 * ms1, prefill, event{Event: saysDone, ID: "q", Tokens: []int{3}}, `D{"do":"generate","id":"q","tokens":[5,6,7,8,1,2],"max_tokens":2}`},
				{22 * ms1, decode, event{Event: saysFirst, ID: "q"}, ""},
				{27 * ms1, decode, event{Event: saysDone, ID: "q", Tokens: []int{3, 4}}, countAll},
				{33 * ms1, prefill, counted(0, 6, 0), ""},
				{34 * ms1, decode, counted(0, 2, 4), `P{"do":"digest","id":"q","tokens":4} D{"do":"digest","id":"q","tokens":4}`},
				{35 * ms1, decode, event{Event: saysDigested, Digest: "a"}, ""},
				{36 * ms1, prefill, event{Event: saysDigested, Digest: "a"}, ""},
			},
			want: Sample{TTFT: 20, Prefill: 10, Handoff: 10, TPOT: 5, Tokens: []int{1, 2, 3, 4}, Digest: "a", DigestsEqual: true, KVBytes: 200},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newExchange(setting(t, name))
			x.output = len(c.want.Tokens)
			if got := written(x.begin()); got != c.begin {
				t.Fatalf("begins with %s", got)
			}
			for i, l := range c.lines {
				asked, err := x.step(l.at, l.from, l.event)
				if got := written(asked); err != nil || got != l.asked {
					t.Fatalf("line %d: %v, asks %s, want %s", i, err, got, l.asked)
				}
			}
			c.want.Setting, c.want.Rail, c.want.Prompt, c.want.PromptTokens = name, x.setting.Rail, 9, 4
			if x.phase != over || !reflect.DeepEqual(x.sample, c.want) {
				t.Errorf("phase %d, %+v, want %+v", x.phase, x.sample, c.want)
			}
		})
	}
}

// TestExchangeRefuses: what an instance says out of turn, or cannot mean, ends the exchange.
func TestExchangeRefuses(t *testing.T) {
	zero := counted(0, 0, 0)
	first, done := event{Event: saysFirst, ID: "q"}, event{Event: saysDone, ID: "q", Tokens: []int{1}}
	for want, lines := range map[string][]line{
		"P: KeyError: 'x'": {{from: prefill, event: event{Event: saysError, Text: "KeyError: 'x'"}}},
		`D said "first" of "q" while its counters was waited for`:   {{from: decode, event: first}},
		`D said "first" of "q" while P's answer was waited for`:     {{from: prefill, event: zero}, {from: decode, event: zero}, {from: decode, event: first}},
		`P said "done" of "old" while P's answer was waited for`:    {{from: prefill, event: zero}, {from: decode, event: zero}, {from: prefill, event: event{Event: saysDone, ID: "old"}}},
		"P answered 0 tokens (error), and was asked for one":        {{from: prefill, event: zero}, {from: decode, event: zero}, {from: prefill, event: event{Event: saysDone, ID: "q", Finish: "error"}}},
		"D answered 1 tokens (), without a first and others":        {{from: prefill, event: zero}, {from: decode, event: zero}, {from: prefill, event: done}, {from: decode, event: done}},
		"kv_transfer_params [1]: json: cannot unmarshal array into": {{from: prefill, event: zero}, {from: decode, event: zero}, {from: prefill, event: event{Event: saysDone, ID: "q", Tokens: []int{1}, Params: json.RawMessage(`[1]`)}}},
	} {
		x := newExchange(setting(t, "nixl-ucx"))
		x.begin()
		var err error
		for i, l := range lines {
			if err != nil {
				t.Errorf("line %d: %v", i, err)
			}
			_, err = x.step(time.Duration(i)*ms1, l.from, l.event)
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestSettings: what vLLM is told is JSON with nothing left open, and each setting has a name.
func TestSettings(t *testing.T) {
	values := values{port: "1", host: "h", p: "h:2", rails: "tcp/lo", nics: "all", backend: "UCX", checksums: "true", timeout: "5", lease: "10", plugins: "/p", folder: "/f", request: "r"}.fill()
	seen := map[string]bool{}
	for i := range Settings {
		s := &Settings[i]
		if seen[s.String()] || s.Name == "" || s.Rail == "" || (s.P == "") != (s.D == "") || (s.P == "") != (s.Name == Mono) {
			t.Errorf("%+v", s)
		}
		seen[s.String()] = true
		for _, text := range append([]string{s.P, s.D, s.Ask, s.Take}, s.Env...) {
			text = values.Replace(text)
			var v map[string]any
			isJSON := strings.HasPrefix(text, "{")
			if isJSON && json.Unmarshal([]byte(text), &v) != nil || !isJSON && strings.ContainsAny(text, "{}") {
				t.Errorf("%s: %s", s, text)
			}
		}
	}
	if Settings[0].Name != Mono {
		t.Error("mono is not the first: the others are held to it")
	}
	some, err := choose([]string{"mooncake"}, false)
	if err != nil || len(some) != 2 || some[0].Name != Mono || some[1].Name != "mooncake" {
		t.Errorf("%+v, %v", some, err)
	}
	some, err = choose([]string{"kvferry-pull/cma", "example"}, false)
	if err != nil || len(some) != 3 || some[1].String() != "kvferry-pull cma" || some[2].Name != "example" {
		t.Errorf("%+v, %v", some, err)
	}
	some, err = choose(strings.Split("kvferry-pull/tcp,tcp,mooncake", ","), false) // as a flag has it
	if err != nil || len(some) != 3 || some[1].String() != "kvferry-pull tcp,tcp" || some[2].Name != "mooncake" {
		t.Errorf("%+v, %v", some, err)
	}
	some, err = choose(nil, true)
	for _, s := range some {
		if s.Rail != "none" && !strings.Contains(s.Rail, tcp) {
			t.Errorf("%v goes over no link", &s)
		}
	}
	if err != nil || len(some) < 5 {
		t.Errorf("%+v, %v", some, err)
	}
	for _, c := range []struct {
		name string
		link bool
		want string
	}{
		{"moncake", false, `"moncake": there is no such setting: use mono, kvferry-pull`},
		{"tcp", false, `"tcp": there is no such setting`},
		{"kvferry-pull/rdma", false, `"kvferry-pull/rdma": kvferry-pull is not there with the rail "rdma": use "tcp" or "tcp,tcp" or "cma", or leave the rail out for all`},
		{"kvferry-pull/cma", true, `"kvferry-pull/cma": it does not go over a link, only settings over tcp do: leave it out, or leave --link out`},
		{"example", true, `"example": it does not go over a link`},
		{"kvferry-pull", true, ""},
		{"mono", true, ""},
	} {
		if _, err := choose([]string{c.name}, c.link); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, link %v: %v", c.name, c.link, err)
		}
	}
}

// TestChecked: with checksums a row of kvferry's connector has checked blocks, or fails.
func TestChecked(t *testing.T) {
	const unchecked = "no block of a prompt was checked, with checksums"
	for _, c := range []struct {
		setting string
		parts   *Parts
		want    string
	}{
		{"kvferry-pull", &Parts{BlocksChecked: 1}, ""}, {"kvferry-pull", &Parts{}, unchecked}, {"kvferry-pull", nil, unchecked}, {"nixl-kvferry", nil, ""},
	} {
		r, s := Result{Checked: true}, setting(t, c.setting)
		if row := r.row(s, 128, []Sample{{KVBytes: 1, LikeOthers: true, DigestsEqual: true, Parts: c.parts}}, ""); row.Error != c.want {
			t.Errorf("%s, %+v: %q, want %q", c.setting, c.parts, row.Error, c.want)
		}
	}
}
