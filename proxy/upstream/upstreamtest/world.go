package upstreamtest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// A Setting describes the world of one seed: two engines of each role, of which one has faults.
type Setting struct {
	Seed           int
	Mode           string // pull, layerwise, alone
	Chat, Stream   bool
	SGLang         bool   // engines call answers as they like
	Op, At         string // the fault, and the engine that has it
	Times, Clients int
}

func (s Setting) String() string {
	return fmt.Sprintf("seed %d: %s chat=%v stream=%v sglang=%v, %s at %s %d times, %d clients", s.Seed, s.Mode, s.Chat, s.Stream, s.SGLang, s.Op, s.At, s.Times, s.Clients)
}

// SettingOf is the setting of a seed, and what draws more.
func SettingOf(seed int) (Setting, *rand.Rand) {
	r := rand.New(rand.NewPCG(uint64(seed), 30))
	s := Setting{
		Seed: seed, Mode: []string{"pull", "layerwise", "alone"}[r.IntN(3)], Chat: r.IntN(2) == 0, Stream: r.IntN(4) > 0, SGLang: r.IntN(3) == 0,
		Op: ops[r.IntN(len(ops))], At: []string{"p0", "d0"}[r.IntN(2)], Times: 1 + r.IntN(3), Clients: 1 + r.IntN(4),
	}
	if s.Mode == "alone" {
		s.At = "d0"
	}
	return s, r
}

// Engines returns the engines of a setting by host.
func (s Setting) Engines(r *rand.Rand) map[string]*Byzantine {
	kv := &kvStore{has: make(map[string]string), news: make(chan struct{})}
	all := make(map[string]*Byzantine)
	for _, name := range []string{"p0", "p1", "d0", "d1"} {
		b := &Byzantine{name: name, sglang: s.SGLang, kv: kv, rand: rand.New(rand.NewPCG(r.Uint64(), 1))}
		if name == s.At {
			b.op, b.times = s.Op, s.Times
		}
		all[name] = b
	}
	return all
}

// Misplaces reports whether the fault puts a token where it does not belong: what shows only with a later event.
func (s Setting) Misplaces() bool { return s.Op == "double" || s.Op == "early" || s.Op == "swap" }

// Request is the i-th client's: its path and body, and the text that answers it.
func (s Setting) Request(i int) (path, body, want string) {
	n := 3 + (s.Seed+i)%5
	prompt := fmt.Sprintf("prompt %d of %d", i, s.Seed)
	want = strings.Join(wordsOf(prompt, n), "")
	if s.Chat {
		return "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":%d,"stream":%v,"stream_options":{"include_usage":true}}`, prompt, n, s.Stream), want
	}
	return "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"stream":%v,"stream_options":{"include_usage":true}}`, prompt, n, s.Stream), want
}

// TextOf is the text of an answer, as a client reads it; whole is that it says that it has ended.
func TextOf(answer string, stream bool) (text string, whole bool, err error) {
	type choices struct {
		Error   json.RawMessage
		Choices []struct {
			Text           string
			Delta, Message struct{ Content string }
			Finish         string `json:"finish_reason"`
		}
	}
	if !stream {
		var c choices
		if err := json.Unmarshal([]byte(answer), &c); err != nil || len(c.Choices) != 1 {
			return "", false, fmt.Errorf("%q: %w", answer, err)
		}
		return c.Choices[0].Text + c.Choices[0].Message.Content, c.Choices[0].Finish != "", nil
	}
	done, finish := false, false
	for event := range strings.SplitSeq(answer, "\n\n") {
		data, has := strings.CutPrefix(event, "data: ")
		switch {
		case !has:
			continue
		case done:
			return text, false, fmt.Errorf("%q behind [DONE]", data)
		case data == "[DONE]":
			done = true
			continue
		}
		var c choices
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return text, false, fmt.Errorf("%q: %w", data, err)
		}
		for _, choice := range c.Choices {
			text += choice.Text + choice.Delta.Content
			finish = finish || choice.Finish != ""
		}
	}
	return text, done && finish, nil
}
