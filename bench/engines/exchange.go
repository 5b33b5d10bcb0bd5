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
	Finish string          `json:"finish"` // why it is done, by vLLM
	// counted, digested
	CPU      float64 `json:"cpu_s"`    // seconds since it began
	Computed int     `json:"computed"` // prompt tokens, since it began
	Received int     `json:"received"`
	Free     int     `json:"free"` // blocks that nobody holds
	Digest   string  `json:"digest"`
	// error
	Text string `json:"text"`
}

// What an instance says.
const (
	saysReady     = "ready"
	saysFirst     = "first"
	saysDone      = "done"
	saysCancelled = "cancelled"
	saysFlipped   = "flipped"
	saysCounted   = "counted"
	saysDigested  = "digested"
	saysError     = "error"
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
	Handoff      float64 `json:"hand_off_ms"` // from P's answer to D's first token, below 0 where D is first; 0 without P
	TPOT         float64 `json:"tpot_ms"`     // D's, behind its first token
	CPU          float64 `json:"cpu_s"`       // of all instances
	Tokens       []int   `json:"tokens"`
	Identical    bool    `json:"identical"`       // with mono's
	LikeOthers   bool    `json:"like_others"`     // with the first connector\'s
	Digest       string  `json:"digest"`          // of the KV of the prompt that D did not have to compute, as it has it
	DigestsEqual bool    `json:"digests_equal"`   // with P's
	Computed     int     `json:"d_prompt_tokens"` // of the prompt by D, by vLLM's counter
	KVBytes      int64   `json:"kv_bytes"`        // of the blocks that D received
	Parts        *Parts  `json:"kvferry,omitempty"`
}

// Parts are where the time of a transfer went, as kvferry's connector in D says it with D's answer.
type Parts struct {
	Queue         float64 `json:"queue_us"` // until its first batch is posted
	Post          float64 `json:"post_us"`
	Wire          float64 `json:"wire_us"`
	Land          float64 `json:"land_us"` // from the last byte until vLLM is told
	KVBytes       int64   `json:"kv_bytes"`
	BlocksChecked int     `json:"kv_blocks_checked"`
	BlocksBad     int     `json:"kv_blocks_bad"`
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
	waits   map[role]bool // for an answer of these
	asked   time.Duration
	handed  time.Duration // P's answer
	first   time.Duration
	last    time.Duration // D's answer
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
	all := orders{}
	for _, r := range x.setting.roles() {
		all[r] = o
	}
	return x.await(next, all)
}

// await goes on to the phase in which these orders are answered.
func (x *exchange) await(next phase, asked orders) orders {
	x.phase, x.waits = next, map[role]bool{}
	for r := range asked {
		x.waits[r] = true
	}
	return asked
}

// answers are the last events of each phase's orders.
var answers = [...]string{counting: saysCounted, prefilling: saysDone, decoding: saysDone, recounting: saysCounted, digesting: saysDigested, over: ""}

// step takes what an instance has said, and returns what is asked now.
func (x *exchange) step(now time.Duration, from role, e event) (orders, error) {
	answer := answers[x.phase]
	prompt := answer == saysDone
	switch {
	case e.Event == saysError:
		return nil, fmt.Errorf("%v: %s", from, e.Text)
	case e.Event != answer && !(prompt && e.Event == saysFirst), !x.waits[from], prompt && e.ID != x.id:
		return nil, fmt.Errorf("%v said %q of %q while %v was waited for", from, e.Event, e.ID, x.phase)
	case e.Event == saysFirst:
		if from == decode {
			x.first = now
		}
		return nil, nil
	}
	delete(x.waits, from)
	if err := x.note(now, from, e); err != nil {
		return nil, err
	}
	if len(x.waits) > 0 {
		return nil, nil
	}
	switch x.phase {
	case counting:
		x.asked = now
		return x.submit()
	case prefilling:
		return x.decode(e.Params)
	case decoding:
		return x.decoded()
	case recounting:
		return x.ask(digesting, order{Do: "digest", ID: x.id, Tokens: x.moved()}), nil
	default:
		x.phase = over
		x.sample.Digest = x.digests[decode]
		x.sample.DigestsEqual = x.setting.P == "" || x.digests[prefill] == x.digests[decode]
		return nil, nil
	}
}

// note takes down an answer.
func (x *exchange) note(now time.Duration, from role, e event) error {
	s := &x.sample
	switch {
	case x.phase == counting:
		x.before[from] = e
	case e.Event == saysDone && from == prefill:
		x.handed = now
		s.Prefill = ms(now - x.asked)
		if len(e.Tokens) != 1 {
			return fmt.Errorf("%v answered %d tokens (%s), and was asked for one", from, len(e.Tokens), e.Finish)
		}
	case e.Event == saysDone:
		x.last = now
		if x.first == 0 || len(e.Tokens) < 2 {
			return fmt.Errorf("%v answered %d tokens (%s), without a first and others", from, len(e.Tokens), e.Finish)
		}
		s.Tokens = slices.Concat(x.answer[:x.setting.Append], e.Tokens)
		var params struct{ KVFerry *Parts }
		if len(e.Params) > 0 {
			if err := json.Unmarshal(e.Params, &params); err != nil {
				return fmt.Errorf("kv_transfer_params of %v's answer %s: %w", from, e.Params, err)
			}
		}
		s.Parts = params.KVFerry
	case x.phase == recounting:
		s.CPU += e.CPU - x.before[from].CPU
		if from == decode {
			s.Computed = max(0, e.Computed-x.before[decode].Computed-x.setting.Append)
			blocks := (e.Received - x.before[decode].Received + x.block.BlockTokens - 1) / x.block.BlockTokens
			s.KVBytes = int64(blocks) * x.block.BlockBytes
		}
	default:
		x.digests[from] = e.Digest
	}
	return nil
}

// generate is the order for the prompt.
func (x *exchange) generate(params json.RawMessage) order {
	appended := x.answer[:x.setting.Append]
	return order{Do: "generate", ID: x.id, Tokens: slices.Concat(x.prompt, appended), MaxTokens: x.output - len(appended), Params: params}
}

// submit asks for the prompt: P, or D where there is no P, or both.
func (x *exchange) submit() (orders, error) {
	if x.setting.P == "" {
		return x.await(decoding, orders{decode: x.generate(nil)}), nil
	}
	params, err := merged(x.fill.Replace(x.setting.Ask), nil)
	if err != nil {
		return nil, err
	}
	p := x.generate(params)
	p.MaxTokens = 1
	if !x.setting.Together {
		return x.await(prefilling, orders{prefill: p}), nil
	}
	asked, err := x.decode(nil)
	if err == nil {
		asked[prefill], x.waits[prefill] = p, true
	}
	return asked, err
}

// decode asks D, which is given what P has answered.
func (x *exchange) decode(answer json.RawMessage) (orders, error) {
	if string(answer) == "null" {
		answer = nil
	}
	params, err := merged(x.fill.Replace(x.setting.Take), answer)
	if err != nil {
		return nil, err
	}
	return x.await(decoding, orders{decode: x.generate(params)}), nil
}

// decoded says what the times of the answers come to.
func (x *exchange) decoded() (orders, error) {
	s := &x.sample
	s.PromptTokens = len(x.prompt)
	s.TTFT = ms(x.first - x.asked)
	if x.setting.P != "" {
		s.Handoff = ms(x.first - x.handed)
	}
	s.TPOT = ms(x.last-x.first) / float64(len(s.Tokens)-x.setting.Append-1)
	return x.ask(recounting, order{Do: "count"}), nil
}

// moved is of how many tokens the KV is moved: of the prompt, but for the last token of all that D is
// asked with, which it computes again to have the next.
func (x *exchange) moved() int { return min(len(x.prompt), len(x.prompt)+x.setting.Append-1) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
