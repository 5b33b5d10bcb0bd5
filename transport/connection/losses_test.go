package connection

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Losses
		secret := func(n int) transport.Secret { return transport.Secret{1, byte(n), byte(n >> 8)} }
		for n := range 10 {
			l.Add("a", secret(n))
		}
		l.Add("b", secret(100))
		if got := l.Of("a"); len(got) != MaxLost || got[0] != secret(3) || got[MaxLost-1] != secret(9) {
			t.Errorf("of ten the latest are %x", got)
		}
		if got := l.Of("c"); got != nil {
			t.Errorf("nothing was lost to c: %x", got)
		}
		told := l.Of("a")
		l.Add("a", secret(10)) // meanwhile
		l.Ended("a", told)
		if got := l.Of("a"); !slices.Equal(got, []transport.Secret{secret(10)}) {
			t.Errorf("after the peer has ended seven: %x", got)
		}
		l.Ended("a", l.Of("a"))
		l.Ended("never", told)
		if got := l.Of("a"); got != nil {
			t.Errorf("all were ended: %x", got)
		}
		// Peers that never come back are forgotten.
		for n := range 10_000 {
			l.Add(fmt.Sprint("gone ", n), secret(n))
			<-time.After(time.Minute)
		}
		if n := len(l.byAddr); n > manyLosses+int(lossesFor/time.Minute) {
			t.Errorf("%d addresses are remembered", n)
		}
		if got := l.Of("gone 9999"); len(got) != 1 {
			t.Errorf("the last is not: %x", got)
		}
	})
}
