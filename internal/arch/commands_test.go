package arch

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The texts that users read are held to the programs: what is named in them exists.

// texts are the files with command lines for users.
func texts(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
	for _, pattern := range []string{"docs/*.md", "examples/*/*", "Dockerfile", "compose.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// programs are the names of the programs.
var programs = []string{"kvferry", "proxy", "prefill", "decode"}

// A usage is what the programs' help lists: the commands of each program, and of each
// program and command, "kvferry sim", the flags.
type usage struct {
	commands, flags map[string][]string
	about           map[string]string // what stands before the list of flags
}

var (
	helpFlag    = regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`)
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`)
)

var usages = sync.OnceValues(func() (usage, error) {
	u := usage{map[string][]string{}, map[string][]string{}, map[string]string{}}
	dir, err := bin()
	if err != nil {
		return u, err
	}
	var add func(name ...string) error
	add = func(name ...string) error {
		help, err := exec.Command(filepath.Join(dir, name[0]), append(name[1:], "--help")...).Output()
		if err != nil {
			return fmt.Errorf("%s --help: %w", name, err)
		}
		if strings.Contains(string(help), "--help-all ") {
			if help, err = exec.Command(filepath.Join(dir, name[0]), append(name[1:], "--help-all")...).Output(); err != nil {
				return fmt.Errorf("%s --help-all: %w", name, err)
			}
		}
		_, listed, _ := strings.Cut(string(help), "\nUsage:\n")
		key := strings.Join(name, " ")
		u.about[key], _, _ = strings.Cut(string(help), "\nFlags:\n")
		for _, m := range helpFlag.FindAllStringSubmatch(listed, -1) {
			u.flags[key] = append(u.flags[key], m[1])
		}
		_, listed, found := strings.Cut(listed, "[command]\n")
		if !found {
			return nil
		}
		listed, _, _ = strings.Cut(listed, "\nFlags:")
		for _, m := range helpCommand.FindAllStringSubmatch(listed, -1) {
			u.commands[key] = append(u.commands[key], m[1])
			if err := add(append(slices.Clone(name), m[1])...); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range programs {
		if err := add(name); err != nil {
			return u, err
		}
	}
	return u, nil
})

// shell parts what ends a command from the words around it. A YAML list is a command too.
var shell = strings.NewReplacer("'", " ' ", `"`, " ", ";", " ; ", "(", " ; ", ")", " ; ", "[", " ; ", "]", " ; ", ", ", " ")

// ends are the words behind which another command may stand.
var ends = []string{"", ";", "&", "&&", "|", "||", "--", "'", "$", "exec", "then", "do"}

// faults says what is wrong with the command lines in a piece of code, and how many commands
// and flags it has looked at.
func (u usage) faults(code string) (bad []string, seen int) {
	for line := range strings.Lines(strings.ReplaceAll(code, "\\\n", " ")) {
		name, before := "", "" // the program or command whose flags come, and the last word
		for word := range strings.FieldsSeq(shell.Replace(line)) {
			base := filepath.Base(word)
			called := strings.HasSuffix(word, "bin/"+base) || strings.HasSuffix(word, "cmd/"+base) || base == word && slices.Contains(ends, before)
			flag, _, _ := strings.Cut(word, "=")
			flag = strings.TrimRight(flag, ".,:")
			switch {
			case called && slices.Contains(programs, base):
				name = base
			case name == "":
			case slices.Contains(ends, word) || strings.HasPrefix(word, "#"):
				name = ""
			case strings.HasPrefix(word, "--"):
				if seen++; !slices.Contains(u.flags[name], flag) {
					bad = append(bad, fmt.Sprintf("%s has no flag %s", name, flag))
				}
			case len(u.commands[name]) > 0:
				if seen++; !slices.Contains(u.commands[name], word) {
					bad = append(bad, fmt.Sprintf("%s has no command %q", name, word))
				}
				name += " " + word
			}
			before = word
		}
	}
	return bad, seen
}

var (
	fence    = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$")
	indented = regexp.MustCompile("(?m)^    .*\n")
	span     = regexp.MustCompile("`([^`]+)`")
	bareFlag = regexp.MustCompile("^--[a-z][a-z-]+")
	anyFlag  = regexp.MustCompile(`\B--[a-z][a-z-]+\b`)
	target   = regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
)

// code is the parts of a text for users that are typed: of a page the blocks and spans of
// code, of any other file all of it.
func code(name, text string) (all []string) {
	if filepath.Ext(name) != ".md" {
		return []string{text}
	}
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	text = fence.ReplaceAllString(text, "")
	all = append(all, strings.Join(indented.FindAllString(text, -1), ""))
	for _, m := range span.FindAllStringSubmatch(indented.ReplaceAllString(text, "\n"), -1) {
		all = append(all, strings.ReplaceAll(m[1], "\n", " "))
	}
	return all
}

// scriptsBeside is the text of the scripts in the folder of a file, which have flags of their own.
func scriptsBeside(t *testing.T, name string) (all string) {
	scripts, err := filepath.Glob(filepath.Join(filepath.Dir(name), "*.py"))
	for _, script := range scripts {
		text, readErr := os.ReadFile(script)
		err = cmp.Or(err, readErr)
		all += string(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCommands: the commands, flags and make targets that are named for users exist.
func TestCommands(t *testing.T) {
	t.Parallel()
	u, err := usages()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	check := func(where, code string) {
		t.Helper()
		bad, n := u.faults(code)
		for _, m := range target.FindAllStringSubmatch(code, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
				bad = append(bad, "there is no make "+m[1])
			}
		}
		for _, text := range bad {
			t.Errorf("%s: %s", where, text)
		}
		seen += n
	}
	every := slices.Concat(slices.Collect(maps.Values(u.flags))...)
	for _, name := range texts(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		scripts := scriptsBeside(t, name)
		for _, c := range code(name, string(text)) {
			check(name, c)
			if flag := bareFlag.FindString(c); flag != "" && filepath.Ext(name) == ".md" && !slices.Contains(every, flag) && !strings.Contains(scripts, strconv.Quote(flag)) {
				t.Errorf("%s: no program has a flag %s", name, flag)
			}
		}
	}
	for name, help := range u.about {
		_, examples, _ := strings.Cut(help, "\nUsage:\n")
		check(name+" --help", examples)
		for _, flag := range anyFlag.FindAllString(help, -1) {
			if !slices.Contains(every, flag) && !strings.HasPrefix(name, "kvferry completion ") { // cobra's words, of shells' flags
				t.Errorf("%s --help: no program has a flag %s", name, flag)
			}
		}
	}
	if seen < 200 {
		t.Errorf("only %d commands and flags were found in all texts: are they still read?", seen)
	}
}

// TestCommandsCanFail plants faults, and command lines that have none.
func TestCommandsCanFail(t *testing.T) {
	u := usage{
		commands: map[string][]string{"kvferry": {"reproduce", "rail", "lab"}, "kvferry reproduce": {"mooncake"}, "kvferry rail": {"topo"}, "kvferry lab": {"net"}},
		flags: map[string][]string{
			"kvferry": {"--version"}, "kvferry reproduce mooncake": {"--rows"}, "kvferry rail topo": {"--root"}, "kvferry lab net": {"--rates"}, "proxy": {"--http"}, "decode": {"--id"},
		},
	}
	for _, c := range []struct{ text, want string }{
		{"kvferry reproduce mooncake --rows all", ""},
		{"kvferry --version", ""},
		{"go run ./cmd/kvferry reproduce mooncake --row all", "kvferry reproduce mooncake has no flag --row"},
		{"kvferry bananas", `kvferry has no command "bananas"`},
		{"bin/proxy --http :8000 &", ""},
		{"bin/proxy --http :8000 --htp=1", "proxy has no flag --htp"},
		{"PORT=1 /usr/bin/proxy --nope", "proxy has no flag --nope"},
		{"kvferry lab net --rates 1gbit -- sh -c 'kvferry reproduce mooncake --nope'", "kvferry reproduce mooncake has no flag --nope"},
		{"kvferry lab net --rates 1gbit -- tc --nope", ""},
		{"bin/decode \\\n  --id d --nope", "decode has no flag --nope"},
		{"command: [decode, --id, d, --nope]", "decode has no flag --nope"},
		{"CMD [\"proxy\", \"--nope\"]", "proxy has no flag --nope"},
		{"proxy --http :1; curl --nope", ""},
		{"nodes  prefill busy %  --nope", ""},
		{"kvferry rail topo --root=x # --rows was wrong", ""},
	} {
		bad, _ := u.faults(c.text)
		if got := strings.Join(bad, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
	page := "Run `kvferry reproduce\nmooncake --rows`:\n\n    indented\n\n```sh\nfenced\n```\n"
	if got := code("a.md", page); !slices.Equal(got, []string{"fenced\n", "    indented\n", "kvferry reproduce mooncake --rows"}) {
		t.Errorf("code of a page: %q", got)
	}
}

// TestProgramName: a program has the name of its file in its help, version, errors and completion.
func TestProgramName(t *testing.T) {
	t.Parallel()
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	decode := filepath.Join(t.TempDir(), "kvferry-decode")
	if err := os.Symlink(filepath.Join(dir, "decode"), decode); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--help", "\nUsage:\n  kvferry-decode --id NAME"},
		{"--version", "kvferry-decode "},
		{"--nope", "Run 'kvferry-decode --help'"},
		{"completion bash", " kvferry-decode\n"},
	} {
		out, _ := exec.Command(decode, strings.Fields(c.args)...).CombinedOutput() // --nope fails
		if !strings.Contains(string(out), c.want) {
			t.Errorf("%s does not say %q:\n%s", c.args, c.want, out)
		}
	}
}
