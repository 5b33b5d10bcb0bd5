package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// Programs that a host has if this machine has them. All but busybox are full
// ones: they come before busybox's of the same name.
var guestTools = []string{
	"rdma", "ip", "tc", // of iproute2; busybox's ip knows no RDMA
	"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat",
	"ibv_devinfo", "ibv_devices", "ibv_rc_pingpong",
}

// Where libibverbs looks for drivers, and rxe's: they are opened by name as a program
// runs, and are not among the libraries that it is linked with. Nor is libibverbs itself
// among those of kvferry's programs; rxe's driver brings it.
var verbsDrivers = []string{
	"/etc/libibverbs.d/rxe.driver",
	"/usr/lib/x86_64-linux-gnu/libibverbs/librxe*",
}

// moduleFolder holds the modules inside a host, initFolder its scripts.
const (
	moduleFolder = "/lib/modules"
	initFolder   = "/etc/kvferry-lab"
)

// An image is what all hosts of a lab boot from; each has an init of its own.
type image struct {
	kernel string // file
	initrd []byte
}

// buildImage puts together what the hosts run. Its order is one of precedence, see archive: the
// lab's own files, the tools and the command, busybox's applets, the user's files, which may
// replace nothing, then the libraries of all of these, the modules and the inits.
func (c Config) buildImage(ctx context.Context, k kernel, token string) (image, error) {
	b := builder{archive: newArchive(), from: make(map[string]string)}
	// As Debian has it since bookworm: a library's path begins with /lib or /usr/lib, and both
	// are the same.
	for _, link := range [][2]string{{"/bin", "usr/bin"}, {"/sbin", "usr/sbin"}, {"/lib", "usr/lib"}, {"/lib64", "usr/lib64"}} {
		b.folder("/" + link[1])
		b.symlink(link[0], link[1])
	}
	for _, folder := range []string{"/run", "/lab", "/root", "/etc", "/dev", "/usr/sbin"} {
		b.folder(folder)
	}
	b.device("/dev/console", 5, 1) // init's output, before it has mounted devtmpfs
	b.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	b.file("/etc/group", 0o644, []byte("root:x:0:\n"))
	hosts := "127.0.0.1 localhost\n"
	for h := 1; h <= c.Hosts; h++ {
		hosts += fmt.Sprintf("%s %s\n", address(h, 0), hostname(h))
	}
	b.file("/etc/hosts", 0o644, []byte(hosts))

	applets, err := output(ctx, "", "busybox", "--list")
	if err != nil {
		return image{}, err
	}
	command, err := b.programs(c, strings.Fields(applets))
	if err != nil {
		return image{}, err
	}
	for _, f := range c.Files {
		if err := b.copyTree(f); err != nil {
			return image{}, fmt.Errorf("file %s: %w", f.From, err)
		}
	}
	if err := b.libraries(ctx); err != nil {
		return image{}, err
	}
	modules, err := b.modules(ctx, k, c.Modules)
	if err != nil {
		return image{}, err
	}
	for h := 1; h <= c.Hosts; h++ {
		b.file(path.Join(initFolder, hostname(h)), 0o755, []byte(c.script(h, modules, command, token)))
	}
	initrd := b.bytes()
	// The archive and what is unpacked of it are in memory together for a while; half
	// as much again and 128 MiB are for the kernel and the programs. These are
	// chosen with room, not measured; what is advised leaves 128 MiB more.
	if size := len(initrd) >> 20; size*5/2+128 > c.Memory {
		return image{}, config.NewFault("Memory", c.Memory, "too few for %d MiB of files: use %d or more", size, size*5/2+256)
	}
	return image{k.image, initrd}, nil
}

// A builder fills an archive from files of this machine. Hosts run its own programs and
// libraries, not a distribution's: what is tested is then what is installed here, and
// nothing has to be downloaded but a kernel.
type builder struct {
	*archive
	elf  []string          // files here whose libraries are needed, absolute
	from map[string]string // guest path to file here, of what has been copied
}

// guestPath is where a file of this machine goes: its own path, below /usr where
// the hosts have only symlinks.
func guestPath(file string) string {
	for _, root := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(file, root) {
			return "/usr" + file
		}
	}
	return file
}

// copy puts one file into the image. Kernel modules are ELF files too, but are linked
// with nothing.
func (b *builder) copy(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if bytes.HasPrefix(content, []byte("\x7fELF")) && !strings.Contains(filepath.Base(from), ".ko") {
		if from, err = filepath.Abs(from); err != nil {
			return err
		}
		b.elf = append(b.elf, from)
	}
	b.file(to, info.Mode(), content)
	b.from[to] = from
	return nil
}

// copyTree copies a file or folder of the user's; symlinks to files are followed.
func (b *builder) copyTree(f File) error {
	to := f.To
	if to == "" {
		from, err := filepath.Abs(f.From)
		if err != nil {
			return err
		}
		to = "/lab/" + filepath.Base(from)
	}
	from, err := filepath.EvalSymlinks(f.From)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := guestPath(path.Join(to, filepath.ToSlash(below)))
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return err
		case info.IsDir() && !d.IsDir():
			return fmt.Errorf("%s is a symlink to a folder: copy that by a File of its own", name)
		case info.IsDir():
			b.folder(target)
			return nil
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is neither file nor folder", name)
		case b.seen[target]:
			return fmt.Errorf("%s would replace %s of the hosts: give another PATH:GUESTPATH", name, target)
		}
		return b.copy(name, target)
	})
}

// programs copies the tools and the command's program, and returns the command as
// the hosts run it. applets are the programs that busybox is.
func (b *builder) programs(c Config, applets []string) ([]string, error) {
	// The shell is this machine's, dash on Debian: busybox's runs its own ip and
	// others without a look at the PATH.
	tools := append([]string{"busybox", "sh"}, guestTools...)
	command := slices.Clone(c.Command)
	name := command[0]
	switch {
	case strings.Contains(name, "/"):
		var err error
		if command[0], err = b.commandFile(c, name, applets); err != nil {
			return nil, err
		}
	case !slices.Contains(applets, name) && !slices.Contains(tools, name) && !c.brings("/lab/"+name):
		if _, err := exec.LookPath(name); err != nil {
			return nil, config.NewFault("Command", name, "it is neither a program of the hosts nor of this machine")
		}
		tools = append(tools, name)
	}
	if err := b.tools(tools); err != nil {
		return nil, err
	}
	// Last: an applet gives way to a full program of its name.
	for _, applet := range applets {
		b.symlink("/usr/bin/"+applet, "busybox")
	}
	return command, nil
}

// commandFile copies the command's program if name is a file here, and returns its path
// in the hosts. Otherwise name must be a path that they have without that.
func (b *builder) commandFile(c Config, name string, applets []string) (string, error) {
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
		if info.Mode()&0o111 == 0 {
			return "", config.NewFault("Command", name, "it is not executable: chmod +x, or name its interpreter")
		}
		to := "/lab/" + filepath.Base(name)
		return to, b.copy(name, to)
	}
	if !c.brings(name) && !slices.Contains(applets, path.Base(name)) {
		return "", config.NewFault("Command", name, "it is no file here, and none is copied there")
	}
	return name, nil
}

// tools copies programs of this machine, as far as it has them, and the drivers of verbs.
func (b *builder) tools(tools []string) error {
	for _, tool := range tools {
		file, err := exec.LookPath(tool)
		if err != nil {
			continue // perftest and ibverbs-utils are extras; what is needed was checked
		}
		if err := b.copy(file, "/usr/bin/"+tool); err != nil {
			return err
		}
	}
	for _, pattern := range verbsDrivers {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := b.copy(file, guestPath(file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// brings reports whether one of the files goes to a path of the hosts.
func (c Config) brings(name string) bool {
	return slices.ContainsFunc(c.Files, func(f File) bool {
		to := f.To
		config.Default(&to, "/lab/"+filepath.Base(f.From))
		return to == name || strings.HasPrefix(name, to+"/")
	})
}

// libraries copies what the programs are linked with, and what those libraries are in
// turn: ldd lists them all. What a program opens by itself as it runs, as libibverbs does
// with its drivers, ldd does not see: see verbsDrivers. ldd exits 1 for a static program,
// and says so.
func (b *builder) libraries(ctx context.Context) error {
	for _, file := range b.elf {
		text, err := output(ctx, "", "ldd", file)
		if err != nil {
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && strings.Contains(text+err.Error(), "not a dynamic executable") {
				continue
			}
			return err
		}
		libraries, err := parseLDD(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, lib := range libraries {
			to := guestPath(lib)
			if b.from[to] != "" {
				continue
			}
			content, err := os.ReadFile(lib)
			if err != nil {
				return err
			}
			b.from[to] = lib
			b.file(to, 0o755, content)
		}
	}
	return nil
}

// parseLDD returns the files in the output of ldd:
//
//	linux-vdso.so.1 (0x00007ffd...)
//	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f...)
func parseLDD(text string) ([]string, error) {
	var files []string
	for line := range strings.Lines(text) {
		name, file, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			file = name
		}
		if strings.HasPrefix(file, "not found") {
			return nil, fmt.Errorf("library %s is not on this machine", name)
		}
		if file, _, _ = strings.Cut(file, " (0x"); strings.HasPrefix(file, "/") {
			files = append(files, file)
		}
	}
	return files, nil
}

// modules copies the modules of the kernel that hosts need, and those that are asked for, and returns their paths in the order of
// loading. Compressed ones are unpacked here, where a core is thirty times faster.
func (b *builder) modules(ctx context.Context, k kernel, more []string) ([]string, error) {
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	wanted := slices.Clone(hostModules)
	for _, name := range more {
		wanted = append(wanted, module{name: name})
	}
	order, err := resolveModules(wanted, string(dep), string(builtin))
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, file := range order {
		from := filepath.Join(k.modules, file)
		var content []byte
		if strings.HasSuffix(file, ".ko") {
			content, err = os.ReadFile(from)
		} else {
			content, err = unpack(ctx, from)
		}
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		to := path.Join(guestPath(moduleFolder+"/"), name+".ko")
		b.file(to, 0o644, content)
		paths = append(paths, to)
	}
	return paths, nil
}

// unpack returns the content of a compressed file.
func unpack(ctx context.Context, file string) ([]byte, error) {
	program, known := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(file)]
	if !known {
		return nil, fmt.Errorf("module %s is compressed in an unknown way", file)
	}
	text, err := output(ctx, "", program, "-dc", file)
	return []byte(text), err
}

// memoryFile returns a file without a name that has content, for the caller to close.
func memoryFile(content []byte) (*os.File, error) {
	f, err := newMemoryFile()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(f, bytes.NewReader(content)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
