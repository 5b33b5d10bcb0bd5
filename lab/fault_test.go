package lab

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]Fault{
		"3s:kill:2":                     {"", 3 * time.Second, Kill, 2, 0, 0, ""},
		"2s:link-down:1:0":              {"", 2 * time.Second, LinkDown, 1, 0, 0, ""},
		"after=READY:500ms:link-up:1:3": {"READY", 500 * time.Millisecond, LinkUp, 1, 3, 0, ""},
		"3s:rate:1:0:200mbit":           {"", 3 * time.Second, SetRate, 1, 0, 200e6, ""},
		"3s:black-hole:2:1":             {"", 3 * time.Second, BlackHole, 2, 1, 0, ""},
		"after=X:0s:clear:1:0":          {"X", 0, Clear, 1, 0, 0, ""},
		"3s:loss:1:0:0.1%":              {"", 3 * time.Second, SetLoss, 1, 0, 0, "0.1%"},
		"3s:delay:2:1:5ms/20ms":         {"", 3 * time.Second, SetDelay, 2, 1, 0, "5ms/20ms"},
		"3s:flap:1:0:2s/500ms":          {"", 3 * time.Second, SetFlap, 1, 0, 0, "2s/500ms"},
	} {
		got, err := ParseFault(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %v, %+v, %v", text, got, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                   "not complete",
		"3s:kill":            "not complete",
		"3:kill:1":           `"3" is no time`,
		"-3s:kill:1":         "time is -3s",
		"3s:reboot:1:0":      `"reboot" is no action`,
		"3s:kill:x":          `"x" is no host`,
		"3s:kill:0":          "host is 0",
		"3s:kill:1:0":        `"0" is too much`,
		"3s:link-down:1":     "names no NIC",
		"3s:link-down:1:x":   `"x" is no NIC`,
		"3s:link-down:1:9":   "NIC is 9",
		"3s:link-down:1:0:0": `"0" is too much`,
		"3s:rate:1:0":        "names no rate",
		"3s:rate:1:0:5":      "80mbit",
		"3s:rate:1:0:1kbit":  "rate is 1000 bit/s",
		"3s:clear:1:0:1gbit": `"1gbit" is too much`,
		"3s:loss:1:0":        "no loss such as 0.1%",
		"3s:jitter:1:0":      "no jitter such as 5ms",
		"3s:loss:1:0:101%":   "from 0% to 100%",
		"3s:delay:1:0:-5ms":  "from 0s to 10s",
		"3s:flap:1:0:2s/2s":  "out and in for 10ms or more",
		"after=:3s:kill:1":   "after= has no text",
		"after=READY":        "after= has no text",
	} {
		_, err := ParseFault(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "TIME:kill:HOST") {
			t.Errorf("%q: %v, want %q and the forms", text, err, want)
		}
	}
}

// TestFaultsOfALab: an action that a lab has not is no action, where it is read
// and where it is checked.
func TestFaultsOfALab(t *testing.T) {
	for _, text := range []string{"3s:rate:1:0:200mbit", "3s:black-hole:1:0", "3s:clear:1:0"} {
		_, err := ParseFault(text, Actions...)
		if err == nil || !strings.Contains(err.Error(), "use kill, link-down or link-up") {
			t.Errorf("%s: %v", text, err)
		}
		f, err := ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Validate(2, 2, Actions); err == nil || !strings.Contains(err.Error(), "use kill, link-down or link-up") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestSchedule: faults come at their times, those that wait for a text after it,
// and those that are too late are named.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := func(after string, delay time.Duration) Fault {
			return Fault{After: after, Delay: delay, Action: Kill, Host: 1}
		}
		s := NewSchedule([]Fault{fault("", 2*time.Second), fault("READY", time.Second), fault("EARLY", time.Second), fault("NEVER", 0), fault("", time.Hour)})
		s.See(Line{1, false, "EARLY"})
		s.See(Line{1, true, "NEVER"}) // not on standard output
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			<-time.After(5 * time.Second)
			s.See(Line{2, false, "is READY now"})
			s.See(Line{2, false, "READY again"})
		}()
		var mu sync.Mutex
		got := make(map[string]time.Duration)
		note := func(what string) func(Fault) {
			return func(f Fault) {
				mu.Lock()
				defer mu.Unlock()
				got[what+f.String()] = time.Since(began)
			}
		}
		s.Run(ctx, note(""), note("missed "))
		want := map[string]time.Duration{
			"2s:kill:1": 2 * time.Second, "after=EARLY:1s:kill:1": time.Second, "after=READY:1s:kill:1": 6 * time.Second,
			"missed after=NEVER:0s:kill:1": time.Minute, "missed 1h0m0s:kill:1": time.Minute,
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestScheduleKeepsOrder: faults that are due at once, as after a pause of the
// machine, come in the order of their times.
func TestScheduleKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var faults []Fault
		for i := range 20 {
			faults = append(faults, Fault{Delay: time.Duration(20-i) * time.Millisecond, Action: SetRate, Host: 1, Rate: int64(20 - i)})
		}
		var got []int64
		NewSchedule(faults).Run(t.Context(), func(f Fault) {
			if len(got) == 0 {
				<-time.After(time.Second) // the others are late
			}
			got = append(got, f.Rate)
		}, func(f Fault) { t.Errorf("%v is missed", f) })
		if len(got) != 20 || !slices.IsSorted(got) {
			t.Errorf("%v", got)
		}
	})
}

// FuzzParseFault: what is read is printed as something that reads the same.
func FuzzParseFault(f *testing.F) {
	for _, text := range []string{"3s:kill:2", "2s:link-down:1:0", "after=READY:1h2m3.5s:link-up:1:7", "after=a=b:0:kill:01", "0s:rate:1:0:2.5gbit", ":::", "after=:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			return
		}
		again, err := ParseFault(fault.String())
		if err != nil || again != fault {
			t.Errorf("%q is %+v, printed %q is %+v, %v", text, fault, fault, again, err)
		}
	})
}
