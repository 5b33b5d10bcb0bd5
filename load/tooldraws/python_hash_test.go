package tooldraws

import "testing"

// PYTHONHASHSEED=0 python3.11 -c 'print(hash("..."))'
func TestHash(t *testing.T) {
	for text, want := range map[string]int64{
		"":                           0,
		"a":                          4644417185603328019,
		"0:16":                       2911543553534064838,
		"12345678":                   3785724242978802311,
		"46:512":                     -2766126218494695311,
		"2353:171":                   -3019561532492550227,
		"abcdefghijklmnopqrstuvwxyz": 3619993805786647007,
		"9007199254740993:16":        -4118402699432636179,
	} {
		if got := PythonHash(text); got != want {
			t.Errorf("hash(%q) = %d, want %d", text, got, want)
		}
	}
}
