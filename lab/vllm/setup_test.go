package vllm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A machine is a fake one: commands leave what they are to leave, until one fails.
type machine struct {
	t     *testing.T
	cache string
	fails string // a command that has this in its arguments fails,
	says  string // says this,
	then  func() // and does this
	ran   []string
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, cache: t.TempDir()}
	m.install("python3.12")
	t.Setenv("PATH", filepath.Join(m.cache, "bin"))
	return m
}

// install puts a program into the PATH that only this machine's runner can run.
func (m *machine) install(name string) string {
	m.t.Helper()
	file := filepath.Join(m.cache, "bin", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		m.t.Fatal(err)
	}
	return file
}

func (m *machine) run(_ context.Context, c command) error {
	line := strings.Join(c.args, " ")
	if c.args[1] == "-c" {
		name := filepath.Base(c.args[0])
		c.line(c.args[0] + " " + strings.TrimPrefix(name, "python") + ".1")
		return nil
	}
	m.ran = append(m.ran, line)
	if m.fails != "" && strings.Contains(line, m.fails) {
		c.line(m.says)
		if m.then != nil {
			m.then()
		}
		return errors.New("exit status 1")
	}
	for _, s := range Folder(m.cache).steps(c.args[0]) {
		if slices.ContainsFunc(s.commands, func(args []string) bool { return strings.HasSuffix(line, strings.Join(args[1:], " ")) }) {
			if err := os.MkdirAll(s.leaves, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// empty is a disk with all the room there is.
func empty(string) (float64, error) { return 1e12, nil }

// setup runs one, and returns what it printed, and the commands that it ran.
func (m *machine) setup(ctx context.Context) (said string, ran []string, err error) {
	m.ran = nil
	var out bytes.Buffer
	err = setup(ctx, Config{Cache: m.cache, Progress: &out}, m.run, empty)
	return out.String(), m.ran, err
}

// TestSetup: all is done once, in order; then nothing; what is removed is made again.
func TestSetup(t *testing.T) {
	m := newMachine(t)
	said, ran, err := m.setup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range Folder(m.cache).steps(filepath.Join(m.cache, "bin", "python3.12")) {
		for _, args := range s.commands {
			want = append(want, strings.Join(args, " "))
		}
		if !strings.Contains(said, s.name+": "+s.makes) {
			t.Errorf("nothing is said of step %s:\n%s", s.name, said)
		}
	}
	if !slices.Equal(ran, want) || !strings.Contains(said, "ready") {
		t.Errorf("%q, want %q:\n%s", ran, want, said)
	}
	f, err := Open(m.cache)
	if err != nil || f != Folder(m.cache) {
		t.Fatal(f, err)
	}
	var printed bytes.Buffer
	if err := Print(&printed, m.cache); err != nil || !strings.Contains(printed.String(), f.Python()) || !strings.Contains(printed.String(), "3.12.1") {
		t.Errorf("%v\n%s", err, printed.String())
	}
	if said, ran, err = m.setup(t.Context()); err != nil || len(ran) > 0 || !strings.Contains(said, "all is there already") {
		t.Errorf("the second ran %q: %v\n%s", ran, err, said)
	}
	if err := os.RemoveAll(f.SmolLM2()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(m.cache); err == nil || !strings.Contains(err.Error(), "step smollm2 is missing: run kvferry lab vllm setup") {
		t.Error(err)
	}
	if err := Print(&printed, m.cache); err == nil {
		t.Error("SmolLM2 is missing, and Print does not mind")
	}
	if _, ran, err = m.setup(t.Context()); err != nil || len(ran) != 2 || !strings.Contains(ran[0], "smollm2.py") {
		t.Errorf("without SmolLM2 it ran %q: %v", ran, err)
	}
}

// TestInterrupted: wherever a setup ends, the next one goes on with the step that it was at.
func TestInterrupted(t *testing.T) {
	for i, s := range Folder("x").steps("python") {
		m := newMachine(t)
		ctx, cancel := context.WithCancel(t.Context())
		s = Folder(m.cache).steps(filepath.Join(m.cache, "bin", "python3.12"))[i]
		m.fails, m.then = strings.Join(s.commands[len(s.commands)-1], " "), cancel
		said, _, err := m.setup(ctx)
		if !errors.Is(err, context.Canceled) || !strings.Contains(said, "interrupted at step "+s.name) {
			t.Errorf("%s: %v\n%s", s.name, err, said)
		}
		if _, err := Open(m.cache); err == nil || !strings.Contains(err.Error(), "step "+s.name) {
			t.Errorf("%s: %v", s.name, err)
		}
		m.fails = ""
		_, ran, err := m.setup(t.Context())
		if err != nil || ran[0] != strings.Join(s.commands[0], " ") {
			t.Errorf("after %s it goes on with %q: %v", s.name, ran, err)
		}
	}
}

// TestFailures: what a user can change is named.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		says string
		want error
	}{
		{"ERROR: Could not find a version that satisfies the requirement uv==0.13.9 (from versions: none)", ErrIndex},
		{"error: Failed to fetch: `https://index.example/simple/torch/`", ErrIndex},
		{"error: No space left on device (os error 28)", ErrFull},
		{"Segmentation fault", nil},
	} {
		m := newMachine(t)
		m.fails, m.says = "requirements.txt", c.says
		_, _, err := m.setup(t.Context())
		if err == nil || !strings.Contains(err.Error(), "step packages") || !strings.Contains(err.Error(), c.says) {
			t.Fatalf("%q: %v", c.says, err)
		}
		for _, cause := range []error{ErrIndex, ErrFull} {
			if errors.Is(err, cause) != (cause == c.want) {
				t.Errorf("%q: %v", c.says, err)
			}
		}
	}
}

// TestPython: the first that will do is taken, and for each that will not there is a reason.
func TestPython(t *testing.T) {
	m := newMachine(t)
	old, bare := m.install("python3.9"), m.install("python3.13")
	run := func(ctx context.Context, c command) error {
		if c.args[0] == bare {
			c.line("ModuleNotFoundError: No module named 'pip'")
			return errors.New("exit status 1")
		}
		return m.run(ctx, c)
	}
	_, _, err := findPython(t.Context(), []string{old, bare, "python3.14"}, run)
	for _, want := range []string{"--python", "3.12, 3.11, 3.13", "python3.9 is Python 3.9.1", "python3-pip", "python3.14 is not there"} {
		if !errors.Is(err, ErrPython) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	path, version, err := findPython(t.Context(), candidates("", old), run)
	if err != nil || filepath.Base(path) != "python3.12" || version != "3.12.1" {
		t.Error(path, version, err)
	}
	if got := candidates("/my/python", "/its/python"); !slices.Equal(got, []string{"/my/python"}) {
		t.Errorf("one was asked for: %q", got)
	}
	if got := candidates("", "/its/python"); got[0] != "/its/python" || !slices.Contains(got, "python3") {
		t.Errorf("the environment's own comes first: %q", got)
	}
}

// TestTwoAtOnce: a setup waits for the one that is at work, and finds all done.
func TestTwoAtOnce(t *testing.T) {
	m := newMachine(t)
	atWork, goOn := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		slow := sync.OnceFunc(func() { close(atWork); <-goOn })
		err := setup(t.Context(), Config{Cache: m.cache, Progress: &bytes.Buffer{}}, func(ctx context.Context, c command) error {
			slow()
			return m.run(ctx, c)
		}, empty)
		if err != nil {
			t.Error(err)
		}
	})
	<-atWork
	waits := &waiting{word: "waiting for it", heard: goOn}
	err := setup(t.Context(), Config{Cache: m.cache, Progress: waits}, func(ctx context.Context, c command) error {
		if c.args[1] != "-c" {
			t.Errorf("the second runs %q", c.args)
		}
		return m.run(ctx, c)
	}, empty)
	first.Wait()
	if err != nil || !strings.Contains(waits.said, "all is there already") {
		t.Errorf("%v: %s", err, waits.said)
	}

	unlock, err := Folder(m.cache).lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.setup(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted while it waits: %v", err)
	}
}

// waiting closes heard when a word is written.
type waiting struct {
	word, said string
	heard      chan struct{}
}

func (w *waiting) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.word) && !strings.Contains(w.said, w.word) {
		close(w.heard)
	}
	w.said += string(p)
	return len(p), nil
}

// TestNothingLeft: a step whose commands say that all is well, and leave nothing, is not done.
func TestNothingLeft(t *testing.T) {
	m := newMachine(t)
	err := setup(t.Context(), Config{Cache: m.cache, Progress: &bytes.Buffer{}}, func(ctx context.Context, c command) error {
		if slices.Contains(c.args, "--target") {
			return nil
		}
		return m.run(ctx, c)
	}, empty)
	if err == nil || !strings.Contains(err.Error(), "step uv is over, and there is no ") {
		t.Error(err)
	}
}

// TestRoom: what is there already needs no more room.
func TestRoom(t *testing.T) {
	m := newMachine(t)
	err := setup(t.Context(), Config{Cache: m.cache, Progress: &bytes.Buffer{}}, m.run, func(string) (float64, error) { return 3e9, nil })
	for _, want := range []string{"3.0 GB are free at " + m.cache, "takes 8.0", "--cache"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if len(m.ran) > 0 {
		t.Errorf("it ran %q all the same", m.ran)
	}
	if err := Folder(m.cache).room(3e9, diskNeeded-3e9); err != nil {
		t.Error(err)
	}
}

// TestEnviron: what would mislead a Python is taken out, and uv is told of pip's mirror.
func TestEnviron(t *testing.T) {
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	t.Setenv("PIP_INDEX_URL", "http://mirror/simple")
	t.Setenv("UV_DEFAULT_INDEX", "")
	env := environ([]string{"A=1"})
	if slices.Contains(env, "PYTHONDONTWRITEBYTECODE=1") || !slices.Contains(env, "UV_DEFAULT_INDEX=http://mirror/simple") || !slices.Contains(env, "A=1") {
		t.Errorf("%q", env)
	}
	t.Setenv("UV_DEFAULT_INDEX", "http://own/simple")
	if env := environ(nil); slices.Contains(env, "UV_DEFAULT_INDEX=http://mirror/simple") {
		t.Errorf("uv has a mirror of its own: %q", env)
	}
}

// TestReal: the commands do what they are meant to, with a package index and a disk. It goes on
// with what it finds in the user's cache folder, and leaves it there.
func TestReal(t *testing.T) {
	if os.Getenv("KVFERRY_VLLM") != "1" {
		t.Skip("SKIPPED: vLLM is not set up here: KVFERRY_VLLM=1 downloads 2.2 GB into the user's cache folder")
	}
	if err := Setup(t.Context(), Config{Progress: t.Output()}); err != nil {
		t.Fatal(err)
	}
	f, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	err = execute(t.Context(), command{
		args: []string{f.Python(), "-c", "import importlib.metadata as m; print(m.version('vllm')); import vllm, nixl, mooncake.engine"},
		env:  environ(f.Environ()),
		line: func(text string) { said = append(said, text) },
	})
	if err != nil || !slices.Contains(said, Version+"+cpu") {
		t.Errorf("%v: %q", err, said)
	}
}
