package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/members"
)

// listed are nodes that no lease knows of.
type listed struct {
	*testCluster
	list        *members.List
	incarnation map[*fakeNode]uint64
}

func newListed(t *testing.T, cfg Config) *listed {
	l := &listed{list: members.NewList(), incarnation: make(map[*fakeNode]uint64)}
	cfg.Membership = l.list
	l.testCluster = newTestCluster(t, cfg)
	return l
}

func (l *listed) join(id string, role proto.Role, s script) *fakeNode {
	n := l.newNode(id, role, s)
	l.incarnation[n] = l.list.Join(n.info)
	return n
}

// up waits for nodes that take requests, and no others.
func (l *listed) up(want ...string) {
	l.t.Helper()
	l.waitFor(fmt.Sprintf("%v to be up", want), func() bool {
		var up []string
		for _, n := range l.proxy.Nodes() {
			if n.Up {
				up = append(up, n.Info.Id)
			}
		}
		return fmt.Sprint(up) == fmt.Sprint(want)
	})
}

// served asks for three tokens.
func (l *listed) served() string {
	l.t.Helper()
	status, body, err := l.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
	if status != 200 || err != nil {
		l.t.Fatalf("%d %s %v", status, body, err)
	}
	return body
}

// TestListedNodes: a proxy serves through nodes that are only named to it, and lets go of
// those that it is told drain, leave or are gone. Nobody can register with it.
func TestListedNodes(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			l := newListed(t, Config{Handoff: hand})
			if addr := l.proxy.GRPCAddr(); addr != "" {
				t.Errorf("it listens for nodes on %s", addr)
			}
			l.join("prefill-1", proto.Role_ROLE_PREFILL, nil)
			drains := l.join("decode-1", proto.Role_ROLE_DECODE, nil)
			l.up("prefill-1", "decode-1")
			if body := l.served(); !strings.Contains(body, `"prefill_node":"prefill-1","decode_node":"decode-1","retries":0`) {
				t.Error(body)
			}
			leaves := l.join("decode-2", proto.Role_ROLE_DECODE, nil)
			l.up("prefill-1", "decode-1", "decode-2")
			l.list.Drain(l.incarnation[drains])
			l.up("prefill-1", "decode-2")
			if body := l.served(); !strings.Contains(body, `"decode_node":"decode-2","retries":0`) {
				t.Error(body)
			}
			l.join("decode-3", proto.Role_ROLE_DECODE, nil)
			l.up("prefill-1", "decode-2", "decode-3")
			l.list.Leave(l.incarnation[leaves], members.ErrLeft)
			l.up("prefill-1", "decode-3")
			if body := l.served(); !strings.Contains(body, `"decode_node":"decode-3","retries":0`) {
				t.Error(body)
			}
			l.list.Close(errors.New("nobody is there any more"))
			l.up()
		})
	}
}

// TestListedNodeIsLost: what a node has when it is gone goes elsewhere, and the log says why
// it is gone.
func TestListedNodeIsLost(t *testing.T) {
	logs := &clocktest.Log{}
	l := newListed(t, Config{Logger: slog.New(slog.NewTextHandler(logs, nil))})
	asked := make(chan struct{}, 1)
	lost := l.join("both-1", proto.Role_ROLE_NONDISAGG, func(*fakeNode, *proto.Submit, func(*proto.FromNode)) { asked <- struct{}{} })
	l.up("both-1")
	answer := make(chan string, 1)
	go func() {
		_, body, _ := l.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		answer <- body
	}()
	clocktest.Receive(t, asked, "the request")
	l.join("both-2", proto.Role_ROLE_NONDISAGG, nil)
	l.up("both-1", "both-2")
	l.list.Leave(l.incarnation[lost], errors.New("its rack has no power"))
	if body := clocktest.Receive(t, answer, "the answer"); !strings.Contains(body, `"decode_node":"both-2","retries":1`) {
		t.Error(body)
	}
	if text := logs.String(); !strings.Contains(text, "node lost") || !strings.Contains(text, "its rack has no power") {
		t.Errorf("the log does not tell:\n%s", text)
	}
}

// TestListedNodeIsRefused: a list may name nodes that could not work together, or make no
// sense. The proxy goes on with those that were there.
func TestListedNodeIsRefused(t *testing.T) {
	logs := &clocktest.Log{}
	l := newListed(t, Config{Logger: slog.New(slog.NewTextHandler(logs, nil))})
	n := l.join("both-1", proto.Role_ROLE_NONDISAGG, nil)
	l.list.Join(n.like("both-2", func(i *proto.NodeInfo) { i.Model = "other" }))
	refused := l.list.Join(n.like("both-3", func(i *proto.NodeInfo) { i.Vocab = 0 }))
	l.list.Join(&proto.NodeInfo{})
	l.join("both-4", proto.Role_ROLE_NONDISAGG, nil)
	l.up("both-1", "both-4")
	l.list.Report(refused, &proto.Load{Seq: 1}, nil)
	l.list.Leave(refused, members.ErrLeft)
	l.served()
	if text := logs.String(); strings.Count(text, "node refused") != 3 || !strings.Contains(text, "node.model: both-2") || !strings.Contains(text, "node.vocab") || !strings.Contains(text, "node.id") {
		t.Errorf("want a line for each of three nodes:\n%s", text)
	}
}
