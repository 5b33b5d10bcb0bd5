package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// railFlags is what the command lines of kvferry rail bench, failover and check set, and of the targets that they have on
// another machine.
type railFlags struct {
	rail.Config
	failover rail.FailoverConfig // of these what Config does not have
	check    rail.CheckConfig
	target   rail.ServerConfig
	serve    bool // be the target

	warmup       time.Duration // 0 is none
	perftest     bool
	limit        []float64 // rates, one for all rails or one each; none
	faults       []string
	cut, restore []rail.Annotation
	probes       int // 0 is none
}

// Roles of the commands that take knobs of rails.
const (
	benching    knob.Roles = 1 << iota // kvferry rail bench
	benchTarget                        // kvferry rail bench --server
	failingOver                        // kvferry rail failover
	checking                           // kvferry rail check
	checkTarget                        // kvferry rail check --listen
	anyTarget   = benchTarget | checkTarget
	loading     = benching | failingOver
)

// railHelp describes --rail.
const railHelp = "what to move bytes over (required): one, several with commas between them, or the flag again"

// railKnobs are the flags of all of these commands, in the order in which help lists them. A role's default is in Config
// if it is not here.
var railKnobs = knob.Table[railFlags]{
	{Name: "rail", Roles: loading | checking | anyTarget, Fields: []string{"Rails"}, Value: func(s *railFlags) pflag.Value { return (*rails.Specs)(&s.Rails) }, Help: railHelp},
	{Name: "rails", Roles: benching, Fields: []string{"Counts"}, Value: knob.Parsed(func(s *railFlags) *[]int { return &s.Counts }, config.ParseCounts), Help: "how many of the rails are used, from the first: a list or a sweep: 1,2,4 (default all)"},
	{Name: "select", Roles: loading, Fields: []string{"Selects"}, Default: "affinity", Value: knob.Parsed(func(s *railFlags) *[]transport.Selection { return &s.Selects }, parseEach(transport.ParseSelection)), Help: "how slices are spread over rails: affinity, static, round-robin or single; kvferry rail bench takes a list"},
	{Name: "op", Roles: benching, Fields: []string{"Ops"}, Default: "write", Values: words("write", "read", "both"), Value: knob.Parsed(func(s *railFlags) *[]transport.Op { return &s.Ops }, parseWord(map[string][]transport.Op{"write": {transport.Write}, "read": {transport.Read}, "both": {transport.Write, transport.Read}}, "write, read or both")), Help: "write, read or both"},
	{Name: "duration", Roles: failingOver, Fields: []string{"Duration"}, Default: "8s", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.Duration }), Help: "how long"},
	{Name: "fault", Roles: failingOver, Fields: []string{"Faults"}, Value: knob.List(func(s *railFlags) *[]string { return &s.faults }), Help: "what will happen, and when: see above"},
	{Name: "cut", Roles: failingOver, Value: knob.Parsed(func(s *railFlags) *[]rail.Annotation { return &s.cut }, shortFault(rail.LinkDown)), Help: "TIME:RAIL, short for --fault TIME:link-down:RAIL"},
	{Name: "restore", Roles: failingOver, Value: knob.Parsed(func(s *railFlags) *[]rail.Annotation { return &s.restore }, shortFault(rail.LinkUp)), Help: "TIME:RAIL, short for --fault TIME:link-up:RAIL"},
	{Name: "faults", Roles: failingOver, Fields: []string{"FaultFile"}, Value: knob.Text(func(s *railFlags) *string { return &s.failover.FaultFile }), Help: "file of JSON lines that the lab writes of its faults as they happen"},
	{Name: "sample", Roles: failingOver, Fields: []string{"Sample"}, Default: "10ms", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.failover.Sample }), Help: "distance of two readings of the rails' counts"},
	{Name: "block", Roles: benching, Fields: []string{"Blocks"}, Value: knob.Parsed(blocks, config.ParseSizes), Help: "bytes of a block: a list, or a sweep that doubles: 4k,64k,1m or 4k:4m (default 1m, or with --latency 8 to 16m, or what --model-kv says)"},
	{Name: "block", Roles: failingOver, Fields: []string{"Blocks"}, Default: "256k", Value: knob.Parsed(blocks, config.ParseSizes), Help: "bytes of a block"},
	{Name: "batch", Roles: loading, Fields: []string{"Batches"}, Default: "16", Value: knob.Parsed(func(s *railFlags) *[]int { return &s.Batches }, config.ParseCounts), Help: "blocks of a batch; kvferry rail bench takes a list or a sweep"},
	{Name: "threads", Roles: loading, Fields: []string{"Threads"}, Default: "1", Value: knob.Parsed(func(s *railFlags) *[]int { return &s.Threads }, config.ParseCounts), Help: "threads that submit, each in its own range of the memory; kvferry rail bench takes a list or a sweep"},
	{Name: "depth", Roles: benching, Fields: []string{"Depths"}, Default: "4", Value: knob.Parsed(depths, config.ParseCounts), Help: "batches that each thread has under way: a list or a sweep"},
	{Name: "depth", Roles: failingOver, Fields: []string{"Depths"}, Default: "8", Value: knob.Parsed(depths, config.ParseCounts), Help: "batches that each thread has under way"},
	{Name: "peers", Roles: benching, Fields: []string{"Peers"}, Default: "1", Value: knob.Parsed(func(s *railFlags) *[]int { return &s.Peers }, config.ParseCounts), Help: "initiators at once, each with its own connections: a list or a sweep"},
	{Name: "imm", Roles: benching, Fields: []string{"Imms"}, Values: words("no", "yes", "both"), Value: knob.Parsed(func(s *railFlags) *[]bool { return &s.Imms }, parseWord(map[string][]bool{"no": {false}, "yes": {true}, "both": {false, true}}, "no, yes or both")), Help: "batches with an immediate: no, yes or both (default no; with --latency both)"},
	{Name: "duration", Roles: benching, Fields: []string{"Duration"}, Default: "2s", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.Duration }), Help: "how long each point is measured"},
	{Name: "iters", Roles: benching, Fields: []string{"Iterations"}, Positive: true, Value: knob.Int(func(s *railFlags) *int { return &s.Iterations }), Help: "measure this many batches of each thread instead"},
	{Name: "warmup", Roles: benching, Fields: []string{"Warmup"}, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.warmup }), Help: "run each point for this long before; 0: it is measured at once"},
	{Name: "slice", Roles: failingOver, Fields: []string{"Slice"}, Default: "256k", Value: knob.Parsed(slice, parseSlice), Help: "largest piece that a rail carries in one operation; samples see whole ones"},
	{Name: "segment", Roles: loading | checking | anyTarget, Fields: []string{"Segment"}, Value: knob.Parsed(func(s *railFlags) *int64 { return &s.Segment }, config.ParseSize), Help: "memory at either end; of a target, the most it gives (default 1g, or an eighth of the machine's)"},
	{Name: "location", Roles: benching | checking | anyTarget, Fields: []string{"Location"}, Default: "*", Value: knob.Text(func(s *railFlags) *string { return &s.Location }), Help: "NUMA node of the memory at this end, cpu:1: rails near it are preferred (kvferry rail topo shows which)"},
	{Name: "matrix", Roles: benching | benchTarget, Fields: []string{"Matrix"}, Value: knob.Text(func(s *railFlags) *string { return &s.Matrix }), Help: "JSON file with rows that replace those of kvferry rail topo"},
	{Name: "slice", Roles: benching, Fields: []string{"Slice"}, Value: knob.Parsed(slice, parseSlice), Help: "largest piece that a rail carries in one operation (default 1m)"},
	{Name: "duration", Roles: checking, Fields: []string{"Duration"}, Default: "1s", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.Duration }), Help: "how long each rate is measured from when it is steady, of a rail, in a direction: longer, up to ten times, where it takes that to be sure"},
	{Name: "probes", Roles: checking, Fields: []string{"Probes"}, Value: knob.Int(func(s *railFlags) *int { return &s.probes }), Help: "datagrams a rail that are as large as a frame; 0: none"},
	{Name: "warmup", Roles: failingOver, Fields: []string{"Warmup"}, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.warmup }), Help: "load for this long before it counts; 0: it counts at once"},
	{Name: "timeout", Roles: benching | checking, Fields: []string{"Timeout"}, Default: "10s", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.Timeout }), Help: "one batch fails after this long, and so does a target that does not answer"},
	{Name: "timeout", Roles: failingOver, Fields: []string{"Timeout"}, Default: "30s", Positive: true, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.Timeout }), Help: "one batch fails after this long: longer than any fault"},
	{Name: "check", Roles: benching, Fields: []string{"Check"}, Value: knob.Bool(func(s *railFlags) *bool { return &s.Check }), Help: "compare every block that was transferred"},
	{Name: "latency", Roles: benching, Fields: []string{"Latency"}, Value: knob.Bool(func(s *railFlags) *bool { return &s.Latency }), Help: "one batch under way (--depth 1), with one block unless --batch is given: see above"},
	{Name: "beside", Roles: benching, Fields: []string{"Beside"}, Values: words(append([]string{"none"}, rail.ReferenceNames...)...), Value: knob.Parsed(func(s *railFlags) *[]string { return &s.Beside }, orNone(parseEach(rail.ParseReference), []string{})), Help: "with --latency, what else is measured: a list of bare, ucx, iperf3, or none (default bare)"},
	{Name: "model-kv", Roles: benching, Fields: []string{"Models"}, Values: rail.LayoutNames, Value: knob.Parsed(func(s *railFlags) *[]rail.Layout { return &s.Models }, parseEach(rail.ReadLayout)), Help: "add the sizes of models' KV: a list of config.json files and names (" + strings.Join(rail.LayoutNames(), ", ") + ")"},
	{Name: "kv-block-tokens", Roles: benching, Fields: []string{"BlockTokens"}, Default: "16", Positive: true, Value: knob.Int(func(s *railFlags) *int { return &s.BlockTokens }), Help: "tokens of a block of KV, for --model-kv"},
	{Name: "limit", Roles: benching, Fields: []string{"Limit", "RailLimits"}, Value: knob.Parsed(func(s *railFlags) *[]float64 { return &s.limit }, orNone(parseRates, []float64{-1})), Help: "line rate of all rails to compare with: 100gbit, 12.5GB/s, none; or a list of one rate for each rail (default what the NICs say of themselves)"},
	{Name: "line-rate", Roles: checking, Fields: []string{"RailLimits"}, Value: knob.Parsed(func(s *railFlags) *[]float64 { return &s.limit }, parseRates), Help: "speed of every rail, 100gbit, or a list of one for each (default what the NICs say of themselves)"},
	{Name: "min-of-line", Roles: checking, Fields: []string{"Limits.Line"}, Value: limit(func(l *rail.Limits) *float64 { return &l.Line }), Help: "a rail fails whose slower direction has less of its line rate; 0: none does"},
	{Name: "min-of-best", Roles: checking, Fields: []string{"Limits.Best"}, Value: limit(func(l *rail.Limits) *float64 { return &l.Best }), Help: "a rail fails that has less of the best rail's share; 0: none does"},
	{Name: "min-together", Roles: checking, Fields: []string{"Limits.Together"}, Value: limit(func(l *rail.Limits) *float64 { return &l.Together }), Help: "all together fail with less of the sum of each alone; 0: they do not"},
	{Name: "max-lost", Roles: checking, Fields: []string{"Limits.Lost"}, Value: limit(func(l *rail.Limits) *float64 { return &l.Lost }), Help: "share of probes that may be lost; 0: any"},
	{Name: "max-carrier", Roles: checking, Fields: []string{"Limits.Flaps"}, Value: knob.Int(func(s *railFlags) *int { return &s.check.Limits.Flaps }), Help: "changes of a carrier since the machine is up; 0: any number"},
	{Name: "max-clock", Roles: checking, Fields: []string{"Limits.Clock"}, Value: knob.Duration(func(s *railFlags) *time.Duration { return &s.check.Limits.Clock }), Help: "that the clocks may be apart; 0: any"},
	{Name: "seed", Roles: loading, Fields: []string{"Seed"}, Value: knob.Uint64(func(s *railFlags) *uint64 { return &s.Seed }), Help: "of the order of blocks"},
	{Name: "out", Roles: loading, Fields: []string{"Out"}, Value: knob.Text(func(s *railFlags) *string { return &s.Out }), Help: "folder for the results (default kvferry-out/<time>)"},
	{Name: "out", Roles: checking, Fields: []string{"Out"}, Value: knob.Text(func(s *railFlags) *string { return &s.Out }), Help: outHelp},
	{Name: "format", Roles: benching, Fields: []string{"Format"}, Default: "text", Values: words("text", "json", "csv"), Value: knob.Text(func(s *railFlags) *rail.Format { return &s.Format }), Help: "what is printed: text, json or csv"},
	{Name: "perftest", Roles: benching, Value: knob.Bool(func(s *railFlags) *bool { return &s.perftest }), Help: "print lines as ib_write_bw does; its MB are 2^20 bytes"},
	{Name: "server", Roles: benchTarget, Fields: []string{"Serve"}, Value: knob.Bool(func(s *railFlags) *bool { return &s.serve }), Help: "be the target"},
	{Name: "listen", Roles: checkTarget, Fields: []string{"Serve"}, Value: knob.Bool(func(s *railFlags) *bool { return &s.serve }), Help: "be the other end"},
	{Name: "listen", Roles: benchTarget, Needs: "server", Fields: []string{"Listen"}, Default: ":" + rail.DefaultPort, Value: listenAt, Help: "with --server: host:port of the control connection"},
	{Name: "address", Roles: checkTarget, Needs: "listen", Fields: []string{"Listen"}, Default: ":" + rail.DefaultPort, Value: listenAt, Help: "with --listen: host:port to listen at"},
	{Name: "matrix", Roles: checkTarget, Needs: "listen", Fields: []string{"Matrix"}, Value: knob.Text(func(s *railFlags) *string { return &s.Matrix }), Help: "with --listen: JSON file with rows that replace those of kvferry rail topo"},
	{Name: "once", Roles: benchTarget, Needs: "server", Fields: []string{"Once"}, Value: knob.Bool(func(s *railFlags) *bool { return &s.target.Once }), Help: "with --server: end after one client"},
}

func blocks(s *railFlags) *[]int64 { return &s.Blocks }
func depths(s *railFlags) *[]int   { return &s.Depths }
func slice(s *railFlags) *int      { return &s.Slice }

var listenAt = knob.Text(func(s *railFlags) *string { return &s.target.Listen })

func limit(of func(*rail.Limits) *float64) func(*railFlags) pflag.Value {
	return knob.Float(func(s *railFlags) *float64 { return of(&s.check.Limits) })
}

func words(all ...string) func() []string { return func() []string { return all } }

// railRun is one of the commands.
type railRun struct {
	role   knob.Roles // of the initiator
	target knob.Roles // of the target that the command can be; 0: none
	says   string     // of a target, before where it listens
	level  slog.Level // least to log
	// settle completes f from flags that were given, and returns what its configuration says of itself.
	settle func(f *railFlags, given func(flag string) bool, bad *config.Faults) error
	run    func(context.Context, *railFlags) error
}

// command gives cmd its flags and what it does.
func (r railRun) command(cmd *cobra.Command, f *railFlags, terminal bool) *cobra.Command {
	knobs := railKnobs.For(r.role | r.target)
	names := railNames(r.role)
	for _, g := range knobs.Flags(f, r.role) {
		cmd.Flags().AddFlagSet(g.Flags)
	}
	cmd.Args = AtMostOne("HOST")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		bad, given := knob.Unread(cmd.Flags()), cmd.Flags().Changed
		f.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: r.level}))
		if f.serve {
			return r.serve(cmd, f, args, bad)
		}
		f.Command, f.Out = os.Args, resultsFolder(f.Out)
		f.Stdout, f.Progress, f.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
		if len(args) > 0 {
			f.Server = args[0]
		}
		err := r.settle(f, given, &bad)
		if err = Check(bad, err, names); err != nil {
			return err
		}
		return config.Named(r.run(cmd.Context(), f), names)
	}
	return cmd
}

// serve is the command as a target. What the initiator chooses is refused here rather than ignored.
func (r railRun) serve(cmd *cobra.Command, f *railFlags, args []string, bad config.Faults) error {
	cfg, names := f.target, railNames(r.target)
	if len(args) > 0 {
		bad.Add("HOST", args[0], "a target waits for others: leave it or %s out", names["Serve"])
	}
	initiators := slices.DeleteFunc(railKnobs.For(r.role), func(k knob.Knob[railFlags]) bool { return k.Roles&r.target != 0 })
	bad = append(bad, initiators.Refuse("the other end says it: leave it out", cmd.Flags().Changed)...)
	cfg.Rails, cfg.Segment, cfg.Location, cfg.Matrix, cfg.Log, cfg.Logger = f.Rails, f.Segment, f.Location, f.Matrix, cmd.ErrOrStderr(), f.Logger
	if err := Check(bad, cfg.Validate(), names); err != nil {
		return err
	}
	s, err := rail.Listen(cfg)
	if err != nil {
		return config.Named(err, names)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s at %s over %s\n", r.says, s.Addr(), strings.Join(s.Rails(), ", "))
	if err := s.Serve(cmd.Context()); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // it was asked to stop
}

// railNames returns the flag, or the argument, of each field that commands of these roles set.
func railNames(roles knob.Roles) map[string]string {
	names := railKnobs.For(roles).Names()
	names["Server"] = "HOST"
	return names
}

// parseEach reads a list with commas, in which nothing stands twice.
func parseEach[T comparable](read func(string) (T, error)) func(string) ([]T, error) {
	return func(text string) (all []T, err error) {
		for _, name := range strings.Split(text, ",") {
			one, err := read(strings.TrimSpace(name))
			if err != nil {
				return nil, err
			}
			if slices.Contains(all, one) {
				return nil, fmt.Errorf("%q: given twice: leave it out once", name)
			}
			all = append(all, one)
		}
		return all, nil
	}
}

// parseWord reads one of the words of a table.
func parseWord[T any](words map[string]T, fix string) func(string) (T, error) {
	return func(text string) (v T, err error) {
		v, ok := words[text]
		if !ok {
			err = fmt.Errorf("%q: use %s", text, fix)
		}
		return v, err
	}
}

// shortFault reads TIME:RAIL of an action.
func shortFault(action string) func(string) ([]rail.Annotation, error) {
	return func(text string) ([]rail.Annotation, error) {
		at, name, _ := strings.Cut(text, ":")
		a, err := rail.ParseAnnotation(at + ":" + action + ":" + name)
		if err != nil {
			return nil, fmt.Errorf("%q: write TIME:RAIL, like 2s:1", text)
		}
		return []rail.Annotation{a}, nil
	}
}

// orNone reads none too.
func orNone[T any](read func(string) (T, error), none T) func(string) (T, error) {
	return func(text string) (T, error) {
		if text == "none" {
			return none, nil
		}
		return read(text)
	}
}

// parseRates reads one rate or more with commas, in bytes a second.
func parseRates(text string) (all []float64, err error) {
	for _, one := range strings.Split(text, ",") {
		v, err := pacing.ParseRate(one)
		if err == nil && !(v > 0) {
			err = fmt.Errorf("%q: use a rate above 0", one)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// parseSlice reads the size of a slice in bytes, which a Config has as an int.
func parseSlice(text string) (int, error) {
	n, err := config.ParseSize(text)
	if err == nil && n > transport.MaxSlice {
		err = fmt.Errorf("%q: use up to %s", text, config.FormatSize(transport.MaxSlice))
	}
	if err != nil {
		return 0, err
	}
	return int(n), nil
}
