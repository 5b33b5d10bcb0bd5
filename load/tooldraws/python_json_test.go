package tooldraws

import (
	"encoding/json"
	"testing"
)

// TestDumps: what CPython 3.11 writes. The golden cases of the openai dataset have more.
func TestDumps(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[1,-0,1.0,1e5,1e16,0.0001,1e-5,-2.50],"b":{}}`: `{"a": [1, 0, 1.0, 100000.0, 1e+16, 0.0001, 1e-05, -2.5], "b": {}}`,
		`["ü\u007f\"\\\/\n\u0001🙂",null,true,[]]`:            `["\u00fc\u007f\"\\/\n\u0001\ud83d\ude42", null, true, []]`,
		`[1e999,-1e999,12345678901234567890]`:                `[Infinity, -Infinity, 12345678901234567890]`,
	} {
		if got, err := PythonJSON(json.RawMessage(text)); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	if _, err := PythonJSON(json.RawMessage(`{"a":`)); err == nil {
		t.Error("half a value is taken")
	}
}

// FuzzDumps: what is JSON stays the same JSON.
func FuzzDumps(f *testing.F) {
	f.Add([]byte(`{"a": [1, -0.5e-9, "\u2028\n", {"b": null}], "": true}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := PythonJSON(raw)
		if !json.Valid(raw) {
			return // an error, or the value that it begins with
		}
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		for _, c := range got {
			if c > '~' {
				t.Errorf("%s: %q", raw, got)
			}
		}
	})
}
