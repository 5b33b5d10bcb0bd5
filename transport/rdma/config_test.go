package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"kvferry/transport"
)

func TestConfigValidate(t *testing.T) {
	bad := -1
	for _, c := range []struct {
		cfg    Config
		fields []string
	}{
		{Config{}, []string{"Name"}},
		{Config{Name: "rdma/"}, []string{"Name"}},
		{Config{Name: "tcp/eth0"}, []string{"Name"}},
		{Config{Name: "rdma/rxe0", Port: 256, GIDIndex: &bad}, []string{"Port", "GIDIndex"}},
		{Config{Name: "rdma/rxe0", Listen: "nowhere"}, []string{"Listen"}},
		{Config{Name: "rdma/rxe0", Listen: ":9000"}, []string{"Advertise"}},
		{Config{Name: "rdma/rxe0", Listen: "[::]:9000", QueuePairs: 17, QueueDepth: 10000, MaxConns: -1}, []string{"Advertise", "QueuePairs", "QueueDepth", "MaxConns"}},
	} {
		_, err := New(c.cfg)
		if err == nil {
			t.Errorf("%+v was accepted", c.cfg)
			continue
		}
		for _, f := range c.fields {
			if !strings.Contains(err.Error(), "Config."+f+": ") {
				t.Errorf("%+v: %s is not named in: %v", c.cfg, f, err)
			}
		}
	}
	if _, err := New(Config{Name: "rdma/no-such-device"}); err == nil || !strings.Contains(err.Error(), "rdma/no-such-device") {
		t.Errorf("no such device: %v", err)
	}
}

func TestChoose(t *testing.T) {
	at := func(s string) [16]byte { return netip.MustParseAddr(s).As16() }
	table := []gid{
		{0, at("fe80::1"), gidRoCE1, "eth0"},
		{1, at("fe80::1"), gidRoCE2, "eth0"},
		{2, at("10.0.0.1"), gidRoCE1, "eth0"},
		{3, at("2001:db8::1"), gidRoCE2, "eth0"},
		{4, at("10.0.0.1"), gidRoCE2, "eth0"},
	}
	index := func(i int) *int { return &i }
	up := func(gids ...gid) port { return port{num: 1, active: true, state: "ACTIVE", gids: gids} }
	down := port{num: 1, state: "DOWN", gids: table}
	for _, c := range []struct {
		name  string
		cfg   Config
		ports []port
		port  int
		gid   int
		says  string // of the log line, or the error if gid is -1
	}{
		{"RoCE v2 and IPv4 before all", Config{}, []port{up(table...)}, 1, 4, "RoCE v2 and IPv4"},
		{"then IPv6 that is routed", Config{}, []port{up(table[:4]...)}, 1, 3, "routable"},
		{"then link-local", Config{}, []port{up(table[:3]...)}, 1, 1, "link-local"},
		{"then RoCE v1", Config{}, []port{up(table[:1]...)}, 1, 0, "no RoCE v2"},
		{"the second port, as the first is down", Config{}, []port{down, {num: 2, active: true, state: "ACTIVE", gids: table}}, 2, 4, "port 2 is the first"},
		{"what the user says", Config{Port: 1, GIDIndex: index(2)}, []port{up(table...)}, 1, 2, "as Config.GIDIndex says"},
		{"a port that is down, if asked for", Config{Port: 1}, []port{down}, 1, 4, "as Config.Port says"},
		{"InfiniBand", Config{}, []port{{num: 1, active: true, infini: true, gids: []gid{{0, at("fe80::9"), gidIB, ""}}}}, 1, 0, "InfiniBand"},
		{"no port is up", Config{Device: "rxe0"}, []port{down}, 0, -1, "no port of rxe0 is active (1 is DOWN)"},
		{"no such port", Config{Device: "rxe0", Port: 3}, []port{down}, 0, -1, "Config.Port is 3"},
		{"no such GID", Config{GIDIndex: index(9)}, []port{up(table[0])}, 0, -1, "Config.GIDIndex is 9: port 1 has 0 (RoCE v1"},
		{"no GID", Config{}, []port{up()}, 0, -1, "give its network interface an address"},
	} {
		p, g, why, err := choose(&c.cfg, c.ports)
		if c.gid < 0 {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || p.num != c.port || g.index != c.gid || !strings.Contains(why, c.says) {
			t.Errorf("%s: port %d, GID %v, %q, %v", c.name, p.num, g, why, err)
		}
	}
}

func TestCompletionError(t *testing.T) {
	err := error(&CompletionError{Rail: "rdma/rxe0", Peer: "10.0.0.2:7", Op: "write", Status: 12, Vendor: 0x81})
	if !errors.Is(err, transport.ErrUnreachable) || err.Error() != "write over rdma/rxe0 to 10.0.0.2:7: IBV_WC_RETRY_EXC_ERR: the peer does not answer (vendor code 0x81)" {
		t.Error(err)
	}
	if err := error(&CompletionError{Status: 77}); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "status 77") {
		t.Error(err)
	}
}

func FuzzGreeting(f *testing.F) {
	g := greeting{name: transport.Name{7}, depth: 256, at: portAddr{gid: [16]byte{1}, lid: 3, mtu: 5}, mailbox: remoteMemory{1 << 40, 9}, pairs: []pairAddr{{1, 2}, {3, 4}}, lost: []transport.Secret{{5}}}
	f.Add(g.append(nil))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := readGreeting(bytes.NewReader(b))
		if err != nil {
			return
		}
		out := g.append(nil)
		if !bytes.Equal(out, b[:len(out)]) {
			t.Errorf("%x\nread and written is\n%x", b, out)
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add((&frame{typ: frameResolved, key: 1, memory: remoteMemory{2, 3}, length: -1}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var g, h frame
		if readFrame(bytes.NewReader(b), &g) != nil {
			return
		}
		if err := readFrame(bytes.NewReader(g.append(nil)), &h); err != nil || !reflect.DeepEqual(g, h) {
			t.Errorf("%+v, %+v, %v", g, h, err)
		}
	})
}

// TestLongLetter: a text that is said to be longer than there is room for is no longer than that.
func TestLongLetter(t *testing.T) {
	b := make([]byte, longLen)
	for _, n := range []int{1, 100, transport.MaxText} {
		m := transport.Imm{Source: 1, Seq: 2, Floor: 3, Value: 4, Text: strings.Repeat("x", n)}
		if took := putLong(b, 5, &m); took != letterLen+2+n {
			t.Errorf("a text of %d bytes takes %d", n, took)
		}
		if key, got := longLetter(b); key != 5 || got != m {
			t.Errorf("%+v", got)
		}
	}
	b[letterLen], b[letterLen+1] = 0xff, 0xff
	if _, got := longLetter(b); len(got.Text) != transport.MaxText {
		t.Errorf("a text of 65535 bytes is read as %d", len(got.Text))
	}
}
