package selection

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestRecord runs the transcripts of testdata/record. A line is a time in seconds and
// what was found then, of a batch that ended just before or "ended" a time ago:
//
//	T strike [N] [ended=T]     N batches were wrong
//	T right [N]                N were right
//	T                          nothing
//
// and the answer how the path stands.
func TestRecord(t *testing.T) {
	datadriven.Walk(t, "testdata/record", func(t *testing.T, path string) {
		var r Record
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "path" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			if d.HasArg("new") {
				r = Record{}
			}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				f := strings.Fields(line)
				seconds := func(s string) time.Duration {
					v, err := strconv.ParseFloat(s, 64)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					return time.Duration(v * float64(time.Second))
				}
				now := seconds(f[0])
				ended, n := now, 1
				for _, w := range f[1:] {
					if s, ok := strings.CutPrefix(w, "ended="); ok {
						ended = seconds(s)
					} else if v, err := strconv.Atoi(w); err == nil {
						n = v
					}
				}
				for range n {
					switch {
					case len(f) > 1 && f[1] == "strike":
						r.Strike(now, ended)
					case len(f) > 1 && f[1] == "right":
						r.Vouch(false)
					}
				}
				switch {
				case r.Clear():
					fmt.Fprintf(&out, "%v clear\n", now)
				case r.Resting(now):
					fmt.Fprintf(&out, "%v resting until %v, strikes %d\n", now, r.until, r.strikes)
				case r.rest > 0:
					fmt.Fprintf(&out, "%v on trial, strikes %d\n", now, r.strikes)
				default:
					fmt.Fprintf(&out, "%v trusted, strikes %d\n", now, r.strikes)
				}
			}
			return out.String()
		})
	})
}
