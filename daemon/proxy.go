package daemon

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/placement"
	"kvferry/proxy"
	"kvferry/proxy/openai"
)

// PositiveProxyFlags are those for which 0 makes no sense.
var PositiveProxyFlags = []string{"lease-ttl", "request-timeout", "migration-interval", "migration-threshold", "max-connections", "max-queue", "max-queue-time", "max-body"}

// SeveralProxyFlags take several values after one name, as they do in vLLM's server, for
// cli.Spread.
var SeveralProxyFlags = []string{"served-model-name", "lora-modules"}

// ProxyFlagNames are the flags that set the fields of a Config.
var ProxyFlagNames = map[string]string{
	"HTTPAddr": "--http", "GRPCAddr": "--grpc", "Mode": "--mode", "Handoff": "--handoff", "Placement": "--placement", "Migration": "--migration", "Migration.Policy": "--migration", "Migration.Interval": "--migration-interval", "Migration.Threshold": "--migration-threshold", "ConditionalDisaggregation": "--conditional-disaggregation", "Tokenizer": "--tokenizer", "AllowMixedProfiles": "--allow-mixed-profiles",
	"LeaseTTL": "--lease-ttl", "NodeWait": "--node-wait", "RequestTimeout": "--request-timeout", "DrainTimeout": "--drain-timeout",
	"MaxConnections": "--max-connections", "MaxQueue": "--max-queue", "MaxQueueTime": "--max-queue-time", "MaxBodyBytes": "--max-body", "MaxRetries": "--max-retries",
	"ServedNames": "--served-model-name", "LoRAs": "--lora-modules", "EOS": "--eos", "OTLPTracesEndpoint": "--otlp-traces-endpoint",
	"Upstreams": "--upstream", "Upstreams.Prefill": "--upstream-prefill", "Upstreams.Decode": "--upstream-decode", "Upstreams.Both": "--upstream", "Upstreams.Bootstrap": "--upstream-bootstrap", "Upstreams.Report": "--upstream-report",
	"CORS": "--allowed-origins", "CORS.Methods": "--allowed-methods", "CORS.Headers": "--allowed-headers", "CORS.Credentials": "--allow-credentials",
}

// ProxyFlags is the command line of cmd/proxy.
type ProxyFlags struct{ cfg proxy.Config }

// AddFlags adds a flag for every field of a proxy.Config but Membership and Logger, with its
// defaults, so that --help says what a proxy.Config with nothing in it does.
func (f *ProxyFlags) AddFlags(fs *pflag.FlagSet) {
	c, d := &f.cfg, proxy.Config{}.WithDefaults()
	fs.StringVar(&c.HTTPAddr, "http", d.HTTPAddr, "host:port for clients; port 0 picks a free one (it is logged)")
	fs.StringVar(&c.GRPCAddr, "grpc", d.GRPCAddr, "host:port for nodes to register at")
	fs.StringSliceVar(&c.Upstreams.Prefill, "upstream-prefill", nil, "URLs of real engines that compute prompts, such as http://10.0.0.2:8000 of vllm serve with a KV connector, with commas or the flag again for several: they and --upstream-decode answer in place of nodes, which cannot register then")
	fs.StringSliceVar(&c.Upstreams.Decode, "upstream-decode", nil, "URLs of real engines that take a prompt's KV from one of --upstream-prefill, by their own connector, and answer")
	fs.StringSliceVar(&c.Upstreams.Both, "upstream", nil, "URLs of real engines that serve by themselves; beside a pair they serve while that is not up (--mode auto)")
	fs.StringSliceVar(&c.Upstreams.Bootstrap, "upstream-bootstrap", nil, "URLs of the prefill engines' connectors, one for each of --upstream-prefill in that order: the decode engine is asked at the same time then, and KV is written while it is computed (kvferry's connector with handoff layerwise, vLLM's MooncakeConnector)")
	fs.StringVar(&c.Upstreams.Report, "upstream-report", "", "URL of this proxy as the engines reach it, at which kvferry's connector says how KV was transferred (default --http, or where that is every address, the one that an engine sees)")
	fs.StringVar(&c.Mode, "mode", d.Mode, "auto (a prefill and a decode node if both are there, else one that does both), disagg or nondisagg")
	fs.StringVar(&c.Handoff, "handoff", d.Handoff, "how KV gets from prefill to decode: "+handoff.List()+"; v0 is the published system")
	fs.StringVar(&c.Placement, "placement", d.Placement, "which node takes a request: "+placement.Help())
	fs.IntVar(&c.ConditionalDisaggregation, "conditional-disaggregation", 0, placement.ConditionalHelp)
	AddMigrationFlags(fs, &c.Migration)
	fs.StringVar(&c.Tokenizer, "tokenizer", "", "a model's tokenizer.json, its folder, or a model that is in the Hugging Face cache, such as Qwen/Qwen3-8B: texts are counted by it, and generated of its words (default kvferry's own, which is served at /tokenizer/tokenizer.json)")
	fs.BoolVar(&c.AllowMixedProfiles, "allow-mixed-profiles", false, "take nodes whose profiles differ, of the same model and KV layout")
	fs.StringSliceVar(&c.ServedNames, "served-model-name", nil, "names that clients ask for, with blanks, with commas or the flag again for several: the first is the one that answers and metrics have, /v1/models lists all (default what the nodes call the model)")
	fs.Var((*loras)(&c.LoRAs), "lora-modules", "LoRA adapters that clients may ask for, as name=path, with blanks, with commas or the flag again for several: with KV and prefixes of their own; in place of a path, of which nothing is read, may stand the adapter's rank (default 16); POST /v1/load_lora_adapter adds more")
	fs.Var(newList(&c.CORS.Origins, d.CORS.Origins), "allowed-origins", "origins of web pages that may use the API from a browser, such as https://chat.example, with commas or as a JSON list; * for all, empty for none; only those named may flush caches, profile and load adapters")
	fs.Var(newList(&c.CORS.Methods, d.CORS.Methods), "allowed-methods", "HTTP methods that such pages may use")
	fs.Var(newList(&c.CORS.Headers, d.CORS.Headers), "allowed-headers", "headers that such pages may send")
	fs.BoolVar(&c.CORS.Credentials, "allow-credentials", false, "let browsers send cookies and the like along")
	c.EOS = d.EOS
	fs.Var(&c.EOS, "eos", "after how many tokens answers end by themselves, unless a request has ignore_eos: log-normal, drawn from the prompt and a seed; none: they go on to max_tokens")
	fs.DurationVar(&c.LeaseTTL, "lease-ttl", d.LeaseTTL, "how long a node may be silent before it is lost")
	fs.DurationVar(&c.NodeWait, "node-wait", d.NodeWait, "how long a request waits for its first nodes; 0: not at all. One whose node was lost waits --lease-ttl for another")
	fs.DurationVar(&c.RequestTimeout, "request-timeout", d.RequestTimeout, "deadline of a request that does not ask for less")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", d.DrainTimeout, "how long running requests may take to end on SIGTERM; 0: they are ended at once")
	fs.IntVar(&c.MaxConnections, "max-connections", d.MaxConnections, "clients' connections, and with them requests, held at once; one address gets three quarters of them at most")
	fs.IntVar(&c.MaxQueue, "max-queue", d.MaxQueue, "requests that wait for their turn; beyond it clients get 429 and are told when to come back; running streams do not count")
	fs.DurationVar(&c.MaxQueueTime, "max-queue-time", d.MaxQueueTime, "longest wait to expect, by what is ahead and how fast it was worked off lately; beyond it clients get 429, so that those taken on keep their latency (default no limit)")
	fs.Int64Var(&c.MaxBodyBytes, "max-body", d.MaxBodyBytes, "longest request body, in bytes")
	fs.StringVar(&c.OTLPTracesEndpoint, "otlp-traces-endpoint", "", "URL at which an OpenTelemetry collector takes requests' spans, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces (default none: nothing is traced)")
	fs.IntVar(&c.MaxRetries, "max-retries", d.MaxRetries, "times a request is placed again after a node failed it; 0: never")
}

// Config turns the flags, once they are parsed, into a proxy.Config. It does not validate
// it.
func (f *ProxyFlags) Config() proxy.Config {
	c := f.cfg
	// On a command line 0 is 0.
	c.NodeWait, c.DrainTimeout, c.MaxRetries = config.OrNone(c.NodeWait), config.OrNone(c.DrainTimeout), config.OrNone(c.MaxRetries)
	return c
}

// A list is a flag of several texts: with commas, as a JSON list as vLLM has it, or the flag
// again. Empty is none.
type list struct {
	all   *[]string
	given bool // and so no more the default
}

func newList(to *[]string, byDefault []string) *list {
	*to = byDefault
	return &list{all: to}
}

func (l *list) Set(text string) error {
	more := []string{}
	switch {
	case strings.HasPrefix(text, "["):
		if err := json.Unmarshal([]byte(text), &more); err != nil {
			return fmt.Errorf("it is no JSON list of texts: %w", err)
		}
	case text != "":
		more = strings.Split(text, ",")
	}
	if l.given {
		more = append(*l.all, more...)
	}
	*l.all, l.given = more, true
	return nil
}

func (l *list) String() string {
	if l.all == nil {
		return ""
	}
	return strings.Join(*l.all, ",")
}

func (l *list) Type() string { return "strings" }

// loras is the flag for adapters: a list that grows each time it is given.
type loras []proxy.LoRA

func (l *loras) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		lora, err := openai.ParseLoRA(one)
		if err != nil {
			return err
		}
		*l = append(*l, lora)
	}
	return nil
}

func (l *loras) String() string {
	var all []string
	for _, one := range *l {
		all = append(all, one.String())
	}
	return strings.Join(all, ",")
}

func (l *loras) Type() string { return "name=path" }
