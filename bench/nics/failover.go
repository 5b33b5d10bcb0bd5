package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kvferry/bench/rail"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// A failover is one run of kvferry rail failover on host 2, towards the server on host 1, while a
// schedule happens to the links.
type failover struct {
	exe      string
	specs    []string
	faults   string // the file that says what happened when, see recovery.ReadFaults
	out      string // of its report; empty is none
	schedule []happening
	end      time.Duration
}

// run returns what it found, and in ended how it ended: batches that failed are an error there, and its
// figures are right all the same.
func (f *failover) run(ctx context.Context, l *lab.Lab) (got *rail.FailoverResult, ended, err error) {
	out := f.out
	if out == "" {
		if out, err = os.MkdirTemp("", "kvferry-failover"); err != nil {
			return nil, nil, err
		}
		defer os.RemoveAll(out)
	}
	args := append([]string{
		f.exe, "rail", "failover", lab.ManagementAddress(1) + ":" + port, "--faults", f.faults, "--segment", segment, "--duration", f.end.String(), "--out", out,
	}, railFlags(f.specs)...)
	p, err := start(ctx, l, 2, proc.Cmd{Args: args, Announce: rail.Loading})
	if err != nil {
		return nil, nil, err
	}
	began := time.Now()
	for _, h := range f.schedule {
		if !rail.Sleep(ctx, p.Done(), time.Until(began.Add(h.at))) {
			break
		}
		if err := h.do(l); err != nil {
			_ = p.Stop()
			return nil, nil, err
		}
	}
	if ended = p.Wait(); ended != nil {
		ended = fmt.Errorf("kvferry rail failover on host 2: %w", p.WithLog(ended))
	}
	text, err := os.ReadFile(filepath.Join(out, "failover.json"))
	if err != nil {
		return nil, nil, errors.Join(ended, err)
	}
	got = &rail.FailoverResult{}
	if err := json.Unmarshal(text, got); err != nil {
		return nil, nil, fmt.Errorf("kvferry rail failover: %w", errors.Join(ended, err))
	}
	return got, ended, nil
}
