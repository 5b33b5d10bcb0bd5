package proxy

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/internal/otlp"
	"kvferry/placement"
	"kvferry/proxy/cors"
	"kvferry/proxy/members"
	"kvferry/proxy/openai"
	"kvferry/proxy/upstream"
)

// A LoRA is an adapter that clients may ask for by name.
type LoRA = openai.LoRA

// Serving modes of a proxy.
const (
	ModeAuto      = "auto"      // prefill and decode nodes if both are there, else a non-disaggregated one
	ModeDisagg    = "disagg"    // prefill and decode nodes only
	ModeNondisagg = "nondisagg" // non-disaggregated nodes only
)

// Config says how a proxy serves. Zero fields take the defaults named
// here; where a 0 would be of use, any negative value is it ([config.OrNone]). It is read
// once, by New.
type Config struct {
	// HTTPAddr is where clients come in, host:port; port 0 picks a free one.
	// Default 127.0.0.1:8000.
	HTTPAddr string
	// GRPCAddr is where nodes register, host:port. Default 127.0.0.1:9000.
	GRPCAddr string
	// Membership says which nodes there are, where they do not register: nothing listens
	// on GRPCAddr then, and LeaseTTL is how long a request waits for a node in place of
	// one that was lost. Default nil: the nodes that hold a lease.
	Membership members.Membership
	// Upstreams are real engines that answer in place of nodes: nobody registers then, and
	// what is of nodes only has no effect. Default none.
	Upstreams upstream.URLs
	// Mode is auto, disagg or nondisagg. Default auto.
	Mode string
	// Handoff is one of handoff.Names. Default layerwise.
	Handoff string
	// Placement is the name of a policy of package placement. Default least-loaded.
	Placement string
	// ConditionalDisaggregation has prompts of at most so many tokens to compute computed where they
	// are decoded, see placement.Conditional. Default 0: none.
	ConditionalDisaggregation int
	// Migration says when running requests go on on other nodes. Default never.
	Migration placement.MigrationConfig
	// Tokenizer is a folder with a tokenizer.json, such a file, or the name of a model in the
	// Hugging Face cache: clients' texts are counted by it, and generated from its words. Default "": kvferry's own, which [Proxy] hands out.
	Tokenizer string
	// AllowMixedProfiles lets nodes join whose profile is not the cluster's: another
	// GPU of the same model. The same vocabulary and KV layout it has to be anyway.
	AllowMixedProfiles bool
	// ServedNames are what clients call the model; answers have the first. Default what the
	// nodes call it.
	ServedNames []string
	// LoRAs are adapters that clients may ask for in place of the model. Default none.
	LoRAs []LoRA
	// CORS says which web pages of other origins may use the API: vLLM's defaults, all of
	// them without credentials, if its Origins are nil. An empty list that is not nil is
	// none.
	CORS cors.Policy
	// EOS says after how many tokens answers end by themselves, unless a request ignores
	// that (ignore_eos). Default eos.Default: most end within some hundred tokens.
	EOS eos.Lengths
	// LeaseTTL is how long a node may be silent before it counts as lost. Engines are asked
	// three times in it how they are. Default 3 s.
	LeaseTTL time.Duration
	// NodeWait is how long a request waits for the nodes it needs while they are not
	// there: at the start of a cluster, after a restart of the proxy. One whose node is
	// lost waits LeaseTTL for another.
	// Default 10 s; negative means not at all.
	NodeWait time.Duration
	// RequestTimeout is a request's deadline from its first byte in; a client
	// may ask for less with the field "timeout". Default 10 min.
	RequestTimeout time.Duration
	// DrainTimeout is how long running requests may take to end once Run's
	// context is done. Default 30 s; negative: they are ended at once.
	DrainTimeout time.Duration
	// MaxConnections is how many clients' connections are open at once, and with
	// them requests, waiting or streaming; see connections for who makes room for
	// whom. Default 16384.
	MaxConnections int
	// MaxQueue is how many requests may wait for their turn; the next is answered 429.
	// Those that run do not count. Default 16384, as many as connections: 10,000 that
	// waited took 370 MB of the proxy, connections included.
	MaxQueue int
	// MaxQueueTime is how long a request may be expected to wait before its prompt is
	// computed, by what is ahead of it and how fast that was worked off lately; one
	// that would wait longer is answered 429. Default 0: as long as it takes.
	MaxQueueTime time.Duration
	// MaxBodyBytes bounds a request's body. Default 4 MiB, thirty times a
	// 10,000-token prompt as text.
	MaxBodyBytes int64
	// MaxRetries is how often a request is placed again after a node failed
	// it. Default 2; negative means never.
	MaxRetries int
	// OTLPTracesEndpoint is the URL at which an OpenTelemetry collector takes the spans of
	// requests, by OTLP over HTTP. Default none: no request is traced.
	OTLPTracesEndpoint string
	// Settings are what /server_info says of the configuration. Default nil: nothing.
	Settings map[string]any
	// Logger gets one line a request that ended, at debug or, if it failed, at
	// warn, and one for each change in the cluster. Default slog.Default().
	Logger *slog.Logger
}

// WithDefaults is c with the defaults in its zero fields.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	config.Default(&c.HTTPAddr, "127.0.0.1:8000")
	config.Default(&c.GRPCAddr, "127.0.0.1:9000")
	config.Default(&c.Mode, ModeAuto)
	config.Default(&c.Handoff, handoff.Layerwise.Name)
	config.Default(&c.Placement, placement.LeastLoaded)
	c.Migration = c.Migration.WithDefaults()
	c.EOS = c.EOS.OrDefault()
	for _, list := range []*[]string{&c.CORS.Origins, &c.CORS.Methods, &c.CORS.Headers} {
		if *list == nil {
			*list = []string{"*"}
		}
	}
	config.Default(&c.LeaseTTL, 3*time.Second)
	config.Default(&c.NodeWait, 10*time.Second)
	config.Default(&c.RequestTimeout, 10*time.Minute)
	config.Default(&c.DrainTimeout, 30*time.Second)
	config.Default(&c.MaxConnections, 16384)
	config.Default(&c.MaxQueue, 16384)
	config.Default(&c.MaxBodyBytes, 4<<20)
	config.Default(&c.MaxRetries, 2)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate lists every fault by its field, as a [config.Invalid]. Zero fields are not
// faults: they take their defaults.
func (c Config) Validate() error {
	c.setDefaults()
	var bad config.Faults
	for _, a := range []struct{ field, addr string }{{"HTTPAddr", c.HTTPAddr}, {"GRPCAddr", c.GRPCAddr}} {
		_, _, err := config.Address(a.addr)
		bad.Check(a.field, err)
	}
	for _, e := range []struct {
		field, value string
		allowed      []string
	}{
		{"Mode", c.Mode, []string{ModeAuto, ModeDisagg, ModeNondisagg}},
		{"Handoff", c.Handoff, handoff.Names()},
		{"Placement", c.Placement, placement.Names()},
	} {
		if !slices.Contains(e.allowed, e.value) {
			bad.Add(e.field, e.value, "use one of %s", strings.Join(e.allowed, ", "))
		}
	}
	for _, d := range []struct {
		field      string
		value, min time.Duration
	}{
		{"LeaseTTL", c.LeaseTTL, 10 * time.Millisecond},
		{"RequestTimeout", c.RequestTimeout, time.Millisecond},
	} {
		if d.value < d.min {
			bad.Add(d.field, d.value, "use %v or more", d.min)
		}
	}
	config.Between(&bad, "ConditionalDisaggregation", c.ConditionalDisaggregation, 0, math.MaxInt32)
	if c.MaxConnections < 0 {
		bad.Add("MaxConnections", c.MaxConnections, "use 1 connection or more")
	}
	if c.MaxQueue < 0 {
		bad.Add("MaxQueue", c.MaxQueue, "use 1 request or more")
	}
	if c.MaxQueueTime < 0 {
		bad.Add("MaxQueueTime", c.MaxQueueTime, "use a time such as 2s, or 0 for no limit")
	}
	if c.MaxBodyBytes < 0 {
		bad.Add("MaxBodyBytes", c.MaxBodyBytes, "use 1 byte or more")
	}
	bad.Check("Upstreams", c.Upstreams.Validate())
	if c.Upstreams.Any() {
		c.checkEngines(&bad)
	}
	bad.Check("EOS", c.EOS.Validate())
	c.Migration.Check(&bad)
	openai.CheckNames(&bad, c.ServedNames, c.LoRAs)
	if c.OTLPTracesEndpoint != "" {
		bad.Check("OTLPTracesEndpoint", otlp.CheckEndpoint(c.OTLPTracesEndpoint))
	}
	return bad.Err("proxy.Config")
}
