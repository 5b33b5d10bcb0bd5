// Package sglang is the wire format of SGLang's own endpoint, POST /generate, as its
// benchmark's default backend uses it: what it asks becomes a request of package openai,
// answers have the text so far in every event, and meta_info. Units and ownership are
// package openai's; e2e_latency is seconds.
//
// It follows SGLang 0.5.23.
package sglang

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"kvferry/proxy/openai"
)

// generateBody is the JSON of POST /generate. null is the same as absent. Fields that are not
// here are accepted and have no effect, as package openai has it.
type generateBody struct {
	RID      json.RawMessage `json:"rid"` // a string, or one for each prompt
	Text     json.RawMessage `json:"text"`
	InputIDs json.RawMessage `json:"input_ids"`
	Params   json.RawMessage `json:"sampling_params"` // an object, or one for each prompt
	Stream   bool            `json:"stream"`
	LoRAPath json.RawMessage `json:"lora_path"` // a string, or one for each prompt
	ExtraKey json.RawMessage `json:"extra_key"` // likewise

	Breakdown json.RawMessage `json:"return_breakdown" why:"breakdown" unless:"false"`

	Logprob       json.RawMessage `json:"return_logprob" why:"probabilities" unless:"false"`
	HiddenStates  json.RawMessage `json:"return_hidden_states" why:"inside" unless:"false"`
	RoutedExperts json.RawMessage `json:"return_routed_experts" why:"inside" unless:"false"`
	IndexerTopK   json.RawMessage `json:"return_indexer_topk" why:"inside" unless:"false"`
	SamplingMask  json.RawMessage `json:"return_sampling_mask" why:"inside" unless:"false"`
	InputEmbeds   json.RawMessage `json:"input_embeds" why:"text" unless:"[] {} \"\""`
	ImageData     json.RawMessage `json:"image_data" why:"text" unless:"[] {} \"\""`
	VideoData     json.RawMessage `json:"video_data" why:"text" unless:"[] {} \"\""`
	AudioData     json.RawMessage `json:"audio_data" why:"text" unless:"[] {} \"\""`
	Session       json.RawMessage `json:"session_params" why:"sessions" unless:"{}"`
	Processor     json.RawMessage `json:"custom_logit_processor" why:"biased" unless:"[] \"\""`
	Watermark     json.RawMessage `json:"watermark" why:"watermark" unless:"false"`
	Priority      json.RawMessage `json:"priority" why:"priority" unless:"0"`
	BootstrapHost json.RawMessage `json:"bootstrap_host" why:"handoff"`
	BootstrapRoom json.RawMessage `json:"bootstrap_room" why:"handoff"`
}

// paramsBody is SGLang's sampling_params.
type paramsBody struct {
	MaxNewTokens *int64          `json:"max_new_tokens"`
	MinNewTokens int64           `json:"min_new_tokens"`
	IgnoreEOS    bool            `json:"ignore_eos"`
	Stop         json.RawMessage `json:"stop"`
	StopTokenIDs []int64         `json:"stop_token_ids"`
	NoStopTrim   bool            `json:"no_stop_trim"`
	N            *int64          `json:"n"`
	Seed         *int64          `json:"sampling_seed"`

	JSONSchema    json.RawMessage `json:"json_schema" why:"grammar"`
	Regex         json.RawMessage `json:"regex" why:"grammar"`
	EBNF          json.RawMessage `json:"ebnf" why:"grammar"`
	StructuralTag json.RawMessage `json:"structural_tag" why:"grammar"`
	StopRegex     json.RawMessage `json:"stop_regex" why:"stop_regex" unless:"[]"`
	LogitBias     json.RawMessage `json:"logit_bias" why:"biased" unless:"{}"`
}

// defaultTokens is SGLang's max_new_tokens. null is what is left of the context.
const defaultTokens = 128

// reasons are why fields are refused; see openai.RefusalsOf.
var (
	reasons = map[string]string{
		"probabilities": "there are no probabilities to report; leave it out",
		"inside":        "the model is computed nowhere, and has no such inside; leave it out",
		"text":          "prompts are text or token ids; leave it out",
		"sessions":      "there are no sessions; send the whole prompt",
		"biased":        "tokens cannot be favoured or excluded; leave it out",
		"watermark":     "answers are not marked; leave it out",
		"priority":      "requests are served in the order in which they come; leave it out",
		"handoff":       "the proxy hands KV over by itself; leave it out",
		"breakdown":     "the endpoints of OpenAI's API have it; use /v1/completions",
		"grammar":       "answers are not held to a grammar; leave it out",
		"stop_regex":    "answers stop at strings and token ids; use stop",
	}
	ofBody   = openai.RefusalsOf(generateBody{}, "", reasons)
	ofParams = openai.RefusalsOf(paramsBody{}, "sampling_params.", reasons)
)

// Parse checks a request's body against what the cluster serves. Every error is an
// *openai.Error that names the field and what would do.
func Parse(body []byte, model openai.Model) (*openai.Request, error) {
	var b generateBody
	if err := openai.ParseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := ofBody.Check(&b); err != nil {
		return nil, err
	}
	field, raw := "text", b.Text
	if present(b.InputIDs) {
		if present(b.Text) {
			return nil, openai.BadField("input_ids", "there is text too: send one of them")
		}
		field, raw = "input_ids", b.InputIDs
	}
	switch texts := isText(raw); {
	case field == "text" && present(raw) && !texts:
		return nil, openai.BadField("text", "want a string or a list of strings; token ids go into input_ids")
	case field == "input_ids" && (texts || bytes.IndexByte(raw, '"') >= 0):
		return nil, openai.BadField("input_ids", "want a list of token ids, or a list of such lists; strings go into text")
	}
	tok := model.Tokenizer()
	prompts, listed, err := openai.ParsePrompts(field, raw, tok)
	if err != nil {
		return nil, err
	}
	params, err := each[paramsBody]("sampling_params", b.Params, len(prompts))
	if err != nil {
		return nil, err
	}
	rids, err := each[string]("rid", b.RID, len(prompts))
	if err != nil {
		return nil, err
	}
	loras, err := each[*string]("lora_path", b.LoRAPath, len(prompts))
	if err != nil {
		return nil, err
	}
	keys, err := each[*string]("extra_key", b.ExtraKey, len(prompts))
	if err != nil {
		return nil, err
	}
	choices := make([]openai.Choice, len(prompts))
	n := 0
	for i, ids := range prompts {
		c := &choices[i]
		*c = openai.Choice{Prompt: ids, ID: rids[i]}
		if len(c.ID) > maxRID {
			return nil, openai.BadField("rid", "%d bytes: want at most %d", len(c.ID), maxRID)
		}
		if lora := loras[i]; lora != nil && *lora != "" {
			if c.Adapter, err = model.Adapter("lora_path", *lora); err != nil {
				return nil, err
			}
		}
		if c.Salt, err = openai.Salt("extra_key", keys[i]); err != nil {
			return nil, err
		}
		var of int
		if of, err = params[i].apply(c, field, model); err != nil {
			return nil, err
		}
		if n != 0 && n != of {
			return nil, openai.BadField("sampling_params.n", "%d and %d: prompts of one request have as many answers each; send them in two", n, of)
		}
		n = of
	}
	g := &openai.Request{Model: model.Name, Tokenizer: tok, Stream: b.Stream, Listed: listed || n > 1}
	return g, g.Expand("sampling_params.n", choices, n, func(prompt int) *int64 { return params[prompt].Seed })
}

const (
	maxRID = 256
	maxN   = 128
)

// apply gives a choice what sampling_params say, and returns how many answers there are.
func (p *paramsBody) apply(c *openai.Choice, promptField string, model openai.Model) (n int, err error) {
	if err := ofParams.Check(p); err != nil {
		return 0, err
	}
	c.IgnoreEOS = p.IgnoreEOS
	if c.MaxTokens, err = openai.MaxTokens(promptField, len(c.Prompt), "sampling_params.max_new_tokens", p.MaxNewTokens, defaultTokens, int(model.MaxModelLen)); err != nil {
		return 0, err
	}
	if c.MinTokens, err = openai.MinTokens("sampling_params.min_new_tokens", p.MinNewTokens, c.MaxTokens); err != nil {
		return 0, err
	}
	if c.Stop, err = openai.ParseStop("sampling_params.stop", p.Stop, "sampling_params.stop_token_ids", p.StopTokenIDs, p.NoStopTrim, model.Vocab); err != nil {
		return 0, err
	}
	switch {
	case p.N == nil:
		return 1, nil
	case *p.N < 1 || *p.N > maxN:
		return 0, openai.BadField("sampling_params.n", "%d: want 1 to %d", *p.N, maxN)
	}
	return int(*p.N), nil
}

// isText reports whether a field is a string or begins like a list of them.
func isText(raw json.RawMessage) bool {
	if len(raw) > 0 && raw[0] == '[' {
		raw = bytes.TrimLeft(raw[1:], " \t\r\n")
	}
	return len(raw) > 0 && raw[0] == '"'
}

// present reports whether a field says something.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// each reads a field that is a T for all of n prompts, or a list of one T for each.
func each[T any](field string, raw json.RawMessage, n int) ([]T, error) {
	var one T
	switch {
	case !present(raw):
	case raw[0] == '[':
		var list []T
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, openai.BadField(field, "%v", err)
		}
		if len(list) != n {
			return nil, openai.BadField(field, "a list of %d for %d prompts: want one for each", len(list), n)
		}
		return list, nil
	default:
		if err := json.Unmarshal(raw, &one); err != nil {
			return nil, openai.BadField(field, "%v", err)
		}
	}
	return slices.Repeat([]T{one}, n), nil
}

// id is what the answer calls a choice: the client's rid, or the request's own, with the place
// of the choice where there are several.
func id(req *openai.Request, requestID string, choice int) string {
	name := cmp.Or(req.Choices[choice].ID, requestID)
	if len(req.Choices) > 1 {
		return fmt.Sprintf("%s_%d", name, choice)
	}
	return name
}
