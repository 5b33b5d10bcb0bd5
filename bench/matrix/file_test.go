package matrix

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/internal/config"
)

const small = `model: m
servers:
  - name: a
    command: server --port {port}
    env: {A: "1", B: two}
    ready: {line: "^ready$", within: 2m}
    stop: {signal: sigint, within: 5s}
  - {name: b, url: "http://127.0.0.1:8000", model: other}
clients:
  - name: c
    bench: --backend openai --num-prompts 3
  - name: d
    command: [client, "{url}", "a b"]
    within: 1h
`

func TestReadFile(t *testing.T) {
	f, err := parse("dir/m.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	a, c, d := f.Servers[0], f.Clients[0], f.Clients[1]
	if a.Ready.Within != 2*time.Minute || a.Stop.signal() != "INT" || a.Env["B"] != "two" || d.Within != time.Hour || len(d.Command.Words) != 3 {
		t.Errorf("%+v", f)
	}
	pairs, err := f.pairs("out", false)
	if err != nil || len(pairs) != 4 {
		t.Fatal(pairs, err)
	}
	if one, other := f.values(pairs[0], "1")["model"], f.values(pairs[2], "1")["model"]; one != "m" || other != "other" {
		t.Errorf("models %q, %q", one, other)
	}
	if got, want := c.command().Line, "exec {kvferry} bench --base-url {url} --out {out} --backend openai --num-prompts 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for dir, want := range map[string]string{"": "usual", "{port}": filepath.Join(f.dir, "1"), "/abs": "/abs"} {
		if got := f.process(a.Command, nil, dir, "usual", a.Stop, values{"port": "1"}).Dir; got != want || !filepath.IsAbs(f.dir) {
			t.Errorf("%q: it runs in %q, want %q", dir, got, want)
		}
	}
}

// TestFaults: each says file, line and field, what is wrong and what would do. JSON is read too.
func TestFaults(t *testing.T) {
	change := func(from, to string) string {
		if !strings.Contains(small, from) {
			t.Fatalf("no %q", from)
		}
		return strings.Replace(small, from, to, 1)
	}
	for text, want := range map[string]string{
		"":                                  "m.yaml:1: it is empty: list servers",
		"a: [":                              "m.yaml:1: this is neither YAML nor JSON: ",
		"servers:\n\tx":                     "m.yaml:2: this is neither YAML nor JSON: ",
		"[1]":                               "m.yaml:1: write fields, NAME: VALUE",
		"model: x\n---\nmodel: y":           "it has a second document",
		"model: x":                          "m.yaml:1: servers: none given",
		`{"servers": [], "clients": {}}`:    "m.yaml:1: clients: write a list",
		change("model: m", "modell: m"):     "m.yaml:1: modell: there is no such field: kvferry lab matrix --help",
		change("model: m", "model: [m]"):    "m.yaml:1: model: write a text",
		change("within: 2m", "within: 2"):   `m.yaml:6: servers[0].ready.within: "2": write a time with its unit`,
		change("within: 2m", "within: -2m"): "m.yaml:6: servers[0].ready.within: -2m: use more than 0s",
		change("sigint", "TREM"):            `m.yaml:7: servers[0].stop.signal: "TREM": use HUP, INT, KILL`,
		change("^ready$", "(ready"):         `m.yaml:6: servers[0].ready.line: "(ready": it is no regular expression (RE2): missing closing )`,
		change("    ready: {line: \"^ready$\", within: 2m}\n", ""):          "m.yaml:3: servers[0].ready: none given: say what tells",
		change("name: b,", "name: a,"):                                      `m.yaml:8: servers[1].name: "a": it is given twice`,
		change("name: b, ", ""):                                             "m.yaml:8: servers[1]: it has no name",
		change("name: c", "name: ../c"):                                     `m.yaml:10: clients[0].name: "../c": it is a folder's name too`,
		change("http://127.0.0.1:8000", "127.0.0.1:8000"):                   `m.yaml:8: servers[1].url: "127.0.0.1:8000": write http://host:port`,
		change(`url: "http://127.0.0.1:8000", `, ""):                        "m.yaml:8: servers[1]: it has neither command nor url",
		change("model: other", "stop: {signal: INT}"):                       "m.yaml:8: servers[1]: a server that runs already has no output here, serves all clients and is not stopped",
		change("model: other", "port: eight"):                               `m.yaml:8: servers[1].port: "eight": write a whole number`,
		change("model: other", "port: 70000"):                               "m.yaml:8: servers[1].port: 70000: use 1 to 65535",
		change("model: other", "share: yes please"):                         `m.yaml:8: servers[1].share: "yes please": write true or false`,
		change("{port}", "{prot}"):                                          "m.yaml:4: servers[0].command: {prot} stands for nothing here: use {bin}, {client}",
		change("    env: {A", "    share: true\n    env: {C: \"{out}\", A"): "m.yaml:6: servers[0].env.C: {out} stands for nothing here: use {bin}, {dir}",
		change("A: \"1\"", "A: {}"):                                         "m.yaml:5: servers[0].env.A: write a text",
		change("[client, \"{url}\", \"a b\"]", "[\"\", x]"):                 "m.yaml:13: clients[1].command: its first word is empty",
		change("[client, \"{url}\", \"a b\"]", ""):                          "m.yaml:12: clients[1]: it has nothing to run",
		change("    within: 1h", "    bench: --x"):                          "m.yaml:13: clients[1].command: it has a bench line too",
		change("    within: 1h", "    name: again"):                         "m.yaml:14: mapping key \"name\" already defined at line 12",
	} {
		_, err := parse("m.yaml", []byte(text))
		var invalid *config.Invalid
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
	if _, err := parse("m.json", []byte(`{"servers": [{"name": "a", "url": "http://h:1"}], "clients": [{"name": "c", "command": ["true"]}]}`)); err != nil {
		t.Error(err)
	}
	if _, err := parse("m.yaml", []byte(change("^ready$", "^{ready}$"))); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]string{"/nonexistent.yaml": "there is no such file", t.TempDir(): "it is a folder"} {
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestArgv: braces of others are left alone, and what is put into a line for a shell is one word
// there.
func TestArgv(t *testing.T) {
	v := values{"url": "http://h:1", "out": "/a b/it's", "port": "1"}
	for text, want := range map[string]string{
		"x --port {port} {url}":     "x --port 1 http://h:1",
		"{port}{port}":              "11",
		`${port} {{port}} { port }`: `${port} {{port}} { port }`,
		`{"port": {port}}`:          `{"port": 1}`,
		"{out}/r":                   `'/a b/it'\''s'/r`,
		"{":                         "{",
	} {
		if got := (Command{Line: text}).argv(v); got[2] != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := (Command{Words: []string{"x", "{out}"}}).argv(v)[1]; got != v["out"] {
		t.Errorf("a word of its own is %q", got)
	}
}

// TestPlaceholdersAreListed: the help has each.
func TestPlaceholdersAreListed(t *testing.T) {
	for name := range new(File).values(&Pair{}, "") {
		if !strings.Contains(Placeholders, "  {"+name+"} ") {
			t.Errorf("{%s} is not listed", name)
		}
	}
}

// FuzzParse: no text makes it fail otherwise than by a fault with a line.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("a: &x [*x]\nservers: *x"))
	f.Add([]byte("---\n"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parse("m.yaml", text)
		switch {
		case err == nil && len(file.Servers)*len(file.Clients) == 0:
			t.Error("nothing to run")
		case err != nil && !strings.Contains(err.Error(), "m.yaml:"):
			t.Error(err)
		}
	})
}
