package serve

import (
	"context"
	"errors"

	"kvferry/internal/config"
	"kvferry/load"
)

// open begins a load. What is wrong with its file is its File's fault. A file may be a pipe that nobody
// writes to: when ctx is over that is waited for no more, and what waits ends with the process, or
// when somebody does write.
func open(ctx context.Context, spec load.Spec) (load.Load, error) {
	type opened struct {
		load load.Load
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		l, err := spec.Open()
		done <- opened{l, err}
	}()
	var o opened
	select {
	case o = <-done:
	case <-ctx.Done():
		go func() {
			if late := <-done; late.err == nil {
				_ = late.load.Close() // of a run that is over
			}
		}()
		return load.Load{}, ctx.Err()
	}
	var invalid *config.Invalid
	if o.err != nil && spec.File != "" && !errors.As(o.err, &invalid) {
		o.err = fileFault(o.err)
	}
	return o.load, o.err
}

// fileFault is that of a load's file.
func fileFault(err error) error {
	return config.Faults{{Field: "File", Err: err}}.Err("load.Spec")
}
