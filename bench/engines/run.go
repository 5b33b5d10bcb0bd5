package engines

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/internal/proc"
	"kvferry/internal/progress"
	"kvferry/lab/vllm"
)

// files are the driver, and modules that it may be told to load.
//
//go:embed files
var files embed.FS

// ErrFailed: a setting could not run, or its figures are not those of a transfer.
var ErrFailed = errors.New("not all settings did what they are for")

// An environment starts instances.
type environment struct {
	command   []string // that is an instance; the driver's file is appended
	env       []string // all of it
	model     string
	dtype     string
	identical bool // tokens must be those of mono
	kvferry   func(asked string) (kvferryFolder, error)
	watch     func(pids []int) (end func() string)
}

// Run runs the settings in turns, prints their tables and writes their files. Where ctx ends it, it
// does so with what there is. A setting that fails, or that could not run, is ErrFailed.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	folder, err := vllm.Open(cfg.Cache)
	if err != nil {
		return err
	}
	e := environment{command: []string{folder.Python()}, env: folder.Process(), identical: cfg.Model == Tiny, kvferry: findKVFerry, watch: watch}
	e.model, e.dtype = cfg.model(folder)
	return e.run(ctx, cfg)
}

// A run is under way. It is used by one goroutine.
type run struct {
	cfg      Config
	e        environment
	settings []Setting
	faults   []Fault // that come to them; none where they are measured
	result   *Result
	scratch  string // the driver, and what instances share
	plugins  string // folder of NIXL's plugins
	progress *progress.Task

	mono   map[string][]int // answers, by what their prompts are called
	others map[string][]int // likewise, of the first connector that has given one
	ready  event            // what an instance has said of the model
}

// begin makes what a run is in, all but its instances. It is removed by wipe.
func (e environment) begin(cfg Config) (x *run, wipe func(), err error) {
	settings, err := choose(cfg.Settings, cfg.Link > 0)
	if err != nil {
		return nil, nil, err
	}
	faults, err := chooseFaults(cfg.Faults)
	if err != nil {
		return nil, nil, err
	}
	if err := document.MakeFolder(filepath.Join(cfg.Out, logFolder)); err != nil {
		return nil, nil, err
	}
	x = &run{
		cfg: cfg, e: e, settings: settings, faults: faults, mono: map[string][]int{}, others: map[string][]int{},
		result: &Result{Started: time.Now(), Machine: observe.Describe(), Model: cfg.Model, Rounds: cfg.Rounds, Link: cfg.Link, Checked: cfg.Checksums, Judged: e.identical, Errors: map[string]string{}, Disturbed: map[string]string{}},
	}
	if len(faults) > 0 {
		x.result.Seed, x.result.Timeout = cfg.Seed, cfg.Timeout.Seconds()
	}
	wipe, err = x.makeScratch()
	return x, wipe, err
}

func (e environment) run(ctx context.Context, cfg Config) error {
	x, wipe, err := e.begin(cfg)
	if err != nil {
		return err
	}
	defer wipe()
	turns, measure := len(x.settings)*cfg.Rounds, x.rounds
	if len(x.faults) > 0 {
		turns, measure = 1+count(x.settings, x.faults), x.trials
	}
	x.start(turns)
	if err = x.prepare(ctx); err == nil {
		err = measure(ctx)
	}
	x.progress.Stop()
	x.result.Seconds = time.Since(x.result.Started).Seconds()
	err = errors.Join(err, x.keep())
	if x.something() {
		err = errors.Join(err, x.result.document().Print(cfg.Stdout, cfg.Out))
	}
	if err == nil {
		err = x.result.failed()
	}
	return err
}

// something reports whether there is something to tell.
func (x *run) something() bool {
	return len(x.result.Rows)+len(x.result.Trials) > 0
}

// keep writes what there is so far.
func (x *run) keep() error {
	x.result.settle(x.settings)
	if !x.something() {
		return nil
	}
	return x.result.document().Write(x.cfg.Out)
}

// logFolder has what each process printed, in the folder of results.
const logFolder = "logs"

// rounds has the settings take turns. One that could not run is not tried again.
func (x *run) rounds(ctx context.Context) error {
	for round := 1; round <= x.cfg.Rounds; round++ {
		for i := range x.settings {
			s := &x.settings[i]
			if x.result.Errors[s.String()] != "" {
				x.progress.Update(func(s *progress.State) { s.Total-- })
				continue
			}
			what := fmt.Sprintf("round %d/%d %v", round, x.cfg.Rounds, s)
			end := x.show(what)
			before := len(x.result.Samples)
			err := x.turn(ctx, s, round)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				x.result.Errors[s.String()] = err.Error()
			}
			end(fmt.Sprintf("%d prompts", len(x.result.Samples)-before), err)
			if err := x.keep(); err != nil {
				return err
			}
			if err != nil && s.Name == Mono {
				return errors.New("mono could not run, and there is nothing to hold the others to")
			}
		}
	}
	return nil
}

// turn runs the prompts of a round through a setting, with instances of its own.
func (x *run) turn(ctx context.Context, s *Setting, round int) (err error) {
	t := &turn{run: x, setting: s, arrivals: make(chan arrival, 16)}
	defer func() { err = t.end(err) }()
	if err := t.start(ctx, fmt.Sprintf("round%d", round)); err != nil {
		return err
	}
	for _, length := range Lengths {
		if _, err := t.exchange(ctx, warmup, length); err != nil {
			return err
		}
	}
	var pids []int
	for _, i := range t.instances {
		pids = append(pids, i.Pid())
	}
	end := x.e.watch(pids)
	defer func() {
		if why := end(); why != "" {
			x.result.Disturbed[s.String()] = why
		}
	}()
	for number := range x.cfg.Prompts {
		length, of := x.cfg.length(number)
		if of != round {
			continue
		}
		sample, err := t.exchange(ctx, number, length)
		if err != nil {
			return err
		}
		sample.Round = round
		x.result.Samples = append(x.result.Samples, *sample)
	}
	return nil
}

// watch looks at who has the CPUs until end is called, which says what disturbed these processes: "" if nothing did, or where
// the system does not tell. Late timers are no sign of it: a connector may have threads that spin.
func watch(pids []int) (end func() string) {
	began := time.Now()
	before, err := observe.ReadUsage(pids)
	return func() string {
		after, e := observe.ReadUsage(pids)
		if err != nil || e != nil {
			return ""
		}
		d := observe.Disturbance{CPU: observe.Used(before, after, time.Since(began), true)}
		d.Judge()
		return d.String()
	}
}

// driverFolder has the driver, and what it loads beside it.
const driverFolder = "driver"

// makeScratch makes a folder with the driver's files, in memory where there is such a place. It is
// removed by wipe, or by a shell when this process is killed.
func (x *run) makeScratch() (wipe func(), err error) {
	where := "/dev/shm"
	if _, err := os.Stat(where); err != nil {
		where = ""
	}
	if x.scratch, err = os.MkdirTemp(where, "kvferry-engines-"); err != nil {
		return nil, err
	}
	// Its input ends with this process; what the instances still write a moment longer goes too.
	// The shell dies with this process, and what it has started in the background does not.
	script := `exec 3<&0; { cat <&3 > /dev/null; rm -rf "$1" || { sleep 1; rm -rf "$1"; }; } & wait`
	keeper, err := proc.Start(context.Background(), proc.Cmd{Args: []string{"/bin/sh", "-c", script, "sh", x.scratch}, Grace: time.Minute})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(x.scratch))
	}
	wipe = func() { _ = keeper.Stop() } // the folder is gone, or nobody can remove it
	program, err := fs.Sub(files, "files")
	if err == nil {
		err = os.CopyFS(filepath.Join(x.scratch, driverFolder), program)
	}
	if err == nil {
		err = os.Mkdir(x.shared(), 0o700)
	}
	if err != nil {
		wipe()
	}
	return wipe, err
}

// shared is the folder that a setting's instances both see.
func (x *run) shared() string { return filepath.Join(x.scratch, "shared") }
