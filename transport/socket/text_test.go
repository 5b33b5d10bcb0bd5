package socket

import (
	"errors"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestTextOf: a header has a text only with an immediate, whatever else it is.
func TestTextOf(t *testing.T) {
	for name, r := range map[string]request{
		"WRITE":   {count: 1, seq: 1},
		"READ":    {op: transport.Read, count: 1, seq: 1},
		"release": {op: opRelease, seq: 1},
		"poke":    {op: opPoke},
	} {
		if _, err := parseRequest(r.append(nil)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r.text = 1
		if _, err := parseRequest(r.append(nil)); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%s with a text: %v", name, err)
		}
	}
}

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
