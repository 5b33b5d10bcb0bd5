package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type person struct {
	Name string `json:"name"`
	Age  int    `json:"age"`
}

// TestJSON: records one a line, over lines, in a list, and in a list in an object; each
// with the line on which it begins.
func TestJSON(t *testing.T) {
	for text, key := range map[string]string{
		"{\"name\": \"a\", \"age\": 1}\n\n{\"name\": \"b\"}\n{\"name\": \"c\", \"more\": [1]}":                                            "",
		"\ufeff\n{\n\"name\": \"a\",\n\"age\": 1}{\"name\": \"b\"}\n {\"name\": \"c\"}\n":                                                 "people",
		"[\n{\"name\": \"a\", \"age\": 1},\n\n{\"name\": \"b\"}, {\"name\": \"c\"}]\n":                                                    "",
		"{\"about\": {\"people\": [1]},\n \"people\": [{\"name\": \"a\", \"age\": 1},\n{\"name\": \"b\"}\n,{\"name\": \"c\"}], \"n\": 3}": "people",
	} {
		if strings.HasPrefix(text, "\ufeff") {
			key = "" // values of objects, one after the other
		}
		j := NewJSON("f", strings.NewReader(text), key)
		var names []string
		var lines []int
		for {
			var p person
			ok, err := j.Next(&p)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if !ok {
				break
			}
			names, lines = append(names, p.Name), append(lines, j.Line())
			if line := 1 + strings.Count(text[:strings.Index(text, `"name": "`+p.Name)], "\n"); line-j.Line() > 1 || line < j.Line() {
				t.Errorf("%s: %q at line %d", text, p.Name, j.Line())
			}
		}
		if !slices.Equal(names, []string{"a", "b", "c"}) {
			t.Errorf("%s: %v at %v", text, names, lines)
		}
		if ok, err := j.Next(new(person)); ok || err != nil {
			t.Errorf("%s: after the end %t, %v", text, ok, err)
		}
	}
}

// TestJSONFaults: what is wrong is said with its line and field, and again for ever.
func TestJSONFaults(t *testing.T) {
	const good = "{\"name\": \"a\"}\n"
	for text, want := range map[string]string{
		good + `{"name": "b", "age": "x"}`:          "f:2: age: string: want a whole number",
		good + "{\"name\": \"b\",\n\"age\": \"x\"}": "f:2: age: string: want a whole number",
		good + "\n" + `{"name": "b`:                 "f:3: it ends in the middle",
		good + "{]":                                 "f:2: this is no JSON",
		"[" + good + "," + good:                     "f:3: it ends in the middle",
		"[" + good + good:                           "f:2: this is no JSON",
		"[1]":                                       "f:1: the value: number: want an object",
		`{"other": 1, "people": {}}`:                "f:1: people: want a list",
		`{"other": 1}`:                              "f:1: people is missing",
		`{"people": [` + good:                       "it ends in the middle",
	} {
		key := ""
		if strings.Contains(text, "other") || strings.Contains(text, "people") {
			key = "people"
		}
		j := NewJSON("f", strings.NewReader(text), key)
		ok, err := true, error(nil)
		for ok && err == nil {
			ok, err = j.Next(new(person))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
			continue
		}
		if ok, again := j.Next(new(person)); ok || again == nil || again.Error() != err.Error() {
			t.Errorf("%s: then %t, %v", text, ok, again)
		}
	}
}

// endless never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '"'
		if e.read+i > 0 {
			p[i] = 'x'
		}
	}
	e.read += len(p)
	return len(p), nil
}

// TestEndless: a value without an end is given up.
func TestEndless(t *testing.T) {
	j := NewJSON("f", new(endless), "")
	j.lines.most = 1 << 20
	if ok, err := j.Next(new(string)); ok || err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%t, %v", ok, err)
	}
	if ok, err := NewCSV("f", new(endless), "a").Next(); ok || err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%t, %v", ok, err)
	}
}

func TestCSV(t *testing.T) {
	c := NewCSV("f", strings.NewReader("\ufeffTime,other, B\n1.5,x,7\n\n2,y, 8.0\n3,z,1e99\n4,z\n"), "b", "time")
	for _, want := range []struct {
		b    int
		time float64
		line int
	}{{7, 1.5, 2}, {8, 2, 4}} {
		ok, err := c.Next()
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		b, err := c.Int(0)
		at, late := c.Float(1)
		if b != want.b || at != want.time || err != nil || late != nil || c.Line() != want.line {
			t.Errorf("%d, %v at line %d, %v, %v: want %+v", b, at, c.Line(), err, late, want)
		}
	}
	if ok, err := c.Next(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := c.Int(0); err == nil || !strings.Contains(c.Fault(err).Error(), `f:5: b: "1e99": want a whole number`) {
		t.Error(err)
	}
	for range 2 {
		if ok, err := c.Next(); ok || err == nil || !strings.Contains(err.Error(), "f:6: wrong number of fields") {
			t.Errorf("%t, %v", ok, err)
		}
	}
	c = NewCSV("f", strings.NewReader("\ufeff\"Time\",b\r\n1.5,2\r\n\r\n"), "time")
	if ok, err := c.Next(); !ok || err != nil || c.Text(0) != "1.5" {
		t.Errorf("a mark before a name in quotes: %t, %v", ok, err)
	}
	c = NewCSV("f", strings.NewReader("a,b\n1,2\n"), "time")
	if ok, err := c.Next(); ok || err == nil || !strings.Contains(err.Error(), "f:1: there is no column time: the first line names a, b") {
		t.Errorf("%t, %v", ok, err)
	}
	if ok, err := NewCSV("f", strings.NewReader(""), "a").Next(); ok || err != nil {
		t.Errorf("an empty file: %t, %v", ok, err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	packed := filepath.Join(dir, "f.gz")
	if err := os.WriteFile(packed, []byte("\x1f\x8b\b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(packed); err == nil || !strings.Contains(err.Error(), "it is compressed: unpack it with gunzip") {
		t.Error(err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	j := NewJSON(file, f, "")
	if ok, err := j.Next(new(person)); !ok || err != nil {
		t.Error(ok, err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err == nil {
		t.Error("the file was still open")
	}
}

// FuzzJSON: whatever the file, it ends, or an error names its line.
func FuzzJSON(f *testing.F) {
	f.Add([]byte("{\"name\": \"a\"}\n{}"))
	f.Add([]byte("[{}, {}\n]"))
	f.Add([]byte("{\"people\": [{}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, key := range []string{"", "people"} {
			j := NewJSON("f", bytes.NewReader(text), key)
			for n := 0; ; n++ {
				ok, err := j.Next(new(person))
				if err != nil && !strings.HasPrefix(err.Error(), "f:") {
					t.Errorf("%v does not name the line", err)
				}
				if !ok || err != nil {
					break
				}
				if n > len(text) {
					t.Fatal("more records than bytes")
				}
				if j.Line() < 1 || j.Line() > 1+bytes.Count(text, []byte("\n")) {
					t.Errorf("line %d", j.Line())
				}
			}
		}
	})
}

// FuzzCSV likewise.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("a,b\n1,2\n\"x\ny\",3\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := NewCSV("f", bytes.NewReader(text), "a")
		for {
			ok, err := c.Next()
			if err != nil && !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%v does not name the line", err)
			}
			if !ok || err != nil {
				return
			}
			_ = c.Text(0)
		}
	})
}
