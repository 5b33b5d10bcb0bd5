package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/serve"
	"kvferry/bench/stats"
	"kvferry/cluster"

	"kvferry/internal/config"
	"kvferry/internal/otlp"
	"kvferry/load"
	"kvferry/tokenizer"
)

// serveNames are the flags that set the fields of a serve.Config and of what it has.
var benchNames = joined(loadNames, within("Load", loadNames), clusterKnobs.Names(), samplingNames, map[string]string{
	"Targets": "--clock", "Out": "--out", "Warmups": "--num-warmups", "WarmupLen": "--num-warmups", "Goodput": "--goodput",
	"MaxFailures": "--max-failures", "RetriesDisturbed": "--retries-disturbed", "Steady": "", "Method": "--steady-state", "Ratio": "--steady-state-concurrency-ratio",
	"Search": "--find-rate", "Search.Quantity": "--find-rate", "Search.Attainment": "--attainment", "Search.Precision": "--find-rate-precision", "Search.Max": "--max-rate",
	"Search.Start": "--request-rate", "Layout": "--compat", "Results": "--save-result", "OpenTimeout": "--ready-check-timeout-sec",
	"URL": "--base-url", "URLs": "--worker-urls", "Backend": "--backend", "Endpoint": "--endpoint", "Model": "--model", "Header": "--header", "APIKey": "--api-key",
	"CAFile": "--ca-cert", "Insecure": "--insecure", "Extra": "--extra-body", "FlushCache": "--flush-cache", "Metrics": "--metrics-url", "Timeout": "--request-timeout",
})

// config turns flags into a run, or names every flag that is wrong and the fix.
func (f *benchFlags) config(fs *pflag.FlagSet) (serve.Config, error) {
	var bad config.Faults
	settleAliases(fs)
	f.defaults(fs, &bad)
	changed := fs.Changed
	cfg := serve.Config{Out: resultsFolder(f.out), Warmups: f.warmups, WarmupLen: f.warmupLen, MaxFailures: f.maxFailures, RetriesDisturbed: f.retries, OpenTimeout: time.Duration(f.server.ready)*time.Second + startTimeout}
	f.log.dir = cfg.Out
	f.results.config(&cfg, &bad)
	if cfg.Layout = f.compat; f.compat == compatNone {
		cfg.Layout = serve.LayoutVLLM
	}
	if f.load.spec.Compat = f.compat; f.compat == compatNone {
		f.load.spec.Compat = ""
	}
	cfg.Setup.Backend = f.server.client.Backend
	cfg.Setup.Compat, cfg.Setup.Command = f.load.spec.Compat, masked(os.Args)

	f.load.spec.TokenIDs = f.server.client.TokenIDs
	f.load.spec.Chat = strings.HasSuffix(f.server.client.Backend, "-chat")
	f.load.spec.Workers.Count = len(f.server.client.URLs)
	if f.server.tokenizer != "" {
		t, err := tokenizer.Load(f.server.tokenizer)
		bad.Check("--tokenizer", err)
		if err == nil {
			f.load.spec.Tokenizer = t
		}
		cfg.Setup.Tokenizer = f.server.tokenizer
	}
	f.load.settle(changed, &bad)
	f.tools.settle(f, changed, &bad)
	f.target(&cfg, fs, &bad)
	cfg.Setup.Config = resolved(fs)
	cfg.Load = f.load.spec
	f.search.config(&cfg, &bad)
	return cfg, Check(bad, cfg.Validate(), benchNames)
}

// defaults are those of the tool whose command line this is.
func (f *benchFlags) defaults(fs *pflag.FlagSet, bad *config.Faults) {
	values, ok := defaults[f.compat]
	bad.Refuse(!ok, "--compat", f.compat, "use vllm, sglang or none")
	setUnchanged(fs, values)
	if f.compat == load.CompatSGLang {
		f.load.spec.EOS = load.IgnoreEOS // unless --disable-ignore-eos
		f.warmupLen = 32                 // of sglang.bench_serving's warm-up
	}
}

// setUnchanged sets flags that were not given.
func setUnchanged(fs *pflag.FlagSet, values map[string]string) {
	for name, v := range values {
		if f := fs.Lookup(name); !f.Changed {
			if err := f.Value.Set(v); err != nil {
				panic(err) // a constant of this program
			}
		}
	}
}

// startTimeout is how long a target may take beside --ready-check-timeout-sec: a cluster of its own
// is started. A server has that flag's time for its first answer, and again for each of the few requests
// by which is found out what it accepts.
const startTimeout = 10 * time.Minute

// masked is a command line without keys: result files are shown to others.
func masked(args []string) []string {
	out := slices.Clone(args)
	for i := range out {
		name, value, given := strings.Cut(out[i], "=")
		switch strings.ReplaceAll(name, "_", "-") {
		case "--api-key":
			if given {
				out[i] = name + "=..."
			} else if i+1 < len(out) {
				out[i+1] = "..."
			}
		case "--header":
			if given {
				out[i] = name + "=" + maskedHeader(value)
			}
			for j := i + 1; j < len(out) && !strings.HasPrefix(out[j], "-"); j++ {
				out[j] = maskedHeader(out[j])
			}
		}
		out[i] = config.Public(out[i])
	}
	return out
}

// maskedHeader is KEY=VALUE without the value.
func maskedHeader(text string) string {
	key, _, _ := strings.Cut(text, "=")
	return key + "=..."
}

// resolved is what every flag is, as it was given or by default.
func resolved(fs *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", "api-key", "header"}, f.Name) && !f.Hidden {
			out[f.Name] = config.Public(f.Value.String())
		}
	})
	return out
}

// serversOnly are flags that a cluster of kvferry's own has no use for: it wants no key, and
// answers at the backend's path. It has one model too, but a published command line that names its
// own is to run as it stands.
var serversOnly = []string{"endpoint", "api-key", "header", "ca-cert", "insecure"}

// target settles who is asked.
func (f *benchFlags) target(cfg *serve.Config, fs *pflag.FlagSet, bad *config.Faults) {
	changed := fs.Changed
	asked := f.server.named(changed)
	c := f.server.config(asked, changed, bad)
	c.Tokenizer = f.load.spec.Tokenizer
	c.KeepText = slices.ContainsFunc(cfg.Results, func(res serve.Result) bool { return res.Detailed })
	c.Retokenize = c.Tokenizer != nil && cfg.Writes(serve.LayoutSGLang)
	if f.load.spec.Workers.Count > 1 {
		c.Assign = func(_ int, r *load.Request) int { return r.Worker }
	}
	how := serve.Asking{
		Ready:  time.Duration(max(f.server.ready, 1)) * time.Second,
		Config: c, Needs: client.Needs{Texts: f.load.texts(), Turns: f.load.turns()}, Collector: otlp.Endpoint(f.server.collector),
		Metrics: f.server.pages(asked, bad), Flush: f.server.flush, Wait: time.Duration(f.server.flushWait * float64(time.Second)),
	}
	if how.Collector != "" {
		bad.Check("--otlp-traces-endpoint", otlp.CheckEndpoint(how.Collector))
	}
	if f.clock == "virtual" {
		refuse(bad, changed, "virtual time has no spans: leave it out, or use --clock real", "otlp-traces-endpoint")
	}
	if asked {
		bad.Refuse(f.clock != "real", "--clock", f.clock, "the server that is asked is real: leave it or --base-url out")
		*bad = append(*bad, clusterKnobs.Refuse("it is for a cluster that kvferry starts or models: leave it out, the server has its own", changed)...)
		if len(*bad) == 0 {
			bad.Check("", config.Named(c.Validate(), benchNames))
		}
		cfg.Targets = []serve.Target{serve.Server(how)}
		return
	}
	c.Model = ""
	refuse(bad, changed, "it is for a server that runs: name that with --base-url, or leave this out, a cluster of kvferry's own needs none", serversOnly...)
	if len(*bad) == 0 {
		at := c
		at.URL = "http://127.0.0.1:1" // until the cluster has its own
		bad.Check("", config.Named(at.Validate(), benchNames))
	}
	f.cluster.settle(changed, bad)
	bad.Check("--lora-modules", f.cluster.Adapt(&f.load.spec.Adapters.Names))
	f.cluster.Proxy.OTLPTracesEndpoint = how.Collector
	if (f.load.spec.Kind == load.Traced || f.load.spec.Sharing.HitRate > 0) && !changed("enable-prefix-caching") {
		f.cluster.Node.PrefixCaching = true
	}
	p, err := f.cluster.Engine()
	if err != nil { // a fault that bad has: nothing is opened, and the rest is checked
		cfg.Targets = []serve.Target{serve.Model(f.cluster.Spec)}
		return
	}
	if how.Needs.Turns && how.Tokenizer == nil { // answers are ids then, which the next turn goes on with
		how.Tokenizer, _ = tokenizer.Own(p.Vocab)
	}
	f.cluster.FitLoad(f.load.scan(p, bad))
	real := func() {
		if f.clock == "real" {
			*bad = append(*bad, without(cluster.Bench).Refuse("it is modelled: the daemons of this machine have its own network; use --clock virtual, or --rail for several NICs", changed)...)
		}
		if !changed("kv-warm-mib") {
			f.less = fitWarm(&f.cluster.Spec)
		}
		if len(*bad) == 0 {
			bad.Check("", config.Named(f.cluster.Validate(), clusterKnobs.Names()))
		}
		cfg.Targets = append(cfg.Targets, serve.Own(f.cluster.starter(f.log), serve.InWords(f.cluster.Spec), how))
	}
	virtual := func() {
		if f.clock == "virtual" {
			*bad = append(*bad, without(cluster.Sim).Refuse("it is for daemons: in virtual time --link and --nics say what carries the KV", changed)...)
		}
		if len(*bad) == 0 {
			_, err := f.cluster.Model()
			bad.Check("", config.Named(err, clusterKnobs.Names()))
		}
		cfg.Targets = append(cfg.Targets, serve.Model(f.cluster.Spec))
	}
	switch f.clock {
	case "real":
		real()
	case "virtual":
		virtual()
	case "both":
		real()
		virtual()
	default:
		bad.Add("--clock", f.clock, "use real, virtual or both")
	}
}

// named reports whether a server is: one that runs. Without, kvferry starts or models a cluster.
func (f *serverFlags) named(changed func(string) bool) bool {
	return slices.ContainsFunc([]string{"base-url", "host", "port", "worker-urls"}, changed)
}

// config is the client of the server; URL is empty for a cluster that is yet to be started.
func (f *serverFlags) config(asked bool, changed func(string) bool, bad *config.Faults) client.Config {
	c := f.client
	c.Header = http.Header{}
	var err error
	switch {
	case changed("worker-urls") && changed("base-url"):
		bad.Check("--worker-urls", errors.New("it names several servers, --base-url one: leave one out"))
	case changed("worker-urls") && (changed("host") || changed("port")):
		bad.Check("--worker-urls", errors.New("they say host and port too: leave them, or --host and --port, out"))
	case changed("base-url") && (changed("host") || changed("port")):
		bad.Check("--base-url", errors.New("it says host and port too: leave it, or --host and --port, out"))
	case changed("base-url"):
		c.URL, err = config.BaseURL(f.baseURL)
		bad.Check("--base-url", err)
	case changed("worker-urls"):
		for i, text := range c.URLs {
			c.URLs[i], err = config.BaseURL(text)
			bad.Check("--worker-urls", err)
		}
	case asked:
		port := f.port
		if b, err := client.ParseBackend(c.Backend); err == nil && port == 0 {
			port = b.Port
		}
		c.URL, err = config.BaseURL(net.JoinHostPort(f.host, strconv.Itoa(port)))
		bad.Check("--host", err)
	}
	c.Sampling = f.sampling.parameters()
	config.Default(&c.APIKey, os.Getenv("OPENAI_API_KEY"))
	for _, h := range f.headers {
		key, value, ok := strings.Cut(h, "=")
		if !ok || key == "" {
			bad.Add("--header", h, "write KEY=VALUE")
			continue
		}
		c.Header.Add(key, value)
	}
	for _, at := range append([]*string{&c.URL}, pointers(c.URLs)...) {
		public, user := config.Credentials(*at)
		*at = public
		switch own := c.Header.Get("Authorization"); {
		case user == "" || user == own:
		case own != "" || c.APIKey != "":
			bad.Check("--base-url", errors.New("a server's URL has a user and a password, and an --api-key, a --header or another URL says otherwise: leave one out"))
		default:
			c.Header.Set("Authorization", user)
		}
	}
	if f.extra != "" {
		if err := json.Unmarshal([]byte(f.extra), &c.Extra); err != nil {
			bad.Check("--extra-body", fmt.Errorf("%q: write a JSON object: %w", f.extra, err))
		}
	}
	return c
}

// pointers returns the places of the texts in a list.
func pointers(list []string) (places []*string) {
	for i := range list {
		places = append(places, &list[i])
	}
	return places
}

// pages are the URLs of --metrics-url.
func (f *serverFlags) pages(asked bool, bad *config.Faults) (pages []string) {
	if len(f.metrics) > 0 && !asked {
		bad.Check("--metrics-url", errors.New("it is of a server that runs: name that with --base-url, or leave this out, a cluster of its own is asked anyway"))
	}
	for _, text := range f.metrics {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			bad.Add("--metrics-url", text, "write the page's URL, like http://10.0.0.5:8000/metrics")
			continue
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = "/metrics"
		}
		if slices.ContainsFunc(pages, func(of string) bool { return observe.SamePage(of, u.String()) }) {
			bad.Add("--metrics-url", text, "it is given twice, and its counts would be added up")
		}
		pages = append(pages, u.String())
	}
	return pages
}

func (f *resultFlags) config(cfg *serve.Config, bad *config.Faults) {
	var err error
	s := &cfg.Setup
	s.Goodput, err = stats.ParseSLO(f.goodput)
	bad.Check("--goodput", err)
	s.PercentileMetrics, err = report.ParsePercentileMetrics(f.percentileMetrics)
	bad.Check("--percentile-metrics", err)
	s.Percentiles, err = report.ParsePercentiles(f.percentiles)
	bad.Check("--metric-percentiles", err)
	s.Metadata = ParseAll(bad, "--metadata", f.metadata, report.ParseMetadata)
	s.ResultLabel, s.Tag = f.label, f.tag
	cfg.Steady = serve.SteadyConfig{Method: serve.SteadyMethod(f.steady), Ratio: f.ratio}
	if f.save || f.appendTo || f.detailed || f.file != "" {
		cfg.Results = append(cfg.Results, serve.Result{Layout: serve.LayoutVLLM, Dir: f.dir, Name: f.file, Append: f.appendTo, Detailed: f.detailed})
	}
	if f.output != "" {
		cfg.Results = append(cfg.Results, serve.Result{Layout: serve.LayoutSGLang, Name: f.output, Append: true, Detailed: f.outputDetails})
	}
}

func (f *searchFlags) config(cfg *serve.Config, bad *config.Faults) {
	if f.what == "" {
		return
	}
	s := serve.RateConfig{Quantity: serve.RateQuantity(f.what), Attainment: f.attainment, Precision: f.precision, Max: f.most}
	if r := cfg.Load.Rate; s.Quantity == serve.Rate && !math.IsInf(r, 1) {
		s.Start = r
	} else if s.Quantity == serve.Concurrency && cfg.Load.InFlight > 0 {
		s.Start = float64(cfg.Load.InFlight)
	}
	cfg.Search = &s
}
