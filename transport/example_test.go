package transport_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"kvferry/transport"
	"kvferry/transport/tcp"
)

// open is an engine over TCP on loopback. Between machines a rail listens at the address
// of a NIC, and package rails opens it by its name.
func open(onImmediate func(transport.Immediate)) *transport.Engine {
	rail, err := tcp.New(tcp.Config{Name: "tcp/lo", Listen: "127.0.0.1:0"})
	check(err)
	e, err := transport.New(transport.Config{Rails: []transport.Rail{rail}, OnImmediate: onImmediate})
	check(err)
	return e
}

// memory is a megabyte that an engine's rails can use, and its segment.
func memory(e *transport.Engine, name string) *transport.Segment {
	mem, _, err := transport.MapMemory(1 << 20) // what gives it back is for after Close
	check(err)
	s, err := e.Register(name, mem, "cpu:0")
	check(err)
	return s
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Two engines, in one process here: the initiator writes into the owner's memory, which
// hears of it by an immediate, and reads it back.
func Example() {
	immediates := make(chan transport.Immediate, 1)
	owner := open(func(i transport.Immediate) { immediates <- i })
	defer owner.Close()
	theirs := memory(owner, "kv")

	initiator := open(nil)
	defer initiator.Close()
	ours := memory(initiator, "local").Bytes()
	// What it has to know of the owner's memory is plain data: send it any way you like.
	target, err := initiator.Open(theirs.Info())
	check(err)

	copy(ours, "a block of KV")
	write := initiator.Submit(target, []transport.Request{
		{Op: transport.Write, Local: ours[:7], Offset: 4096},
		{Op: transport.Write, Local: ours[7:13], Offset: 8192},
	}, transport.BatchOptions{Imm: 42, HasImm: true, Timeout: 5 * time.Second})
	<-write.Done()
	check(write.Err())
	i := <-immediates
	fmt.Printf("%d for %s: %q and %q\n", i.Value, i.Segment, theirs.Bytes()[4096:4103], theirs.Bytes()[8192:8198])

	read := initiator.Submit(target, []transport.Request{{Op: transport.Read, Local: ours[100:107], Offset: 4096}}, transport.BatchOptions{})
	<-read.Done()
	check(read.Err())
	fmt.Printf("read back: %q\n", ours[100:107])
	// Output:
	// 42 for kv: "a block" and " of KV"
	// read back: "a block"
}

// A window opens a part of a segment for one transfer. What it does not open is refused,
// and nothing is touched.
func ExampleSegment_Window() {
	owner, initiator := open(nil), open(nil)
	defer owner.Close()
	defer initiator.Close()
	ours := memory(initiator, "local").Bytes()
	window, err := memory(owner, "kv").Window("request 7", transport.Write, []transport.Range{{Offset: 4096, Length: 4096}})
	check(err)
	target, err := initiator.Open(window.Info())
	check(err)
	try := func(op transport.Op, offset int64) error {
		b := initiator.Submit(target, []transport.Request{{Op: op, Local: ours[:100], Offset: offset}}, transport.BatchOptions{})
		<-b.Done()
		return b.Err()
	}
	fmt.Println("inside:", try(transport.Write, 5000))
	fmt.Println("outside:", errors.Is(try(transport.Write, 9000), transport.ErrBounds))
	fmt.Println("reading:", errors.Is(try(transport.Read, 5000), transport.ErrAccess))
	check(window.Close())
	fmt.Println("closed:", errors.Is(try(transport.Write, 5000), transport.ErrBadKey))
	// Output:
	// inside: <nil>
	// outside: true
	// reading: true
	// closed: true
}
