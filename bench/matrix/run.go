package matrix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	"kvferry/internal/progress"
)

// Config configures a run of a file.
type Config struct {
	File  *File
	Out   string // folder of the pairs' folders and of the table
	Force bool   // run pairs that are done too
	// Resume is the command line that resumes the run, for the error of one that was stopped.
	Resume   string
	Stdout   io.Writer // gets the table
	Progress io.Writer // gets a line for each pair
	Terminal bool      // Progress is a terminal, where a line may be overwritten
}

// Interrupted is the error of a run that was stopped. It says how to resume the run.
type Interrupted struct{ Text string }

func (i *Interrupted) Error() string { return i.Text }

// Unwrap returns context.Canceled.
func (i *Interrupted) Unwrap() error { return context.Canceled }

// A runner runs a file. It is used by one goroutine.
type runner struct {
	Config
	pairs    []*Pair // server by server, clients in the order of the file
	progress *progress.Task
	port     string // of the server that was started last, if the file gives it none
	lost     error  // the first failure to keep results
}

// Run runs every pair of the file that is not done, and prints the table of all. It returns an error
// if a pair failed, an [*Interrupted] if ctx ended first, and a [*document.OutputError] if
// results could not be kept. No process group of it is left when it returns.
func Run(ctx context.Context, cfg Config) error {
	if _, err := os.Lstat(filepath.Join(cfg.Out, matrixFile)); err != nil { // else a matrix's, to be resumed
		if err := document.CheckNew(cfg.Out); err != nil {
			return config.Faults{{Field: "Out", Err: err}}.Err("matrix.Config")
		}
	}
	err := document.MakeFolder(cfg.Out)
	if err != nil {
		return err
	}
	folder, err := os.Open(cfg.Out)
	if err != nil {
		return &document.OutputError{Err: err}
	}
	defer folder.Close()
	if syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { // two runs would mix
		return fmt.Errorf("%s: another kvferry lab matrix is at work there: wait for it, or choose another --out", cfg.Out)
	}
	r := &runner{Config: cfg, progress: progress.New(cfg.Progress, cfg.Terminal)}
	if r.pairs, err = cfg.File.pairs(cfg.Out, cfg.Force); err != nil {
		return err
	}
	n, before := len(r.pairs), r.count(StatusDone)
	if before > 0 {
		r.progress.Say(fmt.Sprintf("%d of %d pairs are done already (--force runs them again)", before, n))
	}
	r.progress.Start(progress.State{What: "starting", Total: int64(n - before), Unit: "pairs"})
	for i := 0; i < n; i += len(cfg.File.Clients) {
		r.serve(ctx, r.pairs[i:][:len(cfg.File.Clients)])
	}
	r.progress.Stop()
	config.Default(&r.lost, r.document().Write(cfg.Out))
	fmt.Fprint(cfg.Stdout, r.table().Text())
	if r.lost == nil {
		fmt.Fprintln(cfg.Stdout, document.Listing(cfg.Out, matrixFile, document.TableFile, document.ReportFile))
	}
	done, failed := r.count(StatusDone), r.count(StatusFailed)
	switch {
	case ctx.Err() != nil && done+failed < n:
		return &Interrupted{fmt.Sprintf("%d of %d pairs are done and kept; go on with: %s", done, n, cfg.Resume)}
	case r.lost == nil && failed > 0:
		return fmt.Errorf("%d of %d pairs failed; their folders say why", failed, n)
	}
	return r.lost
}

// count returns how many pairs have a status.
func (r *runner) count(status string) (n int) {
	for _, p := range r.pairs {
		if p.Status == status {
			n++
		}
	}
	return n
}

// serve runs the pairs of one server that are not done. A server that does not come up fails
// all of them, because each further try would take as long. One that ends under a client fails
// that pair and is started again for the next.
func (r *runner) serve(ctx context.Context, pairs []*Pair) {
	var s *proc.Proc // nil while none runs that is ours
	var down error
	for _, p := range pairs {
		if p.Status == StatusDone || ctx.Err() != nil {
			continue
		}
		err := p.begin()
		if gone(s) != nil {
			s = nil
		}
		if err == nil && s == nil && down == nil {
			if s, down = r.start(ctx, p); down != nil {
				down = fmt.Errorf("the server is not there: %w", down)
			}
		}
		if err = cmp.Or(err, down); err == nil {
			err = r.runClient(ctx, s, p)
		}
		if s != nil && !p.server.Share {
			p.stopped(s)
			s = nil
		}
		r.settle(ctx, p, err)
	}
	if s != nil {
		_ = s.Stop() // how it ends is of no pair
	}
}

// runClient runs a pair's client to its end. It stops the client at its deadline, with its server and with ctx.
func (r *runner) runClient(ctx context.Context, s *proc.Proc, p *Pair) error {
	r.progress.Describe(p.Server + "/" + p.Client + ": running the client")
	stdout, err := os.Create(filepath.Join(p.folder, stdoutFile))
	if err != nil {
		return &document.OutputError{Err: err}
	}
	defer stdout.Close()
	stderr, err := os.Create(filepath.Join(p.folder, stderrFile))
	if err != nil {
		return &document.OutputError{Err: err}
	}
	defer stderr.Close()
	v, within := r.File.values(p, r.port), cmp.Or(p.client.Within, DefaultClient)
	cmd := r.File.process(p.client.command(), p.client.Env, p.client.Dir, v["out"], p.client.Stop, v)
	cmd.Out, cmd.Log = stdout, stderr
	p.ClientCommand, p.URL = cmd.Args, v["url"]
	began := time.Now()
	client, err := proc.Start(ctx, cmd)
	if err != nil {
		return fmt.Errorf("the client: %w", err)
	}
	client.In.Close()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case <-client.Done():
		if err = client.Wait(); err != nil {
			err = fmt.Errorf("the client: %w%s", err, lastLine(client, "its stderr"))
		}
	case <-done(s):
		err = errors.New("the client was stopped")
	case <-deadline.C:
		err = fmt.Errorf("the client did not end within %s", within)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = client.Stop() // err says how it ended
	p.ClientS = time.Since(began).Seconds()
	if gone := gone(s); gone != nil && err != nil {
		return fmt.Errorf("the server %w meanwhile; %w", gone, err)
	}
	return err
}

// settle records how a pair ended, and writes the table of all, so that it is there however the run ends.
func (r *runner) settle(ctx context.Context, p *Pair, err error) {
	status := StatusDone
	if err != nil && ctx.Err() != nil {
		status = StatusInterrupted
	}
	lost := p.end(status, err)
	line := fmt.Sprintf("pair %d/%d %s/%s: %s", slices.Index(r.pairs, p)+1, len(r.pairs), p.Server, p.Client, p.Status)
	line += fmt.Sprintf(", client %.1fs, server ready after %.1fs", p.ClientS, p.ReadyS)
	if p.Error != "" {
		line += ": " + strings.Join(strings.Fields(p.Error), " ")
	}
	r.progress.Add(1)
	r.progress.Say(line + r.progress.Left())
	if out, ok := errors.AsType[*document.OutputError](err); ok {
		lost = out
	}
	config.Default(&r.lost, cmp.Or(lost, r.document().Write(r.Out)))
}
