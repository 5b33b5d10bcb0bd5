package proxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"kvferry/proto"
)

// TestAttempt feeds the state machine a line of events and compares what comes
// out: P and D are the legs, "P3" a token at position 3, "+" a report.
func TestAttempt(t *testing.T) {
	for _, tc := range []struct {
		shape  shape
		want   uint32
		events string
		out    string
	}{
		{shapeFull, 3, "P0 P1 P2 P+finished", "0 1 2 done"},
		{shapeFull, 3, "P1 P0 P1 P0 P2 P+finished", "0 1 2 done"},
		{shapeFull, 3, "P0 P1 P+finished", "0 1 error(ended after token 2 of 3)"},
		{shapeFull, 3, "P0 P+stopped", "0 done"},
		{shapeFull, 3, "P+stopped", "done"},
		{shapeFull, 3, "P0 P2 P+stopped", "0 error(ended after token 1 of 3)"},
		{shapeFull, 3, "P3", "error(token 3 of 3)"},
		{shapeFull, 3, "P0 P+lost", "0 error(gone)"},
		{shapeFull, 3, "P+reserved", "error(unasked Reserved)"},
		{shapeFull, 3, "P+prefilled", "error(unasked Prefilled)"},
		{shapeFull, 3, "X0 X+lost P0", "0"},

		{shapePrefillOnly, 1, "P0 P+finished", "0 done"},
		{shapePrefillOnly, 1, "P0 P+prefilled", "0 done"},
		{shapePrefillOnly, 1, "P+prefilled", "error(ended after token 0 of 1)"},

		{shapeSerial, 3, "P0 P+prefilled D0 D1 D2 D+finished", "decode 0 1 2 done"},
		{shapeSerial, 3, "P+prefilled P+lost", "decode error(gone)"},
		{shapeSerial, 3, "P+prefilled D0 P+lost D1 D2 D+finished", "decode 0 1 2 done"},
		{shapeSerial, 3, "P+prefilled D0 P+failed D1 D2 D+finished", "decode 0 1 2 done"},
		{shapeSerial, 3, "P+prefilled P+prefilled D+failed", "decode error(scripted)"},
		{shapeSerial, 3, "P+finished", "error(Finished instead of Prefilled)"},
		{shapeSerial, 3, "P+nokv", "error(Prefilled without kv)"},

		{shapeLayerwise, 3, "D+reserved P0 P+prefilled D1 D2 D+finished", "prefill 0 1 2 done"},
		{shapeLayerwise, 3, "D+reserved D1 D2 D+finished P0 P+prefilled", "prefill 0 1 2 done"},
		{shapeLayerwise, 3, "D+reserved D+reserved P0 P+prefilled D+finished", "prefill 0 error(ended after token 1 of 3)"},
		{shapeLayerwise, 3, "D+reserved D1 P+lost", "prefill error(gone)"},
		{shapeLayerwise, 3, "D+reserved P0 P+lost", "prefill 0 error(gone)"},
		{shapeLayerwise, 3, "D+reserved P0 D1 P+lost D2 D+finished", "prefill 0 1 2 done"},
		{shapeLayerwise, 3, "D+reserved P0 P+stopped", "prefill 0 done"},
		{shapeLayerwise, 3, "D+reserved P+stopped", "prefill done"},
		{shapeLayerwise, 3, "D+lost", "error(gone)"},
		{shapeLayerwise, 3, "P+reserved", "error(unasked Reserved)"},
	} {
		t.Run(fmt.Sprintf("%d %s", tc.shape, tc.events), func(t *testing.T) {
			node := func(id string) *member { return &member{info: &proto.NodeInfo{Id: id}} }
			legs := map[byte]*leg{
				'P': {kind: proto.Leg_LEG_PREFILL, node: node("p")},
				'D': {kind: proto.Leg_LEG_DECODE, node: node("d")},
				'X': {kind: proto.Leg_LEG_DECODE, node: node("x")},
			}
			a := &attempt{shape: tc.shape, want: tc.want}
			if tc.shape == shapeLayerwise {
				a.decode = legs['D']
			} else {
				a.compute = legs['P']
			}
			if strings.HasPrefix(tc.events, "P+reserved") {
				a.compute = legs['P']
			}
			var out []string
			for _, e := range strings.Fields(tc.events) {
				if strings.Contains(strings.Join(out, " "), "error") {
					t.Fatalf("%s comes after the end", e)
				}
				err := error(nil)
				if l := legs[e[0]]; e[1] != '+' {
					var ready []arrival
					ready, err = a.token(nil, arrival{leg: l, position: uint32(e[1] - '0')})
					for _, r := range ready {
						out = append(out, fmt.Sprint(r.position))
					}
				} else {
					var s step
					s, err = a.report(scriptedReport(l, e[2:]))
					switch s {
					case stepSubmitDecode:
						out = append(out, "decode")
						a.decode = legs['D']
					case stepSubmitPrefill:
						out = append(out, "prefill")
						a.compute = legs['P']
					case stepDone:
						out = append(out, "done")
					}
				}
				if err != nil {
					var failed *LegError
					if !errors.As(err, &failed) {
						t.Fatalf("%v is no LegError", err)
					}
					message := failed.Err.Error()
					message = strings.TrimPrefix(message, errBrokenNode.Error()+": ")
					out = append(out, "error("+message+")")
				}
			}
			if got := strings.Join(out, " "); got != tc.out {
				t.Errorf("got  %s\nwant %s", got, tc.out)
			}
		})
	}
}

func scriptedReport(l *leg, what string) report {
	r := report{leg: l}
	switch what {
	case "reserved":
		r.reserved = &proto.Reserved{Kv: &proto.KVRef{}}
	case "prefilled":
		r.prefilled = &proto.Prefilled{Kv: &proto.KVRef{}}
	case "nokv":
		r.prefilled = &proto.Prefilled{}
	case "finished":
		r.finished = &proto.Finished{Reason: proto.FinishReason_FINISH_LENGTH}
	case "stopped":
		r.finished = &proto.Finished{Reason: proto.FinishReason_FINISH_STOP}
	case "failed":
		r.failed = &proto.Failed{Code: proto.FailCode_FAIL_INTERNAL, Message: "scripted"}
	case "lost":
		r.lost = errors.New("gone")
	}
	return r
}

// FuzzAttempt: whatever nodes say, tokens come out in order and once, and an
// attempt that calls itself done has all that was asked for or was stopped.
func FuzzAttempt(f *testing.F) {
	f.Add(uint8(shapeFull), []byte{0x00, 0x01, 0x02, 0x43})
	f.Add(uint8(shapeSerial), []byte{0x42, 0x80, 0x81, 0x82, 0xc3})
	f.Add(uint8(shapeLayerwise), []byte{0xc1, 0x81, 0x82, 0xc3, 0x00, 0x42})
	reports := []string{"none", "reserved", "prefilled", "finished", "stopped", "failed", "lost", "nokv"}
	f.Fuzz(func(t *testing.T, kind uint8, script []byte) {
		const want = 3
		p := &leg{kind: proto.Leg_LEG_PREFILL, node: &member{info: &proto.NodeInfo{Id: "p"}}}
		d := &leg{kind: proto.Leg_LEG_DECODE, node: &member{info: &proto.NodeInfo{Id: "d"}}}
		a := &attempt{shape: shape(kind % 4), want: want}
		if a.shape == shapePrefillOnly {
			a.want = 1
		}
		if a.shape == shapeLayerwise {
			a.decode = d
		} else {
			a.compute = p
		}
		next, stopped := uint32(0), false
		for _, b := range script {
			l := p
			if b&0x80 != 0 {
				l = d
			}
			if b&0x40 == 0 {
				ready, err := a.token(nil, arrival{leg: l, position: uint32(b & 0x0f)})
				for _, r := range ready {
					if r.position != next {
						t.Fatalf("token %d out, expected %d", r.position, next)
					}
					next++
				}
				if err != nil {
					return
				}
				continue
			}
			what := reports[b&7]
			stopped = stopped || what == "stopped"
			s, err := a.report(scriptedReport(l, what))
			switch {
			case err != nil:
				return
			case s == stepSubmitDecode && a.decode == nil:
				a.decode = d
			case s == stepSubmitPrefill && a.compute == nil:
				a.compute = p
			case s == stepDone:
				if next != a.want && !stopped {
					t.Fatalf("done with %d of %d tokens", next, a.want)
				}
				return
			case s != stepNone:
				t.Fatalf("step %d a second time", s)
			}
		}
	})
}
