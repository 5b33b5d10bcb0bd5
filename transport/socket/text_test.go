package socket

import (
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestTextNoFrame: a text that comes without an immediate, or is too long, is no frame.
func TestTextNoFrame(t *testing.T) {
	for name, r := range map[string]request{
		"without an immediate": {count: 1, seq: 1, text: 1},
		"of a READ":            {op: transport.Read, count: 1, seq: 1, text: 1},
		"too long":             {hasImm: true, count: 1, seq: 1, text: transport.MaxText + 1},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.CheckLeaks(t)
			p := newRawPeer(t)
			p.connect(&hello{name: transport.Name{1}})
			p.send(frameBytesOf(r, []desc{{p.key, 0, 0}}, make([]byte, immLen+r.text)))
			if got, err := parseResponse(append(p.end(), make([]byte, responseLen)...)); err != nil || got.typ != reset {
				t.Errorf("answered %+v, %v; want a reset", got, err)
			}
		})
	}
}
