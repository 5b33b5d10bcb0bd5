package topology

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"kvferry/internal/config"
)

// A Snapshot is the files of a machine that discovery reads, by path without the
// slash in front. It is stored as a .tar.gz, or as text with a line for each:
//
//	sys/class/net/eth0 -> ../../devices/pci0000:00/0000:00:03.0/net/eth0
//	sys/devices/pci0000:00/0000:00:03.0/numa_node = 0
//	sys/devices/system/node/node0/meminfo = "Node 0 MemTotal: 16314908 kB\n"
//	sys/devices/system/node/node0/hugepages/
//
// A value is quoted as in Go where it has more than one line, and ends in a
// newline where it is not. Empty lines and those that begin with # say nothing.
type Snapshot map[string]entry

// An entry is a symlink, a folder or a file's text.
type entry struct {
	Link string
	Dir  bool
	Text string
}

// Limits of a capture, which may come from anybody. Those of 8-GPU servers have
// some 500 files and 40 KB of text.
const (
	maxEntries = 20_000
	maxBytes   = 16 << 20 // of text, and of a file that holds it
)

// put adds a file that somebody sent, or says which limit or rule it breaks. Of two entries
// of one path the last stays.
func (s Snapshot) put(name string, e entry) error {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	switch {
	case clean == "":
		return nil // the root itself
	case strings.ContainsFunc(name, unicode.IsControl) || strings.Contains(name, "//") || slices.Contains(strings.Split(name, "/"), ".."):
		return fmt.Errorf("path %q is not a plain one below the root", name)
	case len(e.Text) > maxFile:
		return fmt.Errorf("%s has %d bytes: files of sysfs have at most %d", name, len(e.Text), maxFile)
	case len(s) >= maxEntries:
		return fmt.Errorf("more than %d files", maxEntries)
	}
	s[clean] = e
	return nil
}

// Text is the snapshot as text, sorted by path: equal snapshots have equal texts, and a
// change is a line of a diff.
func (s Snapshot) Text() string {
	var b strings.Builder
	for _, name := range s.names() {
		switch e := s[name]; {
		case e.Link != "":
			fmt.Fprintf(&b, "%s -> %s\n", name, e.Link)
		case e.Dir:
			fmt.Fprintf(&b, "%s/\n", name)
		default:
			// Unquoted is what a line can hold so that it is read as it was: text that Go would
			// not escape, without blanks at its ends, and the one newline that sysfs has.
			value, whole := strings.CutSuffix(e.Text, "\n")
			if !whole || value == "" || strconv.Quote(value) != `"`+value+`"` || value != strings.TrimSpace(value) {
				value = strconv.Quote(e.Text)
			}
			fmt.Fprintf(&b, "%s = %s\n", name, value)
		}
	}
	return b.String()
}

// names are the paths that say something, in order: a folder with files in it does not, and
// Extract makes it on the way.
func (s Snapshot) names() []string {
	filled := map[string]bool{}
	for name := range s {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			filled[dir] = true
		}
	}
	var names []string
	for _, name := range slices.SortedFunc(maps.Keys(s), compareNames) {
		if name != "." && !(s[name].Dir && filled[name]) {
			names = append(names, name)
		}
	}
	return names
}

// parseSnapshot reads what Text wrote.
func parseSnapshot(text string) (Snapshot, error) {
	s := Snapshot{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.parseLine(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return s, nil
}

// parseLine reads one line. An arrow behind an equals sign is part of a value.
func (s Snapshot) parseLine(line string) error {
	name, target, isLink := strings.Cut(line, " -> ")
	if isLink && !strings.Contains(name, " = ") {
		if target == "" {
			return errors.New("a symlink to nothing: write PATH -> TARGET")
		}
		return s.put(name, entry{Link: target})
	}
	if name, value, ok := strings.Cut(line, " = "); ok {
		text := value + "\n"
		if strings.HasPrefix(value, `"`) {
			var err error
			if text, err = strconv.Unquote(value); err != nil {
				return fmt.Errorf("%s: value %s is not quoted as in Go", name, value)
			}
		}
		return s.put(name, entry{Text: text})
	}
	if strings.HasSuffix(line, "/") {
		return s.put(strings.TrimSuffix(line, "/"), entry{Dir: true})
	}
	return fmt.Errorf("%q: write PATH = VALUE, PATH -> TARGET or PATH/", line)
}

// Write writes the snapshot as a .tar.gz. All times in it are 0: captures of one
// machine are equal byte by byte.
func (s Snapshot) Write(w io.Writer) error {
	zip, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	for _, name := range s.names() {
		e := s[name]
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(e.Text)), ModTime: time.Unix(0, 0)}
		switch {
		case e.Link != "":
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.Link, 0
		case e.Dir:
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, e.Text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

// openSnapshot reads a capture, a .tar.gz or text.
func openSnapshot(file string) (Snapshot, error) {
	text, err := config.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := readSnapshot(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%q: %w: make a capture with kvferry rail topo --capture", file, err)
	}
	return s, nil
}

// readSnapshot reads either form, told apart by gzip's magic number. The limit of bytes holds
// for what is unpacked, so that a small file cannot fill the memory.
func readSnapshot(r io.Reader) (Snapshot, error) {
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		text, err := readAll(in)
		if err != nil {
			return nil, err
		}
		return parseSnapshot(string(text))
	}
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	text, err := readAll(zip)
	if err != nil {
		return nil, err
	}
	s := Snapshot{}
	archive := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		} else if err != nil {
			return nil, err
		}
		e := entry{Link: h.Linkname}
		switch h.Typeflag {
		case tar.TypeDir:
			e = entry{Dir: true}
		case tar.TypeSymlink:
			if e.Link == "" {
				return nil, fmt.Errorf("%s is a symlink to nothing", h.Name)
			}
		case tar.TypeReg:
			text, err := io.ReadAll(archive)
			if err != nil {
				return nil, err
			}
			e = entry{Text: string(text)}
		default:
			return nil, fmt.Errorf("%s is neither a file, a folder nor a symlink", h.Name)
		}
		if err := s.put(strings.TrimSuffix(h.Name, "/"), e); err != nil {
			return nil, err
		}
	}
}

func readAll(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("larger than %d MiB", maxBytes>>20)
	}
	return text, err
}

// extract writes the files below dir, which is there and empty; what it wrote stays if it
// fails. A symlink that leads out of it is an error: programs that know nothing of captures
// (ghw is one) are to read the folder.
func (s Snapshot) extract(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var links []string
	for _, name := range s.names() {
		e := s[name]
		folder := path.Dir(name)
		if e.Dir {
			folder = name
		}
		if err := root.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		switch {
		case e.Dir:
		case e.Link != "":
			links = append(links, name)
		default:
			if err := root.WriteFile(name, []byte(e.Text), 0o644); err != nil {
				return err
			}
		}
	}
	// Symlinks come last, so that no file was written through one.
	for _, name := range links {
		if err := root.Symlink(s[name].Link, name); err != nil {
			return err
		}
	}
	for _, name := range links {
		if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("symlink %s -> %s: %w", name, s[name].Link, err)
		}
	}
	return nil
}
