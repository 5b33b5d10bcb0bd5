package bench

import (
	"context"
	"fmt"

	"kvferry/bench/calibrate"
	"kvferry/bench/client"
	"kvferry/engine"
	"kvferry/load"
)

// Latencies computes in virtual time the nine latencies of all published cells of some settings
// with a profile and its links, beside what was published: cell by cell, in the order of the tables.
func Latencies(ctx context.Context, prof *engine.Profile, settings []Setting) ([]calibrate.Figure, error) {
	x := run{cfg: Config{NumPrompts: load.PublishedPrompts, Virtual: &Virtual{
		Workloads: load.Workloads(), Settings: settings, Profile: prof, Link: profileLink(prof),
	}}}
	cells, err := x.simulate(ctx)
	if err != nil {
		return nil, err
	}
	var figures []calibrate.Figure
	for i := range cells {
		c := &cells[i]
		p := PublishedFigures(c.Workload, c.Setting)
		if p == nil {
			return nil, fmt.Errorf("%s: nothing was published", c.name())
		}
		got, want := latencyFigures(&c.Metrics.Figures), latencyFigures(&p.Figures)
		for i := range got {
			figures = append(figures, calibrate.Figure{Name: c.Workload + " " + c.Setting + " " + got[i].Key, Got: *got[i].Value, Want: *want[i].Value})
		}
	}
	return figures, nil
}

// latencyFigures are the nine that are latencies.
func latencyFigures(f *client.Figures) []client.Figure { return f.All()[4:] }

// profileLink is the link of a setting as the profile has it.
func profileLink(p *engine.Profile) func(Setting) (string, error) {
	return func(s Setting) (string, error) {
		if _, ok := p.Links[s.Link]; !ok {
			return "", fmt.Errorf("profile %s has no link %q", p.Name, s.Link)
		}
		return s.Link, nil
	}
}
