package vllm

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Environ is what a process with vLLM finds in its environment, beside what is there: one process
// with one thread, nothing bound to cores, no look at a model hub. With processes of its own, vLLM
// spins on memory that they share, and two instances starve each other on two cores. Memory comes in
// huge pages where it can: with small ones a prompt takes longer, and with each start another time.
func (f Folder) Environ() []string {
	return []string{
		"VLLM_ENABLE_V1_MULTIPROCESSING=0",
		"VLLM_CPU_OMP_THREADS_BIND=nobind",
		"VLLM_CPU_KVCACHE_SPACE=1", // GiB
		"VLLM_NO_USAGE_STATS=1",
		"OMP_NUM_THREADS=1",
		"GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
		"HF_HUB_OFFLINE=1",
	}
}

// Process is the whole environment of a process with vLLM: this one's, without what would mislead
// a Python, and Environ.
func (f Folder) Process() []string { return environ(f.Environ()) }

// misleading are variables of another Python's environment, or that keep bytecode from being
// written: without it each start of vLLM takes seven seconds more.
var misleading = []string{"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}

// environ is this process's environment without what would mislead a Python, and more.
func environ(more []string) []string {
	all := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(misleading, name)
	})
	// uv goes by a mirror of its own name only.
	if url, own := os.Getenv("PIP_INDEX_URL"), os.Getenv("UV_DEFAULT_INDEX"); url != "" && own == "" {
		all = append(all, "UV_DEFAULT_INDEX="+url)
	}
	return append(all, more...)
}

// Open returns the folder of a Config's Cache if all is set up there.
func Open(cache string) (Folder, error) {
	f, err := FolderOf(cache)
	if err != nil {
		return "", err
	}
	s, err := f.state()
	if err != nil {
		return "", err
	}
	steps := f.steps(s.Python)
	if err := f.unfinished(steps, s.next(steps, there)); err != nil {
		return "", err
	}
	return f, nil
}

// unfinished is the error of an environment of which steps[next] is missing, nil if none is.
func (f Folder) unfinished(steps []step, next int) error {
	if next == len(steps) {
		return nil
	}
	return fmt.Errorf("vLLM is not set up in %s, step %s is missing: run kvferry lab vllm setup", f, steps[next].name)
}

// Print writes what is set up in the folder of a Config's Cache, and how it is used. The error is
// that of Open.
func Print(w io.Writer, cache string) error {
	f, err := FolderOf(cache)
	if err != nil {
		return err
	}
	s, err := f.state()
	if err != nil {
		return err
	}
	size, err := f.size()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "folder    %s, %.1f GB\n", f, float64(size)/1e9)
	if s.Python != "" {
		fmt.Fprintf(w, "made of   Python %s, %s\n", s.Version, s.Python)
	}
	steps := f.steps(s.Python)
	next := s.next(steps, there)
	for i, step := range steps {
		state := "missing"
		if i < next {
			state = fmt.Sprintf("%.1f s", s.Done[step.name].Seconds)
		}
		fmt.Fprintf(w, "%-9s %7s  %s\n", step.name, state, step.makes)
	}
	if err := f.unfinished(steps, next); err != nil {
		return err
	}
	fmt.Fprintf(w, "packages  %s\n", strings.Join(pins(), ", "))
	fmt.Fprintf(w, "python    %s\ntiny      %s\nsmollm2   %s\n", f.Python(), f.Tiny(), f.SmolLM2())
	fmt.Fprintf(w, "\nRun it with one core an instance, and with\n\n    %s\n", strings.Join(f.Environ(), " "))
	return nil
}
