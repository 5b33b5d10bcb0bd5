package node

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
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

// Logger builds the logger, or names the flag that is wrong.
func (f *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
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
		return nil, fmt.Errorf("--log-level: %q: want debug, info, warn or error", f.Level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch f.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format: %q: want text or json", f.Format)
}
