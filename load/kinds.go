package load

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"kvferry/internal/config"
)

// Kinds are all that can be named. A new one is a file beside this one, and a line here.
func Kinds() []Kind {
	return append([]Kind{
		randomKind,
		randomIDsKind,
		shareGPTKind,
		customKind,
		sonnetKind,
		prefixRepetitionKind,
		sharedPrefixKind,
		burstGPTKind,
		specBenchKind,
		speedBenchKind,
		longBenchKind,
		openAIKind,
		traceKind,
		timedTraceKind,
		mooncakeKind,
		wekaKind,
		spansKind,
		traceLabKind,
		conversationKind,
		agenticTraceKind,
		multiTurnKind,
	}, publishedKinds()...)
}

// Names are those of the kinds.
func Names() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// Names of kinds that code asks for.
const (
	Random               = "random"
	RandomIDs            = "random-ids"
	ShareGPTName         = "sharegpt"
	CustomName           = "custom"
	SonnetName           = "sonnet"
	PrefixRepetitionName = "prefix_repetition"
	SharedPrefixName     = "generated-shared-prefix"
	BurstGPTName         = "burstgpt"
	SpecBenchName        = "spec_bench"
	SpeedBenchName       = "speed_bench"
	LongBenchName        = "longbench_v2"
	Traced               = "trace"
)

// elsewhere are the tools' datasets that are no load here, and why.
var elsewhere = map[string]string{
	"random-mm": media, "custom-image": media, "custom-audio": media, "custom-mm": media, "image": media, "mmmu": media,
	"random-rerank": "a reranker generates nothing: loads here are of models that do",
	"hf":            "nothing is downloaded here: save the prompts as JSON lines, and use custom with --dataset-path",
}

const media = "images and sound are not sent here: loads are text or tokens"

// A Kind is a sort of load that a command line can name. From its knobs come its flags in kvferry bench and kvferry sim,
// their help, and their refusal beside other kinds.
type Kind struct {
	Name  string
	About string // in a few words, for help texts
	// Knobs are the settings that it reads, besides those that every load reads and those
	// that Times brings. A command refuses the others.
	Knobs Knobs
	// Texts says that its prompts are texts: how many tokens they are, and what a model that
	// takes tokens is asked, only a Tokenizer knows.
	Texts bool
	// Times says when its requests are due.
	Times Times
	// Check notes what is wrong with the fields that it reads.
	Check func(s Spec, bad *config.Faults)
	// Open begins a stream; Check has found nothing.
	Open func(s Spec) (Load, error)
}

// A Spec is a load described: a value from which equal streams can be opened any number
// of times. Zero values of numbers are not defaults: 0 requests a second is an error.
type Spec struct {
	Kind string // Random if empty

	Requests   int
	Rate       float64 // requests a second; +Inf: all at once
	Burstiness float64 // of the gaps' gamma distribution: 1 is a Poisson process, below 1 is burstier, above more regular
	InputLen   int     // prompt tokens; of the random loads, as OutputLen, RangeRatio and PrefixLen
	OutputLen  int
	RangeRatio float64 // lengths are uniform in length x (1 -+ this), from 0 to below 1; in SGLang's draws from length x this to length
	PrefixLen  int     // tokens that all prompts begin with, before InputLen others
	Seed       uint64
	Vocab      int // tokens are below it, where no Tokenizer says what they are below

	OutputRatio    *float64 // RangeRatio of outputs, where it is another; of vLLM's random draws
	DisableShuffle bool     // vLLM's datasets are asked in the order of the file
	NoOversample   bool     // vLLM's datasets that have too few requests do not repeat any
	TokenIDs       bool     // SGLang's prompts are tokens alone, and not shorter for special ones: --tokenize-prompt
	PromptSuffix   string   // SGLang's conversations end with it
	ChatTemplate   bool     // SGLang's conversations are asked in the chat template
	Chat           bool     // the endpoint puts the chat template around what is sent

	ShareGPT         ShareGPT
	Custom           Custom
	Sonnet           Sonnet
	PrefixRepetition PrefixRepetition
	SharedPrefix     SharedPrefix
	SpecBench        Bench
	SpeedBench       Bench

	File  string  // of a trace or a dataset; Requests 0 takes all of it
	Speed float64 // of a trace: at 2 requests come twice as fast

	Sharing    Sharing // of random prompts of our own draws
	TimedTrace TimedTrace
	Mooncake   Mooncake

	Conversations Conversations
	MultiTurn     MultiTurn

	// Own holds the options of kinds that have no field here, by their types: see OptionsOf.
	Own map[reflect.Type]any `json:"-"`

	// MaxDelay is the longest time that a turn of a conversation or an agent's call is kept
	// back after what it follows, 0 for no limit: the tools' time, or a person's.
	MaxDelay time.Duration
	// Recorded has conversations go on with the answers that were recorded, and not with
	// those that the server gives.
	Recorded bool

	// ArrivalMode says whose arrivals have the Rate: ArrivalNormalized, ArrivalLegacy, or
	// empty for those of Compat.
	ArrivalMode string
	RampUp      RampUp    // instead of Rate
	Functions   Functions // instead of Rate, Burstiness and Adapters.Choice
	// Untimed is a trace whose times are not used: the Spec's arrivals come instead.
	Untimed bool
	// Duration is how long requests are sent, 0 for no limit. One that is due later is not
	// sent. With it a load that is drawn may have no end: Requests 0.
	Duration time.Duration
	// IDPrefix has all requests have this and their number for an ID; empty leaves them theirs.
	IDPrefix string

	EOS      EOS      // whether answers may end before MaxTokens; empty: as the kind has it
	Adapters Adapters // which LoRA adapter a request is for
	Workers  Workers  // which server it goes to

	// Compat says whose draws these are: the same seed gives the lengths, prompts and times
	// of that tool. Empty: our own.
	Compat string // "", CompatVLLM or CompatSGLang
	// Tokenizer is the model's, nil where none is known. Kinds that need one say so.
	Tokenizer Tokenizer
	// InFlight is how many requests may be under way at once, 0 for any number.
	InFlight int

	counted bool // by Scan alone: what tokens a prompt has is nothing to it
}

// OptionsOf returns the options of type T that s has, for a kind whose options have no field in Spec. It adds them to
// s if there are none yet. Copies of s share them.
func OptionsOf[T any](s *Spec) *T {
	of := reflect.TypeFor[T]()
	options, ok := s.Own[of].(*T)
	if !ok {
		options = new(T)
		if s.Own == nil {
			s.Own = map[reflect.Type]any{}
		}
		s.Own[of] = options
	}
	return options
}

// MaxInFlight is more than a machine has ports for.
const MaxInFlight = 1 << 20

// Times says where the times of a kind of load come from.
type Times int

const (
	// OwnTimes: Open gives the requests their times, by whatever it reads.
	OwnTimes Times = iota
	// Arriving: Open gives none; the Spec's arrivals come on them. The kind reads the knobs
	// of arrivals.
	Arriving
	// Recorded: Open gives those that were recorded. The kind reads --untimed, and if that is
	// set, what Arriving does.
	Recorded
)

// EOS says what the model's end-of-sequence token does.
type EOS string

// Values of Spec.EOS.
const (
	IgnoreEOS EOS = "ignore" // answers have as many tokens as are wanted
	HeedEOS   EOS = "heed"   // they end where the model ends them
)

// Values of Spec.Compat: vllm bench serve, and sglang.bench_serving.
const (
	CompatVLLM   = "vllm"
	CompatSGLang = "sglang"
)

// plain is a name as it is compared: vLLM writes its names with an underscore, SGLang with a
// hyphen.
func plain(name string) string { return strings.ReplaceAll(name, "_", "-") }

// NameOf is the name of a kind as Names has it, however it is written; of what is no kind, that.
func NameOf(name string) string {
	if k, err := (Spec{Kind: name}).kind(); err == nil {
		return k.Name
	}
	return name
}

func (s Spec) kind() (Kind, error) {
	name := s.Kind
	config.Default(&name, Random)
	for _, k := range Kinds() {
		if plain(k.Name) == plain(name) {
			return k, nil
		}
	}
	if why, ok := elsewhere[plain(name)]; ok {
		return Kind{}, fmt.Errorf("%q: %s", name, why)
	}
	return Kind{}, fmt.Errorf("%q: there is no such load: use %s", name, strings.Join(Names(), ", "))
}

// Texts reports whether prompts are texts, whose tokens only a Tokenizer knows.
func (s Spec) Texts() bool {
	k, err := s.kind()
	return err == nil && k.Texts
}

// Validate lists every fault by its field, as a [config.Invalid].
func (s Spec) Validate() error {
	var bad config.Faults
	k, err := s.kind()
	bad.Check("Kind", err)
	if err == nil {
		k.Check(s, &bad)
		s.check(k, &bad)
	}
	config.Between(&bad, "InFlight", s.InFlight, 0, MaxInFlight)
	config.Between(&bad, "Requests", max(s.Requests, 1), 1, 100_000_000) // arrivals of so many take 0.8 GB
	return bad.Err("load.Spec")
}

// Open begins a stream. Close it after use.
func (s Spec) Open() (Load, error) {
	if err := s.Validate(); err != nil {
		return Load{}, err
	}
	k, err := s.kind()
	if err != nil {
		return Load{}, err
	}
	l, err := k.Open(s)
	if err != nil {
		return Load{}, err
	}
	return s.arrange(k, l)
}
