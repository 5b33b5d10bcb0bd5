package client

import (
	"encoding/json"
	"errors"
	"iter"
	"math"
	"reflect"
	"strconv"

	"kvferry/bench/stats"
)

// A Record is what happened to one request. Times are seconds since the run's start,
// rounded to the microsecond; a time that never came is 0.
type Record struct {
	Index        int        `json:"index"` // of the load, from 0
	RequestID    string     `json:"request_id"`
	PromptTokens int        `json:"prompt_tokens"` // that were sent
	MaxTokens    int        `json:"max_tokens"`
	Intended     float64    `json:"intended"`       // when the load wanted it sent
	Room         float64    `json:"room,omitempty"` // when there was room for it, where the load bounds the requests in flight; 0 if that was before it was due
	Sent         float64    `json:"sent"`           // just before the HTTP request was written
	FirstToken   float64    `json:"first_token"`    // first chunk with text, reasoning or a call of a tool; the first of TokenTimes if none had any
	TokenTimes   []float64  `json:"token_times"`    // every chunk with choices
	Finish       float64    `json:"finish"`         // end of the stream, or of trying
	FinishReason string     `json:"finish_reason,omitempty"`
	Status       string     `json:"status"`          // StatusOK, StatusFailed or StatusInterrupted
	Fault        string     `json:"fault,omitempty"` // what kind of failure: FaultTimeout and so on
	Error        string     `json:"error,omitempty"`
	Notes        []string   `json:"notes,omitempty"`       // what is unusual though it did not fail: NoteStopped and so on
	HTTPStatus   int        `json:"http_status,omitempty"` // 0 if none came
	Usage        *Usage     `json:"usage"`
	Breakdown    *Breakdown `json:"breakdown"`
	Timings      *Timings   `json:"timings,omitempty"`  // that the answer says of itself
	TraceID      string     `json:"trace_id,omitempty"` // of the trace context that was sent

	Adapter string `json:"adapter,omitempty"` // the LoRA adapter that was asked for
	Group   string `json:"group,omitempty"`   // whose prefix or conversation it is
	Worker  string `json:"worker,omitempty"`  // the server's URL, where there are several
	// FirstText is the first chunk with text in it, LastLine the last line of the stream that
	// was not blank, [DONE] too: SGLang's client goes by these, vLLM's by the first and the last of
	// TokenTimes.
	FirstText float64 `json:"first_text,omitempty"`
	LastLine  float64 `json:"last_line,omitempty"`
	// ChunkTokens is how many tokens each chunk of TokenTimes brought, where the server says;
	// nil is not known.
	ChunkTokens []int `json:"chunk_tokens,omitempty"`
	// NoText are the chunks of TokenTimes, from 0, that brought no text: a role, an end. Silent
	// is a stream of status 200 that came whole and brought no chunk. SGLang's client does not
	// see the first, and counts the second as a success.
	NoText []int `json:"no_text,omitempty"`
	Silent bool  `json:"silent,omitempty"`
	// ReadDelay is the longest that the kernel had a piece of the answer before this client
	// read it, in seconds: what a client that is too busy adds to times. 0 is not known.
	ReadDelay float64 `json:"read_delay,omitempty"`
	// OutputTokens is how many tokens were generated, and CountedBy who says so: CountUsage,
	// CountTokenizer or CountChunks. InputTokens is the same of the prompt, and Unconfirmed
	// that it is the number of words or ids that were sent, as nobody counted.
	InputTokens  int    `json:"input_tokens,omitempty"`
	OutputTokens int    `json:"output_tokens,omitempty"`
	CountedBy    string `json:"counted_by,omitempty"`
	Unconfirmed  bool   `json:"lengths_unconfirmed,omitempty"`
	Retokenized  int    `json:"retokenized_tokens,omitempty"` // of the text, by the client's tokenizer
	Text         string `json:"generated_text,omitempty"`     // where texts are kept
	// Content is Text without the model's reasoning, where there was some; nil else. vLLM's client
	// keeps this, SGLang's all of it.
	Content *string `json:"content,omitempty"`
	After   []int   `json:"after,omitempty"`   // records that had to end first
	Skipped bool    `json:"skipped,omitempty"` // never sent: one that it follows failed
	// Answers is how many were asked for at once (n), where it is more than one. Times and
	// tokens are those of all of them, Text is the first's.
	Answers int `json:"answers,omitempty"`
	choices int // how many there were
}

// Values of Record.CountedBy.
const (
	CountUsage     = "usage"     // the server's account
	CountTokenizer = "tokenizer" // the client's tokenizer, of the text
	CountChunks    = "chunks"    // nobody counted: a chunk is taken for a token
)

// Values of Record.Status.
const (
	StatusOK          = "ok"
	StatusFailed      = "failed"
	StatusInterrupted = "interrupted" // in flight when the run was; it has what it had
)

// Failure says why a record has no figures; "" for one that has them.
func (r *Record) Failure() string {
	switch {
	case r.Error != "":
		return r.Error
	case len(r.TokenTimes) == 0:
		return errNoChunk.Error()
	case r.Usage == nil && r.CountedBy == "":
		return errNoUsage.Error()
	}
	return ""
}

// Input is how many tokens the prompt has: as counted, or else as the server says, or else as
// they were sent.
func (r *Record) Input() int {
	switch {
	case r.InputTokens > 0:
		return r.InputTokens
	case r.Usage != nil && r.Usage.PromptTokens > 0:
		return r.Usage.PromptTokens
	}
	return r.PromptTokens
}

// Output is how many tokens were generated: as counted, or else as the server says.
func (r *Record) Output() int {
	if r.CountedBy == "" && r.Usage != nil {
		return r.Usage.CompletionTokens
	}
	return r.OutputTokens
}

// Wanted is how many tokens were asked for, of all answers.
func (r *Record) Wanted() int { return r.MaxTokens * max(r.Answers, 1) }

// Late is how late the client itself was, in seconds: it sent the request that long after
// it was due and there was room for it.
func (r *Record) Late() float64 { return r.Sent - max(r.Intended, r.Room) }

// TTFT returns the time to the first token in seconds: from sending to the first chunk with text,
// reasoning or a call of a tool. A chunk with nothing but a role is no token. It and the four
// below are those of a record without a Failure.
func (r *Record) TTFT() float64 { return r.FirstToken - r.Sent }

// TTFC returns the time to the first chunk with choices in seconds, whatever it brought: what
// vLLM's client calls TTFT.
func (r *Record) TTFC() float64 { return r.TokenTimes[0] - r.Sent }

// TPOT returns the mean time per output token after the first, in seconds: (last chunk - first
// token) / (output tokens - 1). There is none of a single token.
func (r *Record) TPOT() (seconds float64, ok bool) {
	last := r.FirstToken
	if n := len(r.TokenTimes); n > 0 {
		last = r.TokenTimes[n-1]
	}
	return stats.TPOT(r.FirstToken, last, r.Output())
}

// ITL yields the inter-token latencies in seconds: the gaps between consecutive chunks with
// choices, from the first token on.
func (r *Record) ITL() iter.Seq[float64] {
	return func(yield func(float64) bool) {
		for i := 1; i < len(r.TokenTimes); i++ {
			if r.TokenTimes[i-1] >= r.FirstToken && !yield(r.TokenTimes[i]-r.TokenTimes[i-1]) {
				return
			}
		}
	}
}

// E2EL is the end-to-end latency, from sending to the last chunk with choices, in seconds.
func (r *Record) E2EL() float64 { return r.TokenTimes[len(r.TokenTimes)-1] - r.Sent }

// errInterrupted is of a request that was in flight when the run's context ended.
var errInterrupted = errors.New("given up: the run was interrupted")

// Usage is the server's count of a request's tokens.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	// CachedTokens are those of the prompt that the server had in its prefix cache, as far as
	// it says (prompt_tokens_details).
	CachedTokens int `json:"cached_tokens,omitempty"`
}

// mostTokens is more than any model takes in a request, by a factor of ten. Sums of what is below it do not overflow.
const mostTokens = 1e8

// possible reports whether somebody may have counted that, where the output has at most so many tokens.
func (u *Usage) possible(output int) bool {
	return u.PromptTokens >= 0 && u.PromptTokens <= mostTokens && u.CachedTokens >= 0 && u.CachedTokens <= mostTokens &&
		u.CompletionTokens >= 0 && u.CompletionTokens <= output
}

// Breakdown is where a request's time went, as kvferry's proxy says on request
// in the usage chunk. Times are microseconds; parts that do not apply are 0. Of real engines parts
// may be Unknown: what the proxy cannot see, and no connector has told it, is in the part after.
type Breakdown struct {
	ProxyUS         Count `json:"proxy_us"`
	QueueUS         Count `json:"queue_us"`
	PrefillUS       Count `json:"prefill_us"`
	PostUS          Count `json:"post_us"`
	WireUS          Count `json:"wire_us"`
	LandUS          Count `json:"land_us"`
	FirstDecodeUS   Count `json:"first_decode_us"`
	KVBytes         Count `json:"kv_bytes"`
	KVBlocksChecked Count `json:"kv_blocks_checked"`
	KVBlocksBad     Count `json:"kv_blocks_bad"`
	// How often the request went on on another node, how long no token came then, and the bytes
	// that were moved for that.
	Migrations       Count `json:"migrations,omitempty"`
	MigrationPauseUS Count `json:"migration_pause_us,omitempty"`
	MigratedBytes    Count `json:"migrated_bytes,omitempty"`
	// ProxyOwnUS is in ProxyUS: what the proxy itself took after it had submitted the prompt. All else
	// there is what the nodes say that a front end takes.
	ProxyOwnUS  Count  `json:"proxy_own_us,omitempty"`
	PrefillNode string `json:"prefill_node,omitempty"`
	DecodeNode  string `json:"decode_node,omitempty"`
	Retries     int    `json:"retries"`
}

// micros are the parts in the order of StageNames.
func (b *Breakdown) micros() [len(StageNames)]Count {
	return [...]Count{b.ProxyUS, b.QueueUS, b.PrefillUS, b.PostUS, b.WireUS, b.LandUS, b.FirstDecodeUS}
}

// A Count is a number that a server may not know: Unknown then, and null in JSON.
type Count int64

// Unknown is a Count that nobody has said.
const Unknown Count = -1

// Sum is what it adds to a sum of those that are known.
func (c Count) Sum() int64 { return int64(max(c, 0)) }

// MS is a count of microseconds in milliseconds, NaN if it is Unknown.
func (c Count) MS() float64 {
	if c == Unknown {
		return math.NaN()
	}
	return float64(c) / 1e3
}

// MarshalJSON implements [json.Marshaler].
func (c Count) MarshalJSON() ([]byte, error) {
	if c == Unknown {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(c), 10), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *Count) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*c = Unknown
		return nil
	}
	var n int64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if n < 0 || n > mostCount {
		return &json.UnmarshalTypeError{Value: string(text), Type: reflect.TypeFor[tokenCount]()}
	}
	*c = Count(n)
	return nil
}

// mostCount is ten terabytes of KV, or four months in microseconds: sums of a million requests do not
// overflow.
const mostCount = 1e13
