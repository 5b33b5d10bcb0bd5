package vllm

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// files are what the commands read: lists of packages, and programs in Python.
//
//go:embed files
var files embed.FS

// Version is that of vLLM.
const Version = "0.32.0"

// uvVersion is what installs the packages: as a package itself, it comes from the same index.
const uvVersion = "0.13.9"

// A step is what is done at once: if it is interrupted, all of it is done again.
type step struct {
	name     string
	makes    string // for people
	commands [][]string
	leaves   string   // a file or folder that is there once it is done
	uses     []string // of files
}

// A Folder is where an environment is, or will be.
type Folder string

func (f Folder) at(names ...string) string {
	return filepath.Join(append([]string{string(f)}, names...)...)
}

// Python is the interpreter that has vLLM.
func (f Folder) Python() string { return f.at("env", "bin", "python") }

// Tiny is a Qwen2 with random weights, 4 layers and 3.4 million parameters, to be run in float32.
func (f Folder) Tiny() string { return f.at("models", "tiny") }

// SmolLM2 is SmolLM2-135M-Instruct, a model that answers in words, in bfloat16.
func (f Folder) SmolLM2() string { return f.at("models", "smollm2") }

func (f Folder) uv() string              { return f.at("uv", "bin", "uv") }
func (f Folder) file(name string) string { return f.at("files", name) }

// steps is all that a setup does, in this order, with python as the interpreter that the
// environment is made of.
func (f Folder) steps(python string) []step {
	return []step{
		{
			// No environment of its own by venv: that runs children, which go on if this process is killed,
			// and then get into the way of the next setup. None of these commands leaves any.
			name: "uv", makes: "uv " + uvVersion + ", which installs packages",
			commands: [][]string{{python, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "2", "--upgrade", "--target", f.at("uv"), "uv==" + uvVersion}},
			leaves:   f.uv(),
		},
		{
			// Onto an empty environment: what an interrupted installation left there may look installed. What
			// interrupted downloads left is pruned, up to 3 GB each time.
			name: "packages", makes: "vLLM " + Version + ", torch, NIXL and Mooncake's engine: 2.2 GB to download",
			commands: [][]string{
				{f.uv(), "cache", "prune"},
				{f.uv(), "venv", "--clear", "--python", python, f.at("env")},
				{f.uv(), "pip", "install", "--python", f.Python(), "--no-deps", "--compile-bytecode", "--requirements", f.file("requirements.txt")},
				{f.Python(), f.file("metadata.py")},
			},
			uses:   []string{"requirements.txt", "metadata.py"},
			leaves: f.Python(),
		},
		{
			name: "tiny", makes: "a tiny Qwen2 with random weights",
			commands: [][]string{{f.Python(), f.file("tiny.py"), f.Tiny()}},
			uses:     []string{"tiny.py"}, leaves: f.Tiny(),
		},
		{
			name: "smollm2", makes: "SmolLM2-135M-Instruct, dequantised",
			commands: [][]string{{f.Python(), f.file("smollm2.py"), f.SmolLM2()}},
			uses:     []string{"tiny.py", "smollm2.py"}, leaves: f.SmolLM2(),
		},
		{
			name: "try", makes: "an answer of each model, by vLLM",
			commands: [][]string{{f.Python(), f.file("try.py"), f.Tiny(), f.SmolLM2()}},
			uses:     []string{"try.py"}, leaves: f.Python(),
		},
	}
}

// sums are the marks of steps that are done: each covers its step and all before it.
func sums(steps []step) []string {
	var all []string
	h := sha256.New()
	for _, s := range steps {
		fmt.Fprintf(h, "%q %q %q\n", s.name, s.commands, s.leaves)
		for _, name := range s.uses {
			text, err := fs.ReadFile(files, "files/"+name)
			if err != nil {
				panic(err) // the binary has them all; a test reads each
			}
			fmt.Fprintf(h, "%q\n", text)
		}
		all = append(all, hex.EncodeToString(h.Sum(nil)[:8]))
	}
	return all
}

// A State is what has been set up. It is kept in a file, and has no clock and touches nothing.
type State struct {
	Python  string          `json:"python"`  // the interpreter that the environment is made of
	Version string          `json:"version"` // of Python
	Done    map[string]Mark `json:"done"`    // by a step's name
}

// A Mark says that a step is done.
type Mark struct {
	Sum     string  `json:"sum"`
	Seconds float64 `json:"seconds"`
}

// next is the first of steps that is still to be done, len(steps) if all are done; there says
// whether a file or folder is there.
func (s State) next(steps []step, there func(string) bool) int {
	for i, sum := range sums(steps) {
		if s.Done[steps[i].name].Sum != sum || !there(steps[i].leaves) {
			return i
		}
	}
	return len(steps)
}

// mark notes that steps[i] is done. What follows it is not any more.
func (s *State) mark(steps []step, i int, took time.Duration) {
	done := map[string]Mark{}
	for _, earlier := range steps[:i] {
		done[earlier.name] = s.Done[earlier.name]
	}
	done[steps[i].name] = Mark{sums(steps)[i], took.Round(100 * time.Millisecond).Seconds()}
	s.Done = done
}

// pins are the packages that the environment is for, as "name version".
func pins() []string {
	text, err := fs.ReadFile(files, "files/requirements.in")
	if err != nil {
		panic(err) // as above
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if name, version, found := strings.Cut(strings.TrimSpace(line), "=="); found && name[0] != '#' {
			all = append(all, name+" "+version)
		}
	}
	return all
}
