package daemon

import (
	"github.com/spf13/pflag"

	"kvferry/config"
	"kvferry/handoff"
	"kvferry/placement"
	"kvferry/proxy"
)

// PositiveProxyFlags are those for which 0 makes no sense.
var PositiveProxyFlags = []string{"lease-ttl", "request-timeout", "max-connections", "max-queue", "max-queue-time", "max-body"}

// ProxyFlagNames are the flags that set the fields of a Config.
var ProxyFlagNames = map[string]string{
	"HTTPAddr": "--http", "GRPCAddr": "--grpc", "Mode": "--mode", "Handoff": "--handoff", "Placement": "--placement", "AllowMixedProfiles": "--allow-mixed-profiles",
	"LeaseTTL": "--lease-ttl", "NodeWait": "--node-wait", "RequestTimeout": "--request-timeout", "DrainTimeout": "--drain-timeout",
	"MaxConnections": "--max-connections", "MaxQueue": "--max-queue", "MaxQueueTime": "--max-queue-time", "MaxBodyBytes": "--max-body", "MaxRetries": "--max-retries",
}

// ProxyFlags is the command line of cmd/proxy.
type ProxyFlags struct{ cfg proxy.Config }

// AddFlags adds a flag for every field of a proxy.Config but Membership and Logger, with its
// defaults, so that --help says what a proxy.Config with nothing in it does.
func (f *ProxyFlags) AddFlags(fs *pflag.FlagSet) {
	c, d := &f.cfg, proxy.Config{}.WithDefaults()
	fs.StringVar(&c.HTTPAddr, "http", d.HTTPAddr, "host:port for clients; port 0 picks a free one (it is logged)")
	fs.StringVar(&c.GRPCAddr, "grpc", d.GRPCAddr, "host:port for nodes to register at")
	fs.StringVar(&c.Mode, "mode", d.Mode, "auto (a prefill and a decode node if both are there, else one that does both), disagg or nondisagg")
	fs.StringVar(&c.Handoff, "handoff", d.Handoff, "how KV gets from prefill to decode: "+handoff.List()+"; v0 is the published system")
	fs.StringVar(&c.Placement, "placement", d.Placement, "which node takes a request: "+placement.Help())
	fs.BoolVar(&c.AllowMixedProfiles, "allow-mixed-profiles", false, "take nodes whose profiles differ, of the same model and KV layout")
	fs.DurationVar(&c.LeaseTTL, "lease-ttl", d.LeaseTTL, "how long a node may be silent before it is lost")
	fs.DurationVar(&c.NodeWait, "node-wait", d.NodeWait, "how long a request waits for its first nodes; 0: not at all. One whose node was lost waits --lease-ttl for another")
	fs.DurationVar(&c.RequestTimeout, "request-timeout", d.RequestTimeout, "deadline of a request that does not ask for less")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", d.DrainTimeout, "how long running requests may take to end on SIGTERM; 0: they are ended at once")
	fs.IntVar(&c.MaxConnections, "max-connections", d.MaxConnections, "clients' connections, and with them requests, held at once; one address gets three quarters of them at most")
	fs.IntVar(&c.MaxQueue, "max-queue", d.MaxQueue, "requests that wait for their turn; beyond it clients get 429 and are told when to come back; running streams do not count")
	fs.DurationVar(&c.MaxQueueTime, "max-queue-time", d.MaxQueueTime, "longest wait to expect, by what is ahead and how fast it was worked off lately; beyond it clients get 429, so that those taken on keep their latency (default no limit)")
	fs.Int64Var(&c.MaxBodyBytes, "max-body", d.MaxBodyBytes, "longest request body, in bytes")
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
