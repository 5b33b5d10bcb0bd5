package node

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/transport"
)

// TestFaultsOfErrors: only what no node can serve is reported as the client's fault, however the error is wrapped.
func TestFaultsOfErrors(t *testing.T) {
	for _, c := range []struct {
		err       error
		code      proto.FailCode
		retryable bool
	}{
		{fmt.Errorf("%w: %w", connector.ErrInvalid, engine.ErrEmptyPrompt), proto.FailCode_FAIL_INVALID, false},
		{fmt.Errorf("%w: %w", connector.ErrInvalid, engine.ErrPoolSize), proto.FailCode_FAIL_TOO_LARGE, true},
		{fmt.Errorf("%w: %w", connector.ErrInvalid, engine.ErrTooLong), proto.FailCode_FAIL_TOO_LARGE, true},
		{fmt.Errorf("%w: %w", connector.ErrInvalid, engine.ErrDuplicate), proto.FailCode_FAIL_INTERNAL, true},
		{fmt.Errorf("%w: %w", connector.ErrOffer, transport.ErrNoPath), proto.FailCode_FAIL_NO_PATH, true},
		{fmt.Errorf("%w: %w", connector.ErrOffer, transport.ErrInvalid), proto.FailCode_FAIL_TRANSFER, true},
		{fmt.Errorf("%w: %w", connector.ErrOffer, errRequest), proto.FailCode_FAIL_TRANSFER, true}, // another node's tokens
		{fmt.Errorf("%w: %w", connector.ErrContent, connector.ErrChanged), proto.FailCode_FAIL_CHANGED, true},
		{fmt.Errorf("%w: %w: %w", connector.ErrContent, connector.ErrChanged, connector.ErrUsed), proto.FailCode_FAIL_CHANGED, false},
		{connector.ErrContent, proto.FailCode_FAIL_CONTENT, true},
		{errWrongNode, proto.FailCode_FAIL_INTERNAL, true},
		{errUnsupported, proto.FailCode_FAIL_UNSUPPORTED, true},
		{fmt.Errorf("what else"), proto.FailCode_FAIL_INTERNAL, true},
	} {
		if code, retryable := faultOf(c.err); code != c.code || retryable != c.retryable {
			t.Errorf("%v: %v, retryable %t, want %v, %t", c.err, code, retryable, c.code, c.retryable)
		}
	}
}

// TestUnknownMessages: a message of no known kind ends no stream. The leg that it is about fails, known or not; one
// about no leg is logged once.
func TestUnknownMessages(t *testing.T) {
	logs := &clocktest.Log{}
	s := startNodes(t, handoff.Layerwise.Name, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(logs, nil)) }, "prefill-0", "decode-0")
	defer s.end()
	x := s.stranger(t, "decode-0")
	defer x.leave()
	send := func(leg uint64) {
		t.Helper()
		m := &proto.ToNode{Leg: leg}
		m.ProtoReflect().SetUnknown([]byte{63<<3&0x7f | 0x82, 63 >> 4, 1, 7}) // field 63
		if err := x.stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(leg uint64) {
		t.Helper()
		m := clocktest.Receive(t, x.said, "the end of the leg")
		if len(m.Failed) != 1 || m.Failed[0].Id != leg || m.Failed[0].Code != proto.FailCode_FAIL_UNSUPPORTED || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "message kind 63 is not in protocol 1") {
			t.Fatalf("leg %d: the node says %v", leg, m)
		}
	}
	for range 3 {
		send(0)
	}
	send(1 << 40) // it may be what would have begun that leg
	fails(1 << 40)
	x.ask(proto.Leg_LEG_DECODE, handoff.Layerwise.Name, tokensOf(1, 16), 2)
	if m := clocktest.Receive(t, x.said, "the leg's blocks"); len(m.Reserved) != 1 {
		t.Fatalf("the node says %v", m)
	}
	send(x.next)
	fails(x.next)
	x.ask(proto.Leg_LEG_DECODE, "teleport", tokensOf(1, 16), 2)
	m := clocktest.Receive(t, x.said, "a refusal")
	if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_UNSUPPORTED || !m.Failed[0].Retryable || !strings.Contains(m.Failed[0].Message, "teleport") {
		t.Errorf("an unknown hand-off: the node says %v", m)
	}
	s.until("the blocks to be free", func() bool { return s.used(x.w) == 0 })
	if n := strings.Count(logs.String(), "proxy's message refused"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
}
