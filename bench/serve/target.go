package serve

import (
	"context"
	"encoding/json"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/internal/otlp"
	"kvferry/load"
)

// A Target answers loads. Its methods are called by one goroutine, one after another.
type Target interface {
	// Open waits until it answers, finds out what it is and how it is to be asked. What is found
	// there is found before any load, and never in one.
	Open(ctx context.Context) (Facts, error)
	// Run asks what the load says, and tells done of each request that is over, of one at a
	// time. It returns how long that took. An error is ctx's or the load's.
	Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error)
	// Close ends what Open began. It may be called after a failed Open.
	Close() error
}

// Facts are what a target is.
type Facts struct {
	Clock    string // report.ClockReal or report.ClockVirtual
	Label    string // what is measured and what is modelled, in a sentence
	BaseURL  string // empty in virtual time
	Endpoint string
	Backend  string
	Workers  []string // base URLs, where there are several
	Model    string
	Vocab    int             // token ids of prompts are below it; 0 is not known
	Accepts  *client.Accepts // what the server was found to accept; nil in virtual time
	System   any             // the cluster, where it is modelled
	Cluster  string          // in words, where it is ours or modelled
	Pids     []int           // of the target's processes on this machine, as far as they are ours
	Here     bool            // all KV moves on this machine
	Notes    []string
	// Tokenizer is the target's own, for loads of texts; nil where it has none that is known here.
	Tokenizer func(context.Context) (load.Tokenizer, error)
	// Scrape reads the server's own figures before a run; nil where there is no server.
	Scrape func(context.Context) *observe.Scrape
	// About is what the server says of itself, in JSON, nil if it says nothing.
	About func(context.Context) json.RawMessage
	// Flush empties its prefix cache, before each load; nil where nothing is to be emptied.
	Flush func(context.Context) error
	// Spans is what became of the last run's spans; nil where none are sent.
	Spans func() otlp.Counts
}
