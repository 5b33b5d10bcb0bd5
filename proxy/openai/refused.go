package openai

import (
	"bytes"
	"encoding/json"
	"slices"
)

// fieldsWithoutEffect of a request would change what a client gets, and nothing here can do
// so: they are refused by name, unless they have a value that asks for nothing. Every other
// field that is not known is accepted, as vLLM's server does: its clients send
// repetition_penalty and what else they have. Parameters of sampling (temperature, top_p,
// top_k, min_p, penalties, length_penalty) are accepted and have no effect, as the tokens
// are a function of the prompt, of seed and of the answer's index.
type fieldsWithoutEffect struct {
	Logprobs       json.RawMessage `json:"logprobs"`
	TopLogprobs    json.RawMessage `json:"top_logprobs"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	Suffix         json.RawMessage `json:"suffix"`

	Tools        json.RawMessage `json:"tools"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Functions    json.RawMessage `json:"functions"`
	FunctionCall json.RawMessage `json:"function_call"`

	ResponseFormat    json.RawMessage `json:"response_format"`
	StructuredOutputs json.RawMessage `json:"structured_outputs"`
	GuidedJSON        json.RawMessage `json:"guided_json"`
	GuidedRegex       json.RawMessage `json:"guided_regex"`
	GuidedChoice      json.RawMessage `json:"guided_choice"`
	GuidedGrammar     json.RawMessage `json:"guided_grammar"`
	Regex             json.RawMessage `json:"regex"`
	EBNF              json.RawMessage `json:"ebnf"`
	JSONSchema        json.RawMessage `json:"json_schema"`

	LogitBias       json.RawMessage `json:"logit_bias"`
	BadWords        json.RawMessage `json:"bad_words"`
	AllowedTokenIDs json.RawMessage `json:"allowed_token_ids"`
	BeamSearch      json.RawMessage `json:"use_beam_search"`
	StopRegex       json.RawMessage `json:"stop_regex"`

	Modalities json.RawMessage `json:"modalities"`
	Audio      json.RawMessage `json:"audio"`
	WebSearch  json.RawMessage `json:"web_search_options"`
	Embeds     json.RawMessage `json:"prompt_embeds"`

	GenerationPrompt json.RawMessage `json:"add_generation_prompt"`
	ContinueFinal    json.RawMessage `json:"continue_final_message"`
	ChatTemplate     json.RawMessage `json:"chat_template"`
	Documents        json.RawMessage `json:"documents"`
	TruncatePrompt   json.RawMessage `json:"truncate_prompt_tokens"`

	ReturnTokenIDs     json.RawMessage `json:"return_token_ids"`
	ReturnHiddenStates json.RawMessage `json:"return_hidden_states"`
	Priority           json.RawMessage `json:"priority"`
	KVTransfer         json.RawMessage `json:"kv_transfer_params"`
	BootstrapHost      json.RawMessage `json:"bootstrap_host"`
	BootstrapRoom      json.RawMessage `json:"bootstrap_room"`
}

// check refuses the first field that asks for what is not here.
func (f *fieldsWithoutEffect) check() error {
	const (
		probabilities = "there are no probabilities to report; leave it out"
		grammar       = "answers are not held to a grammar; leave it out"
		tools         = "the model calls no tools; leave it out"
		biased        = "tokens cannot be favoured or excluded; leave it out"
		template      = "the chat template is fixed; leave it out"
		handoff       = "the proxy hands KV over by itself; leave it out"
	)
	for _, r := range [...]struct {
		field string
		raw   json.RawMessage
		why   string
		asks  []string // for nothing, beside null
	}{
		{"logprobs", f.Logprobs, probabilities, []string{"false", "0"}},
		{"top_logprobs", f.TopLogprobs, probabilities, []string{"0"}},
		{"prompt_logprobs", f.PromptLogprobs, probabilities, []string{"false"}},
		{"suffix", f.Suffix, "text is only added at the end of a prompt; leave it out", []string{`""`}},
		{"tools", f.Tools, tools, []string{"[]"}},
		{"tool_choice", f.ToolChoice, tools, []string{`"none"`, `"auto"`}},
		{"functions", f.Functions, tools, []string{"[]"}},
		{"function_call", f.FunctionCall, tools, []string{`"none"`, `"auto"`}},
		{"response_format", f.ResponseFormat, grammar, []string{`{"type":"text"}`}},
		{"structured_outputs", f.StructuredOutputs, grammar, nil},
		{"guided_json", f.GuidedJSON, grammar, nil},
		{"guided_regex", f.GuidedRegex, grammar, nil},
		{"guided_choice", f.GuidedChoice, grammar, nil},
		{"guided_grammar", f.GuidedGrammar, grammar, nil},
		{"regex", f.Regex, grammar, nil},
		{"ebnf", f.EBNF, grammar, nil},
		{"json_schema", f.JSONSchema, grammar, nil},
		{"logit_bias", f.LogitBias, biased, []string{"{}"}},
		{"bad_words", f.BadWords, biased, []string{"[]"}},
		{"allowed_token_ids", f.AllowedTokenIDs, biased, []string{"[]"}},
		{"use_beam_search", f.BeamSearch, "there are no probabilities to search by; leave it out", []string{"false"}},
		{"stop_regex", f.StopRegex, "answers stop at strings and token ids; use stop", []string{"[]"}},
		{"modalities", f.Modalities, "answers are text; leave it out", []string{`["text"]`}},
		{"audio", f.Audio, "answers are text; leave it out", nil},
		{"web_search_options", f.WebSearch, "nothing is searched; leave it out", nil},
		{"prompt_embeds", f.Embeds, "a prompt is text or token ids; leave it out", nil},
		{"add_generation_prompt", f.GenerationPrompt, template, []string{"true"}},
		{"continue_final_message", f.ContinueFinal, template, []string{"false"}},
		{"chat_template", f.ChatTemplate, template, nil},
		{"documents", f.Documents, template, []string{"[]"}},
		{"truncate_prompt_tokens", f.TruncatePrompt, "prompts are not shortened; send what is to be read", nil},
		{"return_token_ids", f.ReturnTokenIDs, "use POST /generate, whose answers have output_ids", []string{"false"}},
		{"return_hidden_states", f.ReturnHiddenStates, "there are no hidden states to return; leave it out", []string{"false"}},
		{"priority", f.Priority, "requests are served in the order in which they come; leave it out", []string{"0"}},
		{"kv_transfer_params", f.KVTransfer, handoff, []string{"{}"}},
		{"bootstrap_host", f.BootstrapHost, handoff, nil},
		{"bootstrap_room", f.BootstrapRoom, handoff, nil},
	} {
		if err := Refuse(r.field, r.raw, r.why, r.asks...); err != nil {
			return err
		}
	}
	return nil
}

// Refuse is an error for a field that asks for something that is not here; nil if it is
// absent, null, or one of asks, JSON without blanks, which ask for nothing.
func Refuse(field string, raw json.RawMessage, why string, asks ...string) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if len(raw) < 64 && slices.Contains(asks, string(bytes.Join(bytes.Fields(raw), nil))) {
		return nil
	}
	return BadField(field, "%s: %s", Abbreviate(string(raw)), why)
}
