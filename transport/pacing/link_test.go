package pacing

import (
	"strings"
	"testing"
	"time"
)

func TestParseLink(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Link
	}{
		{"rate=1.29GB/s,latency=10us", Link{BytesPerSecond: 1.29e9, Latency: 10 * time.Microsecond}},
		{" latency=1ms , rate=250MB/s,name=eth", Link{Name: "eth", BytesPerSecond: 250e6, Latency: time.Millisecond}},
		{"rate=100gbit", Link{BytesPerSecond: 12.5e9}},
		{"rate=2.5Gbit,latency=1us", Link{BytesPerSecond: 312.5e6, Latency: time.Microsecond}},
		{"rate=1234567B/s", Link{BytesPerSecond: 1234567}},
		{"rate=1B/s", Link{BytesPerSecond: 1}},
	} {
		l, err := ParseLink(c.in)
		if err != nil || *l != c.want {
			t.Errorf("%q: %+v, %v", c.in, l, err)
			continue
		}
		if back, err := ParseLink(l.String()); err != nil || *back != *l {
			t.Errorf("%q prints as %q, which reads %+v, %v", c.in, l, back, err)
		}
	}
	for rate, want := range map[float64]string{
		1.29e9: "1.29GB/s", 1e9: "1GB/s", 999e6: "999MB/s", 5e3: "5kB/s", 7: "7B/s", 12.5e12: "12.5TB/s",
	} {
		l := Link{Name: "x", BytesPerSecond: rate, Latency: time.Millisecond}
		if got := l.String(); got != "name=x,rate="+want+",latency=1ms" {
			t.Errorf("%v B/s prints as %s, want %s", rate, got, want)
		}
	}
	for in, says := range map[string]string{
		"":                            "key=value",
		"rate=5":                      "no unit",
		"rate=xGB/s":                  `"x" is no number`,
		"rate=fastgbit":               `"fast" is no number`,
		"rate=NaNGB/s":                `"NaN" is no number`,
		"rate=InfGB/s":                `"Inf" is no number`,
		"rate=-1gbit":                 `"-1" is no number from 0`,
		"rate=0GB/s":                  "rate: 0: use 1 B/s or more",
		"latency=10us":                "no rate: write rate=",
		"rate=1GB/s,latency=-1us":     "latency: -1µs: use 0s to 1h0m0s",
		"rate=1GB/s,latency=5":        `latency: "5": write a time with its unit`,
		"rate=0B/s,latency=-1us":      "rate: 0: use 1 B/s or more, like rate=1.29GB/s; latency: -1µs",
		"rate=1GB/s,rate=2GB/s":       "twice",
		"rate=1GB/s,speed=2":          "unknown key",
		"rate=1GB/s,latency=tomorrow": "latency",
	} {
		if l, err := ParseLink(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want an error that says %q", in, l, err, says)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add("rate=1.29GB/s,latency=10us")
	f.Add("name=x,rate=3kB/s")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLink(s)
		if err != nil {
			return
		}
		if back, err := ParseLink(l.String()); err != nil || *back != *l {
			t.Fatalf("%q prints as %q, which reads %v, %v", s, l, back, err)
		}
	})
}
