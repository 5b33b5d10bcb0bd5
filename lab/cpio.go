package lab

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
)

// An archive is an initramfs: cpio of the "newc" kind, which the kernel unpacks.
// It stays uncompressed; under emulation, unpacking 20 MB takes longer than
// reading them.
type archive struct {
	buf   bytes.Buffer
	inode int
	seen  map[string]bool
}

// Kinds of file, the upper bits of a mode in cpio as in stat.
const (
	kindFolder  = 0o040000
	kindFile    = 0o100000
	kindSymlink = 0o120000
	kindDevice  = 0o020000
)

func newArchive() *archive { return &archive{seen: map[string]bool{"/": true}} }

// entry writes a header: 6 digits of magic and 13 fields of 8 hex digits, then
// name and content, each padded to 4 bytes.
func (a *archive) entry(name string, mode int, major, minor int, content []byte) {
	a.inode++
	name = name[1:] // the kernel's root is the folder that it unpacks into
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// claim makes the folders above name, and reports whether nothing is there yet.
func (a *archive) claim(name string) bool {
	if a.seen[name] {
		return false
	}
	if above := path.Dir(name); a.claim(above) {
		a.entry(above, kindFolder|0o755, 0, 0, nil)
	}
	a.seen[name] = true
	return true
}

// The first of two of the same name stays.

func (a *archive) folder(name string) {
	if a.claim(name) {
		a.entry(name, kindFolder|0o755, 0, 0, nil)
	}
}

func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	if a.claim(name) {
		a.entry(name, kindFile|int(mode.Perm()), 0, 0, content)
	}
}

func (a *archive) symlink(name, target string) {
	if a.claim(name) {
		a.entry(name, kindSymlink|0o777, 0, 0, []byte(target))
	}
}

func (a *archive) device(name string, major, minor int) {
	if a.claim(name) {
		a.entry(name, kindDevice|0o600, major, minor, nil)
	}
}

// bytes ends the archive.
func (a *archive) bytes() []byte {
	a.entry("/TRAILER!!!", 0, 0, 0, nil)
	return a.buf.Bytes()
}
