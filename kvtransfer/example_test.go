package kvtransfer_test

import (
	"fmt"
	"log"
	"time"

	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// node is an engine's KV cache, and its transfer half over TCP on this machine.
func node(name string, g kvcache.Geometry, release func(kvtransfer.Descriptor)) (*kvtransfer.Agent, *kvcache.Slab) {
	mem, _, err := transport.MapMemory(8 * g.SlotBytes())
	if err != nil {
		log.Fatal(err)
	}
	slab, err := kvcache.NewSlab(g, mem)
	if err != nil {
		log.Fatal(err)
	}
	rail, err := rails.Open("127.0.0.1:0", rails.Options{})
	if err != nil {
		log.Fatal(err)
	}
	a, err := kvtransfer.New(kvtransfer.Config{
		Name: name, Slab: slab, Release: release,
		Transport: transport.Config{Rails: []transport.Rail{rail}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return a, slab
}

// Two engines: one has computed a prompt, the other one reads its KV. Descriptors and
// releases travel by the engines' own control plane, here by a function call.
func Example() {
	g := kvcache.Geometry{Layers: 2, KVHeads: 1, HeadDim: 8, ElemBytes: 2, BlockTokens: 4}
	prefill, computed := node("prefill-0", g, nil)
	decode, landed := node("decode-0", g, func(d kvtransfer.Descriptor) { prefill.Released(d.Transfer) })

	// The prefill node has 6 tokens in its blocks 3 and 5, and offers them for a minute.
	theirs := []kvcache.Ref{{ID: 3, Gen: 1}, {ID: 5, Gen: 1}}
	copy(computed.K(5, 1), "the KV of the 5th token, layer 1")
	free := make(chan kvtransfer.End, 1)
	grant, err := prefill.Grant(1, kvtransfer.Terms{
		Op: transport.Read, Blocks: theirs, Tokens: 6, Lease: time.Minute,
		OnEnd: func(e kvtransfer.End) { free <- e },
	})
	if err != nil {
		log.Fatal(err)
	}

	// The decode node reads them into its blocks 0 and 1.
	transfer, err := decode.Open(grant.Descriptor(), kvtransfer.Options{Tag: "request 1"})
	if err != nil {
		log.Fatal(err)
	}
	mine := []kvcache.Ref{{ID: 0, Gen: 7}, {ID: 1, Gen: 7}}
	done := make(chan kvtransfer.Moved, 1)
	transfer.Move(kvtransfer.Move{
		Op: transport.Read, Part: kvtransfer.Whole, Pairs: kvcache.Pairs(mine, transfer.Descriptor().Blocks, 0),
		Done: func(m kvtransfer.Moved) { done <- m },
	})
	m := <-done
	fmt.Println(m.Bytes, "bytes,", m.Err)
	fmt.Printf("%s\n", landed.K(1, 1)[:32])

	transfer.Release()
	fmt.Println("the prefill node's blocks are free:", <-free)
	transfer.Close(true) // true or false: after a read, that is the same

	for _, c := range []interface{ Close() error }{decode, prefill} {
		if err := c.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 384 bytes, <nil>
	// the KV of the 5th token, layer 1
	// the prefill node's blocks are free: released
}
