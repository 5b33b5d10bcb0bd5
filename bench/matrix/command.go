package matrix

import (
	"cmp"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"kvferry/internal/proc"
)

// values are what the placeholders stand for, by name.
type values map[string]string

// Placeholders lists the placeholders for a help text, a line each.
const Placeholders = `  {url}      the server's URL, http://HOST:PORT
  {host}     its host
  {port}     its port
  {model}    the model's name
  {out}      the pair's result folder, where its figures are looked for
  {server}   the server's name
  {client}   the client's name
  {dir}      the folder of the file
  {kvferry}  this program
  {bin}      the folder that it lies in`

// values returns the values for a pair. port is the port of a server that the file gives none.
func (f *File) values(p *Pair, port string) values {
	exe, _ := os.Executable() // Linux and macOS always know it
	out, _ := filepath.Abs(filepath.Join(p.folder, resultFolder))
	v := values{
		"host": cmp.Or(p.server.Host, DefaultHost), "port": port, "model": cmp.Or(p.server.Model, f.Model), "out": out,
		"server": p.server.Name, "client": p.client.Name, "dir": f.dir, "kvferry": exe, "bin": filepath.Dir(exe),
	}
	if p.server.Port != 0 {
		v["port"] = strconv.Itoa(p.server.Port)
	}
	v["url"] = cmp.Or(v.fill(p.server.URL), "http://"+net.JoinHostPort(v["host"], v["port"]))
	if p.server.Command.empty() {
		v["host"], v["port"], _ = net.SplitHostPort(v.address())
	}
	return v
}

// address returns the host and the port of the URL.
func (v values) address() string {
	u, err := url.Parse(v["url"])
	if err != nil {
		return v["url"]
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
}

// inBraces is a name in braces, with what shows that they are not ours: ${HOME} is the
// shell's and {{jinja}} a template's. {"json": 1} and { print } do not match at all.
var inBraces = regexp.MustCompile(`[${]?\{[a-z_]+\}`)

// expand replaces each {name} in a text by value(name).
func expand(text string, value func(name string) string) string {
	return inBraces.ReplaceAllStringFunc(text, func(m string) string {
		if m[1] == '{' {
			return m
		}
		return value(m[1 : len(m)-1])
	})
}

// fill puts the values into a text.
func (v values) fill(text string) string {
	return expand(text, func(name string) string { return v[name] })
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted returns one word for a POSIX shell.
func quoted(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// A Command is a line for the shell, or words that are run as they are.
type Command struct {
	Line  string   `json:"line,omitempty"`
	Words []string `json:"words,omitempty"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *Command) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&c.Line)
	}
	return n.Decode(&c.Words)
}

func (c Command) empty() bool { return c.Line == "" && len(c.Words) == 0 }

// argv returns what is run: the words, or a shell with the line, each value a word of its own there.
func (c Command) argv(v values) []string {
	if len(c.Words) == 0 {
		return []string{"/bin/sh", "-c", expand(c.Line, func(name string) string { return quoted(v[name]) })}
	}
	words := make([]string, len(c.Words))
	for i, w := range c.Words {
		words[i] = v.fill(w)
	}
	return words
}

// command returns the client's command, or kvferry bench with its flags behind ours: of a flag that
// is given twice, the last one counts.
func (c Client) command() Command {
	if c.Bench == "" {
		return c.Command
	}
	return Command{Line: "exec {kvferry} bench --base-url {url} --out {out} " + c.Bench}
}

// environment returns a command's own variables, sorted, NAME=VALUE.
func environment(env map[string]string, v values) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+v.fill(env[name]))
	}
	return all
}

// process returns the process of a command. Its folder is dir, below the file's, or usual if dir is empty.
func (f *File) process(c Command, env map[string]string, dir, usual string, stop Stop, v values) proc.Cmd {
	if dir = v.fill(dir); dir == "" {
		dir = usual
	} else if !filepath.IsAbs(dir) {
		dir = filepath.Join(f.dir, dir)
	}
	return proc.Cmd{
		Args: c.argv(v), Env: append(os.Environ(), environment(env, v)...), Dir: dir,
		Group: true, Stop: signals[stop.signal()], Grace: cmp.Or(stop.Within, DefaultStop),
	}
}
