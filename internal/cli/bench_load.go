package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/simulation"
	"kvferry/engine"

	"kvferry/internal/config"
	"kvferry/load"
	"kvferry/load/records"
)

// loadFlags say what is asked, and when. kvferry bench and kvferry sim have them alike.
type loadFlags struct {
	spec       load.Spec
	trace      string
	numPrompts int
	ignoreEOS  bool // --ignore-eos, and SGLang's flag that says the contrary
	heedEOS    bool
	modules    []string // --lora-modules, and how they are assigned
	assignment string
	names      []string // --lora-name, and how they are distributed
	picks      string
	groups     string // --gsp-group-distribution
	input      int    // --input-len and --output-len, of any dataset
	output     int
	minutes    int // of an interval of the functions' trace
}

// register adds the flags, in the order in which help lists them.
func (f *loadFlags) register(fs *pflag.FlagSet) {
	l := &f.spec
	fs.StringVar(&l.Kind, "dataset-name", load.Random, "what is asked: "+strings.Join(load.Names(), ", "))
	fs.IntVar(&f.numPrompts, "num-prompts", 1000, "requests; 0: all of a file's (default with a trace)")
	fs.Float64Var(&l.Rate, "request-rate", 4, "requests a second; inf sends all at once")
	fs.Float64Var(&l.Burstiness, "burstiness", 1, "shape of the gaps' gamma distribution: 1 is Poisson, less is burstier")
	fs.StringVar(&l.ArrivalMode, "arrival-mode", "", "whose arrivals: normalized (vLLM's, the last at exactly N/rate) or legacy (vLLM's of 2024, and SGLang's) (default as --compat says)")
	fs.StringVar(&l.RampUp.Strategy, "ramp-up-strategy", "", "the rate grows from --ramp-up-start-rps to --ramp-up-end-rps: linear or exponential")
	fs.Float64Var(&l.RampUp.Start, "ramp-up-start-rps", 0, "requests a second at the first request")
	fs.Float64Var(&l.RampUp.End, "ramp-up-end-rps", 0, "requests a second at the last request")
	fs.DurationVar(&l.Duration, "duration", 0, "send requests for this long; one that is due later is not sent; 0: all of them are")
	fs.IntVar(&l.InFlight, "max-concurrency", 0, "requests under way at once; one that is due then waits for another's end (default: any number)")
	fs.IntVar(&f.input, "input-len", 0, "prompt tokens, of any dataset that has an option for them")
	fs.IntVar(&f.output, "output-len", 0, "output tokens, of any dataset that has an option for them")
	fs.IntVar(&l.InputLen, "random-input-len", 1024, "prompt tokens")
	fs.IntVar(&l.OutputLen, "random-output-len", 128, "output tokens")
	fs.Var(ratioFlag{l}, "random-range-ratio", "lengths are uniform in length x (1 -+ this), with --compat sglang from length x this to length; for vLLM's draws also {\"input\": 0.2, \"output\": 0.5}")
	fs.IntVar(&l.PrefixLen, "random-prefix-len", 0, "tokens that all prompts begin with, before the others")
	fs.Uint64Var(&l.Seed, "seed", 0, "of arrivals, lengths and tokens")
	fs.StringVar(&l.File, "dataset-path", "", "file of the dataset or trace")
	fs.StringVar(&f.trace, "trace", "", "replay this request trace: --dataset-name trace with this --dataset-path")
	fs.Float64Var(&l.Speed, "speed", 1, "how many times as fast as it was recorded")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "have answers go on to the tokens that are wanted (default where the dataset draws lengths, and with --compat sglang)")
	fs.BoolVar(&f.heedEOS, "disable-ignore-eos", false, "have answers end where the model ends them")
	f.registerDatasets(fs)
	fs.BoolVar(&l.Untimed, "untimed", false, "send a trace's requests at --request-rate and not at its own times")
	alias(fs, "no-self-timed", "untimed")
	for short, name := range map[string]string{"num-prompt": "num-prompts", "random-input": "random-input-len", "random-output": "random-output-len"} {
		alias(fs, short, name) // argparse takes beginnings of names, and SGLang's documents have these
	}
	fs.StringVar(&l.IDPrefix, "request-id-prefix", "", "what request ids begin with, before the request's number (default a name of the run)")
	f.registerAdapters(fs)
	f.registerFunctions(fs)
	Positive(fs, "request-rate", "burstiness", "max-concurrency", "random-input-len", "random-output-len", "speed")
}

func (f *loadFlags) registerAdapters(fs *pflag.FlagSet) {
	l := &f.spec
	fs.StringArrayVar(&f.modules, "lora-modules", nil, "LoRA adapters to ask for, as vLLM's client has them; may be given several times")
	fs.StringVar(&f.assignment, "lora-assignment", load.AdapterRandom, "which of --lora-modules a request is for: random or round-robin")
	fs.StringArrayVar(&f.names, "lora-name", nil, "LoRA adapters to ask for, as SGLang's client has them; may be given several times")
	fs.StringVar(&f.picks, "lora-request-distribution", "uniform", "which of --lora-name a request is for: uniform, distinct (in turn), skewed (the n-th in proportion to alpha^-n) or zipf (to n^-alpha)")
	fs.Float64Var(&l.Adapters.Alpha, "lora-zipf-alpha", 1.5, "alpha of skewed and zipf")
	fs.StringVar(&l.Workers.Choice, "worker-assignment", load.WorkerRoundRobin, "which of --worker-urls a request goes to: round-robin, random, or adapter (by the place of its adapter)")
}

// registerFunctions adds the flags of the client that made the published LoRA runs.
func (f *loadFlags) registerFunctions(fs *pflag.FlagSet) {
	c := &f.spec.Functions
	fs.StringVar(&c.File, "trace-path", "", "Azure Functions 2021 trace that says when which adapter is asked for")
	fs.StringVar(&c.Start, "trace-start-time", "0.0.0", "where in it to begin: days.hours.minutes")
	fs.StringVar(&c.End, "trace-end-time", "0.0.60", "and to end")
	fs.IntVar(&f.minutes, "trace-interval-minutes", 60, "length of the intervals in which arrivals have one rate")
	fs.Float64Var(&c.Rate, "trace-total-rate", 4, "requests a second of all adapters")
	fs.Float64Var(&c.CV, "trace-cv", 1, "coefficient of variation of an adapter's gaps, which are gamma distributed; 1 is Poisson")
	fs.IntVar(&c.Stride, "trace-map-stride", 1, "functions in a row that stand for the same adapter")
	fs.BoolVar(&c.Sort, "trace-need-sort", false, "deal functions to adapters by how often they are called, the busiest first")
}

// loadNames are the flags that set the fields of a load.Spec.
var loadNames = joined(datasetNames, map[string]string{
	"Requests": "--num-prompts", "Rate": "--request-rate", "Burstiness": "--burstiness", "InputLen": "--random-input-len", "OutputLen": "--random-output-len",
	"RangeRatio": "--random-range-ratio", "PrefixLen": "--random-prefix-len", "Seed": "--seed", "Vocab": "--profile",
	"Kind": "--dataset-name", "File": "--dataset-path", "EOS": "--ignore-eos", "Speed": "--speed", "InFlight": "--max-concurrency",
	"ArrivalMode": "--arrival-mode", "RampUp.Strategy": "--ramp-up-strategy", "RampUp.Start": "--ramp-up-start-rps", "RampUp.End": "--ramp-up-end-rps",
	"IDPrefix": "--request-id-prefix", "Duration": "--duration", "Untimed": "--untimed", "Compat": "--compat", "Tokenizer": "--tokenizer",
	"Adapters.Names": "--lora-name", "Adapters.Choice": "--lora-request-distribution", "Adapters.Alpha": "--lora-zipf-alpha",
	"Workers.Count": "--worker-urls", "Workers.Choice": "--worker-assignment",
	"Functions.File": "--trace-path", "Functions.Start": "--trace-start-time", "Functions.End": "--trace-end-time", "Functions.Interval": "--trace-interval-minutes",
	"Functions.Rate": "--trace-total-rate", "Functions.CV": "--trace-cv", "Functions.Stride": "--trace-map-stride", "Functions.Sort": "--trace-need-sort",
})

// within are names for the same fields of a configuration that has the load in a field of its
// own.
func within(field string, names map[string]string) map[string]string {
	out := make(map[string]string, len(names))
	for k, v := range names {
		out[field+"."+k] = v
	}
	return out
}

// joined are several tables of names as one.
func joined(tables ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, t := range tables {
		maps.Copy(out, t)
	}
	return out
}

// shared are fields whose flags are for more than the load, or that every load takes.
var shared = []string{"Kind", "Vocab", "Compat", "Tokenizer", "EOS", "InFlight", "Requests", "TokenIDs", "Chat", "File", "IDPrefix"}

// arriving are fields that say when requests come, drawn those of what is drawn at random.
var (
	arriving = []string{"Rate", "Burstiness", "ArrivalMode", "RampUp", "Functions"}
	drawn    = []string{"Rate", "Burstiness", "InputLen", "OutputLen", "RangeRatio", "PrefixLen", "Seed"}
)

// endless is more requests than a run of a --duration sends, of a load that needs a number.
const endless = 1 << 20

// settle decides what the flags mean together. Flags that the load does not read are refused:
// it has its own.
func (f *loadFlags) settle(changed func(string) bool, bad *config.Faults) {
	l := &f.spec
	l.Kind = load.NameOf(l.Kind)
	l.Requests = f.numPrompts
	if l.Compat == load.CompatSGLang && l.Kind == load.CustomName {
		refuse(bad, changed, "only vllm bench serve's custom has it: use --sharegpt-output-len and --apply-chat-template, or --compat vllm", "custom-output-len", "skip-chat-template")
	}
	if l.Custom.OutputLen == -1 {
		l.Custom.OutputLen = 0 // as the line says
	}
	switch f.groups {
	case "uniform":
		refuse(bad, changed, "it is for --gsp-group-distribution zipf", "gsp-zipf-alpha")
	case "zipf":
		bad.Refuse(!(l.SharedPrefix.ZipfAlpha > 0), "--gsp-zipf-alpha", l.SharedPrefix.ZipfAlpha, "use more than 0 with --gsp-group-distribution zipf")
	default:
		bad.Add("--gsp-group-distribution", f.groups, "use uniform or zipf")
	}
	if changed("duration") && !changed("num-prompts") && l.Reads("InputLen") {
		l.Requests = endless
		if !math.IsInf(l.Rate, 1) && l.Rate > 0 {
			l.Requests = max(1, int(math.Round(min(l.Rate*l.Duration.Seconds(), endless))))
		}
	}
	switch {
	case f.ignoreEOS && f.heedEOS:
		bad.Check("--ignore-eos", errors.New("--disable-ignore-eos says the contrary: leave one out"))
	case f.ignoreEOS:
		l.EOS = load.IgnoreEOS
	case f.heedEOS:
		l.EOS = load.HeedEOS
	}
	if l.RampUp.Strategy != "" && !changed("request-rate") {
		l.Rate = math.Inf(1) // it grows instead
	}
	f.settleAdapters(changed, bad)
	l.Functions.Interval = time.Duration(f.minutes) * time.Minute
	if f.trace != "" {
		bad.Refuse(changed("dataset-name") && l.Kind != load.Traced, "--dataset-name", l.Kind, "--trace names what is replayed: leave one out")
		refuse(bad, changed, "--trace names the file: leave one out", "dataset-path")
		l.Kind, l.File = load.Traced, f.trace
	}
	f.lengths(changed, bad)
	if l.Compat == load.CompatSGLang && l.Kind == load.ShareGPTName && l.File == "" && !changed("dataset-name") {
		bad.Check("--dataset-path", errors.New("none given: sglang.bench_serving asks sharegpt unless it is told, and downloads it: name that file, or another dataset, such as --dataset-name random"))
	}
	which, choice := l.Kind, "--dataset-name"
	if l.Kind == load.Traced {
		which, choice = "a trace", "--trace"
	}
	if l.Reads("Speed") && !changed("num-prompts") {
		l.Requests = 0 // all of it
	}
	if !slices.Contains(load.Names(), cmp.Or(l.Kind, load.Random)) {
		return // what it reads nobody knows; Validate says which there are
	}
	for _, field := range slices.Sorted(maps.Keys(loadNames)) {
		group, _, _ := strings.Cut(field, ".")
		flag := loadNames[field]
		if !changed(flag[2:]) || l.Reads(field) || l.Reads(group) || field == "Speed" || slices.Contains(shared, field) {
			continue
		}
		fix := "it is of another dataset than " + which + ": leave one of the two out"
		switch {
		case field == "Untimed":
			fix = which + " has no times of its own: leave it out, requests come at --request-rate"
		case slices.Contains(arriving, group) && l.Reads("Untimed"):
			fix = which + " has times of its own: leave it out, or have requests come so instead with --untimed"
		case slices.Contains(drawn, field):
			fix = which + " has its own: leave it or " + choice + " out"
		}
		bad.Check(flag, errors.New(fix))
	}
	switch {
	case l.Untimed:
		refuse(bad, changed, "with --untimed requests come at --request-rate, and the trace's times do not count: leave one of the two out", "speed")
	case !l.Reads("Speed"):
		refuse(bad, changed, "only a trace has a speed: use --request-rate, or name a --trace", "speed")
	}
}

// lengths gives what --input-len and --output-len say to whichever option the dataset has.
func (f *loadFlags) lengths(changed func(string) bool, bad *config.Faults) {
	l := &f.spec
	for _, c := range []struct {
		flag   string
		n      int
		fields map[string]*int
	}{
		{"input-len", f.input, map[string]*int{
			"InputLen": &l.InputLen, "Sonnet.InputLen": &l.Sonnet.InputLen, "PrefixRepetition.SuffixLen": &l.PrefixRepetition.SuffixLen, "SharedPrefix.QuestionLen": &l.SharedPrefix.QuestionLen,
		}},
		{"output-len", f.output, map[string]*int{
			"OutputLen": &l.OutputLen, "Sonnet.OutputLen": &l.Sonnet.OutputLen, "PrefixRepetition.OutputLen": &l.PrefixRepetition.OutputLen, "SharedPrefix.OutputLen": &l.SharedPrefix.OutputLen,
			"ShareGPT.OutputLen": &l.ShareGPT.OutputLen, "Custom.OutputLen": &l.Custom.OutputLen, "SpecBench.OutputLen": &l.SpecBench.OutputLen, "SpeedBench.OutputLen": &l.SpeedBench.OutputLen,
			"Conversations.OutputLen": &l.Conversations.OutputLen,
		}},
	} {
		if !changed(c.flag) {
			continue
		}
		read := false
		for field, n := range c.fields {
			group, _, _ := strings.Cut(field, ".")
			read = read || l.Reads(field) || l.Reads(group)
			*n = c.n
		}
		if !read && slices.Contains(load.Names(), l.Kind) {
			bad.Check("--"+c.flag, fmt.Errorf("%s has lengths of its own: leave it out", l.Kind))
		}
	}
}

// picks are SGLang's names for the ways to choose an adapter, and one of ours.
var picks = map[string]string{"uniform": load.AdapterRandom, "distinct": load.AdapterRoundRobin, "skewed": load.AdapterSkewed, "zipf": load.AdapterZipf}

// settleAdapters takes adapters from the flags of one of the tools.
func (f *loadFlags) settleAdapters(changed func(string) bool, bad *config.Faults) {
	a := &f.spec.Adapters
	switch {
	case changed("lora-modules") && changed("lora-name"):
		bad.Check("--lora-name", errors.New("--lora-modules names the adapters too: leave one out"))
	case changed("lora-modules"):
		a.Names, a.Choice = f.modules, f.assignment
		if f.assignment != load.AdapterRandom && f.assignment != load.AdapterRoundRobin {
			bad.Add("--lora-assignment", f.assignment, "use %s or %s", load.AdapterRandom, load.AdapterRoundRobin)
		}
	case changed("lora-name"):
		choice, ok := picks[f.picks]
		bad.Refuse(!ok, "--lora-request-distribution", f.picks, "use uniform, distinct, skewed or zipf")
		a.Names, a.Choice = f.names, choice
	default:
		refuse(bad, changed, "it chooses among adapters: name them with --lora-modules or --lora-name", "lora-assignment", "lora-request-distribution", "lora-zipf-alpha")
	}
	if f.spec.Functions.File != "" && !changed("lora-request-distribution") && !changed("lora-assignment") {
		a.Choice = "" // the trace says which
	}
}

// texts reports whether prompts are texts: those of a tokenizer, or of a file.
func (f *loadFlags) texts() bool { return f.spec.Tokenizer != nil || f.spec.Texts() }

// turns reports whether some requests go on with the answers to others.
func (f *loadFlags) turns() bool { return f.spec.Reads("MaxDelay") || f.spec.SharedPrefix.Turns > 1 }

// scan goes through a load from a file: how many requests it has, and how long the longest is,
// where prompts that are texts are counted by the cluster's own tokenizer. It may take a while.
func (f *loadFlags) scan(p *engine.Profile, bad *config.Faults) (longest int) {
	l := &f.spec
	if l.File == "" || len(*bad) > 0 {
		return 0
	}
	scanned, err := simulation.InTokens(*l, p)
	bad.Check("--profile", err)
	if scanned.Validate() != nil {
		return 0 // whoever validates the configuration says why
	}
	flag := "--dataset-path"
	if f.trace != "" {
		flag = "--trace"
	}
	if records.IsPipe(l.File) {
		bad.Check(flag, records.ErrPipe)
		return 0
	}
	requests, longest, err := scanned.Scan()
	bad.Check(flag, err)
	if l.Kind == load.Traced {
		l.Requests = requests
	}
	return longest
}
