package matrix

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// placeholders are those there are, with what they stand for: the help lists them.
var placeholders = map[string]string{
	"url":     "the server's URL, http://HOST:PORT",
	"host":    "its host",
	"port":    "its port",
	"model":   "the model's name",
	"out":     "the pair's result folder, where its figures are looked for",
	"server":  "the server's name",
	"client":  "the client's name",
	"dir":     "the folder of the file",
	"kvferry": "this program",
	"bin":     "the folder that it lies in",
}

// onlyPair are those that a server does not have which serves all clients.
var onlyPair = []string{"out", "client"}

// Placeholders is the list of them for a help text, a line each.
func Placeholders() string {
	var b strings.Builder
	for _, name := range []string{"url", "host", "port", "model", "out", "server", "client", "dir", "kvferry", "bin"} {
		fmt.Fprintf(&b, "  {%s}%s%s\n", name, strings.Repeat(" ", 9-len(name)), placeholders[name])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// expand puts what name returns in place of each {name} of a text. What stands in braces is put
// in when the pair runs; braces of others are left alone: ${HOME}, {"json": 1}, {{ jinja }},
// { print }.
func expand(text string, value func(name string) string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		end := i + 1
		if text[i] == '{' && (i == 0 || text[i-1] != '$' && text[i-1] != '{') {
			for end < len(text) && (text[end] == '_' || 'a' <= text[end] && text[end] <= 'z') {
				end++
			}
			if end > i+1 && end < len(text) && text[end] == '}' {
				b.WriteString(value(text[i+1 : end]))
				i = end + 1
				continue
			}
		}
		b.WriteByte(text[i])
		i++
	}
	return b.String()
}

// fill puts values in. quote is applied to each: a line for a shell needs it.
func fill(text string, values map[string]string, quote func(string) string) string {
	return expand(text, func(name string) string {
		if v, ok := values[name]; ok {
			return quote(v)
		}
		return "{" + name + "}"
	})
}

func verbatim(s string) string { return s }

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted is one word for a POSIX shell.
func quoted(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// argv is what is run: the words, or a shell with the line.
func (c Command) argv(values map[string]string) []string {
	if len(c.Words) == 0 {
		return []string{"/bin/sh", "-c", fill(c.Line, values, quoted)}
	}
	words := make([]string, len(c.Words))
	for i, w := range c.Words {
		words[i] = fill(w, values, verbatim)
	}
	return words
}

// String is the command as one would type it.
func (c Command) String() string {
	if len(c.Words) == 0 {
		return c.Line
	}
	words := make([]string, len(c.Words))
	for i, w := range c.Words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// environment is what a command has besides kvferry's own, sorted, NAME=VALUE.
func environment(env, values map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+fill(env[name], values, verbatim))
	}
	return out
}

// validatePlaceholders refuses braces that nothing is put into: a misspelt {prot} would reach
// the server as it is. URLs and the text of commands are looked at, and values of variables.
func (f *File) validatePlaceholders(bad func(field, format string, args ...any)) {
	check := func(field, text string, without ...string) {
		expand(text, func(name string) string {
			switch _, known := placeholders[name]; {
			case !known:
				bad(field, "{%s} stands for nothing here: use %s, or write { %s } if braces are meant", name, config.Or(bracedNames(without)), name)
			case slices.Contains(without, name):
				bad(field, "{%s} is not known there: use %s", name, config.Or(bracedNames(without)))
			}
			return ""
		})
	}
	command := func(field string, c Command, env map[string]string, dir string, without ...string) {
		check(field+".command", c.Line, without...)
		for _, w := range c.Words {
			check(field+".command", w, without...)
		}
		for _, name := range slices.Sorted(maps.Keys(env)) {
			check(field+".env."+name, env[name], without...)
		}
		check(field+".dir", dir, without...)
	}
	for i, s := range f.Servers {
		field := fmt.Sprintf("servers[%d]", i)
		var without []string
		if s.Share {
			without = onlyPair
		}
		command(field, s.Command, s.Env, s.Dir, without...)
		check(field+".ready.url", s.Ready.URL, without...)
		check(field+".url", s.URL, append([]string{"url", "out", "client"}, without...)...)
	}
	for i, c := range f.Clients {
		field := fmt.Sprintf("clients[%d]", i)
		command(field, c.Command, c.Env, c.Dir)
		check(field+".serve", c.Bench)
	}
}

func bracedNames(without []string) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(placeholders)) {
		if !slices.Contains(without, n) {
			names = append(names, "{"+n+"}")
		}
	}
	return names
}
