package matrix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
	"kvferry/internal/progress"
)

// Config is a run of a file.
type Config struct {
	File  *File
	Out   string // folder of the pairs' folders and of the table
	Force bool   // run pairs that are done too
	// Resume is the command line that goes on with a run that was stopped.
	Resume   string
	Stdout   io.Writer // the table
	Progress io.Writer // a line for each pair
	Terminal bool      // Progress is one, and a line that is overwritten says what is waited for
}

// Failed is of a run whose pairs did not all end well.
type Failed struct{ Failed, Pairs int }

func (f *Failed) Error() string {
	return fmt.Sprintf("%d of %d pairs failed; their folders say why", f.Failed, f.Pairs)
}

// Interrupted is of a run that was stopped. It unwraps to the context's error.
type Interrupted struct {
	Done, Pairs int
	Resume      string
	err         error
}

func (i *Interrupted) Error() string {
	return fmt.Sprintf("%d of %d pairs are done and kept; go on with: %s", i.Done, i.Pairs, i.Resume)
}

func (i *Interrupted) Unwrap() error { return i.err }

// stopClient is how long a client may take to end that is asked to: kvferry bench and its peers
// write their results then.
const stopClient = 10 * time.Second

// A runner does what a schedule says. It has one server at a time, which it starts, watches and
// ends, and it is used by one goroutine.
type runner struct {
	cfg      Config
	schedule schedule
	pairs    []*Pair
	progress *progress.Task

	server *process // nil where none runs that is ours
	values map[string]string
	of     int    // the pair that it was started for
	log    string // of the server
	down   string // why the last server did not come up
	lost   error  // the first thing that could not be kept
}

// Run makes every pair of the file that is not done, and prints the table of all. It returns a
// [*Failed] if a pair failed, an [*Interrupted] if ctx ended first, and a [*document.OutputError] if
// results could not be kept. No process of it is left when it returns.
func Run(ctx context.Context, cfg Config) error {
	if _, err := os.Lstat(filepath.Join(cfg.Out, matrixFile)); err != nil { // else these are a matrix's, to go on with
		if err := document.CheckNew(cfg.Out); err != nil {
			return config.Faults{{Field: "Out", Err: err}}.Err("matrix.Config")
		}
	}
	if err := document.MakeFolder(cfg.Out); err != nil {
		return err
	}
	unlock, err := lock(cfg.Out)
	if err != nil {
		return err
	}
	defer unlock()
	r := &runner{cfg: cfg}
	if err := r.prepare(); err != nil {
		return err
	}
	r.startProgress()
	for what := r.schedule.next(); what != finish; {
		var happened event
		switch what {
		case startServer:
			happened = r.startServer(ctx)
		case awaitServer:
			happened = r.awaitServer(ctx)
		case runClient:
			happened = r.runClient(ctx)
		case stopServer:
			happened = r.stopServer()
		}
		what = r.schedule.Step(happened)
		r.settle()
	}
	r.keep(r.writeTables())
	return r.result(ctx)
}

// lock keeps a second run out of the folder.
func lock(out string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(out, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, &document.OutputError{Err: err}
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another kvferry lab matrix is at work there: wait for it, or choose another --out", out)
		}
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// prepare looks at what earlier runs have left.
func (r *runner) prepare() error {
	f := r.cfg.File
	r.schedule = schedule{clients: len(f.Clients)}
	for _, s := range f.Servers {
		r.schedule.shared = append(r.schedule.shared, s.Share)
		r.schedule.runs = append(r.schedule.runs, !s.Command.empty())
		for _, c := range f.Clients {
			p, err := readPair(r.folder(s.Name, c.Name))
			if err != nil {
				return err
			}
			state := pending
			if recipe := f.recipe(s, c); !r.cfg.Force && p.isDone(recipe) {
				state = skipped
			} else {
				p = &Pair{Server: s.Name, Client: c.Name, Recipe: recipe}
			}
			r.pairs = append(r.pairs, p)
			r.schedule.state = append(r.schedule.state, state)
		}
	}
	return nil
}

func (r *runner) folder(server, client string) string {
	return filepath.Join(r.cfg.Out, server, client)
}

// keep notes an error of the disk: what is measured goes on, and is told of at the end.
func (r *runner) keep(err error) {
	config.Default(&r.lost, err)
}

// now are the server and the client of the pair that is under way, the pair and its folder.
func (r *runner) now() (Server, Client, *Pair, string) {
	f, at := r.cfg.File, r.schedule.at
	s, c := f.Servers[at/len(f.Clients)], f.Clients[at%len(f.Clients)]
	return s, c, r.pairs[at], r.folder(s.Name, c.Name)
}

// startServer starts the server of the pair that is under way and waits until it is ready.
func (r *runner) startServer(ctx context.Context) event {
	s, c, pair, folder := r.now()
	r.show("starting the server")
	if err := ctx.Err(); err != nil {
		return interrupt
	}
	pair.Started, r.of = time.Now(), r.schedule.at
	err := clearFolder(folder)
	if err == nil {
		err = r.serve(ctx, s, c, folder)
	}
	if err == nil {
		pair.ReadyS = time.Since(pair.Started).Seconds()
		return serverReady
	}
	if r.server != nil {
		_ = r.stopServer()
	}
	if ctx.Err() != nil {
		return interrupt
	}
	pair.Error = "the server did not come up: " + err.Error()
	if last := lastLine(r.log); last != "" {
		pair.Error += "; the last line of " + r.log + ": " + last
	}
	r.down = pair.Error
	return serverFailed
}

// serve starts a server and waits until it is ready.
func (r *runner) serve(ctx context.Context, s Server, c Client, folder string) error {
	var err error
	r.log = ""
	if r.values, err = r.cfg.File.values(s, c, folder); err != nil {
		return err
	}
	addresses := s.addresses(r.values)
	for _, addr := range addresses {
		if err := taken(addr); err != nil {
			return fmt.Errorf("%s: %w", r.cfg.File.place(s), err)
		}
	}
	if s.Share {
		folder = filepath.Dir(folder) // all its clients' output is of one process
	}
	r.log = filepath.Join(folder, serverFile)
	out, err := os.OpenFile(r.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return &document.OutputError{Err: err}
	}
	defer out.Close()
	tail, err := newLogTail(r.log)
	if err != nil {
		return err
	}
	dir := r.cfg.File.folder(fill(s.Dir, r.values, verbatim), r.cfg.File.dir)
	cmd := command{
		words: s.Command.argv(r.values), dir: dir, env: environment(s.Env, r.values), stdout: out, stderr: out, stop: s.Stop, within: DefaultStop,
	}
	if r.server, err = cmd.start(); err != nil {
		return err
	}
	err = awaitReady(ctx, s.Ready, fill(s.Ready.URL, r.values, verbatim), probe, tail, r.server.done)
	select {
	case <-r.server.done:
		return fmt.Errorf("it ended before it was ready: %v", r.server.end)
	default:
	}
	for _, addr := range addresses {
		if other := r.server.strange(addr); err == nil && other != nil {
			err = fmt.Errorf("%s: %w", r.cfg.File.place(s), other)
		}
	}
	return err
}

// runClient runs the client of the pair that is under way to its end.
func (r *runner) runClient(ctx context.Context) event {
	s, c, pair, folder := r.now()
	if ctx.Err() != nil {
		return interrupt
	}
	if r.over() && r.of != r.schedule.at {
		r.server = nil
		return serverGone
	}
	r.show("running the client")
	if pair.Started.IsZero() { // the server was there
		pair.Started = time.Now()
		if err := clearFolder(folder); err != nil {
			return r.fault(pair, err)
		}
	}
	values, err := r.cfg.File.values(s, c, folder)
	if err != nil {
		return r.fault(pair, err)
	}
	if r.server != nil { // with the port that it was given
		values["port"], values["url"] = r.values["port"], r.values["url"]
		pair.ServerCommand = s.Command.argv(r.values)
	}
	pair.ClientCommand, pair.URL, pair.Status = c.line().argv(values), values["url"], StatusRunning
	if err := pair.write(folder); err != nil {
		return r.fault(pair, err)
	}
	began := time.Now()
	happened := r.client(ctx, c, pair, folder, values)
	pair.ClientS = time.Since(began).Seconds()
	return happened
}

// client starts a client and ends it at its deadline, with its server, or with the run.
func (r *runner) client(ctx context.Context, c Client, pair *Pair, folder string, values map[string]string) event {
	var files [2]*os.File
	for i, name := range []string{stdoutFile, stderrFile} {
		f, err := os.Create(filepath.Join(folder, name))
		if err != nil {
			return r.fault(pair, &document.OutputError{Err: err})
		}
		defer f.Close()
		files[i] = f
	}
	p, err := command{
		words: pair.ClientCommand, dir: r.cfg.File.folder(fill(c.Dir, values, verbatim), filepath.Join(folder, resultFolder)),
		env: environment(c.Env, values), stdout: files[0], stderr: files[1], stop: c.Stop, within: stopClient,
	}.start()
	if err != nil {
		return r.fault(pair, err)
	}
	within := or(c.Within, DefaultClient)
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	var lost <-chan struct{}
	if r.server != nil {
		lost = r.server.done
	}
	happened := clientFailed
	select {
	case <-p.done:
	case <-deadline.C:
		pair.Error = fmt.Sprintf("the client did not end within %s", within)
	case <-lost:
	case <-ctx.Done():
		happened = interrupt
	}
	p.stop()
	<-p.done
	pair.ClientEnd = &p.end
	switch {
	case happened == interrupt:
		return interrupt
	case p.end.ok():
		return clientDone
	case pair.Error == "":
		pair.Error = "the client: " + p.end.String()
		if last := lastLine(files[1].Name()); last != "" {
			pair.Error += "; the last line of its stderr: " + last
		}
	}
	if r.over() {
		pair.Error = fmt.Sprintf("the server ended meanwhile: %v; %s", r.server.end, pair.Error)
		pair.ServerEnd = &r.server.end
		r.server = nil
		return serverLost
	}
	return happened
}

// over says that the server that was started has ended.
func (r *runner) over() bool {
	if r.server == nil {
		return false
	}
	select {
	case <-r.server.done:
		return true
	default:
		return false
	}
}

// fault is what keeps a client from being run.
func (r *runner) fault(pair *Pair, err error) event {
	pair.Error = err.Error()
	if lost := (*document.OutputError)(nil); errors.As(err, &lost) {
		r.keep(err)
	}
	return clientFailed
}

// stopServer ends the server. It is asked to, and killed at its deadline.
func (r *runner) stopServer() event {
	_, _, pair, folder := r.now()
	r.show("stopping the server")
	r.server.stop()
	<-r.server.done
	pair.ServerEnd = &r.server.end
	r.server = nil
	if pair.Status != "" { // it is settled
		r.keep(pair.write(folder))
	}
	return serverStopped
}

// settle writes down the pairs that have come to an end.
func (r *runner) settle() {
	for i, state := range r.schedule.state {
		p := r.pairs[i]
		status := map[pairState]string{done: StatusDone, failed: StatusFailed, interrupted: StatusInterrupted}[state]
		folder := r.folder(p.Server, p.Client)
		if status == "" || p.Status == status || status == StatusInterrupted && p.Started.IsZero() {
			continue
		}
		if p.Started.IsZero() { // its server did not come up for another pair
			p.Started, p.Error = time.Now(), r.down
			if err := clearFolder(folder); err != nil {
				r.keep(err)
				continue
			}
		}
		p.Status = status
		var err error
		if p.Figures, err = ReadFigures(folder); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.Error = strings.TrimPrefix(p.Error+"; "+err.Error(), "; ")
		}
		r.tell(i, p)
		r.keep(p.write(folder))
		r.keep(r.writeTables())
	}
}

// result prints the table, and says how the run went.
func (r *runner) result(ctx context.Context) error {
	r.progress.Stop()
	fmt.Fprint(r.cfg.Stdout, r.table().Text())
	if r.lost == nil {
		fmt.Fprintln(r.cfg.Stdout, document.Listing(r.cfg.Out, matrixFile, document.TableFile, document.ReportFile))
	}
	ok, bad := 0, 0
	for _, s := range r.schedule.state {
		switch s {
		case done, skipped:
			ok++
		case failed:
			bad++
		}
	}
	switch {
	case ctx.Err() != nil && ok+bad < len(r.pairs):
		return &Interrupted{ok, len(r.pairs), r.cfg.Resume, ctx.Err()}
	case r.lost != nil:
		return r.lost
	case bad > 0:
		return &Failed{bad, len(r.pairs)}
	}
	return nil
}
