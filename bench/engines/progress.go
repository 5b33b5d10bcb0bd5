package engines

import (
	"fmt"
	"strings"
	"time"

	"kvferry/internal/progress"
)

// start shows a run of that many turns.
func (x *run) start(turns int) {
	x.progress = progress.New(x.cfg.Progress, x.cfg.Terminal)
	x.progress.Start(progress.State{What: "starting", Total: int64(turns), Unit: "turns"})
}

// show names the turn that begins. When it ends, the caller calls end with what it gave, which writes a line.
func (x *run) show(turn string) (end func(gave string, err error)) {
	began := time.Now()
	x.progress.Describe(turn)
	return func(gave string, err error) {
		x.progress.Add(1)
		line := fmt.Sprintf("%s: %s in %.0f s", turn, gave, time.Since(began).Seconds())
		if err != nil {
			first, _, _ := strings.Cut(err.Error(), "\n")
			line += "; it FAILED: " + first
		}
		x.progress.Say(line + x.progress.Left())
	}
}
