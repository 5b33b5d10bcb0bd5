package shm

import (
	"log/slog"
	"strings"

	"kvferry/internal/config"
)

// Config describes a rail. Name is required.
type Config struct {
	// Name of the rail, "shm/0".
	Name string
	// Logger gets a line when the rail is opened, for each connection that is refused, and for each
	// process that has stopped in the middle of a copy. Default slog.Default().
	Logger *slog.Logger
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if !strings.HasPrefix(c.Name, "shm/") || c.Name == "shm/" {
		bad.Add("Name", c.Name, "name the rail shm/ and a number, like shm/0")
	}
	return bad.Err("transport/shm.Config")
}
