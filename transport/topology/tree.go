package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"kvferry/internal/config"
)

// A tree is the root folder of a machine, or of a capture of one. Paths are
// relative to it. It follows symlinks itself: an absolute one starts at the tree's
// root, and none leads out of it. It remembers all that it was asked for, which
// is what a capture consists of. One goroutine uses it, and closes it.
//
// Nothing in here returns an error: a file that is not there, one that cannot be read and one
// that says nothing of use are all the same to discovery.
type tree struct {
	dir  string
	root *os.Root
	live bool // this machine: the kernel may be asked, too
	seen Snapshot

	// What has been found on the way, by path: every path of sysfs begins with the
	// same folders. A symlink's target is in seen.
	modes map[string]fs.FileMode
}

// maxFile is what is read of one file, in bytes; sysfs has pages of 4 KiB. Of /proc/net/route,
// whose lines have 128 bytes, that is the first 512 routes.
const maxFile = 64 << 10

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{dir: dir, root: root, live: path.Clean(dir) == "/", seen: Snapshot{}, modes: map[string]fs.FileMode{}}, nil
}

func (t *tree) close() { _ = t.root.Close() }

// maxLinks ends a loop of symlinks, as the kernel does (MAXSYMLINKS).
const maxLinks = 40

// real is where a path leads, and what is there; "" if that is nothing. os.Root would follow
// symlinks too, but not say which, and a capture needs each; nor does it follow those that
// begin with a slash.
func (t *tree) real(name string) (string, fs.FileMode) {
	done, rest := ".", strings.Split(path.Clean(name), "/")
	mode := fs.ModeDir
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		var ok bool
		if mode, ok = t.mode(next); !ok {
			return "", 0
		}
		if mode != fs.ModeSymlink {
			done = next
			continue
		}
		target := t.seen[next].Link
		if links++; target == "" || links > maxLinks {
			return "", 0
		}
		if path.IsAbs(target) {
			done = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
		mode = fs.ModeDir
	}
	return done, mode
}

// mode is what is at a path whose folders are no symlinks; a symlink's target is
// in seen afterwards.
func (t *tree) mode(at string) (fs.FileMode, bool) {
	if mode, ok := t.modes[at]; ok {
		return mode, true
	}
	info, err := t.root.Lstat(at)
	if err != nil {
		return 0, false
	}
	mode := info.Mode().Type()
	if mode == fs.ModeSymlink {
		target, err := t.root.Readlink(at)
		if err != nil {
			return 0, false
		}
		t.seen[at] = entry{Link: target}
	}
	t.modes[at] = mode
	return mode, true
}

// read is a file's text without the newline at its end; "" if there is none, or
// none that can be read: sysfs answers EINVAL for what does not apply.
func (t *tree) read(name ...string) string {
	at, mode := t.real(path.Join(name...))
	if at == "" || mode != 0 {
		return "" // a folder, or a pipe that somebody put there
	}
	f, err := t.root.Open(at)
	if err != nil {
		return ""
	}
	defer f.Close()
	// To the end, not to the size: sysfs gives 4096 for every file, proc gives 0.
	text := make([]byte, maxFile)
	n := 0
	for n < len(text) {
		k, err := f.Read(text[n:])
		n += k
		if err != nil {
			break
		}
	}
	if n == 0 {
		return ""
	}
	t.seen[at] = entry{Text: string(text[:n])}
	return strings.TrimSpace(string(text[:n]))
}

// number is a file's decimal number.
func (t *tree) number(name ...string) (int, bool) {
	n, err := strconv.Atoi(t.read(name...))
	return n, err == nil
}

// list is the names in a folder, sorted as people count: eth2 before eth10.
func (t *tree) list(name ...string) []string {
	at, mode := t.real(path.Join(name...))
	if at == "" || !mode.IsDir() {
		return nil
	}
	f, err := t.root.Open(at)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	t.seen[at] = entry{Dir: true}
	slices.SortFunc(names, compareNames)
	return names
}

// has reports whether there is a file or folder.
func (t *tree) has(name ...string) bool {
	at, mode := t.real(path.Join(name...))
	switch {
	case at == "":
		return false
	case mode.IsDir():
		t.seen[at] = entry{Dir: true}
	default:
		t.read(at)
	}
	return true
}

// link is the last element of where a symlink leads, "" if that is nowhere.
func (t *tree) link(name ...string) string {
	at, mode := t.real(path.Join(name...))
	if at == "" {
		return ""
	}
	if mode.IsDir() {
		t.seen[at] = entry{Dir: true}
	}
	return path.Base(at)
}

// compareNames orders names with numbers in them by the numbers, of any length: they are
// compared as text without leading zeros. Names that differ in zeros only go by their length.
func compareNames(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		i, j := digits(x), digits(y)
		if i > 0 && j > 0 {
			m, n := strings.TrimLeft(x[:i], "0"), strings.TrimLeft(y[:j], "0")
			if c := len(m) - len(n); c != 0 {
				return c
			}
			if c := strings.Compare(m, n); c != 0 {
				return c
			}
			x, y = x[i:], y[j:]
			continue
		}
		if x[0] != y[0] {
			return int(x[0]) - int(y[0])
		}
		x, y = x[1:], y[1:]
	}
	if c := len(x) - len(y); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

// digits is how many of them text begins with.
func digits(text string) int { return len(text) - len(strings.TrimLeft(text, "0123456789")) }

// withTree calls use on a folder, or on a capture that is unpacked for as long. A capture is
// unpacked and not read from memory, since ghw reads files.
func withTree(root string, use func(*tree) error) error {
	info, err := os.Stat(root)
	if err != nil {
		return fmt.Errorf("%w: name a folder that has sys in it (/ is this machine), or a capture", config.FileError(root, err))
	}
	dir := root
	if !info.IsDir() {
		s, err := openSnapshot(root)
		if err != nil {
			return err
		}
		if dir, err = os.MkdirTemp("", "kvferry-topology-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := s.extract(dir); err != nil {
			return fmt.Errorf("%q: %w", root, err)
		}
	}
	t, err := openTree(dir)
	if err != nil {
		return err
	}
	defer t.close()
	// Either is enough: a container may be given RDMA devices and no interface.
	if len(t.list("sys/class/net")) == 0 && len(t.list("sys/class/infiniband")) == 0 {
		return fmt.Errorf("%q: %w: there is no sys/class/net with an interface in it; name the folder that holds sys, not sys itself, or a capture made by kvferry rail topo --capture", root, errNoMachine)
	}
	return use(t)
}

var errNoMachine = errors.New("not a Linux machine's files")
