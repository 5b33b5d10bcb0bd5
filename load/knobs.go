package load

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"kvferry/internal/knob"
)

// A Knob is a setting of a load, and Knobs are several.
type (
	Knob  = knob.Knob[Spec]
	Knobs = knob.Table[Spec]
)

// Groups of knobs, as help lists them.
const (
	AskedGroup    = "What is asked"
	ArrivalsGroup = "When it is asked"
	AdaptersGroup = "LoRA adapters"
)

// generalKnobs are the knobs that every load reads.
var generalKnobs = Knobs{
	{Name: "dataset-name", Group: AskedGroup, Fields: []string{"Kind"}, Default: Random, Value: knob.Text(func(s *Spec) *string { return &s.Kind }), Values: Names, Help: "what is asked: " + strings.Join(Names(), ", ") + "; with a name --help lists that dataset's flags"},
	{Name: "duration", Group: ArrivalsGroup, Fields: []string{"Duration"}, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.Duration }), Help: "send requests for this long; one that is due later is not sent; 0: all of them are"},
	{Name: "max-concurrency", Group: ArrivalsGroup, Fields: []string{"InFlight"}, Positive: true, Value: knob.Int(func(s *Spec) *int { return &s.InFlight }), Help: "requests under way at once; one that is due then waits for another's end (default: any number)"},
	{Name: "request-id-prefix", Group: AskedGroup, Fields: []string{"IDPrefix"}, Value: knob.Text(func(s *Spec) *string { return &s.IDPrefix }), Help: "what request ids begin with, before the request's number (default a name of the run)"},
	{Name: "lora-zipf-alpha", Group: AdaptersGroup, Fields: []string{"Adapters.Alpha"}, Default: "1.5", Value: knob.Float(func(s *Spec) *float64 { return &s.Adapters.Alpha }), Help: "alpha of skewed and zipf"},
	{Name: "worker-assignment", Group: AskedGroup, Fields: []string{"Workers.Choice"}, Default: WorkerRoundRobin, Value: knob.Text(func(s *Spec) *string { return &s.Workers.Choice }), Values: words(WorkerRoundRobin, WorkerRandom, WorkerAdapter), Help: "which of --worker-urls a request goes to: round-robin, random, or adapter (by the place of its adapter)"},
}

// arrivalKnobs are the knobs of arrivals at a rate. functionKnobs are the knobs of arrivals that are calls of functions,
// as the client that made the published LoRA runs has them.
var (
	arrivalKnobs = Knobs{
		{Name: "request-rate", Group: ArrivalsGroup, Fields: []string{"Rate"}, Default: "4", Positive: true, Value: knob.Float(func(s *Spec) *float64 { return &s.Rate }), Help: "requests a second; inf sends all at once"},
		{Name: "burstiness", Group: ArrivalsGroup, Fields: []string{"Burstiness"}, Default: "1", Positive: true, Value: knob.Float(func(s *Spec) *float64 { return &s.Burstiness }), Help: "shape of the gaps' gamma distribution: 1 is Poisson, less is burstier"},
		{Name: "arrival-mode", Group: ArrivalsGroup, Fields: []string{"ArrivalMode"}, Value: knob.Text(func(s *Spec) *string { return &s.ArrivalMode }), Values: words(ArrivalNormalized, ArrivalLegacy), Help: "whose arrivals: normalized (vLLM's, the last at exactly N/rate) or legacy (vLLM's of 2024, and SGLang's) (default as --compat says)"},
		{Name: "ramp-up-strategy", Group: ArrivalsGroup, Fields: []string{"RampUp.Strategy"}, Value: knob.Text(func(s *Spec) *string { return &s.RampUp.Strategy }), Values: words(RampLinear, RampExponential), Help: "the rate grows from --ramp-up-start-rps to --ramp-up-end-rps: linear or exponential"},
		{Name: "ramp-up-start-rps", Group: ArrivalsGroup, Fields: []string{"RampUp.Start"}, Value: knob.Float(func(s *Spec) *float64 { return &s.RampUp.Start }), Help: "requests a second at the first request"},
		{Name: "ramp-up-end-rps", Group: ArrivalsGroup, Fields: []string{"RampUp.End"}, Value: knob.Float(func(s *Spec) *float64 { return &s.RampUp.End }), Help: "requests a second at the last request"},
	}
	functionKnobs = Knobs{
		{Name: "trace-path", Group: AdaptersGroup, Fields: []string{"Functions.File"}, Value: knob.Text(func(s *Spec) *string { return &s.Functions.File }), Help: "Azure Functions 2021 trace that says when which adapter is asked for"},
		{Name: "trace-start-time", Group: AdaptersGroup, Fields: []string{"Functions.Start"}, Default: "0.0.0", Value: knob.Text(func(s *Spec) *string { return &s.Functions.Start }), Help: "where in it to begin: days.hours.minutes"},
		{Name: "trace-end-time", Group: AdaptersGroup, Fields: []string{"Functions.End"}, Default: "0.0.60", Value: knob.Text(func(s *Spec) *string { return &s.Functions.End }), Help: "and to end"},
		{Name: "trace-interval-minutes", Group: AdaptersGroup, Fields: []string{"Functions.Interval"}, Default: "60", Value: func(s *Spec) pflag.Value { return (*minutes)(&s.Functions.Interval) }, Help: "length of the intervals in which arrivals have one rate"},
		{Name: "trace-total-rate", Group: AdaptersGroup, Fields: []string{"Functions.Rate"}, Default: "4", Value: knob.Float(func(s *Spec) *float64 { return &s.Functions.Rate }), Help: "requests a second of all adapters"},
		{Name: "trace-cv", Group: AdaptersGroup, Fields: []string{"Functions.CV"}, Default: "1", Value: knob.Float(func(s *Spec) *float64 { return &s.Functions.CV }), Help: "coefficient of variation of an adapter's gaps, which are gamma distributed; 1 is Poisson"},
		{Name: "trace-map-stride", Group: AdaptersGroup, Fields: []string{"Functions.Stride"}, Default: "1", Value: knob.Int(func(s *Spec) *int { return &s.Functions.Stride }), Help: "functions in a row that stand for the same adapter"},
		{Name: "trace-need-sort", Group: AdaptersGroup, Fields: []string{"Functions.Sort"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Functions.Sort }), Help: "deal functions to adapters by how often they are called, the busiest first"},
	}
)

// Knobs that several kinds read.
var (
	seedKnob     = Knob{Name: "seed", Group: AskedGroup, Fields: []string{"Seed"}, Value: knob.Uint64(func(s *Spec) *uint64 { return &s.Seed }), Help: "of arrivals, lengths and tokens"}
	fileKnob     = Knob{Name: "dataset-path", Group: AskedGroup, Fields: []string{"File"}, Value: knob.Text(func(s *Spec) *string { return &s.File }), Help: "file of the dataset or trace"}
	untimedKnob  = Knob{Name: "untimed", Aliases: []string{"no-self-timed"}, Group: ArrivalsGroup, Fields: []string{"Untimed"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Untimed }), Help: "send a trace's requests at --request-rate and not at its own times"}
	maxDelayKnob = Knob{Name: "max-delay", Group: AskedGroup, Fields: []string{"MaxDelay"}, Value: knob.Duration(func(s *Spec) *time.Duration { return &s.MaxDelay }), Help: "longest time to keep a turn or an agent's call back after what it follows; 0: as recorded"}
	recordedKnob = Knob{Name: "recorded-answers", Group: AskedGroup, Fields: []string{"Recorded"}, Value: knob.Bool(func(s *Spec) *bool { return &s.Recorded }), Help: "go on with the answers that were recorded, not with the server's"}
	speedKnob    = Knob{Name: "speed", Group: ArrivalsGroup, Fields: []string{"Speed"}, Default: "1", Positive: true, Value: knob.Float(func(s *Spec) *float64 { return &s.Speed }), Help: "how many times as fast as it was recorded", Unused: func(s *Spec) string {
		if s.Untimed {
			return "with --untimed requests come at --request-rate, and the trace's times do not count: leave one of the two out"
		}
		return ""
	}}
)

// inputLen and outputLen are other names of the knobs that say how many tokens prompts and answers have. A kind has
// several of them only where its tools differ in it.
const (
	inputLen  = "input-len"
	outputLen = "output-len"
)

// own returns the knobs that a kind reads and not all others do.
func (k *Kind) own() Knobs {
	switch k.Times {
	case Arriving:
		return slices.Concat(k.Knobs, arrivalKnobs, functionKnobs)
	case Recorded:
		return slices.Concat(k.Knobs, Knobs{untimedKnob}, arrivalKnobs, functionKnobs)
	}
	return k.Knobs
}

// AllKnobs returns the knobs of all kinds, in the order in which help lists them. Those that the kind of a Spec does not
// read say why they have no effect in it.
var AllKnobs = sync.OnceValue(func() Knobs {
	all := slices.Concat(generalKnobs, Knobs{fileKnob, seedKnob}, arrivalKnobs, Knobs{speedKnob, untimedKnob})
	for _, k := range Kinds() {
		for _, one := range k.own() {
			if !slices.ContainsFunc(all, func(k Knob) bool { return k.Name == one.Name }) {
				all = append(all, one)
			}
		}
	}
	for i := range all {
		k := &all[i]
		own := k.Unused
		k.Unused = func(s *Spec) string {
			why := s.unread(k.Name)
			if why == "" && own != nil {
				why = own(s)
			}
			return why
		}
	}
	return all
})

// New returns a Spec whose knobs have their defaults.
func New() (s Spec) {
	for _, k := range AllKnobs() {
		if k.Default == "" {
			continue
		}
		if err := k.Value(&s).Set(k.Default); err != nil {
			panic(fmt.Sprintf("load: default of %s: %v", k.Name, err)) // of a table of this program
		}
	}
	return s
}

// Takes reports whether the load's kind reads the knob of that name, with the times that it has.
func (s *Spec) Takes(name string) bool {
	k, err := s.kind()
	switch {
	case err != nil:
		return false
	case generalKnobs.Lookup(name) != nil || k.Knobs.Lookup(name) != nil:
		return true
	case k.Times == Recorded && !s.Untimed:
		return name == untimedKnob.Name
	}
	return k.own().Lookup(name) != nil
}

// Offers reports whether the load's kind reads the knob of that name, with its own times or at arrivals.
func (s *Spec) Offers(name string) bool {
	k, err := s.kind()
	return err == nil && (generalKnobs.Lookup(name) != nil || k.own().Lookup(name) != nil)
}

// unread returns why the load's kind does not read a knob, and what to do.
func (s *Spec) unread(name string) string {
	k, err := s.kind()
	if err != nil || s.Takes(name) || name == fileKnob.Name { // a file is passed over, as the tools do it
		return ""
	}
	which, choice := k.Name, "--dataset-name"
	if k.Name == Traced {
		which, choice = "a trace", "--trace"
	}
	arrives := arrivalKnobs.Lookup(name) != nil
	switch {
	case name == speedKnob.Name:
		return "only a trace has a speed: use --request-rate, or name a --trace"
	case name == untimedKnob.Name:
		return which + " has no times of its own: leave it out, requests come at --request-rate"
	case (arrives || functionKnobs.Lookup(name) != nil) && s.Takes(untimedKnob.Name):
		return which + " has times of its own: leave it out, or have requests come so instead with --untimed"
	case arrives || randomKnobs.Lookup(name) != nil || name == seedKnob.Name:
		return which + " has its own: leave it or " + choice + " out"
	}
	return "it is of another dataset than " + which + ": leave one of the two out"
}

// SetLen sets all knobs of the load's kind whose other name is --input-len or --output-len. It returns an error if
// there are none.
func (s *Spec) SetLen(name string, n int) error {
	k, err := s.kind()
	if err != nil {
		return nil // Validate says which kinds there are
	}
	none := true
	for _, one := range k.Knobs {
		if slices.Contains(one.Aliases, name) {
			none = false
			if err := one.Value(s).Set(strconv.Itoa(n)); err != nil {
				return err
			}
		}
	}
	if none {
		return fmt.Errorf("%s has lengths of its own: leave it out", k.Name)
	}
	return nil
}

func words(all ...string) func() []string { return func() []string { return all } }

// minutes is a time in whole minutes.
type minutes time.Duration

func (m *minutes) Type() string   { return "int" }
func (m *minutes) String() string { return strconv.Itoa(int(time.Duration(*m) / time.Minute)) }

func (m *minutes) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err == nil {
		*m = minutes(time.Duration(n) * time.Minute)
	}
	return err
}

// A ratio is --random-range-ratio: a number, or vLLM's {"input": 0.2, "output": 0.5}.
type ratio struct{ spec *Spec }

func (r ratio) Type() string { return "ratio" }

func (r ratio) String() string {
	if r.spec.OutputRatio != nil {
		return fmt.Sprintf(`{"input":%v,"output":%v}`, r.spec.RangeRatio, *r.spec.OutputRatio)
	}
	return strconv.FormatFloat(r.spec.RangeRatio, 'g', -1, 64)
}

func (r ratio) Set(text string) error {
	r.spec.OutputRatio = nil
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var both struct{ Input, Output *float64 }
		if err := json.Unmarshal([]byte(text), &both); err != nil || both.Input == nil || both.Output == nil {
			return fmt.Errorf(`write a number, or {"input": 0.2, "output": 0.5}`)
		}
		r.spec.RangeRatio, r.spec.OutputRatio = *both.Input, both.Output
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf(`write a number, or {"input": 0.2, "output": 0.5}`)
	}
	r.spec.RangeRatio = v
	return nil
}
