package upstream

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// A Request is a client's, on its way through engines. It belongs to the goroutine that serves it.
type Request struct {
	ID      string // the client's X-Request-Id, or the proxy's
	Arrived time.Duration
	More    func(bytes int64) bool // takes memory for an answer, and reports whether there is
	Result

	path    string
	header  http.Header // what engines get of the client's
	kind    openai.Kind
	asked   openai.Request
	body    []byte                     // as it came
	fields  map[string]json.RawMessage // of it, but for those that are this proxy's own
	own     bool                       // it had such
	single  bool                       // one answer to one prompt, about which nothing is asked: what kv_transfer_params are for
	choices uint32                     // answers to all its prompts
	size    int                        // words of the prompt: its ids, or its text, four bytes a word
	prefix  []kvcache.Hash             // of these, for placement

	name     string           // that engines know it by; another one each time that its prompt is computed
	free     int              // placements that were no retries: the engine was not reached
	avoid    map[*engine]bool // have failed it; chosen only if no other is there
	computed bool             // a prefill engine has the prompt's KV, and nobody has taken it
	params   json.RawMessage  // kv_transfer_params by which it is taken; nil: that engine offers none
	offered  time.Duration    // when it answered with them
	refused  *failure         // the first refusal by an engine that had a prefill engine's offer
	with     string           // the prefill engine whose KV the decode engine is to take; empty: none

	tokens uint32    // events with one
	gave   connector // what the prefill engine's says
	took   connector // and the other engine's
	moved  bool      // an engine was to take KV from another
	atOnce bool      // and both were asked at the same time

	word     string         // of the URL at which a connector reports; empty: none does
	reported chan connector // what it says there

	computing time.Duration // prefill engines had it
	answering time.Duration // others had it, until its first token

	events Events
	answer []byte // of a request that does not stream
}

// Result is what became of a request. Its parts are filled in as they are known.
type Result struct {
	Prefill, Decode string // the engines of the last attempt
	Retries         int
	Usage           openai.Usage  // as the engines counted; 0 where they did not say
	Stop            bool          // the model ended it
	Begun           bool          // the first token is here
	First, Last     time.Duration // when the first token and the last came
	Breakdown       proto.Breakdown
	Unknown         []string      // fields of the breakdown that nobody has said
	Proxy           time.Duration // the proxy's own part
}

// forwarded are the headers that engines get: who asks, and whose trace it is.
var forwarded = []string{"Authorization", "Traceparent", "Tracestate"}

// A word is four bytes of a text, about as long as a token of English. wordsInBlock of them, or of a
// prompt's token ids, are what prefixes are compared by.
const wordsInBlock = 16

// NewRequest is one for an endpoint that generates. Its body comes with Parse.
func NewRequest(kind openai.Kind, r *http.Request) *Request {
	q := &Request{path: r.URL.Path, kind: kind, header: make(http.Header), avoid: make(map[*engine]bool)}
	for _, name := range forwarded {
		if v := r.Header[name]; len(v) > 0 {
			q.header[name] = v
		}
	}
	return q
}

// ownFields are this proxy's, and not for engines.
var ownFields = []string{"timeout", "return_breakdown"}

// Parse reads a request's body, which it keeps. What it returns is what package proxy goes by: one
// choice, whose prompt is words.
func (r *Request) Parse(body []byte) (*openai.Request, error) {
	if err := openai.ParseJSON(body, &r.fields); err != nil {
		return nil, err
	}
	f := r.fields // as they are written: an engine does not take "Prompt" for the prompt
	if given(f["kv_transfer_params"]) {
		return nil, openai.BadField("kv_transfer_params", "this proxy makes them, of what the prefill engine answers: leave it out")
	}
	var model, salt string
	_ = json.Unmarshal(f["model"], &model)
	_ = json.Unmarshal(f["cache_salt"], &salt)
	prompt := f["prompt"]
	if r.kind == openai.Chat {
		prompt = f["messages"]
	}
	one := func(raw json.RawMessage) bool { n, is := number(raw); return !is || n == 1 }
	all, single := words(prompt, r.kind)
	for _, field := range []json.RawMessage{f["prompt"], f["prompt_embeds"]} {
		var several []json.RawMessage
		switch {
		case r.kind == openai.Chat || !given(field):
		case !single && json.Unmarshal(field, &several) == nil:
			r.choices += uint32(len(several))
		default:
			r.choices++
		}
	}
	r.choices = max(r.choices, 1)
	if n, is := number(f["n"]); is {
		r.choices *= uint32(min(max(n, 1), openai.MaxChoices))
	}
	r.size, r.single = len(all), single && one(f["n"]) && one(f["best_of"]) && !truth(f["echo"]) && !given(f["prompt_logprobs"])
	r.prefix = kvcache.PrefixHashes(kvcache.Root(model, salt), all, wordsInBlock)
	r.asked = openai.Request{
		Kind: r.kind, Model: model, N: 1, Stream: truth(f["stream"]), Breakdown: truth(f["return_breakdown"]),
		Choices: []openai.Choice{{Prompt: all, IgnoreEOS: true}},
	}
	for _, limit := range []string{"max_tokens", "max_completion_tokens"} {
		if n, is := number(f[limit]); is {
			r.asked.Choices[0].MaxTokens = uint32(min(max(n, 0), math.MaxUint32))
		}
	}
	if timeout := f["timeout"]; given(timeout) {
		seconds, is := number(timeout)
		if !is || !(seconds > 0) {
			return nil, openai.BadField("timeout", "%s: want seconds, more than 0", openai.Abbreviate(string(timeout)))
		}
		r.asked.Timeout = time.Duration(math.Min(seconds*1e9, math.MaxInt64/2))
	}
	r.body = body
	for _, name := range ownFields {
		if _, has := f[name]; has {
			r.own = true
			delete(f, name)
		}
	}
	return &r.asked, nil
}

// Held is how much memory the request takes until it has ended, in bytes: its body, the fields of that,
// what goes to two engines; and what placement goes by, which is less than the prompt's words that were
// there before.
func (r *Request) Held() int64 { return 4 * int64(len(r.body)) }

// vLLM reads fields as its library for that does: 16.0 and "16" are 16, "true" and 1 are true. What
// cannot be read so, engines refuse.

// number is a field's; false if it has none.
func number(raw json.RawMessage) (n float64, is bool) {
	var text string
	if !given(raw) {
		return 0, false
	}
	if json.Unmarshal(raw, &n) == nil {
		return n, true
	}
	if json.Unmarshal(raw, &text) != nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && !math.IsNaN(n)
}

// truth reports whether a field is true.
func truth(raw json.RawMessage) (is bool) {
	var text string
	switch n, numeric := number(raw); {
	case numeric:
		return n == 1
	case json.Unmarshal(raw, &text) == nil && given(raw):
		return slices.Contains([]string{"true", "t", "yes", "y", "on"}, strings.ToLower(text))
	}
	return json.Unmarshal(raw, &is) == nil && is
}

// given reports whether a field has a value.
func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// words are a prompt's token ids, or its text four bytes at a time; single is that it is one prompt.
func words(prompt json.RawMessage, kind openai.Kind) (all []uint32, single bool) {
	if kind == openai.Completion && json.Unmarshal(prompt, &all) == nil && len(all) > 0 {
		return all, true
	}
	all = make([]uint32, 0, len(prompt)/4+1)
	for rest := []byte(prompt); len(rest) > 0; rest = rest[min(4, len(rest)):] {
		var four [4]byte
		copy(four[:], rest)
		all = append(all, binary.LittleEndian.Uint32(four[:]))
	}
	return all, kind == openai.Chat || len(prompt) > 0 && prompt[0] == '"'
}

// remotePrefill are the kv_transfer_params by which vLLM's connectors have an engine compute a
// prompt for another one, and say in its answer how its KV is taken.
const remotePrefill = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// prefillBody asks for one token, whole. min_tokens is 1 because connectors offer KV of a prompt only
// if its answer came to its length, and not where the model ended it at once.
func (r *Request) prefillBody(params json.RawMessage) ([]byte, error) {
	f := maps.Clone(r.fields)
	delete(f, "stream_options")
	one := json.RawMessage("1")
	f["max_tokens"], f["min_tokens"], f["stream"] = one, one, json.RawMessage("false")
	if _, has := f["max_completion_tokens"]; has {
		f["max_completion_tokens"] = one
	}
	f["kv_transfer_params"] = params
	return json.Marshal(f)
}

// answerBody is what the engine gets whose answer is the client's: the client's own bytes where
// nothing is to be changed.
func (r *Request) answerBody(params json.RawMessage) ([]byte, error) {
	if !r.own && params == nil {
		return r.body, nil
	}
	f := r.fields
	if params != nil {
		f = maps.Clone(f)
		f["kv_transfer_params"] = params
	}
	return json.Marshal(f)
}
