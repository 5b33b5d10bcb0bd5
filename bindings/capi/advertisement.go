package capi

import (
	"encoding/json"
	"fmt"
	"slices"

	"kvferry/transport"
)

// An advertisement is what a peer needs of segments, as JSON without a newline: it may travel as
// text does. Whoever has it may read and write them. Fields are added, never given another meaning, and the
// number is counted up if an older reader must not take it.
type advertisement struct {
	Version  int       `json:"kvferry"`
	Segments []segment `json:"segments"`
}

type segment struct {
	Name     string `json:"name,omitempty"`
	Length   int64  `json:"length"`
	Location string `json:"location"`
	Rails    []rail `json:"rails"`
}

type rail struct {
	Name string `json:"rail"`
	Addr string `json:"addr"`
	Key  uint64 `json:"key,string"` // more than the numbers of other JSON readers hold
	Rank int    `json:"rank,omitempty"`
}

const advertised = 1 // the version

// Advertise describes segments to peers; ranges name them by their place in the list.
func (e *Engine) Advertise(handles []Handle) ([]byte, error) {
	if len(handles) == 0 {
		return nil, invalid("no segments to advertise")
	}
	a := advertisement{Version: advertised}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range handles {
		s := e.segments[h]
		if s == nil {
			return nil, fmt.Errorf("%w: segment %d", ErrHandle, h)
		}
		info := s.Info()
		if len(info.Rails) == 0 {
			return nil, invalid("segment %q is private: peers cannot reach it", info.Name)
		}
		d := segment{Name: info.Name, Length: info.Length, Location: info.Location}
		for _, r := range info.Rails {
			d.Rails = append(d.Rails, rail{Name: r.Rail, Addr: r.Addr, Key: uint64(r.Key), Rank: r.Rank})
		}
		a.Segments = append(a.Segments, d)
	}
	return json.Marshal(a)
}

// Connect opens a peer's segments for batches. It does not wait for a connection, which is made in the
// background; whether the peer can be reached only a batch finds out.
func (e *Engine) Connect(text []byte) (Handle, error) {
	var a advertisement
	if err := json.Unmarshal(text, &a); err != nil {
		return 0, invalid("no advertisement: %v", err)
	}
	if a.Version != advertised {
		return 0, fmt.Errorf("%w: an advertisement of version %d, and this library reads %d: use the same release at both ends", ErrUnsupported, a.Version, advertised)
	}
	if len(a.Segments) == 0 {
		return 0, invalid("an advertisement without segments")
	}
	var targets []*transport.Target
	for i, s := range a.Segments {
		info := transport.SegmentInfo{Name: s.Name, Length: s.Length, Location: s.Location}
		for _, r := range s.Rails {
			info.Rails = append(info.Rails, transport.RailAddr{Rail: r.Name, Addr: r.Addr, Key: transport.Key(r.Key), Rank: r.Rank})
		}
		t, err := e.engine.Open(info)
		if err != nil {
			closeAll(targets)
			return 0, fmt.Errorf("segment %d: %w", i, err)
		}
		targets = append(targets, t)
	}
	h := newHandle()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.targets[h] = slices.Clip(targets)
	return h, nil
}

// Disconnect lets the connections go that nothing else uses. Batches under way go on.
func (e *Engine) Disconnect(h Handle) error {
	e.mu.Lock()
	targets := e.targets[h]
	delete(e.targets, h)
	e.mu.Unlock()
	if targets == nil {
		return fmt.Errorf("%w: target %d", ErrHandle, h)
	}
	closeAll(targets)
	return nil
}

func closeAll(targets []*transport.Target) {
	for _, t := range targets {
		_ = t.Close() // is nil
	}
}
