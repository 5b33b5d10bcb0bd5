package node

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"kvferry/proto"
)

// TestRails: --rail takes addresses and NICs, and the names travel to peers.
func TestRails(t *testing.T) {
	loopback := ""
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, nic := range all {
		if nic.Flags&net.FlagLoopback != 0 && nic.Flags&net.FlagUp != 0 {
			loopback = nic.Name
		}
	}
	if loopback == "" {
		t.Skip("no loopback interface")
	}
	cfg := Config{
		ID: "decode-0", Role: proto.Role_ROLE_DECODE, Proxy: "127.0.0.1:1", Rails: []string{"tcp/" + loopback, "127.0.0.1:0"},
		Profile: smallProfile(t), KVBlocks: 8, Logger: slog.New(slog.DiscardHandler),
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if got := n.kv.Rails(); len(got) != 2 || got[0].Name != "tcp/"+loopback || got[1].Name != "tcp/1" {
		t.Errorf("%+v", got)
	}
	if info := n.kv.Segment(); len(info.Rails) != 0 {
		t.Errorf("a key opens the whole pool: %+v", info.Rails)
	}

	cfg.Rails = []string{"eth0", "rdma/rxe0?gids=1"}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), `Rails[0]: "eth0": neither`) || !strings.Contains(err.Error(), `Rails[1]: "rdma/rxe0?gids=1": option "gids" is unknown`) {
		t.Errorf("%v", err)
	}
	// One that cannot be opened leaves none behind, and its name is in the error.
	cfg.Rails = []string{"127.0.0.1:0", "rdma/nosuch0"}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "rdma/nosuch0") {
		t.Errorf("%v", err)
	}
}
