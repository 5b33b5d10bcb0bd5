package tcp

import (
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func newRail(t testing.TB, listen string) *Rail {
	t.Helper()
	r, err := New(Config{Name: "tcp/lo", Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestContract(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			transporttest.TestRail(t, func(t testing.TB) transport.Rail { return newRail(t, listen) })
		})
	}
}
