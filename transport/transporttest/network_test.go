package transporttest

import (
	"strconv"
	"sync/atomic"
	"testing"

	"kvferry/transport"
)

func TestContract(t *testing.T) {
	n := NewNetwork()
	var names atomic.Int64
	TestRail(t, func(testing.TB) transport.Rail { return Device{n.Rail(strconv.FormatInt(names.Add(1), 10))} }, Checked)
}
