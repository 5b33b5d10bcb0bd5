package nics

import (
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"kvferry/lab"
)

// journalName is the file in each host's KVFERRY_LAB_OUT.
const journalName = "faults.jsonl"

// A Record is a line of faults.jsonl: a fault that has happened. Its two times are
// those at which it began, and the kernel was done with it TookNS later, some
// hundred microseconds: a change in a transfer that is older has another cause.
type Record struct {
	Fault        string     `json:"fault"` // as --fault takes it
	Action       lab.Action `json:"action"`
	Host         int        `json:"host"`
	NIC          int        `json:"nic"`
	Rate         int64      `json:"rate,omitempty"`           // bits a second
	UnixNS       int64      `json:"unix_ns"`                  // time.Time.UnixNano
	MonotonicNS  int64      `json:"monotonic_ns"`             // CLOCK_MONOTONIC, the same on all hosts
	SinceStartNS int64      `json:"since_start_ns,omitempty"` // from when the commands were let off
	TookNS       int64      `json:"took_ns"`
	Error        string     `json:"error,omitempty"` // it did not happen
}

// A journal writes records to all hosts' files, each in one write, so that a program that
// follows its file sees whole lines. It owns the files.
type journal struct {
	mu    sync.Mutex
	files []io.WriteCloser // none before the hosts are started and after close: records are dropped
}

func (j *journal) write(r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var errs []error
	for _, f := range j.files {
		_, err := f.Write(append(text, '\n'))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range j.files {
		f.Close()
	}
	j.files = nil
}

// record does what a fault is, and times it. The record is complete also where do fails.
func record(f lab.Fault, started time.Time, do func() error) (Record, error) {
	now := time.Now()
	r := Record{
		Fault: f.String(), Action: f.Action, Host: f.Host, NIC: f.NIC, Rate: f.Rate,
		UnixNS: now.UnixNano(), MonotonicNS: monotonic(),
	}
	if !started.IsZero() {
		r.SinceStartNS = now.Sub(started).Nanoseconds()
	}
	err := do()
	r.TookNS = time.Since(now).Nanoseconds()
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}
