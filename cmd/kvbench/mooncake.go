package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench"
	"kvferry/engine"
)

// mooncakeFlags are the command line of kvbench mooncake.
type mooncakeFlags struct {
	rows, settings string
	out, proxy     string
	profile, link  string
	numPrompts     int
	seed           uint32
	repeat         int
	timeout, ready time.Duration
}

func mooncakeCommand(terminal bool) *cobra.Command {
	var f mooncakeFlags
	cmd := &cobra.Command{
		Use:   "mooncake",
		Short: "Measure Mooncake's published A10 table",
		Long: `Replay the workload of Mooncake's A10 tables (200 requests, the same arrivals to
the millisecond, prompts of the same lengths, 6 tokens each) against a cluster,
and set what was measured beside what was published.

A row is a workload, prompt length and requests a second; a setting is what
serves it:

  nondisagg   one node, whole prompts first       (published)
  chunked     one node, chunked prefill           (published)
  rdma        prefill + decode node, one NIC      (published; link paced)
  rdma2       prefill + decode node, two NICs     (published; link paced)
  tcp         prefill + decode node, TCP          (published; hand-off v0)
  layerwise   prefill + decode node, TCP, KV sent layer by layer while the next
              layer computes: kvferry's own hand-off, nothing published

Each cell starts a cluster of its own, warms it up with one request, and takes
as long as its arrivals: 25 s at 8 requests a second, 99 s at 2.

Results go to --out as they come: results.jsonl (every request), summary.json,
table.md, report.html. Ctrl-C stops the run and keeps them.

Exit status: 0 all cells sound; 1 a cell has faults (failed requests, wrong KV);
2 bad flags; 130 interrupted.`,
		Example: `  kvbench mooncake                                       # six settings at 256/q8, three minutes
  kvbench mooncake --rows 1024/q2 --settings nondisagg,tcp,layerwise
  kvbench mooncake --rows all --out table                # all 25 published cells and 5 more, 29 minutes
  kvbench mooncake --settings layerwise --num-prompts 20 # a quick look, not comparable
  kvbench mooncake --proxy http://10.0.0.5:8000 --settings tcp`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.config(cmd.Flags().Changed("settings"))
			if err != nil {
				return usageError{err}
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			_, err = bench.Run(cmd.Context(), cfg)
			return err
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.rows, "rows", "256/q8", "workloads: all, or a list of 1024/q2, 256/q2, 256/q4, 256/q6, 256/q8")
	fs.StringVar(&f.settings, "settings", "nondisagg,chunked,rdma,rdma2,tcp,layerwise", "settings to measure, in this order")
	fs.StringVar(&f.out, "out", "", "folder for the results (default kvbench-out/<time>)")
	fs.StringVar(&f.proxy, "proxy", "", "measure the cluster behind the proxy at this URL instead of starting one; --settings names the one setting it serves")
	fs.StringVar(&f.profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile (a10-qwen2.5-7b-int4, zero) or a JSON file")
	fs.StringVar(&f.link, "link", "", "instead of each setting's link: native for this machine's network as it is, a link of the profile, or rate=1.29GB/s,latency=10us")
	fs.IntVar(&f.numPrompts, "num-prompts", bench.PublishedPrompts, "requests a cell; only 200 can be compared with the published")
	fs.Uint32Var(&f.seed, "seed", 0, "seed of arrivals and prompts; only 0 can be compared with the published")
	fs.IntVar(&f.repeat, "repeat", 1, "how many times to run the whole list of cells")
	fs.DurationVar(&f.timeout, "request-timeout", 2*time.Minute, "give a request up after this long")
	fs.DurationVar(&f.ready, "ready-timeout", time.Minute, "give a cluster up that does not serve after this long")
	return cmd
}

// config turns flags into a run, or names every flag that is wrong and the fix.
func (f *mooncakeFlags) config(settingsChosen bool) (bench.Config, error) {
	var errs []error
	bad := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	cfg := bench.Config{
		NumPrompts: f.numPrompts, Seed: f.seed, Repeat: f.repeat, Out: f.out,
		RequestTimeout: f.timeout, ReadyTimeout: f.ready,
		Command: os.Args,
	}
	if cfg.Out == "" {
		cfg.Out = filepath.Join("kvbench-out", time.Now().Format("20060102-150405"))
	}
	var err error
	cfg.Workloads, err = bench.ParseRows(f.rows)
	bad("rows", err)
	cfg.Settings, err = bench.ParseSettings(f.settings)
	bad("settings", err)
	// Config takes 0 for the default; on a command line it is a mistake.
	if f.numPrompts < 1 {
		bad("num-prompts", fmt.Errorf("%d: use 1 or more (published: %d)", f.numPrompts, bench.PublishedPrompts))
	}
	if f.repeat < 1 {
		bad("repeat", fmt.Errorf("%d: use 1 or more", f.repeat))
	}
	if f.timeout <= 0 {
		bad("request-timeout", fmt.Errorf("%v: use a positive duration such as 2m", f.timeout))
	}
	if f.ready <= 0 {
		bad("ready-timeout", fmt.Errorf("%v: use a positive duration such as 1m", f.ready))
	}
	if f.proxy == "" {
		p, err := engine.LoadProfile(f.profile)
		if err != nil {
			bad("profile", err)
		} else {
			cfg.System = map[string]any{"profile": p, "link": f.link}
			cfg.Start, err = embedded(f.profile, p, f.link, &lazyFile{dir: cfg.Out})
			bad("link", err)
		}
	} else {
		var base string
		base, err = proxyURL(f.proxy)
		bad("proxy", err)
		cfg.Start = running(base)
		if !settingsChosen || len(cfg.Settings) > 1 {
			bad("settings", errors.New("a running cluster serves one setting: name the one behind --proxy, for example --settings tcp"))
		}
	}
	return cfg, errors.Join(errs...)
}

// proxyURL checks the address of a proxy and drops a trailing slash.
func proxyURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not a server's URL: write it as http://host:port", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// A lazyFile is the daemons' log, cluster.log in the folder of the results,
// created with its first line.
type lazyFile struct {
	dir string
	f   *os.File
}

func (l *lazyFile) Write(b []byte) (int, error) {
	if l.f == nil {
		if err := os.MkdirAll(l.dir, 0o755); err != nil {
			return 0, err
		}
		f, err := os.Create(filepath.Join(l.dir, "cluster.log"))
		if err != nil {
			return 0, err
		}
		l.f = f
	}
	return l.f.Write(b)
}
