package matrix

import (
	"fmt"
	"strings"
	"time"

	"kvferry/internal/progress"
)

// startProgress shows a run of the pairs that are not done already.
func (r *runner) startProgress() {
	r.progress = progress.New(r.cfg.Progress, r.cfg.Terminal)
	todo := 0
	for _, s := range r.schedule.state {
		if s != skipped {
			todo++
		}
	}
	if n := len(r.pairs); todo < n {
		r.progress.Say(fmt.Sprintf("%d of %d pairs are done already (--force runs them again)", n-todo, n))
	}
	r.progress.Start(progress.State{What: "starting", Total: int64(todo), Unit: "pairs"})
}

// show names what the run waits for, and shows for how long it has.
func (r *runner) show(what string) {
	server, client, _, _ := r.now()
	began := time.Now()
	r.progress.Poll(func(s *progress.State) {
		s.What = fmt.Sprintf("%s/%s: %s, %s", server.Name, client.Name, what, time.Since(began).Round(time.Second))
	})
}

// tell writes a line for pair i, which has ended.
func (r *runner) tell(i int, pair *Pair) {
	r.progress.Add(1)
	line := fmt.Sprintf("pair %d/%d %s/%s: %s", i+1, len(r.pairs), pair.Server, pair.Client, pair.Status)
	if pair.ClientS > 0 {
		line += fmt.Sprintf(", client %s", seconds(pair.ClientS))
	}
	if pair.ReadyS > 0 {
		line += fmt.Sprintf(", server ready after %s", seconds(pair.ReadyS))
	}
	if pair.Error != "" {
		line += ": " + strings.Join(strings.Fields(pair.Error), " ")
	}
	r.progress.Say(line + r.progress.Left())
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}
