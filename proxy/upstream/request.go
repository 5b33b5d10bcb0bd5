package upstream

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"reflect"
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
	Result

	path   string
	header http.Header // what engines get of the client's
	kind   openai.Kind
	asked  openai.Request
	body   []byte                     // as it came
	fields map[string]json.RawMessage // of it, but for those that are this proxy's own
	own    bool                       // it had such
	single bool                       // one answer to one prompt, about which nothing is asked: what kv_transfer_params are for
	words  []uint32                   // what placement goes by: the prompt's ids, or its text, four bytes a word
	prefix []kvcache.Hash             // of these

	round    int              // times that its prompt was to be computed
	free     int              // placements that were no retries: the engine was not reached
	avoid    map[*engine]bool // have failed it; chosen only if no other is there
	computed bool             // a prefill engine has the prompt's KV, and nobody has taken it
	params   json.RawMessage  // kv_transfer_params by which it is taken; nil: that engine offers none
	offered  time.Duration    // when it answered with them

	tokens uint32 // events with one
	said   connector
	moved  bool // an engine was to take KV from another

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
	q := &Request{path: r.URL.Path, kind: kind, header: make(http.Header)}
	for _, name := range forwarded {
		if v := r.Header[name]; len(v) > 0 {
			q.header[name] = v
		}
	}
	return q
}

// fieldsRead are those of a body that are read here. Engines check them, and all others.
type fieldsRead struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            json.RawMessage `json:"messages"`
	Stream              bool            `json:"stream"`
	N                   *int            `json:"n"`
	BestOf              *int            `json:"best_of"`
	MaxTokens           *int64          `json:"max_tokens"`
	MaxCompletionTokens *int64          `json:"max_completion_tokens"`
	Timeout             *float64        `json:"timeout"` // s
	Breakdown           bool            `json:"return_breakdown"`
	Transfer            json.RawMessage `json:"kv_transfer_params"`
	Echo                bool            `json:"echo"`
	PromptLogprobs      json.RawMessage `json:"prompt_logprobs"`
}

// namesRead are their names.
var namesRead = func() (all []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[fieldsRead]()) {
		all = append(all, f.Tag.Get("json"))
	}
	return all
}()

// checkNames refuses a field that is called like one of those but for the case of its letters: package
// json reads it as that one, and engines do not.
func checkNames(fields map[string]json.RawMessage) error {
	for name := range fields {
		for _, read := range namesRead {
			if name != read && strings.EqualFold(name, read) {
				return openai.BadField(read, "the body has it as %q: write it so", openai.Abbreviate(name))
			}
		}
	}
	return nil
}

// ownFields are this proxy's, and not for engines.
var ownFields = []string{"timeout", "return_breakdown"}

// Parse reads a request's body, which it keeps. What it returns is what package proxy goes by: one
// choice, whose prompt is words.
func (r *Request) Parse(body []byte) (*openai.Request, error) {
	var b fieldsRead
	if err := openai.ParseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := openai.ParseJSON(body, &r.fields); err != nil {
		return nil, err
	}
	if err := checkNames(r.fields); err != nil {
		return nil, err
	}
	if given(b.Transfer) {
		return nil, openai.BadField("kv_transfer_params", "this proxy makes them, of what the prefill engine answers: leave it out")
	}
	r.body = body
	for _, name := range ownFields {
		if _, has := r.fields[name]; has {
			r.own = true
			delete(r.fields, name)
		}
	}
	prompt := b.Prompt
	if r.kind == openai.Chat {
		prompt = b.Messages
	}
	one := func(n *int) bool { return n == nil || *n == 1 }
	r.words, r.single = words(prompt, r.kind)
	r.single = r.single && one(b.N) && one(b.BestOf) && !b.Echo && !given(b.PromptLogprobs)
	r.prefix = kvcache.PrefixHashes(kvcache.Root(b.Model), r.words, wordsInBlock)
	r.asked = openai.Request{
		Kind: r.kind, Model: b.Model, N: 1, Stream: b.Stream, Breakdown: b.Breakdown,
		Choices: []openai.Choice{{Prompt: r.words, IgnoreEOS: true}},
	}
	for _, limit := range []*int64{b.MaxTokens, b.MaxCompletionTokens} {
		if limit != nil {
			r.asked.Choices[0].MaxTokens = uint32(min(max(*limit, 0), math.MaxUint32))
		}
	}
	if b.Timeout != nil {
		if *b.Timeout <= 0 {
			return nil, openai.BadField("timeout", "%v: want seconds, more than 0", *b.Timeout)
		}
		r.asked.Timeout = time.Duration(math.Min(*b.Timeout*1e9, math.MaxInt64/2))
	}
	return &r.asked, nil
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
func (r *Request) prefillBody() ([]byte, error) {
	f := maps.Clone(r.fields)
	delete(f, "stream_options")
	one := json.RawMessage("1")
	f["max_tokens"], f["min_tokens"], f["stream"] = one, one, json.RawMessage("false")
	if _, has := f["max_completion_tokens"]; has {
		f["max_completion_tokens"] = one
	}
	f["kv_transfer_params"] = json.RawMessage(remotePrefill)
	return json.Marshal(f)
}

// answerBody is what the engine gets whose answer is the client's: the client's own bytes where
// nothing is to be changed.
func (r *Request) answerBody() ([]byte, error) {
	if !r.own && r.params == nil {
		return r.body, nil
	}
	f := r.fields
	if r.params != nil {
		f = maps.Clone(f)
		f["kv_transfer_params"] = r.params
	}
	return json.Marshal(f)
}
