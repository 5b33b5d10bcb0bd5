package rail

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kvferry/transport"
)

const msec = time.Millisecond

// synthetic is a timeline of a sample each 10 ms: rate says what a rail does at a
// time, in bytes a second.
func synthetic(d time.Duration, rails int, rate func(rail int, at time.Duration) float64) timeline {
	tl := timeline{{Bytes: make([]int64, rails), Resent: make([]int64, rails)}}
	sum := make([]float64, rails)
	for at := 10 * msec; at <= d; at += 10 * msec {
		s := Sample{At: at, Resent: make([]int64, rails)}
		for r := range rails {
			sum[r] += rate(r, at-10*msec) * 0.01
			s.Bytes = append(s.Bytes, int64(sum[r]))
		}
		tl = append(tl, s)
	}
	return tl
}

// TestRecoveries: what was put into a timeline comes out of it. Four rails of 1 GB/s:
// rail 1 is cut at 2 s, and everything stands still for 120 ms, all together, as the
// batches wait for what it had; it is restored at 4 s and moves again after 700 ms;
// at 6 s it has a tenth, and the others starve until 6.4 s.
func TestRecoveries(t *testing.T) {
	names := []string{"tcp/eth0", "tcp/eth1", "tcp/eth2", "tcp/eth3"}
	tl := synthetic(8000*msec, 4, func(rail int, at time.Duration) float64 {
		switch {
		case at >= 2000*msec && at < 2120*msec:
			return 0
		case rail == 1 && at >= 2000*msec && at < 4700*msec:
			return 0
		case at >= 6000*msec && at < 6400*msec:
			return 0.1e9
		case rail == 1 && at >= 6000*msec:
			return 0.1e9
		}
		return 1e9
	})
	for i := range tl {
		if tl[i].At >= 2100*msec {
			tl[i].Resent[1] = 5e6
		}
	}
	changes := []pathChange{
		{At: -100 * msec, Rail: "tcp/eth1", State: transport.PathUp},
		{At: 2080 * msec, Rail: "tcp/eth1", State: transport.PathDown},
		{At: 2090 * msec, Rail: "tcp/eth2", State: transport.PathDown}, // of another rail
		{At: 4650 * msec, Rail: "tcp/eth1", State: transport.PathUp},
	}
	faults := []Annotation{
		{At: 2 * time.Second, Action: LinkDown, Rail: 1},
		{At: 4 * time.Second, Action: LinkUp, Rail: 1},
		{At: 6 * time.Second, Action: setRate, Rail: 1, Rate: 0.1e9 / Payload},
		{At: 9 * time.Second, Action: ClearLink, Rail: 1},
	}
	all := Recoveries(tl, faults, changes, names)
	if len(all) != 3 {
		t.Fatalf("%d faults: the last is after the end", len(all))
	}
	near := func(what string, got *time.Duration, want, tolerance time.Duration) {
		t.Helper()
		if got == nil || (*got-want).Abs() > tolerance {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	close := func(what string, got, want float64) {
		t.Helper()
		if got < 0.98*want || got > 1.02*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	cut, back, slow := all[0], all[1], all[2]
	near("cut, detect", cut.Detect, 80*msec, 0)
	near("cut, recover", cut.Recover, 120*msec, 10*msec)
	near("cut, gap", &cut.Gap, 120*msec, 10*msec)
	close("cut, ideal", cut.Ideal, 3e9)
	close("cut, after", cut.After, 3e9)
	close("cut, worst 100 ms", cut.Worst+1, 1) // all of it in the hole
	close("slow, worst 100 ms", slow.Worst, 0.4e9)
	if cut.Resent != 5e6 || back.Resent != 0 || cut.Share != 0 {
		t.Errorf("resent %d and %d, share %v", cut.Resent, back.Resent, cut.Share)
	}
	near("back, detect", back.Detect, 650*msec, 0)
	near("back, recover", back.Recover, 700*msec, 60*msec) // 90 % of half a second
	close("back, share", back.Share, 1e9)
	close("back, ideal", back.Ideal, 4e9)
	if slow.Detect != nil {
		t.Errorf("slow: detected after %v", slow.Detect)
	}
	near("slow, recover", slow.Recover, 400*msec, 30*msec)
	close("slow, ideal", slow.Ideal, 3.1e9)
	close("slow, share", slow.Share, 0.1e9)

	// Never back to 95 %, and a hole that is short.
	low := synthetic(4*time.Second, 2, func(rail int, at time.Duration) float64 {
		if rail == 0 && at >= time.Second {
			return 0.9e9
		}
		return 1e9
	})
	lost := Recoveries(low, []Annotation{{At: time.Second, Action: BlackHole, Rail: 1}}, nil, names[:2])
	if lost[0].Recover == nil || *lost[0].Recover != 0 {
		t.Errorf("rail 1 goes on in spite of its fault, and makes up for rail 0: %v", lost[0].Recover)
	}
	if at, ok := low.since([]int{0}, 0.95e9, time.Second, 4*time.Second); ok {
		t.Errorf("recovered at %v with 90 %%", at)
	}
	if Recoveries(nil, faults, nil, names) != nil || Recoveries(tl, nil, changes, names) != nil {
		t.Error("no samples or no faults")
	}
}

func TestTimeline(t *testing.T) {
	tl := synthetic(time.Second, 1, func(int, time.Duration) float64 { return 1000 })
	for at, want := range map[time.Duration]float64{-1: 0, 0: 0, 5 * msec: 5, 500 * msec: 500, 505 * msec: 505, 2 * time.Second: 1000} {
		if got := tl.at(0, at); got < want-0.01 || got > want+0.01 {
			t.Errorf("at %v: %v, want %v", at, got, want)
		}
	}
	if v := tl.Rate(0, 100*msec, 200*msec); v < 999.9 || v > 1000.1 || tl.Rate(0, 5, 5) != 0 {
		t.Errorf("%v bytes a second", v)
	}
	if tl.gap(0, time.Second) != 0 || (timeline{}).gap(0, 1) != 0 || (timeline{}).at(0, 1) != 0 || (timeline{}).resent(0, 1) != 0 {
		t.Error("nothing has no gaps")
	}
}

func TestAnnotations(t *testing.T) {
	for text, want := range map[string]Annotation{
		"2s:link-down:1":    {At: 2 * time.Second, Action: LinkDown, Rail: 1},
		"500ms:clear:0":     {At: 500 * msec, Action: ClearLink},
		"1s:rate:3:200mbit": {At: time.Second, Action: setRate, Rail: 3, Rate: 25e6},
	} {
		if got, err := ParseAnnotation(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "not complete", "2s:link-down": "not complete", "x:link-down:1": "no time", "-1s:link-down:1": "no time", "2s:kill:1": "link-down, link-up",
		"2s:link-up:x": "no rail", "2s:link-up:-1": "no rail", "2s:rate:1": "names no rate", "2s:rate:1:fast": "rate", "2s:clear:1:9": "too much",
	} {
		if _, err := ParseAnnotation(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "2s:rate:1:200mbit") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestReadFaults(t *testing.T) {
	began := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	all, err := ReadFaults(strings.NewReader(fmt.Sprintf(`{"unix_ns":%d,"action":"link-up","host":1,"nic":2}

{"unix_ns":%d,"action":"rate","nic":1,"rate":200000000,"took_ns":4000}
{"unix_ns":%[1]d,"action":"kill","host":2}
{"unix_ns":%[1]d,"action":"clear","host":2,"error":"host 1 was killed"}
`, began.Add(5250*msec).UnixNano(), began.Add(2500*msec).UnixNano())), began)
	want := []Annotation{{At: 2500 * msec, Action: setRate, Rail: 1, Rate: 25e6}, {At: 5250 * msec, Action: LinkUp, Rail: 2}}
	if err != nil || len(all) != 2 || all[0] != want[0] || all[1] != want[1] {
		t.Errorf("%+v, %v", all, err)
	}
	for text, want := range map[string]string{"{}\nnonsense\n": "line 2", `{"action":"clear"}`: "line 1 has no unix_ns"} {
		if _, err := ReadFaults(strings.NewReader(text), began); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
