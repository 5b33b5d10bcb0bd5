package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrFaults: a setting of kvferry's has not stood a fault as it should.
var ErrFaults = errors.New("kvferry has not stood all faults")

// count is how many trials there are.
func count(settings []Setting, faults []Fault) (n int) {
	for i := range settings {
		for k := range faults {
			if faults[k].befalls(&settings[i]) {
				n++
			}
		}
	}
	return n
}

// trials has mono answer, and then each fault come to each setting.
func (x *run) trials(ctx context.Context) error {
	mono := &x.settings[0]
	end := x.show(Mono)
	t := &turn{run: x, setting: mono, arrivals: make(chan arrival, 16)}
	err := t.start(ctx, "answers")
	for number, length := range trialPrompts {
		if err == nil {
			_, err = t.exchange(ctx, number, length)
		}
	}
	err = t.end(err)
	end("answers", err)
	if err != nil {
		return fmt.Errorf("mono could not run, and there is nothing to hold the others to: %w", err)
	}
	for k := range x.faults {
		for i := range x.settings {
			s, f := &x.settings[i], &x.faults[k]
			if !f.befalls(s) {
				continue
			}
			what := fmt.Sprintf("%v, %s", s, f.Name)
			end := x.show(what)
			tr := Trial{Setting: s.Name, Rail: s.Rail, Fault: f.Name, Lost: unknown}
			var err error
			if why := x.result.Errors[s.String()]; why != "" {
				err = errors.New(why)
			} else {
				tr, err = x.trial(ctx, s, f)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				tr.Error = err.Error()
			}
			x.result.Trials = append(x.result.Trials, tr)
			end(tr.said(), err)
			if err := x.keep(); err != nil {
				return err
			}
		}
	}
	return nil
}

// faultLog has a line for each time that the wrapper's fault has come in an instance.
func (t *turn) faultLog(r role) string {
	return filepath.Join(t.scratch, fmt.Sprintf("faults-%v.jsonl", r))
}

// schedule writes what the wrapper in an instance is told, and returns the file's name. There is one in both:
// NIXL takes backends by their names.
func (t *turn) schedule(r role) (string, error) {
	faults := []*wrapped{}
	if t.fault.Wrapped.hits(t.setting) == r {
		faults = append(faults, t.fault.Wrapped)
	}
	text, err := json.Marshal(map[string]any{"seed": t.cfg.Seed, "backend": t.setting.Backend, "log": t.faultLog(r), "faults": faults})
	if err != nil {
		return "", err
	}
	if err := os.Remove(t.faultLog(r)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	name := filepath.Join(t.scratch, fmt.Sprintf("schedule-%v.json", r))
	return name, os.WriteFile(name, text, 0o600)
}
