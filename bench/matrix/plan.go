package matrix

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// Describe prints what a run would do, pair by pair, and does nothing. A port that is chosen
// when the server starts is PORT there.
func Describe(w io.Writer, f *File, out string, force bool) error {
	r := &runner{cfg: Config{File: f, Out: out, Force: force}}
	if err := r.prepare(); err != nil {
		return err
	}
	for i, p := range r.pairs {
		s, c := f.Servers[i/len(f.Clients)], f.Clients[i%len(f.Clients)]
		state := "to run"
		if r.schedule.state[i] == skipped {
			state = "done, not run again without --force"
		}
		fmt.Fprintf(w, "pair %d/%d %s/%s: %s\n", i+1, len(r.pairs), p.Server, p.Client, state)
		if err := f.describe(w, s, c, r.folder(s.Name, c.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) describe(w io.Writer, s Server, c Client, folder string) error {
	fixed := s
	if s.Port == 0 {
		fixed.Port = 1 // any, so that none is looked for
	}
	v, err := f.values(fixed, c, folder)
	if err != nil {
		return err
	}
	if s.Port == 0 && !s.Command.empty() {
		v["port"] = "PORT"
		v["url"] = "http://" + v["host"] + ":PORT"
		if s.URL != "" {
			v["url"] = fill(s.URL, v, verbatim)
		}
	}
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "  %-8s%s\n", what, fmt.Sprintf(format, args...))
	}
	command := func(what string, c Command, env map[string]string, dir string) {
		shown := strings.Join(c.shown(v), " ")
		line(what, "%s", strings.Join(append(environment(env, v), shown), " "))
		line("", "in %s", dir)
	}
	line("folder", "%s", folder)
	if s.Command.empty() {
		line("server", "%s, which runs already", v["url"])
	} else {
		command("server", s.Command, s.Env, f.folder(fill(s.Dir, v, verbatim), f.dir))
	}
	if s.Ready != (Ready{}) {
		var by []string
		if s.Ready.Line != "" {
			by = append(by, fmt.Sprintf("a line of its output has %q", s.Ready.Line))
		}
		if s.Ready.URL != "" {
			by = append(by, fill(s.Ready.URL, v, verbatim)+" answers 200")
		}
		if by == nil { // of a server that runs already
			by = []string{"it takes connections"}
		}
		line("ready", "%s, within %s", strings.Join(by, " and "), s.within())
	}
	command("client", c.line(), c.Env, f.folder(fill(c.Dir, v, verbatim), filepath.Join(folder, resultFolder)))
	line("", "ended after %s", or(c.Within, DefaultClient))
	if !s.Command.empty() {
		after := "after this client"
		if s.Share {
			after = "after its last client"
		}
		line("stop", "signal %s %s, killed after %s", s.Stop.signal(), after, or(s.Stop.Within, DefaultStop))
	}
	return nil
}

// shown is the command with all put in, as one would type it.
func (c Command) shown(values map[string]string) []string {
	if len(c.Words) == 0 {
		return []string{fill(c.Line, values, quoted)}
	}
	words := c.argv(values)
	for i := range words {
		words[i] = quoted(words[i])
	}
	return words
}

func or(v, usual time.Duration) time.Duration {
	if v == 0 {
		return usual
	}
	return v
}
