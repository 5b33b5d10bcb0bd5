package cli

import (
	"slices"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/cluster"
	"kvferry/internal/knob"

	"kvferry/internal/config"
	"kvferry/load"
)

// serveFlags are the command line of kvferry bench. Names of flags are those of vLLM's and
// SGLang's clients where these have them.
type benchFlags struct {
	server  serverFlags
	load    loadFlags
	cluster clusterFlags
	tools   toolFlags
	search  searchFlags
	results resultFlags

	compat, clock      string
	warmups, warmupLen int
	maxFailures        int
	retries            int
	out                string
	quiet              bool
	less               string    // why less of the KV pools is in memory beforehand than by default; empty if it is not
	log                *lazyFile // of the daemons
}

// serverFlags say which server is asked, and how.
type serverFlags struct {
	client        client.Config
	baseURL, host string
	port          int
	tokenizer     string
	headers       []string
	extra         string
	collector     string
	sampling      samplingFlags
	metrics       []string
	flush         bool
	flushWait     float64 // s
	ready         int     // s
}

func (f *serverFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.baseURL, "base-url", "", "of the server, with or without /v1: http://127.0.0.1:8000")
	fs.StringVar(&f.host, "host", "127.0.0.1", "of the server, instead of --base-url; giving this or --port names one")
	fs.IntVar(&f.port, "port", 0, "of the server, instead of --base-url; giving this or --host names one (default beside --host the backend's: 8000, 30000 for sglang)")
	fs.StringArrayVar(&f.client.URLs, "worker-urls", nil, "several servers, instead of --base-url; requests take turns, or as the load says")
	fs.StringVar(&f.client.Backend, "backend", "openai", "which API: "+config.Or(client.BackendNames()))
	fs.StringVar(&f.client.Endpoint, "endpoint", "", "path of the API (default the backend's: /v1/completions ...)")
	fs.StringVar(&f.client.Model, "model", "", "to ask for (default the first of GET /v1/models)")
	fs.StringVar(&f.tokenizer, "tokenizer", "", tokenizerHelp+": counts tokens, and makes prompts of text")
	fs.StringArrayVar(&f.headers, "header", nil, "KEY=VALUE to send with each request; may be given several times")
	fs.StringVar(&f.client.APIKey, "api-key", "", "sent as a bearer token (default $OPENAI_API_KEY)")
	fs.StringVar(&f.client.CAFile, "ca-cert", "", "file with the certificates that sign the server's, for https")
	fs.BoolVar(&f.client.Insecure, "insecure", false, "do not check the server's certificate")
	fs.StringVar(&f.extra, "extra-body", "", "JSON object whose fields are added to each request")
	fs.BoolVar(&f.client.TokenIDs, "tokenize-prompt", false, "send texts as token ids, where the server takes ids")
	fs.BoolVar(&f.client.ChunkUsage, "continuous-usage-stats", false, "ask the server to count tokens with every chunk: gaps between tokens are exact then where a chunk has several")
	fs.BoolVar(&f.client.NoStream, "disable-stream", false, "ask for whole answers: there is no TTFT and no ITL then")
	fs.StringVar(&f.collector, "otlp-traces-endpoint", "", "of an OpenTelemetry collector that gets a span for each request, http://127.0.0.1:4318/v1/traces (default $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, $OTEL_EXPORTER_OTLP_ENDPOINT)")
	alias(fs, "extra-request-body", "extra-body")
	fs.Bool("trust-remote-code", false, "nothing: no code comes with a tokenizer.json")
	_ = fs.MarkHidden("trust-remote-code")
	fs.StringArrayVar(&f.metrics, "metrics-url", nil, "metrics of an engine, where --base-url is a gateway: http://10.0.0.5:8000/metrics; may be given several times, and is counted together (default /metrics of the servers that are asked)")
	fs.BoolVar(&f.flush, "flush-cache", false, "have the server empty its prefix cache after the warm-up, before the load: POST /flush_cache, or vLLM's /reset_prefix_cache")
	fs.Float64Var(&f.flushWait, "flush-cache-timeout", 60, "seconds that an SGLang server may wait until it has no requests, before it empties its cache")
	Positive(fs, "flush-cache-timeout")
	Needs(fs, map[string]string{"flush-cache-timeout": "flush-cache"})
	fs.IntVar(&f.ready, "ready-check-timeout-sec", 60, "how long the server may take to answer first, and then to answer a request of a few tokens; 0: it must answer at once")
	fs.DurationVar(&f.client.Timeout, "request-timeout", 6*time.Hour, "give a request up after this long; 0: after 120s")
}

// searchFlags say what to search for, if anything.
type searchFlags struct {
	what       string
	precision  float64
	most       float64
	attainment float64
}

// resultFlags say what is printed and written.
type resultFlags struct {
	goodput           []string
	percentileMetrics string
	percentiles       string

	save, appendTo, detailed bool
	dir, file, label         string
	metadata                 []string

	output        string
	outputDetails bool
	tag           string

	steady string
	ratio  float64
}

// groups are the flags, in the order in which help lists them.
func (f *benchFlags) groups() []knob.Group {
	group := func(topic, title string, register ...func(*pflag.FlagSet)) knob.Group {
		fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
		fs.SetNormalizeFunc(canonical)
		for _, add := range register {
			add(fs)
		}
		return knob.Group{Topic: topic, Title: title, Flags: fs}
	}
	groups := []knob.Group{
		group("", "Whose defaults, draws and report", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.compat, "compat", load.CompatVLLM, "whose: vllm (vllm bench serve), sglang (sglang.bench_serving), or none: kvferry's own draws, in vLLM's report")
		}),
		group("server", "Which server", f.server.register, f.tools.register),
		group("sampling", "Sampling", f.server.sampling.register),
		group("search", "A search for the highest rate", f.search.register),
		group("results", "Results", f.results.register, func(fs *pflag.FlagSet) {
			fs.StringVar(&f.out, "out", "", outHelp)
			fs.IntVar(&f.maxFailures, "max-failures", 0, "requests that may fail before the exit status is 1; answers that are only short do not count")
			fs.IntVar(&f.retries, "retries-disturbed", 0, "number of times to measure a run again that the machine disturbed, with another seed; the least disturbed run is reported")
			fs.BoolVar(&f.quiet, "disable-tqdm", false, "no progress bar")
		}),
		group("cluster", "The cluster that is started or modelled where no server is named", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.clock, "clock", "real", "real starts a cluster and measures; virtual computes; both sets the two side by side")
		}),
	}
	asked := f.load.groups()
	for i := range asked {
		if g := &asked[i]; g.Title == load.ArrivalsGroup {
			setDefault(g.Flags, "request-rate", "inf")
			g.Flags.IntVar(&f.warmups, "num-warmups", 0, "requests before the load that are not counted, copies of its first")
			alias(g.Flags, "warmup-requests", "num-warmups")
		}
	}
	groups = slices.Insert(groups, 3, asked...) // behind the server and sampling
	for _, g := range clusterKnobs.Flags(&f.cluster.Spec, cluster.Bench) {
		g.Topic = "cluster"
		groups = append(groups, g)
	}
	first(groups, "base-url", "backend", "model", "tokenizer", "api-key", "dataset-name", "dataset-path", "input-len", "output-len", "num-prompts", "request-rate", "max-concurrency", "duration",
		"trace", "speed", "seed", "num-warmups", "goodput", "find-rate", "compat", "request-timeout", "ready-check-timeout-sec", "out", "clock")
	return groups
}

// first has the short help list these flags, and no others.
func first(groups []knob.Group, names ...string) {
	for _, g := range groups {
		g.Flags.VisitAll(func(f *pflag.Flag) {
			delete(f.Annotations, knob.First)
			if slices.Contains(names, f.Name) {
				_ = g.Flags.SetAnnotation(f.Name, knob.First, []string{})
			}
		})
	}
}

func (f *searchFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.what, "find-rate", "", "search the highest rate, or concurrency, at which --goodput is kept")
	fs.Lookup("find-rate").NoOptDefVal = string(serve.Rate)
	fs.Float64Var(&f.precision, "find-rate-precision", 0.05, "how near the answer is to be, as a share of it")
	fs.Float64Var(&f.most, "max-rate", 0, "the highest rate, or concurrency, that is tried (default: as far as the client keeps up)")
	fs.Float64Var(&f.attainment, "attainment", 0.99, "share of the requests that must keep --goodput")
	Positive(fs, "find-rate-precision", "attainment")
}

func (f *resultFlags) register(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.goodput, "goodput", nil, "bounds in ms that a good request keeps: ttft:500 tpot:50 e2el:5000")
	fs.StringVar(&f.percentileMetrics, "percentile-metrics", "ttft,tpot,itl", "metrics that vLLM's report shows: ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue")
	fs.StringVar(&f.percentiles, "metric-percentiles", "99", "percentiles that vLLM's report shows, such as 50,99,99.9")
	fs.BoolVar(&f.save, "save-result", false, "write vLLM's JSON file, too")
	fs.StringVar(&f.dir, "result-dir", "", "folder for it (default this one)")
	fs.StringVar(&f.file, "result-filename", "", "its name (default {label}-{rate}qps-{model}-{time}.json)")
	fs.BoolVar(&f.appendTo, "append-result", false, "add a line to the file instead of replacing it")
	fs.BoolVar(&f.detailed, "save-detailed", false, "put what each request had into it")
	fs.StringVar(&f.label, "label", "", "of the run, in vLLM's file")
	fs.StringArrayVar(&f.metadata, "metadata", nil, "KEY=VALUE to put into vLLM's file; may be given several times")
	fs.StringVar(&f.output, "output-file", "", "add a line to this file as SGLang's client does, too")
	fs.BoolVar(&f.outputDetails, "output-details", false, "put what each request had into it")
	fs.StringVar(&f.tag, "tag", "", "of the run, in SGLang's file")
	fs.StringVar(&f.steady, "steady-state", string(serve.MSER), "how the steady part of a run is found: mser or concurrency")
	fs.Float64Var(&f.ratio, "steady-state-concurrency-ratio", 0.8, "with concurrency: where no fewer than this share of the peak are in flight")
	Positive(fs, "steady-state-concurrency-ratio")
}

// alias is another name for a flag, which help does not show.
func alias(fs *pflag.FlagSet, name, of string) {
	f := *fs.Lookup(of)
	f.Name, f.Shorthand, f.Hidden, f.Annotations = name, "", true, map[string][]string{aliasOf: {of}}
	fs.AddFlag(&f)
}

// aliasOf is the annotation of an alias.
const aliasOf = "kvferry/alias"

// settleAliases has a flag be given that was given by another name.
func settleAliases(fs *pflag.FlagSet) {
	fs.Visit(func(f *pflag.Flag) {
		for _, of := range f.Annotations[aliasOf] {
			fs.Lookup(of).Changed = true
		}
	})
}

// setDefault changes what a flag is if it is not given.
func setDefault(fs *pflag.FlagSet, name, value string) {
	f := fs.Lookup(name)
	if err := f.Value.Set(value); err != nil {
		panic(err) // a constant of this program
	}
	f.DefValue = value
}

// compatNone is neither tool's draws.
const compatNone = "none"

// defaults are those of the tools where these differ from what help says. SGLang's seed is that of
// the versions that made the published runs; later ones have 42.
var defaults = map[string]map[string]string{
	compatNone:      {},
	load.CompatVLLM: {},
	load.CompatSGLang: {
		"backend": "sglang", "dataset-name": load.ShareGPTName, "seed": "1", "random-output-len": "1024", "temperature": "0", "speed-bench-output-len": "512", "num-warmups": "1",
	},
}
