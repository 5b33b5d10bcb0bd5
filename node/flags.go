package node

import (
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"kvferry/config"
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
