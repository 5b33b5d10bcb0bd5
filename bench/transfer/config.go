package transfer

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"kvferry/bench"
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

	// Duration is how long a point's window is. Default 2 s.
	Duration time.Duration
	// Iterations, if not 0, are the batches of each thread in a point, instead of
	// Duration.
	Iterations int
	// Warmup comes before. Default 200 ms; negative is none.
	Warmup time.Duration
	// Segment is the memory at either end in bytes. Default 1 GiB, or an eighth of
	// this machine's memory if that is less.
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

	Out      string // folder for results.json, results.csv and report.html; none if empty
	Command  []string
	Stdout   io.Writer // the report, default none
	Format   Format
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
	// Logger is the rails'. Default slog.Default.
	Logger *slog.Logger
}

// A Format is how the report is printed.
type Format string

const (
	Text     Format = "text"
	JSON     Format = "json"
	CSV      Format = "csv"
	Perftest Format = "perftest" // lines as ib_write_bw prints them
)

func (c *Config) setDefaults() {
	if c.Location == "" {
		c.Location = topology.Any
	}
	if len(c.Counts) == 0 {
		c.Counts = []int{len(c.Rails)}
	}
	if len(c.Selects) == 0 {
		c.Selects = []transport.Selection{transport.Affinity}
	}
	if len(c.Ops) == 0 {
		c.Ops = []transport.Op{transport.Write}
	}
	if len(c.Blocks) == 0 {
		c.Blocks = []int64{1 << 20}
	}
	for _, list := range []struct {
		list *[]int
		def  int
	}{{&c.Batches, 16}, {&c.Threads, 1}, {&c.Depths, 4}} {
		if len(*list.list) == 0 {
			*list.list = []int{list.def}
		}
	}
	for _, d := range []struct {
		d   *time.Duration
		def time.Duration
	}{{&c.Duration, 2 * time.Second}, {&c.Warmup, 200 * time.Millisecond}, {&c.Timeout, 10 * time.Second}} {
		if *d.d == 0 {
			*d.d = d.def
		}
	}
	if c.Segment == 0 {
		c.Segment = defaultSegment()
	}
	if c.Slice == 0 {
		c.Slice = 1 << 20
	}
	if c.Format == "" {
		c.Format = Text
	}
	if c.Stdout == nil {
		c.Stdout = io.Discard
	}
	if c.Progress == nil {
		c.Progress, c.Terminal = io.Discard, false
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate lists every fault, naming the field and the fix.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("transfer: Config."+format, args...))
	}
	if err := validRails(c.Rails, c.Server == ""); err != nil {
		bad("Rails: %w", err)
	}
	if c.Server != "" && slices.Contains(c.Rails, Mem) {
		bad("Server is %q: the rail %s has both ends in this process: leave one out", c.Server, Mem)
	}
	for _, n := range c.Counts {
		if len(c.Rails) > 0 && (n < 1 || n > len(c.Rails)) {
			bad("Counts has %d: use 1 to %d, which is how many rails are given", n, len(c.Rails))
		}
	}
	for _, s := range c.Selects {
		if _, err := transport.ParseSelection(string(s)); err != nil {
			bad("Selects: %w", err)
		}
	}
	if n := len(c.RailLimits); n > 0 && n != len(c.Rails) {
		bad("RailLimits has %d rates and there are %d rails: give one each, or one Limit of all", n, len(c.Rails))
	}
	for _, v := range c.RailLimits {
		if !(v > 0) {
			bad("RailLimits has %v: use rates above 0", v)
		}
	}
	if len(c.RailLimits) > 0 && c.Limit != 0 {
		bad("Limit is given beside RailLimits: leave one out")
	}
	for _, n := range c.Blocks {
		if n < 1 || n > maxSize {
			bad("Blocks has %d: use 1 byte to %s", n, FormatSize(maxSize))
		}
	}
	for _, list := range []struct {
		name string
		list []int
	}{{"Batches", c.Batches}, {"Threads", c.Threads}, {"Depths", c.Depths}} {
		for _, n := range list.list {
			if n < 1 || n > maxCount {
				bad("%s has %d: use 1 to %d", list.name, n, maxCount)
			}
		}
	}
	if c.Duration != 0 && c.Duration < time.Millisecond {
		bad("Duration is %v: use 1ms or more, or 0 for 2s", c.Duration)
	}
	if c.Timeout < 0 {
		bad("Timeout is %v: use a positive one, or 0 for 10s", c.Timeout)
	}
	if c.Iterations < 0 {
		bad("Iterations is %d: use 1 or more, or 0 to measure for Duration", c.Iterations)
	}
	if c.Segment < 0 || c.Segment > maxSize {
		bad("Segment is %d: use up to %s, or 0 for the default", c.Segment, FormatSize(maxSize))
	}
	if c.Slice < 0 || c.Slice > transport.MaxSlice {
		bad("Slice is %d: use 1 to %d bytes, or 0 for the default", c.Slice, transport.MaxSlice)
	}
	if !slices.Contains([]Format{"", Text, JSON, CSV, Perftest}, c.Format) {
		bad("Format is %q: use text, json, csv or perftest", c.Format)
	}
	if len(errs) == 0 {
		d := *c
		d.setDefaults()
		if fit, _ := d.plans(); len(fit) == 0 {
			bad("Segment is %s: one batch of each thread, %s at the least, does not fit into it: raise it, or lower Blocks, Batches or Threads",
				FormatSize(d.Segment), FormatSize(slices.Min(d.Blocks)*int64(slices.Min(d.Batches))*int64(slices.Min(d.Threads))))
		}
		if memory := bench.DescribeMachine().MemoryBytes; c.Server == "" && memory > 0 && d.Segment > memory/2 {
			bad("Segment is %s: both ends are on this machine, which has %d MiB: lower it", FormatSize(d.Segment), memory>>20)
		}
	}
	return errors.Join(errs...)
}

// validRails checks specs; here says that both ends will use them on this machine.
func validRails(specs []string, here bool) error {
	if len(specs) == 0 {
		return fmt.Errorf("none is given: name one, %s, or %s", rails.Forms, Mem)
	}
	var errs []error
	mem := slices.Contains(specs, Mem)
	for _, text := range specs {
		if text == Mem {
			continue
		}
		s, err := rails.Parse(text)
		switch {
		case err != nil:
			errs = append(errs, err)
		case mem:
			errs = append(errs, fmt.Errorf("rail %q beside %s, which reaches this process only: leave one out", text, Mem))
		case here && s.Listen != "" && !strings.HasSuffix(s.Listen, ":0"):
			errs = append(errs, fmt.Errorf("rail %q: both ends are on this machine and cannot both listen there: use port 0", text))
		}
	}
	return errors.Join(errs...)
}
