package client

import (
	"context"
	"fmt"
	"sync"

	"kvferry/load"
)

// ahead is how many requests are drawn and encoded before they are due. A prompt of 1,024
// tokens takes 35 us (BenchmarkDraw), which must not delay a sending. A burst within the
// bound goes out at once: the largest of Mooncake's conversation trace has 28 requests at
// one moment. Of a larger one the rest is as late as its records say. The bound is also
// what a load takes in memory: 64 prompts of 1,024 tokens are 0.5 MB, of 100,000 45 MB.
const ahead = 64

// A drawing is a source of requests that are taken from another one, and encoded, before they
// are asked for. Next and take are for one goroutine.
type drawing struct {
	source load.Source
	// encode makes the body of a request; of one that continues another it is left for later.
	encode func(*load.Request) ([]byte, error)

	drawers sync.WaitGroup
	jobs    chan job
	ready   chan struct{} // closed when as many are drawn as may be, or all
	bodies  map[int][]byte
	n       int
	err     error
}

// A job is a request that is ready to be sent.
type job struct {
	request load.Request
	body    []byte
	err     error // of the load, instead of a request
}

// begin draws until the source has no more, or ctx is done.
func (d *drawing) begin(ctx context.Context) {
	d.jobs, d.ready, d.bodies = make(chan job, ahead), make(chan struct{}), map[int][]byte{}
	d.drawers.Go(func() { d.draw(ctx) })
}

func (d *drawing) draw(ctx context.Context) {
	defer close(d.jobs)
	enough := sync.OnceFunc(func() { close(d.ready) })
	defer enough()
	for i := 0; ; i++ {
		r, ok, err := d.source.Next()
		if err == nil && !ok {
			return
		}
		j := job{request: r}
		if err == nil && !r.Continues {
			j.body, err = d.encode(&r)
		}
		if err != nil {
			j.err = fmt.Errorf("request %d: %w", i, err)
		}
		if len(d.jobs) == cap(d.jobs) {
			enough()
		}
		select {
		case d.jobs <- j:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Next is the next request that was drawn.
func (d *drawing) Next() (load.Request, bool, error) {
	if d.err != nil {
		return load.Request{}, false, d.err
	}
	j, ok := <-d.jobs
	if !ok {
		return load.Request{}, false, nil
	}
	if d.err = j.err; d.err != nil {
		return load.Request{}, false, d.err
	}
	d.bodies[d.n] = j.body
	d.n++
	return j.request, true, nil
}

// take is the body of a request, once.
func (d *drawing) take(index int) []byte {
	body := d.bodies[index]
	delete(d.bodies, index)
	return body
}
