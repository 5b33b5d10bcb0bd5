package proxy

import (
	"context"
	"testing"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// TestOfferIsNotKept: once the second leg has been told of the first one's blocks, a request does
// not hold their table for as long as it decodes.
func TestOfferIsNotKept(t *testing.T) {
	for _, name := range handoff.Names() {
		h, err := handoff.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		c := newTestCluster(t, Config{Handoff: name})
		c.addPair()
		req := &openai.Request{Model: testModel, Tokenizer: testTokenizer, N: 1, Choices: []openai.Choice{{Prompt: []uint32{1, 2, 3}}}}
		f := &flight{exchange: &exchange{proxy: c.proxy, req: req}, choice: &req.Choices[0], inbox: newInbox(1)}
		a := &submission{Attempt: attempt.New(h, 2)}
		if err := f.place(context.Background(), a, a.First()); err != nil {
			t.Fatal(err)
		}
		a.kv = &proto.KVRef{NodeId: "first"}
		if h.Offers(handoff.DecodeLeg) {
			if _, err := a.Reserved(handoff.DecodeLeg, true); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.place(context.Background(), a, a.Second()); err != nil || a.kv != nil {
			t.Errorf("%v: %v is kept, %v", h, a.kv, err)
		}
		f.leave(context.Background(), a, attempt.ClientGone)
	}
}
