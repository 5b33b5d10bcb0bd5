package members_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/members/memberstest"
)

var errClosed = errors.New("closed by its test")

func TestList(t *testing.T) {
	t.Run("in a bubble", func(t *testing.T) { memberstest.Test(t, synctest.Test, list) })
	t.Run("in none", func(t *testing.T) {
		memberstest.Test(t, func(t *testing.T, test func(*testing.T)) { test(t) }, list)
	})
}

func list(*testing.T) memberstest.Subject {
	l := members.NewList()
	incarnation := map[string]uint64{}
	return memberstest.Subject{
		Membership: l,
		Join:       func(info *proto.NodeInfo) { incarnation[info.Id] = l.Join(info) },
		Report:     func(id string, load *proto.Load) { l.Report(incarnation[id], load, nil) },
		Drain:      func(id string) { l.Drain(incarnation[id]) },
		Leave:      func(id string) { l.Leave(incarnation[id], members.ErrLeft) },
		Fail: func(id string) error {
			err := errors.New("its machine is gone")
			l.Leave(incarnation[id], err)
			return err
		},
		Close: func() { l.Close(errClosed) },
	}
}

// TestListByIncarnation: what is said of one that is gone does nothing to its successor.
func TestListByIncarnation(t *testing.T) {
	l := members.NewList(memberstest.Node("node-1", 1), memberstest.Node("node-2", 1))
	first := l.Join(memberstest.Node("node-1", 2))
	second := l.Join(memberstest.Node("node-1", 3))
	l.Leave(first, errClosed)
	l.Drain(first)
	l.Report(first, &proto.Load{Running: 1}, nil)
	l.Report(second, &proto.Load{Running: 2}, []*proto.RailLoad{{Rail: "tcp/eth0"}})
	l.Report(second, nil, []*proto.RailLoad{{Rail: "tcp/eth1"}}) // the load stays
	told := 0
	for c := range l.Watch(t.Context()) {
		n := c.Node
		switch {
		case n.Info.Id != "node-1":
		case n.Info.Instance != 3 || n.Incarnation != second || n.Draining || n.Load.GetRunning() != 2 || len(n.Rails) != 1 || n.Rails[0].Rail != "tcp/eth1":
			t.Errorf("there is %v", n)
		}
		if told++; told == 2 {
			break
		}
	}
	l.Close(errClosed)
	if l.Join(memberstest.Node("node-3", 1)) != 0 {
		t.Error("a node joined after the end")
	}
}
