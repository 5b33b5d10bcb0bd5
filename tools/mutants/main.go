// Command mutants changes a package's code in small ways and lists the changes that its tests do not notice.
//
// A mutant is one change: a comparison or an arithmetic operator replaced by a neighbour (a < b by a <= b), a bound moved
// by one, a condition negated, a call left out, two arguments of one type swapped. All mutants of a package are compiled
// into one test binary, each behind a switch, and the binary runs once for each, with the switch on. So a mutant costs a
// run of the package's tests and not a build. A mutant is killed if a test fails, or if the tests take much longer than they
// did without it. A mutant that no test kills has survived: a test is missing there, or the change makes no difference.
//
//	mutants -seed 1 -limit 5m ./attempt ./kvcache
//	mutants -since HEAD~5 -limit 90s ./...
//
// The mutants are drawn by seed, so that the same seed tries the same ones of an unchanged package. Code that tests do not reach is
// listed without being run. The exit status is 0 whatever survives, and 1 if no package can be tried.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// A config holds the command line.
type config struct {
	seed     uint64
	limit    time.Duration
	most     int
	since    string
	short    bool
	tests    string
	packages []string
}

func parse(args []string) (c config, err error) {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.Uint64Var(&c.seed, "seed", 1, "which mutants are drawn, and in which order")
	flags.DurationVar(&c.limit, "limit", 5*time.Minute, "stop after this time")
	flags.IntVar(&c.most, "n", 0, "try at most this many mutants (0: as many as the time allows)")
	flags.StringVar(&c.since, "since", "", "mutate only lines that were changed since this git revision")
	flags.BoolVar(&c.short, "short", true, "run the tests with -short")
	flags.StringVar(&c.tests, "tests", "", "package whose tests judge, for a package that is tested from there (default its own)")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: mutants [flags] [package ...]    (default ./...)")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.limit <= 0 || c.most < 0 {
		return c, errors.New("-limit must be positive, and -n not negative")
	}
	if c.packages = flags.Args(); len(c.packages) == 0 {
		c.packages = []string{"./..."}
	}
	return c, nil
}

// A result counts what became of the mutants.
type result struct {
	killed, survived, unreached int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	packages, err := list(ctx, c.packages)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		fmt.Fprintf(out, "nothing was tried: the packages were not compiled within %v (-limit)\n", c.limit)
		return nil
	case err != nil:
		return err
	}
	if c.since != "" {
		lines, err := changed(ctx, c.since)
		if err != nil {
			return err
		}
		for _, p := range packages {
			p.only(lines)
		}
	}
	packages = slices.DeleteFunc(packages, func(p *pkg) bool { return len(p.mutants) == 0 })
	if len(packages) == 0 {
		fmt.Fprintln(out, "no line that can be mutated")
		return nil
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, err := try(ctx, c, packages, dir, out)
	total := 0
	for _, p := range packages {
		total += len(p.mutants)
	}
	fmt.Fprintf(out, "seed %d: %d mutants of %d tried in %d packages: %d killed, %d survived, %d in code that no test reaches\n",
		c.seed, r.killed+r.survived+r.unreached, total, len(packages), r.killed, r.survived, r.unreached)
	if err == nil && r == (result{}) && ctx.Err() == nil {
		err = errors.New("nothing was tried: no package's tests could be built and run")
	}
	return err
}

// try runs the tests once for each mutant that the seed draws, until the time is over. Mutants are drawn in rounds, and a
// round is sorted by package, so that few packages are built when there is little time.
func try(ctx context.Context, c config, packages []*pkg, dir string, out io.Writer) (r result, err error) {
	type candidate struct {
		p *pkg
		m *mutant
	}
	var all []candidate
	for _, p := range packages {
		for _, m := range p.mutants {
			all = append(all, candidate{p, m})
		}
	}
	random := rand.New(rand.NewPCG(c.seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if c.most > 0 && c.most < len(all) {
		all = all[:c.most]
	}
	const round = 64
	for drawn := range slices.Chunk(all, round) {
		slices.SortStableFunc(drawn, func(a, b candidate) int { return strings.Compare(a.p.ImportPath, b.p.ImportPath) })
		for _, d := range drawn {
			if err := d.p.build(ctx, c, dir); err != nil {
				if ctx.Err() != nil {
					return r, stopped(ctx)
				}
				if !d.p.reported {
					d.p.reported = true
					fmt.Fprintf(out, "%s is left out: %v\n", d.p.ImportPath, err)
				}
				continue
			}
			var verdict string
			switch killed, err := d.p.kills(ctx, d.m); {
			case ctx.Err() != nil:
				return r, stopped(ctx)
			case err != nil:
				return r, err
			case d.m.dropped:
				continue
			case !d.m.reached:
				verdict = "not reached"
				r.unreached++
			case killed:
				r.killed++
				continue
			default:
				verdict = "survived"
				r.survived++
			}
			fmt.Fprintf(out, "%s:%d:%d: %s: %s\n", relative(d.m.position.Filename), d.m.position.Line, d.m.position.Column, verdict, d.m.what)
		}
	}
	return r, nil
}

// stopped returns nil if the time is over, which is how most runs end, and the cause otherwise.
func stopped(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return ctx.Err()
}

// relative returns a file's name as seen from the working directory.
func relative(name string) string {
	if dir, err := os.Getwd(); err == nil {
		if r, err := filepath.Rel(dir, name); err == nil {
			return r
		}
	}
	return name
}
