package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// fieldsWithoutEffect of a request would change what a client gets, and nothing here can do
// so: they are refused by name, unless they have a value that asks for nothing. Every other
// field that is not known is accepted, as vLLM's server does: its clients send
// repetition_penalty and what else they have. Parameters of sampling (temperature, top_p,
// top_k, min_p, penalties, length_penalty) are accepted and have no effect, as the tokens
// are a function of the prompt, of seed and of the answer's index.
//
// The tag why is a key of reasons, unless has the values that ask for nothing beside null: JSON
// without blanks.
type fieldsWithoutEffect struct {
	Logprobs       json.RawMessage `json:"logprobs" why:"probabilities" unless:"false"` // 0 asks for the token that was taken
	TopLogprobs    json.RawMessage `json:"top_logprobs" why:"probabilities" unless:"0"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs" why:"probabilities" unless:"false"`
	Suffix         json.RawMessage `json:"suffix" why:"suffix" unless:"\"\""`

	Tools        json.RawMessage `json:"tools" why:"tools" unless:"[]"`
	ToolChoice   json.RawMessage `json:"tool_choice" why:"tools" unless:"\"none\" \"auto\""`
	Functions    json.RawMessage `json:"functions" why:"tools" unless:"[]"`
	FunctionCall json.RawMessage `json:"function_call" why:"tools" unless:"\"none\" \"auto\""`

	ResponseFormat    json.RawMessage `json:"response_format" why:"grammar" unless:"{\"type\":\"text\"}"`
	StructuredOutputs json.RawMessage `json:"structured_outputs" why:"grammar"`
	GuidedJSON        json.RawMessage `json:"guided_json" why:"grammar"`
	GuidedRegex       json.RawMessage `json:"guided_regex" why:"grammar"`
	GuidedChoice      json.RawMessage `json:"guided_choice" why:"grammar"`
	GuidedGrammar     json.RawMessage `json:"guided_grammar" why:"grammar"`
	Regex             json.RawMessage `json:"regex" why:"grammar"`
	EBNF              json.RawMessage `json:"ebnf" why:"grammar"`
	JSONSchema        json.RawMessage `json:"json_schema" why:"grammar"`

	LogitBias       json.RawMessage `json:"logit_bias" why:"biased" unless:"{}"`
	BadWords        json.RawMessage `json:"bad_words" why:"biased" unless:"[]"`
	AllowedTokenIDs json.RawMessage `json:"allowed_token_ids" why:"biased" unless:"[]"`
	BeamSearch      json.RawMessage `json:"use_beam_search" why:"use_beam_search" unless:"false"`
	StopRegex       json.RawMessage `json:"stop_regex" why:"stop_regex" unless:"[]"`

	Modalities json.RawMessage `json:"modalities" why:"modalities" unless:"[\"text\"]"`
	Audio      json.RawMessage `json:"audio" why:"audio"`
	WebSearch  json.RawMessage `json:"web_search_options" why:"web_search_options"`
	Embeds     json.RawMessage `json:"prompt_embeds" why:"prompt_embeds"`

	GenerationPrompt json.RawMessage `json:"add_generation_prompt" why:"template" unless:"true"`
	ContinueFinal    json.RawMessage `json:"continue_final_message" why:"template" unless:"false"`
	ChatTemplate     json.RawMessage `json:"chat_template" why:"template"`
	Documents        json.RawMessage `json:"documents" why:"template" unless:"[]"`
	TruncatePrompt   json.RawMessage `json:"truncate_prompt_tokens" why:"truncate_prompt_tokens"`

	ReturnTokenIDs     json.RawMessage `json:"return_token_ids" why:"return_token_ids" unless:"false"`
	ReturnHiddenStates json.RawMessage `json:"return_hidden_states" why:"return_hidden_states" unless:"false"`
	Priority           json.RawMessage `json:"priority" why:"priority" unless:"0"`
	KVTransfer         json.RawMessage `json:"kv_transfer_params" why:"handoff" unless:"{}"`
	BootstrapHost      json.RawMessage `json:"bootstrap_host" why:"handoff"`
	BootstrapRoom      json.RawMessage `json:"bootstrap_room" why:"handoff"`
}

var reasons = map[string]string{
	"audio":                  "answers are text; leave it out",
	"biased":                 "tokens cannot be favoured or excluded; leave it out",
	"grammar":                "answers are not held to a grammar; leave it out",
	"handoff":                "the proxy hands KV over by itself; leave it out",
	"modalities":             "answers are text; leave it out",
	"priority":               "requests are served in the order in which they come; leave it out",
	"probabilities":          "there are no probabilities to report; leave it out",
	"prompt_embeds":          "a prompt is text or token ids; leave it out",
	"return_hidden_states":   "there are no hidden states to return; leave it out",
	"return_token_ids":       "use POST /generate, whose answers have output_ids",
	"stop_regex":             "answers stop at strings and token ids; use stop",
	"suffix":                 "text is only added at the end of a prompt; leave it out",
	"template":               "the chat template is fixed; leave it out",
	"tools":                  "the model calls no tools; leave it out",
	"truncate_prompt_tokens": "prompts are not shortened; send what is to be read",
	"use_beam_search":        "there are no probabilities to search by; leave it out",
	"web_search_options":     "nothing is searched; leave it out",
}

var withoutEffect = RefusalsOf(fieldsWithoutEffect{}, "", reasons)

// check refuses the first field that asks for what is not here.
func (f *fieldsWithoutEffect) check() error { return withoutEffect.Check(f) }

// Refusals say which fields of a body are refused, and when: those with a tag why. They are
// made once: a table of them on the stack of each request was half of it.
type Refusals []refusal

type refusal struct {
	index int // in the struct
	field string
	why   string
	asks  []string // for nothing
}

// RefusalsOf reads the tags of a struct's fields, each a json.RawMessage; prefix comes before
// their names in errors. It panics if a tag why has no reason.
func RefusalsOf(body any, prefix string, reasons map[string]string) (all Refusals) {
	t := reflect.TypeOf(body)
	for i := range t.NumField() {
		f := t.Field(i)
		key, ok := f.Tag.Lookup("why")
		if !ok {
			continue
		}
		why := reasons[key]
		if why == "" {
			panic(fmt.Sprintf("openai: %v.%s: no reason %q", t, f.Name, key))
		}
		all = append(all, refusal{i, prefix + f.Tag.Get("json"), why, strings.Fields(f.Tag.Get("unless"))})
	}
	return all
}

// Check refuses the first field of body, a pointer to what RefusalsOf was given, that asks for
// something.
func (r Refusals) Check(body any) error {
	v := reflect.ValueOf(body).Elem()
	for i := range r {
		raw := v.Field(r[i].index).Bytes()
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		if len(raw) < 64 && slices.Contains(r[i].asks, string(bytes.Join(bytes.Fields(raw), nil))) {
			continue
		}
		return BadField(r[i].field, "%s: %s", Abbreviate(string(raw)), r[i].why)
	}
	return nil
}
