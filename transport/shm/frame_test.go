package shm

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"kvferry/transport"
)

func grantOfRanges(n int) answer {
	a := answer{typ: typeGrant, seq: 3, may: 1, slot: 5, generation: 9, file: 2, total: uint32(n), offset: 4096, at: 1 << 40, length: 1 << 30}
	for i := range n {
		a.ranges = append(a.ranges, transport.Range{Offset: int64(i) * 100, Length: 10})
	}
	return a
}

// TestFrames: what is written is what is read.
func TestFrames(t *testing.T) {
	for _, want := range []request{
		{typ: typeAsk, seq: 7, key: 9},
		{typ: typeKnock},
	} {
		if got, err := parseRequest(want.append(nil)); got != want || err != nil {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	for _, want := range []answer{
		{typ: typeTold},
		{typ: typeBell, number: 8},
		{typ: typeForget, file: 3},
		grantOfRanges(1), grantOfRanges(maxRanges),
		{typ: typeGrant, code: codeBadKey, seq: 4},
	} {
		b := want.append(nil)
		if got, err := parseAnswer(b); !reflect.DeepEqual(got, want) || err != nil || len(b) > maxMessage {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	w := welcome{code: codeUnread, at: 5, probe: [16]byte{1, 2}}
	if got, err := parseWelcome(w.append(nil)); got != w || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	name := transport.Name{4, 5}
	if got, err := parseHello(appendHello(nil, name)); got != name || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestGrantFaults: a grant that is not in itself one is a breach of the protocol.
func TestGrantFaults(t *testing.T) {
	for name, spoil := range map[string]func(*answer){
		"a slot that is none":   func(a *answer) { a.slot = maxSlots },
		"no generation":         func(a *answer) { a.generation = 0 },
		"no ranges":             func(a *answer) { a.ranges = nil },
		"more than all ranges":  func(a *answer) { a.total = 1 },
		"too many ranges":       func(a *answer) { a.total = allRanges + 1 },
		"a third direction":     func(a *answer) { a.may = 4 },
		"memory beyond a file":  func(a *answer) { a.offset = 1<<64 - 1 },
		"memory beyond the end": func(a *answer) { a.at = 1<<64 - 1 },
		"memory without end":    func(a *answer) { a.length = 1<<63 - 1 },
	} {
		a := grantOfRanges(2)
		spoil(&a)
		if got, err := parseAnswer(a.append(nil)); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, ranges := range map[string][]transport.Range{
		"an empty range": {{Offset: 1}}, "a negative one": {{Offset: -1, Length: 5}}, "one beyond the memory": {{Offset: 90, Length: 11}},
	} {
		if _, err := access(1, ranges, 100); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := access(0, []transport.Range{{Length: 1}}, 100); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("no direction: %v", err)
	}
}

// FuzzFrames: no bytes are read beyond a message, and what is taken is what it would be written as.
func FuzzFrames(f *testing.F) {
	a, r := grantOfRanges(3), request{typ: typeAsk, seq: 1, key: 2}
	f.Add(a.append(nil))
	f.Add(r.append(nil))
	f.Add(appendHello(nil, transport.Name{1}))
	f.Add(new(welcome).append(nil))
	f.Add([]byte{typeForget, 1, 2, 3, 4})
	f.Add([]byte{typeBell, 1, 2, 3, 4})
	f.Add([]byte{typeKnock})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRequest(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Errorf("% x is read as %+v", b, r)
		}
		if name, err := parseHello(b); err == nil && !bytes.Equal(appendHello(nil, name), b) {
			t.Errorf("% x is read as %x", b, name)
		}
		if w, err := parseWelcome(b); err == nil && !bytes.Equal(w.append(nil), b) {
			t.Errorf("% x is read as %+v", b, w)
		}
		a, err := parseAnswer(b)
		if err != nil || a.typ == typeGrant && a.code != codeOK { // whose rest is not looked at
			return
		}
		if !bytes.Equal(a.append(nil), b) {
			t.Errorf("% x is read as %+v", b, a)
		}
		if a.typ != typeGrant {
			return
		}
		acc, err := access(a.may, a.ranges, a.length)
		if err != nil {
			return
		}
		for _, r := range acc.Ranges() {
			if r.Offset < 0 || r.Length <= 0 || uint64(r.Offset)+uint64(r.Length) > a.length {
				t.Errorf("%+v opens %+v", a, r)
			}
		}
	})
}
