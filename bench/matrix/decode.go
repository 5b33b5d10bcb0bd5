package matrix

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"kvferry/internal/config"
)

// decode reads the file's text, which is YAML; JSON is YAML too. It goes through yaml's nodes
// and not through yaml's own decoder, because a node knows its line: what is wrong with a value
// can be told by line also after all could be read, and without the names of Go's types.
func (f *File) decode(text []byte, faults *config.Faults) {
	var doc yaml.Node
	in := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		f.fault(faults, "", errors.New("it is empty: list servers and clients"))
		return
	case err != nil:
		line, what := syntax(err)
		faults.Check("File", fmt.Errorf("%s:%d: this is neither YAML nor JSON: %s", f.path, line, what))
		return
	}
	if err := in.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		f.fault(faults, "", errors.New("it has a second document behind ---: write one"))
		return
	}
	d := decoder{f, faults}
	d.mapping("", doc.Content[0], map[string]func(string, *yaml.Node){
		"model": d.text(&f.Model),
		"servers": d.list(func(field string, n *yaml.Node) {
			f.Servers = append(f.Servers, Server{})
			s := &f.Servers[len(f.Servers)-1]
			d.mapping(field, n, map[string]func(string, *yaml.Node){
				"name": d.text(&s.Name), "command": d.command(&s.Command), "env": d.words(&s.Env), "dir": d.text(&s.Dir),
				"url": d.text(&s.URL), "host": d.text(&s.Host), "port": d.number(&s.Port), "model": d.text(&s.Model), "share": d.flag(&s.Share),
				"ready": func(field string, n *yaml.Node) {
					d.mapping(field, n, map[string]func(string, *yaml.Node){"line": d.text(&s.Ready.Line), "url": d.text(&s.Ready.URL), "within": d.duration(&s.Ready.Within)})
				},
				"stop": d.stop(&s.Stop),
			})
		}),
		"clients": d.list(func(field string, n *yaml.Node) {
			f.Clients = append(f.Clients, Client{})
			c := &f.Clients[len(f.Clients)-1]
			d.mapping(field, n, map[string]func(string, *yaml.Node){
				"name": d.text(&c.Name), "bench": d.text(&c.Bench), "command": d.command(&c.Command), "env": d.words(&c.Env), "dir": d.text(&c.Dir),
				"within": d.duration(&c.Within), "stop": d.stop(&c.Stop),
			})
		}),
	})
}

// yamlLine is how yaml says where it stopped.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax is the line and the words of an error of yaml's.
func syntax(err error) (line int, what string) {
	m := yamlLine.FindStringSubmatch(err.Error())
	if m == nil {
		return 1, err.Error()
	}
	line, _ = strconv.Atoi(m[1]) // 0 where it says none
	return max(line, 1), err.Error()[len(m[0]):]
}

// A decoder turns nodes into fields. Its methods return what reads one kind of node: they are
// given the field's name in full and its node.
type decoder struct {
	file   *File
	faults *config.Faults
}

// bad notes what is wrong at a node.
func (d decoder) bad(field string, n *yaml.Node, format string, args ...any) {
	d.file.lines[field] = n.Line
	d.file.fault(d.faults, field, fmt.Errorf(format, args...))
}

// mapping reads the fields of a mapping, and refuses those that it does not have.
func (d decoder) mapping(field string, n *yaml.Node, read map[string]func(string, *yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		d.bad(field, n, "%s: write fields here, NAME: VALUE, of %s", shown(n), config.Or(slices.Sorted(maps.Keys(read))))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		inner := key.Value
		if field != "" {
			inner = field + "." + key.Value
		}
		d.file.lines[inner] = key.Line
		take, ok := read[key.Value]
		switch {
		case !ok:
			d.bad(inner, key, "there is no such field: use %s", config.Or(slices.Sorted(maps.Keys(read))))
		case seen[key.Value]:
			d.bad(inner, key, "it is given twice: leave one out")
		default:
			if value.Kind == yaml.AliasNode {
				value = value.Alias
			}
			take(inner, value)
		}
		seen[key.Value] = true
	}
}

// list reads the items of a sequence.
func (d decoder) list(item func(string, *yaml.Node)) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			d.bad(field, n, "%s: write a list here", shown(n))
			return
		}
		for i, one := range n.Content {
			if one.Kind == yaml.AliasNode {
				one = one.Alias
			}
			inner := fmt.Sprintf("%s[%d]", field, i)
			d.file.lines[inner] = one.Line
			item(inner, one)
		}
	}
}

// scalar is the text of a value, or a fault.
func (d decoder) scalar(field string, n *yaml.Node, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.bad(field, n, "%s: write %s", shown(n), want)
		return "", false
	}
	return n.Value, true
}

func (d decoder) text(to *string) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		if text, ok := d.scalar(field, n, "a text"); ok {
			*to = text
		}
	}
}

func (d decoder) number(to *int) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		text, ok := d.scalar(field, n, "a whole number")
		if !ok {
			return
		}
		v, err := strconv.Atoi(text)
		if err != nil {
			d.bad(field, n, "%q: write a whole number", text)
		}
		*to = v
	}
}

func (d decoder) flag(to *bool) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		text, ok := d.scalar(field, n, "true or false")
		if !ok {
			return
		}
		if text != "true" && text != "false" {
			d.bad(field, n, "%q: write true or false", text)
		}
		*to = text == "true"
	}
}

// duration reads a time of more than 0.
func (d decoder) duration(to *time.Duration) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		text, ok := d.scalar(field, n, "a time with its unit, like 30s, 10m or 1h30m")
		if !ok {
			return
		}
		v, err := time.ParseDuration(text)
		switch {
		case err != nil:
			d.bad(field, n, "%q: write a time with its unit, like 30s, 10m or 1h30m", text)
		case v <= 0:
			d.bad(field, n, "%s: use more than 0s, or leave it out for the default", text)
		}
		*to = v
	}
}

// words reads names with a text each.
func (d decoder) words(to *map[string]string) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			d.bad(field, n, "%s: write names with a value each, NAME: VALUE", shown(n))
			return
		}
		*to = map[string]string{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if key == "" || strings.ContainsAny(key, "=\x00") {
				d.bad(field, n.Content[i], "%q: it is no name of a variable", key)
			}
			if text, ok := d.scalar(field+"."+key, n.Content[i+1], "a text"); ok {
				(*to)[key] = text
			}
		}
	}
}

// command reads a line for the shell, or a list of words.
func (d decoder) command(to *Command) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		if n.Kind == yaml.SequenceNode {
			d.list(func(field string, n *yaml.Node) {
				if word, ok := d.scalar(field, n, "a text"); ok {
					to.Words = append(to.Words, word)
				}
			})(field, n)
			return
		}
		if text, ok := d.scalar(field, n, "a line for the shell, or a list of words"); ok {
			to.Line = strings.TrimSpace(text)
		}
	}
}

func (d decoder) stop(to *Stop) func(string, *yaml.Node) {
	return func(field string, n *yaml.Node) {
		d.mapping(field, n, map[string]func(string, *yaml.Node){"signal": d.text(&to.Signal), "within": d.duration(&to.Within)})
	}
}

// shown is a node as a message shows it.
func shown(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "these are fields"
	case n.Kind == yaml.SequenceNode:
		return "this is a list"
	case n.Tag == "!!null":
		return "none given"
	}
	return strconv.Quote(n.Value)
}
