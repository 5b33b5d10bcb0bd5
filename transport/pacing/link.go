package pacing

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
)

// Link is a modelled NIC: it paces an engine's batches to a rate that the
// machine's own network exceeds, so that runs on a machine without the NIC can
// be compared with runs on one that has it.
//
// Batches occupy the link in the order of their submission:
//
//	start     = max(submitted, end of the batch before)
//	end       = start + bytes/BytesPerSecond
//	delivered = end + Latency
//
// The bytes move at once, over the real rails. The batch's completion, and its
// immediate, wait until it would have been delivered, and never come before the
// bytes really arrived.
type Link struct {
	Name           string  // "rdma"; for reports
	BytesPerSecond float64 // payload rate; 1.29e9
	Latency        time.Duration

	bus *Bus // see Bus.Join; nil for none
}

// ParseLink reads "rate=1.29GB/s,latency=10us", in any order, with an optional
// name=. Rates are in B/s, kB/s, MB/s, GB/s or TB/s, or in Mbit, Gbit or Tbit a
// second as NICs are sold (100gbit), decimal.
func ParseLink(s string) (*Link, error) {
	l := &Link{}
	seen := make(map[string]bool)
	for field := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(field), "=")
		if !ok {
			return nil, fmt.Errorf("%q: %q is not key=value: write rate=1.29GB/s,latency=10us", s, field)
		}
		if seen[k] {
			return nil, fmt.Errorf("%q: %s is given twice: leave one out", s, k)
		}
		seen[k] = true
		var err error
		switch k {
		case "name":
			l.Name = v
		case "rate":
			l.BytesPerSecond, err = ParseRate(v)
		case "latency":
			if l.Latency, err = time.ParseDuration(v); err != nil {
				err = fmt.Errorf("%q: write a time with its unit, like 10us", v)
			}
		default:
			err = errors.New("unknown key: use name, rate and latency")
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %s: %w", s, k, err)
		}
	}
	if !seen["rate"] {
		return nil, fmt.Errorf("%q: no rate: write rate=1.29GB/s,latency=10us", s)
	}
	if err := l.Validate(); err != nil {
		err = config.Named(err, map[string]string{"Name": "name", "BytesPerSecond": "rate", "Latency": "latency"})
		return nil, fmt.Errorf("%q: %s", s, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return l, nil
}

var rateUnits = []struct {
	suffix string
	scale  float64
}{{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}}

var bitUnits = []struct {
	suffix string
	scale  float64 // bytes/s
}{{"tbit", 1e12 / 8}, {"gbit", 1e9 / 8}, {"mbit", 1e6 / 8}}

// ParseRate reads a rate with its unit, like 1.29GB/s or 100gbit, in bytes a second.
func ParseRate(s string) (float64, error) {
	const form = "write it like 1.29GB/s or 100gbit"
	number, scale := "", 0.0
	for _, u := range bitUnits {
		if num, ok := strings.CutSuffix(strings.ToLower(s), u.suffix); ok && scale == 0 {
			number, scale = num, u.scale
		}
	}
	for _, u := range rateUnits {
		if num, ok := strings.CutSuffix(s, u.suffix); ok && scale == 0 {
			number, scale = num, u.scale
		}
	}
	if scale == 0 {
		return 0, fmt.Errorf("%q: no unit: %s", s, form)
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0) || math.IsInf(f, 1) {
		return 0, fmt.Errorf("%q: %q is no number from 0: %s", s, number, form)
	}
	return f * scale, nil
}

// String is the form ParseLink reads.
func (l *Link) String() string {
	var b strings.Builder
	if l.Name != "" {
		b.WriteString("name=" + l.Name + ",")
	}
	for _, u := range rateUnits {
		if l.BytesPerSecond >= u.scale || u.scale == 1 {
			num := strconv.FormatFloat(l.BytesPerSecond/u.scale, 'g', -1, 64)
			// Division may lose the last bit; B/s never does.
			if f, err := ParseRate(num + u.suffix); err == nil && f == l.BytesPerSecond || u.scale == 1 {
				b.WriteString("rate=" + num + u.suffix)
				break
			}
		}
	}
	return b.String() + ",latency=" + l.Latency.String()
}

// Validate lists every fault by its field, as a [config.Invalid].
func (l *Link) Validate() error {
	var bad config.Faults
	if !(l.BytesPerSecond >= 1) || math.IsInf(l.BytesPerSecond, 1) {
		bad.Add("BytesPerSecond", l.BytesPerSecond, "use 1 B/s or more, like rate=1.29GB/s")
	}
	config.Between(&bad, "Latency", l.Latency, 0, time.Hour)
	if strings.ContainsAny(l.Name, ",=") || strings.TrimSpace(l.Name) != l.Name {
		bad.Add("Name", l.Name, "use no comma, equals sign or outer space")
	}
	return bad.Err("pacing.Link")
}
