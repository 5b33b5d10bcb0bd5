package rails

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/rdma"
)

// RDMA is the kind of rail over a verbs device.
const RDMA = "rdma"

var rdmaKind = kind{
	name:  RDMA,
	what:  "rdma/ and a device",
	forms: []string{"rdma/mlx5_0", "rdma/mlx5_0:1@host:port"},
	flag:  []string{"rdma/mlx5_0", "rdma/mlx5_0:1?gid=3&qps=2"},
	help: [][2]string{
		{"rdma/mlx5_0, rdma/mlx5_0:1", "RDMA over a device, and its port"},
		{"rdma/rxe0@10.0.0.1:18000?gid=1", "where peers make contact, and options: gid, qps, depth, poll, advertise"},
	},
	nics:   "rdma/mlx5_0 or rdma/mlx5_0:1",
	device: devicePort,
	options: []option{
		{"gid", between(0, 255)},
		{"qps", between(1, 16)},
		{"depth", between(1, 8192)},
		{"poll", duration},
		{"advertise", anything},
		{connection.OptionMax, between(1, 1<<20)},
		{connection.OptionPerPeer, between(1, 1<<20)},
	},
	open: openRDMA,
	fields: map[string]string{
		"Name": "the NIC", "Device": "the device", "Port": "the device's port", "Listen": "the address", "Advertise": "option advertise",
		"GIDIndex": "option gid", "QueuePairs": "option qps", "QueueDepth": "option depth", "Poll": "option poll",
	},
}

// devicePort reads a device and its port, mlx5_0:1.
func devicePort(s *Spec, text string) (device string, err error) {
	device, port, hasPort := strings.Cut(text, ":")
	if !hasPort {
		return device, nil
	}
	if s.Port, err = strconv.Atoi(port); err != nil || s.Port < 1 || s.Port > 255 {
		return "", fmt.Errorf("port %q of the device: use 1 to 255, or leave it out for the first that is active", port)
	}
	return device, nil
}

func openRDMA(s *Spec, opt Options) (transport.Rail, error) {
	cfg := rdma.Config{
		Name: "rdma/" + s.NIC, Port: s.Port, Listen: s.Listen, Advertise: s.get("advertise"),
		QueuePairs: s.number("qps"), QueueDepth: s.number("depth"), Logger: opt.Logger,
		MaxConns: s.number(connection.OptionMax), ConnsPerPeer: s.number(connection.OptionPerPeer),
	}
	if s.get("gid") != "" {
		gid := s.number("gid")
		cfg.GIDIndex = &gid
	}
	if poll := s.get("poll"); poll != "" {
		cfg.Poll, _ = time.ParseDuration(poll) // Parse has read it
	}
	return rail(rdma.New(cfg))
}
