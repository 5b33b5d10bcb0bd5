package engines

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An order is what an instance is asked, one at a time; see files/driver.py.
type order struct {
	Do        string          `json:"do"`
	ID        string          `json:"id,omitempty"`
	Tokens    any             `json:"tokens,omitempty"` // of the prompt; of a digest, how many
	MaxTokens int             `json:"max_tokens,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
}

// An event is what an instance says.
type event struct {
	Event string `json:"event"`
	// ready
	Vocabulary  int   `json:"vocabulary"`
	Special     []int `json:"special"`
	BlockTokens int   `json:"block_tokens"`
	BlockBytes  int64 `json:"block_bytes"`
	// first, done
	ID     string          `json:"id"`
	Tokens []int           `json:"tokens"`
	Params json.RawMessage `json:"params"`
	// counted, digested
	CPU      float64 `json:"cpu_s"`    // seconds since it began
	Computed int     `json:"computed"` // prompt tokens, since it began
	Received int     `json:"received"`
	Digest   string  `json:"digest"`
	// error
	Text string `json:"text"`
}

// What an instance says.
const (
	saysReady    = "ready"
	saysFirst    = "first"
	saysDone     = "done"
	saysCounted  = "counted"
	saysDigested = "digested"
	saysError    = "error"
)

// A Sample is what one prompt came to. Times are milliseconds.
type Sample struct {
	Setting      string  `json:"setting"`
	Rail         string  `json:"rail"`
	Round        int     `json:"round"`
	Prompt       int     `json:"prompt"` // its number: the same tokens in every setting
	PromptTokens int     `json:"prompt_tokens"`
	TTFT         float64 `json:"ttft_ms"`     // from asking the first instance to the last one's first token
	Prefill      float64 `json:"prefill_ms"`  // from asking P to its answer; 0 without P
	Handoff      float64 `json:"hand_off_ms"` // from P's answer to D's first token; 0 without P
	TPOT         float64 `json:"tpot_ms"`     // D's, behind its first token
	CPU          float64 `json:"cpu_s"`       // of all instances
	Tokens       []int   `json:"tokens"`
	Identical    bool    `json:"identical"`       // with mono's
	Digest       string  `json:"digest"`          // of the KV of the prompt that D did not have to compute, as it has it
	DigestsEqual bool    `json:"digests_equal"`   // with P's
	Computed     int     `json:"d_prompt_tokens"` // of the prompt by D, by vLLM's counter
	KVBytes      int64   `json:"kv_bytes"`        // of the blocks that D received
}

// A phase is what an exchange waits for.
type phase int

const (
	counting phase = iota
	prefilling
	decoding
	recounting
	digesting
	over
)

var phases = [...]string{"its counters", "P's answer", "D's answer", "its counters", "its digest", "nothing"}

func (p phase) String() string { return phases[p] }

// An exchange is a prompt's way through the instances of a setting. It has no clock: now is the time
// at which something happened, since any begin.
type exchange struct {
	setting *Setting
	fill    *strings.Replacer // of Ask and Take
	id      string
	prompt  []int
	answer  []int // mono's, where some of it is appended
	output  int   // tokens that are asked for
	block   event

	phase   phase
	missing int // answers
	asked   time.Duration
	handed  time.Duration
	first   time.Duration
	before  [2]event
	digests [2]string
	sample  Sample
}

// orders are what each role is asked next.
type orders map[role]order

// begin is what is asked first.
func (x *exchange) begin() orders { return x.ask(counting, order{Do: "count"}) }

// ask asks all instances the same.
func (x *exchange) ask(next phase, o order) orders {
	x.phase, x.missing = next, len(x.setting.roles())
	all := orders{}
	for _, r := range x.setting.roles() {
		all[r] = o
	}
	return all
}

// step takes what an instance has said, and returns what is asked now.
func (x *exchange) step(now time.Duration, from role, e event) (orders, error) {
	expected := map[phase][]string{
		counting: {saysCounted}, prefilling: {saysFirst, saysDone}, decoding: {saysFirst, saysDone}, recounting: {saysCounted}, digesting: {saysDigested},
	}[x.phase]
	turn := map[phase]role{prefilling: prefill, decoding: decode}
	whose, one := turn[x.phase]
	switch said := " " + strings.Join(expected, " ") + " "; {
	case e.Event == saysError:
		return nil, fmt.Errorf("%v: %s", from, e.Text)
	case !strings.Contains(said, " "+e.Event+" ") || one && (from != whose || e.ID != x.id):
		return nil, fmt.Errorf("%v said %q of %q while %v was waited for", from, e.Event, e.ID, x.phase)
	}
	switch x.phase {
	case counting:
		x.before[from] = e
		if x.missing--; x.missing > 0 {
			return nil, nil
		}
		x.asked = now
		return x.submit(nil)
	case prefilling:
		if e.Event == saysFirst {
			return nil, nil
		}
		x.handed = now
		if len(e.Tokens) != 1 {
			return nil, fmt.Errorf("%v answered %d tokens, and was asked for one", from, len(e.Tokens))
		}
		x.sample.Prefill = ms(now - x.asked)
		return x.submit(&e)
	case decoding:
		if e.Event == saysFirst {
			x.first = now
			return nil, nil
		}
		return x.decoded(now, e)
	case recounting:
		x.sample.CPU += e.CPU - x.before[from].CPU
		if from == decode {
			x.sample.Computed = max(0, e.Computed-x.before[decode].Computed-x.setting.Append)
			blocks := (e.Received - x.before[decode].Received + x.block.BlockTokens - 1) / x.block.BlockTokens
			x.sample.KVBytes = int64(blocks) * x.block.BlockBytes
		}
		if x.missing--; x.missing > 0 {
			return nil, nil
		}
		return x.ask(digesting, order{Do: "digest", ID: x.id, Tokens: x.moved()}), nil
	default:
		x.digests[from] = e.Digest
		if x.missing--; x.missing > 0 {
			return nil, nil
		}
		x.phase = over
		x.sample.Digest = x.digests[decode]
		x.sample.DigestsEqual = x.setting.P == "" || x.digests[prefill] == x.digests[decode]
		return nil, nil
	}
}

// submit asks P for the prompt or, with P's answer or where there is no P, D.
func (x *exchange) submit(answer *event) (orders, error) {
	appended := x.answer[:x.setting.Append]
	o := order{Do: "generate", ID: x.id, Tokens: slices.Concat(x.prompt, appended), MaxTokens: x.output - len(appended)}
	var err error
	if answer == nil && x.setting.P != "" {
		x.phase, o.MaxTokens = prefilling, 1
		o.Params, err = merged(x.fill.Replace(x.setting.Ask), nil)
		return orders{prefill: o}, err
	}
	x.phase = decoding
	if answer != nil {
		given := answer.Params
		if string(given) == "null" {
			given = nil
		}
		if o.Params, err = merged(x.fill.Replace(x.setting.Take), given); err != nil {
			return nil, err
		}
	}
	return orders{decode: o}, nil
}

// decoded notes D's answer.
func (x *exchange) decoded(now time.Duration, e event) (orders, error) {
	if x.first == 0 || len(e.Tokens) < 2 {
		return nil, fmt.Errorf("%v answered %d tokens, without a first and others", decode, len(e.Tokens))
	}
	s := &x.sample
	s.PromptTokens = len(x.prompt)
	s.TTFT = ms(x.first - x.asked)
	if x.setting.P != "" {
		s.Handoff = ms(x.first - x.handed)
	}
	s.TPOT = ms(now-x.first) / float64(len(e.Tokens)-1)
	s.Tokens = slices.Concat(x.answer[:x.setting.Append], e.Tokens)
	return x.ask(recounting, order{Do: "count"}), nil
}

// moved is of how many tokens the KV is moved: of the prompt, but for the last token of all that D is
// asked with, which it computes again to have the next.
func (x *exchange) moved() int { return min(len(x.prompt), len(x.prompt)+x.setting.Append-1) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
