package config

import "errors"

// A Report is an error that crosses from one process to another, as JSON: the faults of a
// child process's configuration are of its parent's.
type Report struct {
	Where  string   // of an Invalid, which may have none
	Bad    bool     // it is an Invalid
	Fields []string // "" of an error that is of none
	Texts  []string
}

// NewReport is the report of an error, nil included.
func NewReport(err error) (r Report) {
	add := func(field string, err error) {
		r.Fields, r.Texts = append(r.Fields, field), append(r.Texts, err.Error())
	}
	switch e := outermost(err).(type) {
	case *Fault:
		add(e.Field, e.Err)
	case *Invalid:
		r.Where, r.Bad = e.Where, true
		for _, f := range e.Faults {
			add(f.Field, f.Err)
		}
	case nil:
	default:
		add("", err)
	}
	return r
}

// Err is the error again: an [Invalid], a [Fault] or another, without what it unwraps to.
func (r Report) Err() error {
	var faults Faults
	for i, text := range r.Texts {
		if i >= len(r.Fields) || r.Fields[i] == "" {
			return errors.New(text)
		}
		faults.Check(r.Fields[i], errors.New(text))
	}
	if !r.Bad && len(faults) == 1 {
		return faults[0]
	}
	return faults.Err(r.Where)
}
