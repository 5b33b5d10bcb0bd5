package tcp

import (
	"os"
	"testing"

	"kvferry/transport"
	"kvferry/transport/process"
	"kvferry/transport/transporttest"
)

var beside = transporttest.Beside{
	Rail:     func() (transport.Rail, error) { return New(Config{Name: "tcp/lo", Listen: "127.0.0.1:0"}) },
	Allocate: transport.MapMemory,
}

func TestMain(m *testing.M) {
	process.ShortTurns() // as the daemons do
	if transporttest.Role() == transporttest.RoleBeside {
		beside.Target()
	}
	os.Exit(m.Run())
}

// BenchmarkBesideBulk is what bulk costs a small transfer, and a small one bulk.
func BenchmarkBesideBulk(b *testing.B) { beside.Benchmark(b) }
