package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"kvferry/internal/config"
)

var errSmall = errors.New("use 1 or more")

// A load is a configuration in another's field.
type load struct{}

func (load) Validate() error {
	var f config.Faults
	f.Add("Rate", math.NaN(), "use a number above 0")
	return f.Err("load.Spec")
}

func validate() error {
	var f config.Faults
	f.Add("Rails[1]", "tcp/eth9", "no such device")
	f.Add("Rails[2]", "tcp/eth9", "no such device")
	f.Add("Workers", 0, "%w", errSmall)
	f.Add("Inner", nil, "nobody has a flag for it")
	f.Check("Random", load{}.Validate())
	f.Check("Base.Random", load{}.Validate())
	f.Add("Base.Workers", 0, "use 1")
	f.Check("Links", nil)
	f.Check("Links[0].Rate", errors.New(`"5": has no unit`))
	config.Between(&f, "Timeout", time.Hour, 0, time.Minute)
	config.Between(&f, "Share", math.NaN(), 0, 1)
	config.Between(&f, "Depth", 3, 1, 3)
	return f.Err("lab.Config")
}

func TestNamed(t *testing.T) {
	err := fmt.Errorf("starting: %w", validate())
	const fields = `starting: lab.Config.Rails[1]: "tcp/eth9": no such device
lab.Config.Rails[2]: "tcp/eth9": no such device
lab.Config.Workers: 0: use 1 or more
lab.Config.Inner: none given: nobody has a flag for it
lab.Config.Random.Rate: NaN: use a number above 0
lab.Config.Base.Random.Rate: NaN: use a number above 0
lab.Config.Base.Workers: 0: use 1
lab.Config.Links[0].Rate: "5": has no unit
lab.Config.Timeout: 1h0m0s: use 0s to 1m0s
lab.Config.Share: NaN: use 0 to 1`
	if got := err.Error(); got != fields {
		t.Errorf("%s\nwant\n%s", got, fields)
	}
	named := config.Named(err, map[string]string{
		"Rails": "--rail", "Workers": "--workers", "Random": "--profile", "Random.Rate": "--request-rate", "Links": "--links", "Timeout": "--timeout", "Share": "SHARE", "Base": "",
	})
	const flags = `--rail: "tcp/eth9": no such device
--workers: 0: use 1 or more
Inner: none given: nobody has a flag for it
--request-rate: NaN: use a number above 0
--workers: 0: use 1
--links: Rate: "5": has no unit
--timeout: 1h0m0s: use 0s to 1m0s
SHARE: NaN: use 0 to 1`
	if got := named.Error(); got != flags {
		t.Errorf("%s\nwant\n%s", got, flags)
	}
	var invalid *config.Invalid
	for _, err := range []error{err, named} {
		if !errors.Is(err, errSmall) || !errors.As(err, &invalid) {
			t.Errorf("%v does not unwrap to its cause and to Invalid", err)
		}
	}
}

// TestNamedFault: a fault that comes at run time has a flag's name, and is no invalid
// configuration even if it unwraps to one.
func TestNamedFault(t *testing.T) {
	late := fmt.Errorf("node d: %w", &config.Fault{Field: "Rails[0]", Err: fmt.Errorf("%q: %w", "tcp/eth0", validate())})
	named := config.Named(late, map[string]string{"Rails": "--rail", "Workers": "--workers"})
	var fault *config.Fault
	if _, ok := named.(*config.Invalid); ok || !errors.As(named, &fault) || fault.Field != "--rail" || !errors.Is(named, errSmall) {
		t.Errorf("%#v", named)
	}
}

func TestNoFaults(t *testing.T) {
	var f config.Faults
	f.Check("Rails", nil)
	if err := f.Err("lab.Config"); err != nil {
		t.Error(err)
	}
	other := errors.New("the disk is full")
	if got := config.Named(errors.Join(other, validate()), map[string]string{"Workers": "--workers"}); !strings.Contains(got.Error(), "\n--workers: 0: use 1 or more\n") || strings.Contains(got.Error(), "disk") {
		t.Error(got)
	}
	if got := config.Named(other, nil); got != other {
		t.Errorf("%v, want %v", got, other)
	}
	if got := config.Named(nil, nil); got != nil {
		t.Error(got)
	}
}

// TestZero: what is left out has its default, and what a user sets to 0 is none.
func TestZero(t *testing.T) {
	left, none, given := time.Duration(0), config.OrNone(time.Duration(0)), config.OrNone(time.Second)
	for _, d := range []*time.Duration{&left, &none, &given} {
		config.Default(d, time.Minute)
	}
	if left != time.Minute || none >= 0 || given != time.Second {
		t.Errorf("%v, %v, %v", left, none, given)
	}
}

// TestReport: an error is the same on the other side of a pipe.
func TestReport(t *testing.T) {
	for _, err := range []error{nil, validate(), &config.Fault{Field: "Rails[0]", Err: errSmall}, errSmall, fmt.Errorf("node d: %w", errSmall)} {
		text, e := json.Marshal(config.NewReport(err))
		var r config.Report
		if e := errors.Join(e, json.Unmarshal(text, &r)); e != nil {
			t.Fatal(e)
		}
		got := r.Err()
		if fmt.Sprint(got) != fmt.Sprint(err) || fmt.Sprintf("%T", got) != fmt.Sprintf("%T", err) && !strings.HasPrefix(fmt.Sprintf("%T", err), "*fmt.") {
			t.Errorf("%T %v, want %T %v", got, got, err, err)
		}
	}
}
