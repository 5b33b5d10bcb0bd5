package load

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
)

// rate is a number, or "Inf".
type rate float64

func (r *rate) UnmarshalJSON(text []byte) error {
	if string(text) == `"Inf"` {
		*r = rate(math.Inf(1))
		return nil
	}
	return json.Unmarshal(text, (*float64)(r))
}

// drawnByTools are arrivals and adapters that the tools' own functions drew: see
// testdata/arrivals.py.
type drawnByTools struct {
	Normalized []struct {
		Seed             uint64
		Rate, Burstiness rate
		At               []float64
	}
	Ramp []struct {
		Seed       uint64
		Strategy   string
		Start, End float64
		Burstiness rate
		At         []float64
	}
	SGLang []struct {
		Seed         uint64
		Rate         rate
		Drawn, Names int
		Choice       string
		Alpha        float64
		At           []float64
		End          float64
		Adapters     []string
	}
	Calls     string
	Functions []struct {
		Models     int
		Start, End string
		Minutes    int
		Rate, CV   float64
		Stride     int
		Sort       bool
		At         []float64
		Adapters   []int
	}
	VLLMAdapters []string `json:"vllm_adapters"`
}

func readDraws(t *testing.T) (d drawnByTools) {
	t.Helper()
	text, err := os.ReadFile("testdata/arrivals.json")
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// spec is a load of n small requests.
func spec(n int, s Spec) Spec {
	s.Requests, s.InputLen, s.OutputLen, s.Vocab = n, 1, 1, 10
	if s.Rate == 0 {
		s.Rate = math.Inf(1)
	}
	if s.Burstiness == 0 {
		s.Burstiness = 1
	}
	return s
}

// compareTimes: to the 10 ns to which numpy's logarithms, cut to nanoseconds and added up,
// agree with ours.
func compareTimes(t *testing.T, what string, got List, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d requests, want %d", what, len(got), len(want))
		return
	}
	for i, r := range got {
		if math.Abs(r.At.Seconds()-want[i]) > 1e-7+1e-14*want[i] {
			t.Errorf("%s: request %d at %v, the tool's at %.9f s", what, i, r.At, want[i])
			return
		}
	}
}

func collected(t *testing.T, s Spec) (List, Load) {
	t.Helper()
	l, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all, err := Collect(l)
	if err != nil {
		t.Fatal(err)
	}
	return all, l
}

// TestArrivalsOfTools: the times of vllm bench serve at one rate and on a ramp.
func TestArrivalsOfTools(t *testing.T) {
	d := readDraws(t)
	for _, c := range d.Normalized {
		for _, s := range []Spec{{Compat: CompatVLLM}, {ArrivalMode: ArrivalNormalized}} {
			s.Seed, s.Rate, s.Burstiness = c.Seed, float64(c.Rate), float64(c.Burstiness)
			all, _ := collected(t, spec(len(c.At), s))
			compareTimes(t, fmt.Sprintf("normalized %+v", s), all, c.At)
		}
	}
	for _, c := range d.Ramp {
		all, _ := collected(t, spec(len(c.At), Spec{Compat: CompatVLLM, Seed: c.Seed, Burstiness: float64(c.Burstiness), RampUp: RampUp{c.Strategy, c.Start, c.End}}))
		compareTimes(t, c.Strategy, all, c.At)
	}
}

// TestArrivalsOfSGLang: its times and adapters, which share a generator with the dataset's
// draws before them and with one another.
func TestArrivalsOfSGLang(t *testing.T) {
	for _, c := range readDraws(t).SGLang {
		s := spec(len(c.At), Spec{Compat: CompatSGLang, Seed: c.Seed, Rate: float64(c.Rate)})
		for i := range c.Names {
			s.Adapters.Names = append(s.Adapters.Names, fmt.Sprintf("lora%d", i))
		}
		if s.Adapters.Choice, s.Adapters.Alpha = c.Choice, c.Alpha; c.Choice == "uniform" {
			s.Adapters.Choice = AdapterRandom
		}
		g := newGenerators(s.Seed)
		for range c.Drawn {
			g.Numpy.Randint(1, 65)
		}
		l, err := s.arrange(randomKind, Load{Source: newDraws(s), Count: s.Requests, Generators: &g})
		if err != nil {
			t.Fatal(err)
		}
		all, err := Collect(l)
		if err != nil {
			t.Fatal(err)
		}
		compareTimes(t, fmt.Sprintf("%+v", s), all, c.At)
		if !(math.Abs(l.End.Seconds()-c.End) < 1e-6) {
			t.Errorf("%+v: the run lasts until %v, the tool's until %.9f s", s, l.End, c.End)
		}
		for i, want := range c.Adapters {
			if all[i].Adapter != want {
				t.Errorf("%+v: request %d is for %s, the tool's for %s", s, i, all[i].Adapter, want)
				break
			}
		}
	}
}

// TestFunctions: times and adapters as dLoRA's trace.py makes them of the trace of functions.
func TestFunctions(t *testing.T) {
	d := readDraws(t)
	file := filepath.Join(t.TempDir(), "functions.csv")
	if err := os.WriteFile(file, []byte(d.Calls), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Functions {
		s := spec(len(c.At), Spec{Functions: Functions{
			File: file, Start: c.Start, End: c.End, Interval: time.Duration(c.Minutes) * time.Minute, Rate: c.Rate, CV: c.CV, Stride: c.Stride, Sort: c.Sort,
		}})
		for i := range c.Models {
			s.Adapters.Names = append(s.Adapters.Names, fmt.Sprint(i))
		}
		all, _ := collected(t, s)
		compareTimes(t, fmt.Sprintf("%+v", c), all, c.At)
		for i, want := range c.Adapters {
			if all[i].Adapter != fmt.Sprint(want) {
				t.Errorf("%+v: request %d is for %s, the tool's for %d", s.Functions, i, all[i].Adapter, want)
				break
			}
		}
	}
}

func TestFunctionFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "functions.csv")
	good := spec(10, Spec{
		Adapters:  Adapters{Names: []string{"a", "b"}},
		Functions: Functions{File: file, Start: "0.0.0", End: "0.0.2", Interval: time.Minute, Rate: 4, CV: 1, Stride: 1},
	})
	const header = "app,func,end_timestamp,duration\n"
	for text, want := range map[string]string{
		header + "a,b,x,1\n":                        `functions.csv:2: end_timestamp: "x": want a number`,
		header + "a,b,1,1\na,c,-1,1\n":              "functions.csv:3: end_timestamp: -1: use 0 or more",
		"app,end_timestamp\n":                       "functions.csv:1: there is no column func",
		header + "a,b,1,1\n":                        "it has 1 functions for 2 adapters",
		header + "a,b,1,1\na,c,1,1\n" + "a,c,2,1\n": "nothing is called in interval 2 of 2",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := good.Open()
		if err == nil {
			_, err = Collect(l)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	bad := good
	bad.Requests, bad.Adapters = 0, Adapters{Choice: AdapterZipf}
	bad.Functions = Functions{File: file, Start: "x", End: "0.0", Interval: time.Second, Rate: math.Inf(1)}
	err := bad.Validate()
	for _, want := range []string{
		"Requests: 0: use 1 or more", "Adapters.Names: none given", `Adapters.Choice: "zipf": leave it out`, `Functions.Start: "x": write days.hours.minutes`,
		`Functions.End: "0.0": write`, "Functions.Interval: 1s: use whole minutes", "Functions.Rate: +Inf: use more", "Functions.CV: 0: use 0.001", "Functions.Stride: 0: use 1",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
	bad = good
	bad.Functions.End = "0.0.0"
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "use a time after the start") {
		t.Error(err)
	}
}

// TestArrivalFaults: what no arrivals can be made of is named by its field.
func TestArrivalFaults(t *testing.T) {
	for want, s := range map[string]Spec{
		"Rate: -1: use more than 0":                           {Rate: -1},
		"Burstiness: -1: use 0.001":                           {Rate: 1, Burstiness: -1},
		"Burstiness: 2: use 1, or --arrival-mode normalized":  {Rate: 1, Burstiness: 2, Compat: CompatSGLang},
		`ArrivalMode: "late": use normalized or legacy`:       {ArrivalMode: "late"},
		`RampUp.Strategy: "up": use linear or exponential`:    {RampUp: RampUp{"up", 1, 2}},
		"RampUp.Start: 0: use more than 0":                    {RampUp: RampUp{RampLinear, 0, 2}},
		"RampUp.End: 1: use as many":                          {RampUp: RampUp{RampLinear, 2, 1}},
		"Rate: 3: leave it out":                               {Rate: 3, RampUp: RampUp{RampLinear, 1, 2}},
		"Seed: 4294967296: use 0 to 4294967295":               {Seed: 1 << 32, Compat: CompatVLLM},
		`Compat: "tgi": use vllm or sglang`:                   {Compat: "tgi"},
		"InFlight: -1: use 1 or more":                         {InFlight: -1},
		"Duration: -1ns: use more than 0":                     {Duration: -1},
		"Adapters.Names: none given":                          {Adapters: Adapters{Choice: AdapterZipf}},
		"Adapters.Names[1]: none given":                       {Adapters: Adapters{Names: []string{"a", ""}}},
		"Adapters.Alpha: 1: use more than 1":                  {Adapters: Adapters{[]string{"a", "b"}, AdapterSkewed, 1}},
		"Adapters.Alpha: 0: use more than 0":                  {Adapters: Adapters{[]string{"a", "b"}, AdapterZipf, 0}},
		`Adapters.Choice: "best": use random, round-robin`:    {Adapters: Adapters{[]string{"a"}, "best", 0}},
		`name 2 or more, as SGLang wants`:                     {Compat: CompatSGLang, Adapters: Adapters{[]string{"a"}, AdapterRoundRobin, 0}},
		`Workers.Choice: "least": use round-robin, random or`: {Workers: Workers{2, "least"}},
		"Workers.Count: -1: use 0 to":                         {Workers: Workers{-1, ""}},
	} {
		if err := spec(5, s).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q in it", s, err, want)
		}
	}
	endless := spec(5, Spec{Compat: CompatVLLM, Duration: time.Second, Rate: 1})
	endless.Requests = 0
	if err := endless.Validate(); err == nil || !strings.Contains(err.Error(), "Requests: 0: use 1 or more: these arrivals depend") {
		t.Error(err)
	}
}

// TestInfiniteRate: all at once, whosever arrivals they are, and nothing is scaled.
func TestInfiniteRate(t *testing.T) {
	for _, compat := range []string{"", CompatVLLM, CompatSGLang} {
		all, l := collected(t, spec(5, Spec{Compat: compat}))
		for _, r := range all {
			if r.At != 0 || l.End != 0 {
				t.Errorf("%q: a request at %v, the end at %v", compat, r.At, l.End)
			}
		}
	}
}

// TestDuration: what is due later is not sent, a load that is drawn goes on until then, and
// what follows others is left to Load.Until.
func TestDuration(t *testing.T) {
	s := spec(0, Spec{Rate: 100, Duration: 5 * time.Second})
	all, l := collected(t, s)
	if len(all) < 350 || len(all) > 650 || all[len(all)-1].At >= s.Duration || l.Until != s.Duration {
		t.Errorf("%d requests, the last at %v, nothing from %v on", len(all), all[len(all)-1].At, l.Until)
	}
	s.Requests = 20
	if all, _ := collected(t, s); len(all) != 20 {
		t.Errorf("%d requests of 20", len(all))
	}
	if s.Requests, s.Duration = 0, 0; s.Validate() == nil {
		t.Error("a load without an end was taken")
	}
	turns := List{{At: 0}, {After: []int{0}}, {At: time.Minute}, {After: []int{0}}}
	if all, err := Collect(until(&turns, time.Second)); len(all) != 2 || err != nil {
		t.Errorf("%d requests, %v", len(all), err)
	}
	legacy := spec(10, Spec{Compat: CompatSGLang, Rate: 1, Duration: 2 * time.Second})
	if _, l := collected(t, legacy); l.End > legacy.Duration {
		t.Errorf("the run lasts until %v", l.End)
	}
}

// TestTakes: a trace reads the arrivals' fields only if its own times are not used.
func TestTakes(t *testing.T) {
	for _, c := range []struct {
		s    Spec
		knob string
		want bool
	}{
		{Spec{}, "request-rate", true},
		{Spec{}, "ramp-up-strategy", true},
		{Spec{}, "untimed", false},
		{Spec{}, "duration", true},
		{Spec{Kind: Traced}, "request-rate", false},
		{Spec{Kind: Traced}, "untimed", true},
		{Spec{Kind: Traced, Untimed: true}, "request-rate", true},
		{Spec{Kind: "256/q8"}, "request-rate", false},
		{Spec{Kind: "256/q8"}, "worker-assignment", true},
		{Spec{Kind: "none"}, "dataset-name", false},
	} {
		if got := c.s.Takes(c.knob); got != c.want {
			t.Errorf("%+v takes %s: %t", c.s, c.knob, got)
		}
	}
}

// TestAdapters: as often as asked for; vLLM's draws to the bit.
func TestAdapters(t *testing.T) {
	names := []string{"lora0", "lora1", "lora2"}
	all, _ := collected(t, spec(30, Spec{Compat: CompatVLLM, Seed: 7, Adapters: Adapters{Names: names}}))
	for i, want := range readDraws(t).VLLMAdapters {
		if all[i].Adapter != want {
			t.Errorf("request %d is for %s, vLLM's for %s", i, all[i].Adapter, want)
		}
	}
	const n = 30000
	for _, c := range []struct {
		Adapters
		want []float64
	}{
		{Adapters{names, "", 0}, []float64{1. / 3, 1. / 3, 1. / 3}},
		{Adapters{names, AdapterRoundRobin, 0}, []float64{1. / 3, 1. / 3, 1. / 3}},
		{Adapters{names, AdapterSkewed, 2}, []float64{4. / 7, 2. / 7, 1. / 7}},
		{Adapters{names, AdapterZipf, 1}, []float64{6. / 11, 3. / 11, 2. / 11}},
	} {
		all, _ := collected(t, spec(n, Spec{Adapters: c.Adapters}))
		for i, name := range names {
			got := 0
			for _, r := range all {
				if r.Adapter == name {
					got++
				}
			}
			if math.Abs(float64(got)/n-c.want[i]) > 0.01 {
				t.Errorf("%s: %s has %d of %d, want %.3f", c.Choice, name, got, n, c.want[i])
			}
		}
	}
}

// TestWorkers: each choice, and a conversation stays where it is.
func TestWorkers(t *testing.T) {
	follow := Spec{Workers: Workers{3, ""}, Adapters: Adapters{[]string{"a", "b"}, AdapterRoundRobin, 0}}
	turns := List{{MaxTokens: 1}, {After: []int{0}}, {After: []int{1}}, {MaxTokens: 1}, {After: []int{3}}, {}}
	l, err := follow.arrange(Kind{}, Load{Source: &turns})
	if err != nil {
		t.Fatal(err)
	}
	all, err := Collect(l)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, fmt.Sprint(r.Worker, r.Adapter))
	}
	if want := []string{"0a", "0a", "0a", "1b", "1b", "2a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	names := []string{"a", "b", "c", "d", "e"}
	all, _ = collected(t, spec(10, Spec{Workers: Workers{2, WorkerAdapter}, Adapters: Adapters{names, AdapterRoundRobin, 0}}))
	for i, r := range all {
		if r.Worker != i%5%2 {
			t.Errorf("adapter %s is on worker %d", r.Adapter, r.Worker)
		}
	}
	all, _ = collected(t, spec(3000, Spec{Workers: Workers{3, WorkerRandom}}))
	var on [3]int
	for _, r := range all {
		on[r.Worker]++
	}
	if slices.Min(on[:]) < 900 {
		t.Errorf("%v", on)
	}
}

// TestBreaksOff: an error of the source, or of the arrivals, is for good.
func TestBreaksOff(t *testing.T) {
	l := &legacy{gaps: gaps{from: newGenerators(0).Numpy, rate: 1e-300, burstiness: 1}}
	p := Paced(&List{{Prompt: []kvcache.Token{1}}, {Prompt: []kvcache.Token{1}}}, l)
	if _, ok, err := p.Next(); !ok || err != nil {
		t.Error(ok, err)
	}
	for range 2 {
		if _, ok, err := p.Next(); ok || err == nil || !strings.Contains(err.Error(), "raise the rate") {
			t.Error(ok, err)
		}
	}
}
