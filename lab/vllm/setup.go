package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvferry/internal/progress"
	"kvferry/lab"
)

// Config is what a setup is told.
type Config struct {
	Cache    string    // folder of the environment; empty: kvferry/vllm in the user's cache folder
	Python   string    // program that the environment is made of; empty: see python.go
	Progress io.Writer // gets a line for each step, and how far it is
	Terminal bool      // Progress is one
}

const (
	// diskNeeded is what all comes to: 7.0 GB of packages, 0.4 of their bytecode, 0.3 of models, and 0.3 of room.
	diskNeeded = 8e9
	lockPeriod = 200 * time.Millisecond
	lastLines  = 15 // of a command that failed, in the error
)

// FolderOf is the folder of a Config's Cache.
func FolderOf(cache string) (Folder, error) {
	folder, err := lab.CacheFolder(cache, "vllm")
	return Folder(folder), err
}

// Setup makes the environment, or what is missing of it. It waits for another setup in the same
// folder. If ctx ends it, or anything else, the next one goes on with the step that it was at.
func Setup(ctx context.Context, cfg Config) error { return setup(ctx, cfg, execute, freeOn) }

func setup(ctx context.Context, cfg Config, run runner, freeOn func(folder string) (float64, error)) error {
	f, err := FolderOf(cfg.Cache)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(cfg.Progress, format+"\n", args...) }
	unlock, err := f.lock(ctx, say)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := f.state()
	if err != nil {
		return err
	}
	python, version, err := findPython(ctx, candidates(cfg.Python, state.Python), run)
	if err != nil {
		return err
	}
	state.Python, state.Version = python, version
	steps := f.steps(python)
	first := state.next(steps, there)
	if first == len(steps) {
		say("all is there already: %s", f)
		return nil
	}
	used, err := f.size()
	if err != nil {
		return err
	}
	free, err := freeOn(string(f))
	if err != nil {
		return err
	}
	if err := f.room(free, float64(used)); err != nil {
		return err
	}
	log, err := os.OpenFile(f.at("setup.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := f.writeFiles(); err != nil {
		return err
	}
	say("setting up vLLM %s in %s with Python %s", Version, f, version)
	began := time.Now()
	shown := progress.New(cfg.Progress, cfg.Terminal)
	shown.Start(progress.State{What: steps[first].name, Total: int64(len(steps)), Unit: "steps"})
	defer shown.Stop()
	for i := first; i < len(steps); i = state.next(steps, there) {
		shown.Describe(steps[i].name)
		shown.Set(int64(i))
		shown.Say(fmt.Sprintf("%s: %s", steps[i].name, steps[i].makes))
		stepBegan := time.Now()
		if err := f.do(ctx, steps[i], run, log, shown); err != nil {
			return err
		}
		if !there(steps[i].leaves) {
			return fmt.Errorf("step %s is over, and there is no %s: see %s", steps[i].name, steps[i].leaves, log.Name())
		}
		state.mark(steps, i, time.Since(stepBegan))
		if err := f.keep(state); err != nil {
			return err
		}
	}
	shown.Stop()
	say("ready after %.0f s: kvferry lab vllm says how it is used", time.Since(began).Seconds())
	return nil
}

// do runs the commands of a step. An error names the step and has what was printed last.
func (f Folder) do(ctx context.Context, s step, run runner, log io.Writer, shown *progress.Task) error {
	env := environ(append(f.Environ(),
		"UV_CACHE_DIR="+f.at("wheels"), // on the disk of the environment, so that files are linked and not copied
		"UV_CONCURRENT_DOWNLOADS=8",    // of the 50 that it would begin at once none is whole when it is interrupted
	))
	for _, args := range s.commands {
		fmt.Fprintf(log, "$ %s\n", strings.Join(args, " "))
		var output []string
		err := run(ctx, command{
			args: args, env: env,
			line: func(text string) {
				fmt.Fprintln(log, text)
				output = append(output, text)
				output = output[max(0, len(output)-200):]
			},
		})
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			shown.Say(fmt.Sprintf("interrupted at step %s: kvferry lab vllm setup goes on with it", s.name))
			return context.Cause(ctx)
		}
		last := strings.Join(output[max(0, len(output)-lastLines):], "\n")
		err = fmt.Errorf("%s\n%s\n%w", strings.Join(args, " "), last, err)
		if why := cause(output); why != nil {
			err = fmt.Errorf("%w\n%w", why, err)
		}
		return fmt.Errorf("step %s: %w", s.name, err)
	}
	return nil
}

// lock waits until no other setup is at work in the folder, which it makes. The system unlocks it
// with this process.
func (f Folder) lock(ctx context.Context, say func(string, ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(string(f), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(f.at("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for tick := time.NewTicker(lockPeriod); ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			tick.Stop()
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		if say != nil {
			say("another kvferry lab vllm setup is at work in %s: waiting for it", f)
			say = nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// freeOn is how many bytes are free on the disk of a folder.
func freeOn(folder string) (float64, error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(folder, &disk); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: folder, Err: err}
	}
	return float64(disk.Bavail) * float64(disk.Bsize), nil
}

// room says whether the disk has what is still to come; free and used are bytes.
func (f Folder) room(free, used float64) error {
	if needed := diskNeeded - used; free < needed {
		return fmt.Errorf("%.1f GB are free at %s, and it takes %.1f: make room, or choose another place with --cache", free/1e9, f, needed/1e9)
	}
	return nil
}

// size is how many bytes the folder takes. Packages are there twice, under one inode.
func (f Folder) size() (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(string(f), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				if s, ok := info.Sys().(*syscall.Stat_t); ok && !seen[s.Ino] {
					seen[s.Ino] = true
					sum += s.Blocks * 512
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a setup is at work there
		}
		return err
	})
	return sum, err
}

// writeFiles puts the embedded files where the commands read them.
func (f Folder) writeFiles() error {
	sub, err := fs.Sub(files, "files")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(f.at("files")); err != nil {
		return err
	}
	return os.CopyFS(f.at("files"), sub)
}

// state reads what has been set up: nothing, if there is no file.
func (f Folder) state() (State, error) {
	var s State
	text, err := os.ReadFile(f.at("state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: remove it, and run kvferry lab vllm setup", f.at("state.json"), err)
	}
	return s, err
}

// keep writes the state, whole or not at all.
func (f Folder) keep(s State) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.at("state.json.part"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(f.at("state.json.part"), f.at("state.json"))
}

func there(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
