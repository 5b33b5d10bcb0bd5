package lab

import (
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]Fault{
		"3s:kill:2":                     {"", 3 * time.Second, Kill, 2, 0},
		"2s:link-down:1:0":              {"", 2 * time.Second, LinkDown, 1, 0},
		"after=READY:500ms:link-up:1:3": {"READY", 500 * time.Millisecond, LinkUp, 1, 3},
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
		"after=:3s:kill:1":   "after= has no text",
		"after=READY":        "after= has no text",
	} {
		_, err := ParseFault(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "TIME:kill:HOST") {
			t.Errorf("%q: %v, want %q and the forms", text, err, want)
		}
	}
}

// FuzzParseFault: what is read is printed as something that reads the same.
func FuzzParseFault(f *testing.F) {
	for _, text := range []string{"3s:kill:2", "2s:link-down:1:0", "after=READY:1h2m3.5s:link-up:1:7", "after=a=b:0:kill:01", ":::", "after=:"} {
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
