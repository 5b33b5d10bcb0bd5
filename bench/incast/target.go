package incast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"kvferry/transport"
	"kvferry/transport/rails"
)

// each is the part of the target's memory that an initiator moves its blocks to or from.
const each = 4 << 20

// Serve is the target at an address, of so many initiators and their probe, until ctx is done. It
// prints a line with its memory's [transport.SegmentInfo].
func Serve(ctx context.Context, address, options string, initiators int, to io.Writer) (err error) {
	mem, free, err := transport.MapMemory((initiators + 1) * each)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	e, err := open(address, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	s, err := e.Register("target", touched(mem), "cpu:0")
	if err != nil {
		return err
	}
	line, err := json.Marshal(s.Info())
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(to, "%s\n", line); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// open makes an engine with one rail, at an address, with options as they stand behind the ? of a spec.
func open(address, options string) (*transport.Engine, error) {
	spec := address + ":0"
	if options != "" {
		spec += "?" + options
	}
	r, err := rails.Open(spec, rails.Options{})
	if err != nil {
		return nil, err
	}
	return transport.New(transport.Config{Rails: []transport.Rail{r}}) // which closes the rail if it fails
}

// touched writes to each page, so that none is the kernel's zero page.
func touched(mem []byte) []byte {
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	return mem
}
