package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/proc"
	"kvferry/lab/nics"
)

// A turn is the instances of a setting and what they say.
type turn struct {
	*run
	setting   *Setting
	instances []*instance
	arrivals  chan arrival
	place     place
	ports     map[role]string
	fault     *Fault // nil for none
}

// start starts the instances and waits until all are ready. Their logs are called by what.
func (t *turn) start(ctx context.Context, what string) error {
	if t.cfg.Link > 0 {
		l, err := nics.Start(ctx, nics.Config{Rates: links(t.setting.Rail, t.cfg.Link), Timeout: labTimeout})
		if err != nil {
			return err
		}
		t.place.lab = l
	}
	t.ports = map[role]string{}
	for _, r := range t.setting.roles() {
		port, err := config.FreePort("127.0.0.1")
		if err != nil {
			return err
		}
		t.ports[r] = strconv.Itoa(port)
	}
	for _, r := range t.setting.roles() {
		if err := t.begin(r, what); err != nil {
			return err
		}
	}
	return t.readies(ctx, len(t.instances))
}

// readies waits until so many instances are ready.
func (t *turn) readies(ctx context.Context, n int) error {
	deadline := time.After(t.cfg.Start)
	for range n {
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

// end ends the instances, and what they are joined by. It adds to an error what they printed last.
func (t *turn) end(err error) error {
	for _, i := range t.instances {
		_ = i.In.Close() // all at once
	}
	for _, i := range t.instances {
		i.end(err != nil)
	}
	if t.place.lab != nil {
		t.place.lab.Close()
	}
	return t.why(err)
}

// labTimeout ends a lab that is still there, which a turn never is for so long.
const labTimeout = 24 * time.Hour

// begin starts an instance.
func (t *turn) begin(r role, what string) error {
	s := t.setting
	v := t.values(r, "")
	wrapped := t.fault != nil && t.fault.Wrapped != nil
	if wrapped {
		v.backend = ownBackend
	}
	fill := v.fill()
	is := spec{Model: t.e.model, DType: t.e.dtype, MaxModelLen: Lengths[len(Lengths)-1] + 1 + output, Core: int(r)}
	if t.fault != nil && t.fault.Reused { // room for one prompt, and vLLM's block that is never used
		is.Blocks = 1 + (is.MaxModelLen+t.ready.BlockTokens-1)/t.ready.BlockTokens
	}
	if text := map[role]string{prefill: s.P, decode: s.D}[r]; text != "" {
		is.Transfer = json.RawMessage(fill.Replace(text))
	}
	cmd := proc.Cmd{Args: append(slices.Clone(t.e.command), filepath.Join(t.scratch, driverFolder, "driver.py")), Env: slices.Clone(t.e.env)}
	for _, kv := range s.Env {
		cmd.Env = append(cmd.Env, fill.Replace(kv))
	}
	if wrapped {
		schedule, err := t.schedule(r)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, "NIXL_PLUGIN_DIR="+t.plugins, "KVFERRY_FAULTS="+schedule)
	}
	log := fmt.Sprintf("%s-%s-%v.log", strings.NewReplacer(" ", "-", ",", "-").Replace(s.String()), what, r)
	i, err := t.place.start(r, cmd, is, filepath.Join(t.cfg.Out, logFolder, log), t.cfg.Timeout, t.arrivals)
	if i != nil { // even if it does not read what it is told
		t.instances = append(t.instances, i)
	}
	return err
}

// values are those of an instance and of a request.
func (t *turn) values(r role, request string) values {
	first := t.setting.roles()[0]
	timeout, lease := t.cfg.leases()
	return values{
		port: t.ports[r], host: t.place.host(r), p: net.JoinHostPort(t.place.host(first), t.ports[first]),
		rails: t.place.rails(t.setting.Rail), nics: t.place.nics(), backend: t.setting.Backend, plugins: t.plugins,
		checksums: strconv.FormatBool(t.cfg.Checksums && (t.fault == nil || !t.fault.Unchecked)),
		timeout:   seconds(timeout), lease: seconds(lease), folder: t.shared(), request: request,
	}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }

// receive returns what an instance says next, or that it has ended. Its errors are ctx's, and that nothing came until deadline,
// within which the instances were to do what.
func (t *turn) receive(ctx context.Context, deadline <-chan time.Time, what string, within time.Duration) (arrival, error) {
	select {
	case a := <-t.arrivals:
		return a, nil
	case <-deadline:
		return arrival{}, fmt.Errorf("the instances did not %s within %v", what, within)
	case <-ctx.Done():
		return arrival{}, ctx.Err()
	}
}

// next is receive, for a caller to whom the end of an instance is an error.
func (t *turn) next(ctx context.Context, deadline <-chan time.Time, what string, within time.Duration) (arrival, error) {
	a, err := t.receive(ctx, deadline, what, within)
	if err == nil && a.over != nil {
		err = fmt.Errorf("%v ended: %w", a.from, a.over)
	}
	return a, err
}

// newExchange is the way of a prompt.
func (t *turn) newExchange(number, length int) *exchange {
	s := t.setting
	id := fmt.Sprintf("prompt-%d-%d", number, length)
	return &exchange{
		setting: s, fill: t.values(decode, id).fill(), id: id, prompt: prompt(number, length, t.ready), answer: t.mono[id], output: output, block: t.ready,
		sample: Sample{Setting: s.Name, Rail: s.Rail, Prompt: number},
	}
}

// exchange has a prompt go its way.
func (t *turn) exchange(ctx context.Context, number, length int) (*Sample, error) {
	x := t.newExchange(number, length)
	began := time.Now()
	asked := x.begin()
	for x.phase != over {
		for _, i := range t.instances {
			if o, ok := asked[i.role]; ok {
				if err := i.send(o); err != nil {
					return nil, err
				}
			}
		}
		a, err := t.next(ctx, time.After(t.cfg.Timeout), fmt.Sprintf("give %v of %s", x.phase, x.id), t.cfg.Timeout)
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
	if t.setting.Name == Mono {
		t.mono[x.id] = x.sample.Tokens
	}
	x.sample.Identical = slices.Equal(x.sample.Tokens, t.mono[x.id])
	if t.setting.P != "" && t.others[x.id] == nil {
		t.others[x.id] = x.sample.Tokens
	}
	x.sample.LikeOthers = slices.Equal(x.sample.Tokens, t.others[x.id])
	return &x.sample, nil
}

// instance is the one of a role, nil if it is not there.
func (t *turn) instance(r role) *instance {
	for _, i := range t.instances {
		if i.role == r {
			return i
		}
	}
	return nil
}

// why is an error with what the processes printed last, nil for none.
func (t *turn) why(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	said := ""
	for _, i := range t.instances {
		if last := i.Tail(); len(last) > 0 {
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
