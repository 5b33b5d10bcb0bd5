package lab

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
)

// An archive is an initramfs: cpio of the "newc" kind, which the kernel unpacks. The
// format is in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
// It stays uncompressed; under emulation, unpacking 20 MB takes longer than
// reading them. It is written here and not by cpio(1), since devices in it would take
// root, and owners would be those of this machine.
//
// Names are absolute paths inside the host. The first of two of the same name stays, so
// what must not be replaced is added first.
type archive struct {
	buf   bytes.Buffer
	inode int             // of the last entry: each has its own
	seen  map[string]bool // what has an entry, by name
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
// name and content, each padded to 4 bytes. The fields are inode, mode, uid, gid, links,
// time, size, the device that the file is on (two), the device that it is (two), size of
// the name with its zero, and a checksum, which this kind has not. Owner is root and
// the time 1970, so that equal files make equal archives.
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

// claim makes the folders above name, and reports whether nothing is there yet. The
// kernel makes no folders that the archive leaves out.
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
