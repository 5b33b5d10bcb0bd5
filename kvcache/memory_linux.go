package kvcache

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
)

// Available is how many bytes of memory this process can take before the kernel ends it or
// another: what the machine has left without swapping (MemAvailable), and what the limits
// of its control groups leave. ok is false where the system does not say.
func Available() (n int64, ok bool) { return systemAt("/").available() }

// A systemAt is the root folder below which proc and sys are.
type systemAt string

func (s systemAt) read(name ...string) string {
	text, err := os.ReadFile(path.Join(append([]string{string(s)}, name...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// field is the number behind a name at the start of a line of a file, as in
// "MemAvailable:  123 kB" or "inactive_file 456".
func (s systemAt) field(name string, file ...string) (int64, bool) {
	lines := bufio.NewScanner(bytes.NewReader([]byte(s.read(file...))))
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 1 && strings.TrimSuffix(f[0], ":") == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func (s systemAt) available() (n int64, ok bool) {
	kib, ok := s.field("MemAvailable", "proc/meminfo")
	n = kib << 10
	for _, g := range s.groups() {
		if left, limited := s.left(g); limited && (!ok || left < n) {
			n, ok = left, true
		}
	}
	return n, ok
}

// A memoryGroup is the folder of a control group, and the names of its files: those of
// version 1 and of version 2 differ.
type memoryGroup struct{ folder, limit, usage, cache string }

// groups are the process's memory control group and those it is in.
func (s systemAt) groups() (all []memoryGroup) {
	for line := range strings.Lines(s.read("proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // 4:memory:/a/b, and 0::/a/b of version 2
		if len(f) < 3 {
			continue
		}
		g := memoryGroup{folder: "sys/fs/cgroup", limit: "memory.max", usage: "memory.current", cache: "inactive_file"}
		switch {
		case f[0] == "0":
		case strings.Contains(","+f[1]+",", ",memory,"):
			g = memoryGroup{folder: "sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", cache: "total_inactive_file"}
		default:
			continue
		}
		root := g.folder
		// In a container the path may be that on the host, and is not to be seen: its
		// group is then the root here, which is where this ends.
		for at := path.Clean("/" + f[2]); ; at = path.Dir(at) {
			g.folder = path.Join(root, at)
			all = append(all, g)
			if at == "/" {
				break
			}
		}
	}
	return all
}

// left is what a group's limit leaves; the page cache that it counts can be had at once.
func (s systemAt) left(g memoryGroup) (n int64, limited bool) {
	limit, err := strconv.ParseInt(s.read(g.folder, g.limit), 10, 64) // "max" is no limit
	if err != nil || limit >= 1<<60 {                                 // nor is what version 1 has for it
		return 0, false
	}
	usage, err := strconv.ParseInt(s.read(g.folder, g.usage), 10, 64)
	if err != nil {
		return 0, false
	}
	cache, _ := s.field(g.cache, g.folder, "memory.stat")
	return max(limit-max(usage-cache, 0), 0), true
}
