package rails

import (
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func TestPipe(t *testing.T) {
	transporttest.TestRail(t, func(t testing.TB) transport.Rail {
		r, err := Open("pipe", Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}, transporttest.Checked)
}
