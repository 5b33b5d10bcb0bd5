package client

// A PromptForm is how a server takes prompts.
type PromptForm string

// The forms. A prompt that has no ids is text whatever the server takes.
const (
	PromptIDs  PromptForm = "token ids"
	PromptText PromptForm = "text"
	PromptChat PromptForm = "messages"
)

// Accepts is what a server takes and tells, as [Client.Probe] found it. Requests are made by
// it, and reports print it. A client that has not probed takes the server for one like
// kvferry's own, which takes everything.
type Accepts struct {
	Backend  string     `json:"backend"`
	Endpoint string     `json:"endpoint"` // its URL
	Model    string     `json:"model"`
	Prompt   PromptForm `json:"prompt"`
	Stream   bool       `json:"stream"`
	// Limit is the field that bounds the output: max_tokens, max_completion_tokens, or
	// max_new_tokens. "" if the server takes none.
	Limit string `json:"limit"`
	// Sampling are those of Config.Sampling that are not refused.
	Sampling  []string `json:"sampling,omitempty"`
	IgnoreEOS bool     `json:"ignore_eos"` // not refused; a server may still end early, and then records say so
	// Usage is that the server counts tokens: it tells how many there were, asked by
	// UsageOption (stream_options.include_usage) or by itself. PerChunk is that it tells so
	// with every chunk.
	Usage       bool `json:"usage"`
	UsageOption bool `json:"usage_option"`
	PerChunk    bool `json:"usage_per_chunk"`
	TokenIDs    bool `json:"token_ids"` // of the answer: return_token_ids, or SGLang's output_ids
	Breakdown   bool `json:"breakdown"` // kvferry's proxy: where a request's time went
	Tokenize    bool `json:"tokenize"`  // there is POST /tokenize
	// CountedBy is who counts output tokens in this run, a value of Record.CountedBy.
	// Unconfirmed is that nobody counts prompts either: they are words, and a word may be
	// more than one token, or less.
	CountedBy   string `json:"counted_by"`
	Unconfirmed bool   `json:"lengths_unconfirmed"`
	// Probed is how many requests it took to find this out; 0 is taken for granted.
	Probed int `json:"probe_requests"`
	// Refused are the fields that the server does not take, with its own words.
	Refused []Refusal `json:"refused,omitempty"`
	// Notes say what else is unusual.
	Notes []string `json:"notes,omitempty"`
}

// BreakdownField asks kvferry's proxy where a request's time went. Other servers do not know it, and
// strict ones refuse it.
const BreakdownField = "return_breakdown"

// A Refusal is a field of a request that a server refused.
type Refusal struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// everything is what a server like kvferry's takes of what cfg sends.
func (cfg *Config) everything(b Backend) Accepts {
	stream := !cfg.NoStream
	a := Accepts{
		Backend: b.Name, Prompt: PromptIDs, Stream: stream, Limit: "max_tokens",
		IgnoreEOS: true, Usage: true, UsageOption: stream, Breakdown: true, CountedBy: CountUsage, Sampling: names(cfg.Sampling),
	}
	switch b.kind {
	case chat:
		a.Prompt, a.Limit = PromptChat, "max_completion_tokens"
	case generate:
		a.Limit, a.UsageOption, a.Breakdown, a.PerChunk, a.TokenIDs = "max_new_tokens", false, false, true, true
	}
	return a
}
