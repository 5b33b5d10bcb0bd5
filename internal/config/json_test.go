package config_test

import (
	"strings"
	"testing"

	"kvferry/internal/config"
)

// TestUnmarshal: whatever is wrong, no word of it is Go's.
func TestUnmarshal(t *testing.T) {
	type shape struct {
		Layers int      `json:"layers"`
		Heads  *uint    `json:"heads"`
		Rate   float64  `json:"rate"`
		Name   string   `json:"name"`
		IDs    []int    `json:"ids"`
		On     bool     `json:"on"`
		Inner  struct{} `json:"inner"`
	}
	for text, want := range map[string]string{
		"":                              "it is empty",
		"{":                             "it ends in the middle",
		"{}\n{}":                        "line 2: something follows",
		"{\n\"layers\": 1.5}":           "line 2: layers: number 1.5: want a whole number",
		`{"layers": "x"}`:               "layers: string: want a whole number",
		`{"heads": -1}`:                 "heads: number -1: want a whole number from 0",
		`{"rate": 1e999}`:               "rate: number 1e999: want a number",
		`{"name": 5}`:                   "name: number: want a text in quotes",
		`{"ids": 5}`:                    "ids: number: want a list in brackets",
		`{"on": 1}`:                     "on: number: want true or false",
		`{"inner": []}`:                 "inner: array: want an object in braces",
		`[1]`:                           "the value: array: want an object in braces",
		"{\n\n\"layer\": 1}":            `line 3: there is no field "layer": is it misspelt?`,
		"{\n\"layers\": 1,\n\"x\" 5\n}": "line 3: this is no JSON: ",
		"\x00":                          "this is no JSON",
	} {
		var v shape
		err := config.Unmarshal([]byte(text), &v, true)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
			continue
		}
		for _, word := range []string{"json:", "unmarshal", "Go ", "shape", "EOF"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
	var v shape
	if err := config.Unmarshal([]byte(`{"layers": 3, "other": 1}`), &v, false); err != nil || v.Layers != 3 {
		t.Errorf("%+v, %v", v, err)
	}
}
