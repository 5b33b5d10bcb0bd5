package load

import (
	"kvferry/internal/config"
	"kvferry/load/functions"
)

// Functions are arrivals made of the Azure Functions trace of 2021.
type Functions = functions.Trace

// checkFunctions checks arrivals that are calls of functions.
func (s Spec) checkFunctions(bad *config.Faults) {
	bad.Refuse(s.Requests < 1, "Requests", s.Requests, "use 1 or more: they are spread over the intervals")
	bad.Refuse(len(s.Adapters.Names) == 0, "Adapters.Names", nil, "name the adapters that the functions stand for")
	bad.Refuse(s.Adapters.Choice != "", "Adapters.Choice", s.Adapters.Choice, "leave it out: the trace says which adapter a request is for")
	s.Functions.Check("Functions.", bad)
}

// replay puts the times and the adapters of the functions' calls on requests.
func (s Spec) replay(k Kind, l Load) (Load, error) {
	n, err := s.count(k, l)
	if err != nil {
		return Load{}, err
	}
	calls, err := s.Functions.Calls(len(s.Adapters.Names), n)
	if err != nil {
		return Load{}, err
	}
	l.Source = &replayed{Source: l.Source, names: s.Adapters.Names, calls: calls}
	return l, nil
}

// replayed are requests at the times of calls.
type replayed struct {
	Source
	names []string
	calls *functions.Calls
	n     int   // requests so far
	err   error // the first
}

func (p *replayed) Next() (Request, bool, error) {
	if p.err != nil {
		return Request{}, false, p.err
	}
	r, ok, err := p.Source.Next()
	if ok && err == nil && len(r.After) == 0 {
		var at float64
		var adapter int
		if at, adapter, err = p.calls.Next(); err == nil {
			p.n++
			r.Adapter = p.names[adapter]
			r.At, err = due(p.n, at)
		}
	}
	if p.err = err; err != nil {
		return Request{}, false, err
	}
	return r, ok, nil
}

// Close closes the source.
func (p *replayed) Close() error { return Close(p.Source) }
