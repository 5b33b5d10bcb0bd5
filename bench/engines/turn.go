package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/config"
)

// A turn is the instances of a setting and what they say.
type turn struct {
	*run
	setting   *Setting
	instances []*instance
	arrivals  chan arrival
	port      string // of P
}

// start starts the instances and waits until all are ready.
func (t *turn) start(ctx context.Context, round int) error {
	for _, r := range t.setting.roles() {
		free, err := config.FreePort("127.0.0.1")
		if err != nil {
			return err
		}
		port := strconv.Itoa(free)
		if t.port == "" {
			t.port = port
		}
		text := t.setting.D
		if r == prefill {
			text = t.setting.P
		}
		values := fill(port, t.port, t.shared(), "")
		s := spec{Model: t.e.model, DType: t.e.dtype, MaxModelLen: Lengths[len(Lengths)-1] + 1 + output, Core: int(r)}
		if text != "" {
			s.Transfer = json.RawMessage(values.Replace(text))
		}
		cmd := exec.Command(t.e.command[0], append(t.e.command[1:], filepath.Join(t.scratch, "driver", "driver.py"))...)
		cmd.Env = slices.Clone(t.e.env)
		for _, kv := range t.setting.Env {
			cmd.Env = append(cmd.Env, values.Replace(kv))
		}
		log := fmt.Sprintf("%s-round%d-%v.log", strings.ReplaceAll(t.setting.String(), " ", "-"), round, r)
		i, err := startInstance(r, cmd, s, filepath.Join(t.cfg.Out, logFolder, log), t.arrivals)
		if err != nil {
			return err
		}
		t.instances = append(t.instances, i)
	}
	deadline := time.After(t.cfg.Start)
	for range t.instances {
		a, err := t.next(ctx, deadline, "be ready", t.cfg.Start)
		if err != nil {
			return err
		}
		if a.Event != saysReady {
			return fmt.Errorf("%v said %q %s before it was ready", a.from, a.Event, a.Text)
		}
		t.ready = a.event
	}
	return nil
}

// next is the next event of any instance.
func (t *turn) next(ctx context.Context, deadline <-chan time.Time, what string, within time.Duration) (arrival, error) {
	select {
	case a := <-t.arrivals:
		if a.over != nil {
			return a, fmt.Errorf("%v ended: %w", a.from, a.over)
		}
		return a, nil
	case <-deadline:
		return arrival{}, fmt.Errorf("the instances did not %s within %v", what, within)
	case <-ctx.Done():
		return arrival{}, ctx.Err()
	}
}

// exchange has a prompt go its way.
func (t *turn) exchange(ctx context.Context, number, length int) (*Sample, error) {
	s := t.setting
	id := fmt.Sprintf("prompt-%d-%d", number, length)
	x := &exchange{
		setting: s, fill: fill("", t.port, t.shared(), id), id: id, prompt: prompt(number, length, t.ready), answer: t.mono[id], output: output, block: t.ready,
		sample: Sample{Setting: s.Name, Rail: s.Rail, Prompt: number},
	}
	began := time.Now()
	asked := x.begin()
	for x.phase != over {
		for r, o := range asked {
			if err := t.instance(r).send(o); err != nil {
				return nil, err
			}
		}
		a, err := t.next(ctx, time.After(t.cfg.Timeout), fmt.Sprintf("give %v of %s", x.phase, id), t.cfg.Timeout)
		if err == nil {
			asked, err = x.step(a.at.Sub(began), a.from, a.event)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := empty(t.shared()); err != nil {
		return nil, err
	}
	if s.Name == Mono {
		t.mono[id] = x.sample.Tokens
	}
	x.sample.Identical = slices.Equal(x.sample.Tokens, t.mono[id])
	return &x.sample, nil
}

func (t *turn) instance(r role) *instance {
	for _, i := range t.instances {
		if i.role == r {
			return i
		}
	}
	return nil
}

// logLines are how many of the last lines of a process stand with an error.
const logLines = 12

// why is an error with what the processes printed last, nil for none.
func (t *turn) why(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	said := ""
	for _, i := range t.instances {
		if last := i.tail(logLines); len(last) > 0 {
			said += fmt.Sprintf("\n%v printed last (all is in %s):\n    %s", i.role, filepath.Join(logFolder, filepath.Base(i.log)), strings.Join(last, "\n    "))
		}
	}
	return fmt.Errorf("%w%s", err, said)
}

// empty removes what is in a folder.
func empty(folder string) error {
	all, err := os.ReadDir(folder)
	for _, entry := range all {
		err = errors.Join(err, os.RemoveAll(filepath.Join(folder, entry.Name())))
	}
	return err
}
