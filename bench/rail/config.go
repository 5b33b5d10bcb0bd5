package rail

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// Mem is the rail spec of the rail in memory: both ends are this process.
const Mem = "mem"

// DefaultPort is where a server listens, as perftest's do.
const DefaultPort = "18515"

// Config describes a run. Rails is required; a zero value of another field is its
// default.
type Config struct {
	// Rails are specs that package rails reads, or Mem. Several are aggregated by
	// the transfer engine.
	Rails []string
	// Server is the control connection's host:port of a target that runs
	// elsewhere. Default: the target is a child process.
	Server string

	// A point is measured for each combination of these.
	Counts  []int                 // how many of Rails, from the first; default all
	Selects []transport.Selection // default affinity
	Ops     []transport.Op        // default write
	Blocks  []int64               // bytes; default 1 MiB
	Batches []int                 // blocks a batch; default 16
	Threads []int                 // default 1
	Depths  []int                 // batches under way, of each thread; default 4
	Peers   []int                 // initiators, each with rails and threads of its own; default 1
	Imms    []bool                // with an immediate or without; default without

	// Latency measures one batch at a time, from the call of Submit until its caller knows that it
	// is done: Depths is 1, and so is the default of Batches. Default blocks are LatencyBlocks.
	Latency bool
	// Beside are names of [ReferenceNames] that are measured beside latencies.
	Beside []string
	// Models are those whose KV's sizes are blocks too; BlockTokens are tokens of a block of KV,
	// default 16.
	Models      []Layout
	BlockTokens int

	// Duration is how long a point is measured. Default 2 s.
	Duration time.Duration
	// Iterations, if not 0, are the batches of each thread in a point, instead of
	// Duration.
	Iterations int
	// Warmup comes before. Default 200 ms; negative is none.
	Warmup time.Duration
	// Segment is the memory at either end in bytes. Default 1 GiB, or an eighth of
	// what this machine has left if that is less.
	Segment int64
	// Location is the NUMA node that the memory comes from, "cpu:1", at this end and
	// at a target that is a child process: rails near it are preferred. Default
	// anywhere, and any rail.
	Location string
	// Matrix is a file with rows that replace those of this machine's topology.
	Matrix string
	// Slice is transport.Config.SliceSize. Default 1 MiB, as there.
	Slice int
	// Timeout bounds one batch, and each answer on the control connection beyond
	// the time that the memory takes. Default 10 s.
	Timeout time.Duration
	// Check compares every block that was transferred.
	Check bool
	// Limit is the line rate of all rails to compare with, in bytes a second. A
	// point on n of N rails is compared with n/N of it. Default what the NICs say of
	// themselves; negative is none.
	Limit float64
	// RailLimits, if not empty, are the line rates of each of Rails, instead of
	// Limit: for rails that are not equally fast.
	RailLimits []float64
	// Seed is that of the order of blocks.
	Seed uint64
	// Corrupt are blocks of the first thread, in its order, that have a wrong byte
	// at the source in each point: what Check is there to find.
	Corrupt []int

	Out      string // folder for results.json, table.md and report.html; none if empty
	Command  []string
	Stdout   io.Writer // the report, default none
	Format   Format
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
	// Logger is the rails'. Default slog.Default.
	Logger *slog.Logger

	kv []KVSize // of Models
	// steady is for a check: rates are measured from when they are steady, see rateMeter. Duration is how long at the
	// least, up to ten times as long where that takes it. Blocks and Depths are the most; on slow
	// links they are less. Warmup and Iterations are not for it, nor are CPU times.
	steady bool
}

// A Format is how the report is printed.
type Format string

const (
	Text     Format = "text"
	JSON     Format = "json"
	CSV      Format = "csv"
	Perftest Format = "perftest" // lines as ib_write_bw prints them
)

// list gives a list that is empty its default.
func list[T any](l *[]T, def ...T) {
	if len(*l) == 0 {
		*l = def
	}
}

func (c *Config) setDefaults() {
	config.Default(&c.Location, topology.Any)
	list(&c.Counts, len(c.Rails))
	list(&c.Selects, transport.Affinity)
	list(&c.Ops, transport.Write)
	list(&c.Imms, false)
	config.Default(&c.BlockTokens, 16)
	c.kv = c.addModels()
	batch, depth := 16, 4
	if c.Latency {
		batch, depth = 1, 1
		list(&c.Blocks, LatencyBlocks...)
	}
	list(&c.Blocks, 1<<20)
	list(&c.Batches, batch)
	list(&c.Threads, 1)
	list(&c.Depths, depth)
	list(&c.Peers, 1)
	config.Default(&c.Duration, 2*time.Second)
	config.Default(&c.Warmup, 200*time.Millisecond)
	config.Default(&c.Timeout, 10*time.Second)
	config.Default(&c.Segment, DefaultSegment())
	config.Default(&c.Slice, 1<<20)
	config.Default(&c.Format, Text)
	config.Default(&c.Stdout, io.Discard)
	config.Default(&c.Progress, io.Discard)
	config.Default(&c.Logger, slog.Default())
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	checkRails(&bad, c.Rails, c.Server == "", !c.steady && c.Server == "")
	if c.Server != "" {
		bad.Check("Server", checkServer(c.Server))
		bad.Refuse(slices.Contains(c.Rails, Mem), "Server", c.Server, "the rail %s has both ends in this process: leave one out", Mem)
	}
	c.checkSetups(&bad)
	c.checkLimits(&bad)
	c.checkPoints(&bad)
	c.checkLatency(&bad)
	bad.Refuse(c.Duration != 0 && c.Duration < time.Millisecond, "Duration", c.Duration, "use 1ms or more")
	bad.Refuse(c.Timeout < 0, "Timeout", c.Timeout, "use a positive duration")
	bad.Refuse(c.Iterations < 0, "Iterations", c.Iterations, "use 1 or more")
	bad.Refuse(c.Slice < 0 || c.Slice > transport.MaxSlice, "Slice", config.FormatSize(int64(c.Slice)), "use 1 byte to %s", config.FormatSize(transport.MaxSlice))
	bad.Refuse(!slices.Contains([]Format{"", Text, JSON, CSV, Perftest}, c.Format), "Format", c.Format, "use text, json, csv or perftest")
	checkMemory(&bad, c.Segment, c.Location, c.Matrix)
	if len(bad) == 0 {
		d := *c
		d.setDefaults()
		d.checkFit(&bad)
	}
	return bad.Err("bench/rail.Config")
}

// checkSetups checks how many of the rails there are, and how one is chosen.
func (c *Config) checkSetups(bad *config.Faults) {
	if len(c.Rails) > 0 {
		for _, n := range c.Counts {
			config.Between(bad, "Counts", n, 1, len(c.Rails))
		}
	}
	for _, s := range c.Selects {
		_, err := transport.ParseSelection(string(s))
		bad.Check("Selects", err)
	}
}

// checkLimits checks the line rates to compare with: one for all rails, or one each.
func (c *Config) checkLimits(bad *config.Faults) {
	if n := len(c.RailLimits); n > 0 && n != len(c.Rails) {
		bad.Check("RailLimits", fmt.Errorf("%d rates: there are %d rails: give a rate for each, or one for all together", n, len(c.Rails)))
	}
	for _, v := range c.RailLimits {
		bad.Refuse(!(v > 0), "RailLimits", v, "use a rate above 0")
	}
	bad.Refuse(len(c.RailLimits) > 0 && c.Limit != 0, "Limit", c.Limit, "each rail has a rate of its own: leave one out")
}

// checkPoints checks the lists of a setup's points: one is measured for each combination.
func (c *Config) checkPoints(bad *config.Faults) {
	for _, n := range c.Blocks {
		bad.Refuse(n < 1 || n > config.MaxSize, "Blocks", config.FormatSize(n), "use 1 byte to %s", config.FormatSize(config.MaxSize))
	}
	for _, list := range []struct {
		name string
		list []int
	}{{"Batches", c.Batches}, {"Threads", c.Threads}, {"Depths", c.Depths}} {
		for _, n := range list.list {
			config.Between(bad, list.name, n, 1, config.MaxCount)
		}
	}
}

// checkFit holds the points to the segment, and the segment to this machine.
func (c *Config) checkFit(bad *config.Faults) {
	if fit, _ := c.plans(); len(fit) == 0 {
		bad.Add("Segment", config.FormatSize(c.Segment), "one batch of each thread, %s at the least, does not fit into it: raise it, or use smaller blocks, smaller batches or fewer threads",
			config.FormatSize(slices.Min(c.Blocks)*int64(slices.Min(c.Batches))*int64(slices.Min(c.Threads))))
	}
	ends := int64(1)
	if c.Server == "" {
		ends = 2
	}
	if left, ok := kvcache.Available(); ok && c.Segment > left/ends {
		bad.Add("Segment", config.FormatSize(c.Segment), "%d of them are on this machine, which has %d MiB of memory left: lower it", ends, left>>20)
	}
}

// checkMemory checks what either end has: the size of its memory, and where it is.
func checkMemory(bad *config.Faults, segment int64, location, matrix string) {
	bad.Refuse(segment < 0 || segment > config.MaxSize, "Segment", config.FormatSize(segment), "use 1 byte to %s", config.FormatSize(config.MaxSize))
	if location != "" {
		bad.Check("Location", topology.CheckLocation(location))
	}
	if matrix != "" {
		_, err := topology.ReadMatrix(matrix)
		bad.Check("Matrix", err)
	}
}

// checkServer reads host, or host:port, of a target to dial.
func checkServer(text string) error {
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil || !strings.Contains(text, ":") {
		text = net.JoinHostPort(strings.Trim(text, "[]"), DefaultPort)
	}
	return config.ServerAddress(text)
}

// serverAddress is what checkServer has read, with a port.
func serverAddress(text string) string {
	if _, _, err := net.SplitHostPort(text); err == nil {
		return text
	}
	return net.JoinHostPort(strings.Trim(text, "[]"), DefaultPort)
}

// checkRails checks specs. here says that both ends will use them on this machine, and mem that Mem may be one.
func checkRails(bad *config.Faults, specs []string, here, mem bool) {
	if len(specs) == 0 {
		forms := rails.Forms()
		if mem {
			forms += ", or " + Mem
		}
		bad.Add("Rails", nil, "name one, %s", forms)
	}
	real := slices.DeleteFunc(slices.Clone(specs), func(s string) bool { return s == Mem })
	if n := len(specs) - len(real); n > 0 && len(real) > 0 {
		bad.Add("Rails", Mem, "it reaches this process only, and %q others: leave one out", real)
	}
	for _, s := range rails.Check(bad, real) {
		if here && s.Listen != "" && !strings.HasSuffix(s.Listen, ":0") {
			bad.Add("Rails", s, "both ends are on this machine and cannot both listen there: use port 0")
		}
	}
}
