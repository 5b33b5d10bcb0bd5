package connector

import (
	"reflect"
	"slices"
	"testing"

	"kvferry/engine"
)

// said is a driver that notes what it was told.
type said []string

func (s *said) add(what string)                 { *s = append(*s, what) }
func (s *said) Launch(*engine.Step, bool, bool) { s.add("Launch") }
func (s *said) Copy(engine.Copy)                { s.add("Copies") }
func (s *said) Token(Token)                     { s.add("Tokens") }
func (s *said) Move(*Move)                      { s.add("Moves") }
func (s *said) Check(*Check)                    { s.add("Checks") }
func (s *said) Reserved(*Offer)                 { s.add("Reserved") }
func (s *said) Prefilled(*Prefilled)            { s.add("Prefilled") }
func (s *said) Migrated(*Migrated)              { s.add("Migrated") }
func (s *said) Finished(*Finished)              { s.add("Finished") }
func (s *said) Failed(*Failed)                  { s.add("Failed") }
func (s *said) Ask(Ask)                         { s.add("Ask") }
func (s *said) Answer(Answer)                   { s.add("Answer") }
func (s *said) Halt(uint64)                     { s.add("Halt") }
func (s *said) Close(uint64)                    { s.add("Close") }
func (s *said) Drop(uint64)                     { s.add("Drop") }
func (s *said) before(a, b string) (ok bool)    { return slices.Index(*s, a) < slices.Index(*s, b) }

// TestPerform: everything that a Step can want is done, once, and in an order that holds
// what Perform promises.
func TestPerform(t *testing.T) {
	a := &Actions{Launch: &engine.Step{}}
	v := reflect.ValueOf(a).Elem()
	want := []string{"Launch"}
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			want = append(want, v.Type().Field(i).Name)
		}
	}
	var got said
	a.Perform(&got)
	sorted := slices.Sorted(slices.Values(got))
	slices.Sort(want)
	if !slices.Equal(sorted, want) {
		t.Fatalf("did %v, want each of %v once", got, want)
	}
	if got[0] != "Launch" || got[len(got)-1] != "Drop" {
		t.Errorf("%v: the step comes first, and Drop last", got)
	}
	for _, pair := range [][2]string{
		{"Launch", "Copies"},
		{"Tokens", "Finished"},
		{"Tokens", "Prefilled"},
		{"Tokens", "Failed"},
		{"Tokens", "Migrated"},
		{"Migrated", "Halt"},
		{"Halt", "Drop"},
		{"Moves", "Close"},
		{"Checks", "Close"},
		{"Reserved", "Ask"},
		{"Prefilled", "Ask"},
		{"Reserved", "Answer"},
		{"Answer", "Close"},
		{"Close", "Drop"},
	} {
		if !got.before(pair[0], pair[1]) {
			t.Errorf("%v: %s must come before %s", got, pair[0], pair[1])
		}
	}
	var none said
	(&Actions{}).Perform(&none)
	if len(none) != 0 {
		t.Errorf("nothing was wanted, and %v done", none)
	}
}
