package daemon

import (
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/internal/config"
)

// What the daemons' help says of who is trusted. A change of what a port can be used for
// belongs in here, and in the README.
const (
	// NodeTrust is of prefill, decode and non-disaggregated nodes.
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

// LogFlags is the logging half of every daemon's command line.
type LogFlags struct {
	Level  string // debug, info, warn or error
	Format string // text or json
}

// AddFlags adds --log-level and --log-format.
func (f *LogFlags) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.Level, "log-level", "info", "least level to log: debug (a line for every request), info, warn, error")
	fs.StringVar(&f.Format, "log-format", "text", "how to log to standard error: text or json")
}

// Logger builds the logger, or names the flags that are wrong.
func (f *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	var bad config.Faults
	switch strings.ToLower(f.Level) {
	case "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	default:
		bad.Add("--log-level", f.Level, "use debug, info, warn or error")
	}
	opts := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(w, opts)
	switch f.Format {
	case "text":
	case "json":
		handler = slog.NewJSONHandler(w, opts)
	default:
		bad.Add("--log-format", f.Format, "use text or json")
	}
	if err := bad.Err(""); err != nil {
		return nil, err
	}
	return slog.New(handler), nil
}
