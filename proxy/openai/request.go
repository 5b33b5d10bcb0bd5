// Package openai is the wire format that clients of OpenAI's HTTP API, and of vLLM's beside
// it, rely on: requests are checked field by field, answers are rendered token by token,
// errors have OpenAI's form, and texts become token ids. It knows no nodes and no clock.
//
// Token ids are in [0, Vocab) of a Model; lengths are tokens. Slices that are returned are
// the caller's, and hold nothing of the body that was parsed: its memory may be given back.
//
// What is accepted beyond OpenAI's API follows vLLM's server, so that its clients and
// benchmarks run unchanged.
package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Kind tells the two endpoints that generate apart.
type Kind int

// The endpoints.
const (
	Completion Kind = iota // /v1/completions
	Chat                   // /v1/chat/completions
)

// Model is what a request is checked against.
type Model struct {
	Name        string     // that answers have
	Aliases     []string   // other names that clients may ask for it by
	Adapters    []string   // LoRA adapters by name
	MaxModelLen uint32     // tokens, prompt and output together
	Vocab       uint32     // token ids are in [0, Vocab)
	File        *ModelFile // the tokenizer; nil: kvferry's own of that vocabulary
}

// Tokenizer is that of the model's vocabulary.
func (m Model) Tokenizer() Tokenizer {
	if m.File != nil {
		return m.File.Tokenizer(m.Vocab)
	}
	return NewTokenizer(m.Vocab)
}

// Tokens a completion gets when its request does not say: OpenAI's default.
// A chat gets what is left of the context.
const defaultCompletionTokens = 16

// MaxChoices bounds the answers to one request, over all its prompts, and maxN those to one
// prompt, as OpenAI does. Each is generated as a request of its own.
const (
	MaxChoices = 1024
	maxN       = 128
)

// Request is a checked request for tokens. It has N answers to each of its prompts.
type Request struct {
	Kind            Kind
	Model           string // by the name that the answer has
	Tokenizer       Tokenizer
	N               int
	Choices         []Choice // one at least: those of the first prompt, then those of the next
	Listed          bool     // prompts came as a list, if only of one: SGLang's answer is a list then
	Stream          bool
	IncludeUsage    bool          // an event with the account at the end of a stream
	ContinuousUsage bool          // the account so far in every event
	Breakdown       bool          // say where the time went
	Timeout         time.Duration // 0: the proxy's
}

// A Choice is one answer that is asked for. Prompt and MaxTokens fit into the model's length
// together. Choices of one prompt share its slice.
type Choice struct {
	ID        string   // of the choice, where the client has named it; else empty
	Adapter   string   // LoRA adapter; empty: the model itself
	Salt      string   // prefix caches are shared with requests of the same salt only
	Prompt    []uint32 // one id at least
	Echo      string   // what the text begins with
	Variant   uint64   // see engine.Request
	MaxTokens uint32   // 1 at least
	MinTokens uint32   // before which nothing ends it; at most MaxTokens
	IgnoreEOS bool     // go on to MaxTokens
	Stop      *Stop    // nil: nothing else ends it
}

// generationBody is the JSON of /v1/completions and /v1/chat/completions together. null
// is the same as absent everywhere.
type generationBody struct {
	Model               *string         `json:"model"`
	LoRAPath            *string         `json:"lora_path"` // SGLang's name for an adapter
	CacheSalt           *string         `json:"cache_salt"`
	ExtraKey            *string         `json:"extra_key"` // SGLang's, which goes behind the salt
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []messageBody   `json:"messages"`
	MaxTokens           *int64          `json:"max_tokens"`
	MaxCompletionTokens *int64          `json:"max_completion_tokens"`
	MinTokens           int64           `json:"min_tokens"`
	N                   *int64          `json:"n"`
	BestOf              *int64          `json:"best_of"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	StopTokenIDs        []int64         `json:"stop_token_ids"`
	IncludeStop         bool            `json:"include_stop_str_in_output"`
	NoStopTrim          bool            `json:"no_stop_trim"`       // the same, in SGLang's words
	SpecialTokens       *bool           `json:"add_special_tokens"` // nil: true
	Echo                bool            `json:"echo"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	IgnoreEOS       bool     `json:"ignore_eos"`
	Timeout         *float64 `json:"timeout"` // s
	ReturnBreakdown bool     `json:"return_breakdown"`
	fieldsWithoutEffect
}

// messageBody is a turn of a conversation; see parseContent for its content.
type messageBody struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// Parse checks a request's body against what the cluster serves.
// Every error is an *Error that names the field and what would do.
func (k Kind) Parse(body []byte, model Model) (*Request, error) {
	var b generationBody
	if err := ParseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	g := &Request{
		Kind:            k,
		Tokenizer:       model.Tokenizer(),
		Stream:          b.Stream,
		IncludeUsage:    b.StreamOptions.IncludeUsage,
		ContinuousUsage: b.StreamOptions.IncludeUsage && b.StreamOptions.ContinuousUsageStats,
		Breakdown:       b.ReturnBreakdown,
	}
	var adapter string
	var err error
	if g.Model, adapter, err = model.resolve("model", b.Model); err != nil {
		return nil, err
	}
	if b.LoRAPath != nil && *b.LoRAPath != "" {
		if adapter, err = model.Adapter("lora_path", *b.LoRAPath); err != nil {
			return nil, err
		}
		g.Model = adapter
	}
	if b.CacheSalt != nil && *b.CacheSalt == "" {
		return nil, BadField("cache_salt", "it is empty: send a text that others cannot guess, or leave it out")
	}
	salt, err := Salt("cache_salt", b.CacheSalt, b.ExtraKey)
	if err != nil {
		return nil, err
	}
	if b.Timeout != nil {
		// Beyond what a Duration holds there is no timeout to speak of.
		if *b.Timeout <= 0 {
			return nil, BadField("timeout", "%v: want seconds, more than 0", *b.Timeout)
		}
		g.Timeout = time.Duration(math.Min(math.Ceil(*b.Timeout*1e9), math.MaxInt64/2))
	}
	stop, err := ParseStop("stop", b.Stop, "stop_token_ids", b.StopTokenIDs, b.IncludeStop || b.NoStopTrim, model.Vocab)
	if err != nil {
		return nil, err
	}
	var prompts []prompt
	if k == Chat {
		p := prompt{field: "messages"}
		p.ids, err = parseMessages(b.Messages, g.Tokenizer)
		prompts = []prompt{p}
	} else {
		prompts, _, err = parsePrompts("prompt", b.Prompt, g.Tokenizer.special(b.SpecialTokens), b.Echo)
	}
	if err != nil {
		return nil, err
	}
	n, err := b.choices(k)
	if err != nil {
		return nil, err
	}
	choices := make([]Choice, len(prompts))
	for i, p := range prompts {
		c := &choices[i]
		*c = Choice{Adapter: adapter, Salt: salt, Prompt: p.ids, IgnoreEOS: b.IgnoreEOS, Stop: stop}
		if c.MaxTokens, err = b.tokenLimit(k, p, int(model.MaxModelLen)); err != nil {
			return nil, err
		}
		if c.MinTokens, err = MinTokens("min_tokens", b.MinTokens, c.MaxTokens); err != nil {
			return nil, err
		}
		if b.Echo {
			c.Echo = cmp.Or(p.text, g.Tokenizer.Decode(p.ids))
		}
	}
	return g, g.Expand("n", choices, n, func(int) *int64 { return b.Seed })
}

// choices is how many answers each prompt has.
func (b *generationBody) choices(k Kind) (n int, err error) {
	switch {
	case b.Echo && k == Chat:
		return 0, BadField("echo", "true: a conversation is not echoed; leave it out")
	case b.N != nil && (*b.N < 1 || *b.N > maxN):
		return 0, BadField("n", "%d: want 1 to %d", *b.N, maxN)
	}
	n = 1
	if b.N != nil {
		n = int(*b.N)
	}
	if b.BestOf != nil && *b.BestOf != int64(n) {
		return 0, BadField("best_of", "%d: there are no probabilities to choose by; want n (%d), or leave it out", *b.BestOf, n)
	}
	return n, nil
}

// Expand gives a request n answers to each prompt. Their variants follow from the prompt's seed,
// nil for none, and from their place among those to the prompt; the first of a prompt without a
// seed is variant 0.
func (g *Request) Expand(field string, prompts []Choice, n int, seed func(prompt int) *int64) error {
	if len(prompts)*n > MaxChoices {
		return BadField(field, "%d: %d prompts with so many answers each are %d; at most %d are generated in a request", n, len(prompts), len(prompts)*n, MaxChoices)
	}
	g.N, g.Choices = n, prompts
	if n > 1 {
		g.Choices = make([]Choice, 0, len(prompts)*n)
		for _, p := range prompts {
			g.Choices = append(g.Choices, slices.Repeat([]Choice{p}, n)...)
		}
	}
	for i := range g.Choices {
		g.Choices[i].Variant = uint64(i % n)
		if s := seed(i / n); s != nil {
			g.Choices[i].Variant ^= (uint64(*s) + 1) << 16 // seed 0 is not no seed, and n has 16 bits
		}
	}
	return nil
}

// PromptTokens is the length of all prompts, each once.
func (g *Request) PromptTokens() (tokens uint32) {
	for i := 0; i < len(g.Choices); i += g.N {
		tokens += uint32(len(g.Choices[i].Prompt))
	}
	return tokens
}

// tokenLimit is how many tokens to generate. max_completion_tokens is the
// newer name and wins, as it does in vLLM.
func (b *generationBody) tokenLimit(k Kind, p prompt, window int) (uint32, error) {
	field, asked := "max_tokens", b.MaxTokens
	if b.MaxCompletionTokens != nil {
		field, asked = "max_completion_tokens", b.MaxCompletionTokens
	}
	unasked := window
	if k == Completion {
		unasked = defaultCompletionTokens
	}
	return MaxTokens(p.field, len(p.ids), field, asked, unasked, window)
}

// MaxTokens is how many tokens a prompt of that length gets in a model that takes window
// tokens of both: what was asked for in field, or unasked, as far as there is room.
func MaxTokens(promptField string, prompt int, field string, asked *int64, unasked, window int) (uint32, error) {
	switch {
	case prompt >= window:
		return 0, BadField(promptField, "%d tokens: the model takes prompt and output of %d together (max_model_len); shorten it to at most %d", prompt, window, window-1)
	case asked == nil:
		return uint32(min(unasked, window-prompt)), nil
	case *asked < 1:
		return 0, BadField(field, "%d: want at least 1", *asked)
	case *asked > int64(window-prompt):
		return 0, BadField(field, "%d: with a prompt of %d tokens that exceeds the model's %d (max_model_len); ask for at most %d", *asked, prompt, window, window-prompt)
	}
	return uint32(*asked), nil
}

// MinTokens checks a least length against the most.
func MinTokens(field string, asked int64, most uint32) (uint32, error) {
	if asked < 0 || asked > int64(most) {
		return 0, BadField(field, "%d: want 0 to %d, the most that is generated", asked, most)
	}
	return uint32(asked), nil
}

// resolve is what a request for a model is served with, by the name that its answer has: the
// model itself, or it with an adapter. A name that is not served is refused.
func (m Model) resolve(field string, name *string) (served, adapter string, err error) {
	switch {
	case name == nil || *name == m.Name || slices.Contains(m.Aliases, *name):
		return m.Name, "", nil
	case slices.Contains(m.Adapters, *name):
		return *name, *name, nil
	}
	return "", "", &Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: field, Code: "model_not_found",
		Message: fmt.Sprintf("%s: %q is not served here; ask for %s", field, Abbreviate(*name), quoted(slices.Concat([]string{m.Name}, m.Aliases, m.Adapters))),
	}
}

// Adapter is the LoRA adapter of that name, or an error.
func (m Model) Adapter(field, name string) (string, error) {
	switch {
	case slices.Contains(m.Adapters, name):
		return name, nil
	case len(m.Adapters) == 0:
		return "", BadField(field, "%q: no LoRA adapters are served here (--lora-modules); leave it out", Abbreviate(name))
	}
	return "", BadField(field, "%q is not served here; ask for %s", Abbreviate(name), quoted(m.Adapters))
}

// maxSalt bounds a cache salt in bytes: each leg's Submit carries it.
const maxSalt = 1024

// Salt returns the cache salt that a request's fields make up, nil for those it lacks: all in a row, as
// in SGLang. field is named in the error.
func Salt(field string, parts ...*string) (salt string, err error) {
	for _, p := range parts {
		if p != nil {
			salt += *p
		}
	}
	if len(salt) > maxSalt {
		return "", BadField(field, "%d bytes: want at most %d", len(salt), maxSalt)
	}
	return salt, nil
}

// quoted lists names for an error: the first few.
func quoted(names []string) string {
	const most = 8
	shown := make([]string, 0, most)
	for _, n := range names[:min(len(names), most)] {
		shown = append(shown, fmt.Sprintf("%q", n))
	}
	if len(names) > most {
		shown = append(shown, fmt.Sprintf("one of %d more", len(names)-most))
	}
	return strings.Join(shown, " or ")
}
