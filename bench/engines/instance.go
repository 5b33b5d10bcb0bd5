package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"kvferry/internal/proc"
)

// An instance is a process with vLLM, or what stands for one in a test.
type instance struct {
	*proc.Proc
	role  role
	limit time.Duration // that it may take to read an order
	log   string        // file with what it printed
	stop  chan struct{}
	ended chan struct{} // closed when it is over and all that it said has been told
}

// An arrival is what an instance has said, or that it is over.
type arrival struct {
	from role
	at   time.Time
	event
	over error // why there is nothing more; nil for an event
}

// spec is the first line to a driver.
type spec struct {
	Model       string          `json:"model"`
	DType       string          `json:"dtype"`
	MaxModelLen int             `json:"max_model_len"`
	Core        int             `json:"core"`
	Transfer    json.RawMessage `json:"kv_transfer_config,omitempty"`
	Blocks      int             `json:"blocks,omitempty"` // of KV; 0: as many as vLLM takes
}

// endGrace is how long an instance has to end by itself once its input is closed.
const endGrace = 5 * time.Second

// start starts a process and tells it what it is. What it says goes to arrivals, until it is over or
// ended by end.
func (p place) start(r role, c proc.Cmd, s spec, log string, limit time.Duration, arrivals chan<- arrival) (*instance, error) {
	i := &instance{role: r, limit: limit, log: log, stop: make(chan struct{}), ended: make(chan struct{})}
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	tell := func(a arrival) {
		a.from, a.at = r, time.Now()
		select {
		case arrivals <- a:
		case <-i.stop:
		}
	}
	c.Log, c.Grace = file, endGrace
	c.Out = proc.Lines(func(line string) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			e = event{Event: saysError, Text: fmt.Sprintf("it said %.100q", line)}
		}
		tell(arrival{event: e})
	})
	if p.lab != nil {
		c.Namespace = p.lab.Namespace(1 + int(r))
	}
	if i.Proc, err = proc.Start(context.Background(), c); err != nil {
		file.Close()
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	go func() {
		defer close(i.ended)
		tell(arrival{over: cmp.Or(i.Wait(), errors.New("exit status 0"))})
		file.Close()
	}()
	return i, i.send(s)
}

// send writes a line to the process. That it is gone is told by arrivals; it is an error that it does not
// read, once the pipe is full.
func (i *instance) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = i.In.SetWriteDeadline(time.Now().Add(i.limit)) // it is closed once the process is gone
	if _, err := i.In.Write(append(line, '\n')); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%v does not read its orders within %v", i.role, i.limit)
	}
	return nil
}

// end ends the process and its group, at once or after the time that it has for that, and returns when
// it is over.
func (i *instance) end(atOnce bool) {
	close(i.stop)
	if atOnce {
		i.Kill()
	}
	_ = i.Stop() // how it ended is told
	<-i.ended
}
