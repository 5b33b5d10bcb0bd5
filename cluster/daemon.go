package cluster

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"kvferry/internal/config"
	"kvferry/node"
	"kvferry/proxy"
	"kvferry/transport/process"
)

// Trust texts say in the daemons' help who is trusted. A change of what a port can be used for
// belongs in here, and in the README.
const (
	// NodeTrust is of nodes.
	NodeTrust = `It trusts everybody who reaches its ports: nobody has a name or a password, and
nothing is encrypted. Whoever reaches --grpc can have it compute and generate, have it
connect to any address and write KV there, and free blocks that other nodes wait for.
Whoever reaches a port of --rail can take up connections, and needs the key of a
transfer for more: that opens the blocks of this transfer, to read or to write, until it
is over; over RDMA it opens the whole KV pool. Whoever sees the packets sees prompts,
tokens, KV and keys. Let only those reach them whom you trust.`
	// ProxyTrust is of the proxy.
	ProxyTrust = `It trusts everybody who reaches its ports: nobody has a name or a password, and
nothing is encrypted. Whoever reaches --http can have prompts computed, as many as the
queue takes, so that others wait or are refused, empty the prefix caches, profile the
proxy, and read the metrics and the nodes' addresses. A web page that a browser which
reaches it opens can have prompts computed and read, unless --allowed-origins says otherwise. Whoever reaches --grpc can register as a node: it is then given prompts and
answers them as it likes, and can take a node's place or keep nodes out, which stops the
service. Let only those reach them whom you trust.`
)

// tune prepares a daemon's process. Its threads have short turns of the CPUs: what is small does
// not wait there for bulk (package tcp has the figures). Its garbage collector runs after 20 %
// growth instead of 100 %. A daemon's live heap is a few KiB a stream, so that costs 0.3 us of
// CPU a token and takes a sixth off the memory of 1,000 streams, engine and proxy together; 30 %
// instead of 20 is 4 % more memory for 0.07 us. GOGC in the environment goes before.
func tune() {
	process.ShortTurns()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(20)
	}
}

// Run runs the daemon that s describes, a proxy or a node, until ctx ends and it has drained. It
// logs to standard error. listens is called once with the addresses at which it listens, if it
// is not nil; an error of it ends the daemon.
func (s *Spec) Run(ctx context.Context, isProxy bool, listens func(http, grpc string) error) error {
	tune()
	var bad config.Faults
	logger, err := s.logger(os.Stderr)
	bad.Check("", err)
	if listens == nil {
		listens = func(string, string) error { return nil }
	}
	if isProxy {
		cfg := s.ProxyConfig()
		cfg.Logger = logger
		bad.Check("", cfg.Validate())
		if err := bad.Err("proxy.Config"); err != nil {
			return err
		}
		p, err := proxy.New(cfg)
		if err != nil {
			return err
		}
		if err := listens(p.HTTPAddr(), p.GRPCAddr()); err != nil {
			return err
		}
		return p.Run(ctx)
	}
	cfg, err := s.NodeConfig()
	bad.Check("", err)
	config.Default(&cfg.Proxy, "127.0.0.1:9000")
	cfg.Logger = logger
	if cfg.Profile != nil { // that there is none is said already, and most else depends on it
		bad.Check("", cfg.Validate())
	}
	if err := bad.Err("node.Config"); err != nil {
		return err
	}
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	if err := listens("", n.GRPCAddr()); err != nil {
		return err
	}
	return n.Run(ctx)
}

// logger returns the logger that s describes, or names the fields that are wrong.
func (s *Spec) logger(w io.Writer) (*slog.Logger, error) {
	var bad config.Faults
	var level slog.Level // info
	if s.LogLevel != "" {
		err := level.UnmarshalText([]byte(s.LogLevel))
		bad.Refuse(err != nil, "LogLevel", s.LogLevel, "use debug, info, warn or error")
	}
	opts := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(w, opts)
	switch s.LogFormat {
	case "", "text":
	case "json":
		handler = slog.NewJSONHandler(w, opts)
	default:
		bad.Add("LogFormat", s.LogFormat, "use text or json")
	}
	return slog.New(handler), bad.Err("cluster.Spec")
}
