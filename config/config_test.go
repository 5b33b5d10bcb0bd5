package config_test

import (
	"errors"
	"fmt"
	"testing"

	"kvferry/config"
)

var errSmall = errors.New("use 1 or more")

func validate() error {
	var f config.Faults
	f.Add("Rails[1]", "%q: no such device", "tcp/eth9")
	f.Add("Workers", "%d: %w", 0, errSmall)
	f.Add("Inner", "nobody has a flag for it")
	return f.Err("lab.Config")
}

func TestNamed(t *testing.T) {
	err := fmt.Errorf("starting: %w", validate())
	const fields = "starting: lab.Config.Rails[1]: \"tcp/eth9\": no such device\nlab.Config.Workers: 0: use 1 or more\nlab.Config.Inner: nobody has a flag for it"
	if got := err.Error(); got != fields {
		t.Errorf("%s\nwant\n%s", got, fields)
	}
	named := config.Named(err, map[string]string{"Rails": "rail", "Workers": "workers"})
	const flags = "--rail[1]: \"tcp/eth9\": no such device\n--workers: 0: use 1 or more\nInner: nobody has a flag for it"
	if got := named.Error(); got != flags {
		t.Errorf("%s\nwant\n%s", got, flags)
	}
	for _, err := range []error{err, named} {
		if !errors.Is(err, errSmall) {
			t.Errorf("%v does not unwrap to its cause", err)
		}
	}
}

func TestNoFaults(t *testing.T) {
	var f config.Faults
	f.Check("Rails", nil)
	if err := f.Err("lab.Config"); err != nil {
		t.Error(err)
	}
	other := errors.New("the disk is full")
	if got := config.Named(other, nil); got != other {
		t.Errorf("%v, want %v", got, other)
	}
	if got := config.Named(nil, nil); got != nil {
		t.Error(got)
	}
}
