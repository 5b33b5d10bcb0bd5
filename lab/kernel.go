package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kvferry/internal/proc"
)

// A kernel is an unpacked linux-image package.
type kernel struct {
	release string // 6.1.0-50-amd64
	image   string // file of the kernel itself
	modules string // lib/modules/RELEASE
}

// stockKernel matches packages of the plain kernel by their names: neither the
// cloud one, which has no RDMA, nor rt, unsigned or dbg ones, nor metapackages.
// A metapackage such as linux-image-6.12-amd64 has one dot.
var stockKernel = regexp.MustCompile(`^linux-image-([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9]+)?(?:\+[a-z0-9.]+)?)-amd64$`)

// newestKernel chooses from what apt-cache search prints, lines of "name - what
// it is".
func newestKernel(searched string) (string, error) {
	best := ""
	for line := range strings.Lines(searched) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if stockKernel.MatchString(name) && (best == "" || compareVersions(name, best) > 0) {
			best = name
		}
	}
	if best == "" {
		return "", errors.New("apt-cache knows no linux-image-*-amd64: run apt-get update, on Debian for amd64")
	}
	return best, nil
}

// compareVersions orders names by their numbers, 6.1.0-9 before 6.1.0-50. What is between
// numbers does not count, so that names and paths of kernels compare as their versions do.
func compareVersions(a, b string) int {
	numbers := func(s string) (all []int) {
		for _, field := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
			n, err := strconv.Atoi(field)
			if err != nil {
				n = 1 << 62 // more digits than an int has
			}
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(numbers(a), numbers(b))
}

// CacheFolder is where something is kept that was downloaded: in folder, or if that is empty, under
// name in the user's cache folder.
func CacheFolder(folder, name string) (string, error) {
	if folder != "" {
		return filepath.Abs(folder)
	}
	above, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w: name one with --cache", err)
	}
	return filepath.Join(above, "kvferry", name), nil
}

// cachedKernel returns the newest kernel of a cache folder, without asking apt: a lab needs no
// network. Where modules are depends on the package's age: below lib, or usr/lib.
func cachedKernel(folder string) (kernel, error) {
	found, err := filepath.Glob(filepath.Join(folder, "linux-image-*-amd64", "boot", "vmlinuz-*"))
	if err != nil || len(found) == 0 {
		return kernel{}, fmt.Errorf("no kernel in %s: run kvferry lab setup", folder)
	}
	k := kernel{image: slices.MaxFunc(found, compareVersions)}
	k.release = strings.TrimPrefix(filepath.Base(k.image), "vmlinuz-")
	root := filepath.Dir(filepath.Dir(k.image))
	for _, lib := range []string{"lib", "usr/lib"} {
		k.modules = filepath.Join(root, lib, "modules", k.release)
		if _, err := os.Stat(filepath.Join(k.modules, "modules.dep")); err == nil {
			return k, nil
		}
	}
	return kernel{}, fmt.Errorf("kernel %s is incomplete: remove %s and run kvferry lab setup", k.release, root)
}

// downloadKernel puts the newest kernel that apt knows into a cache folder, unless it is
// there. Older ones stay there too: a lab takes the newest. It needs no root, since the
// package is unpacked and not installed.
func downloadKernel(ctx context.Context, folder string, log func(format string, args ...any)) error {
	searched, err := output(ctx, "", "apt-cache", "search", "--names-only", "^linux-image-[0-9].*-amd64$")
	if err != nil {
		return err
	}
	name, err := newestKernel(searched)
	if err != nil {
		return err
	}
	if k, err := cachedKernel(folder); err == nil && strings.HasSuffix(name, k.release) {
		log("kernel %s is there already", k.release)
		return nil
	}
	log("downloading %s into %s", name, folder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// Unpacked beside its final name and renamed, so that an interrupted download is
	// not taken for a kernel.
	work, err := os.MkdirTemp(folder, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if _, err := output(ctx, work, "apt-get", "download", name); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages in %s, not one", name, len(debs), work)
	}
	root := filepath.Join(work, name)
	if _, err := output(ctx, work, "dpkg", "-x", debs[0], root); err != nil {
		return err
	}
	// modules.dep is made when a kernel package is installed; this one is not.
	base := root
	if _, err := os.Stat(filepath.Join(root, "lib", "modules")); err != nil {
		base = filepath.Join(root, "usr")
	}
	release := stockKernel.FindStringSubmatch(name)[1] + "-amd64"
	if _, err := output(ctx, work, "depmod", "-b", base, release); err != nil {
		return err
	}
	return os.Rename(root, filepath.Join(folder, name))
}

// output runs a program and returns what it prints; an error has the end of its standard
// error. dir is the folder it runs in, this process's if empty.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	var out strings.Builder
	err := proc.Run(ctx, proc.Cmd{
		Args: append([]string{program}, args...), Dir: dir, Out: &out,
		Env: append(os.Environ(), "LC_ALL=C"), // the formats that are parsed here are those of the C locale
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out.String(), err
}

// A module that a host needs. Kernels differ: optional ones need not exist.
type module struct {
	name     string
	optional bool
}

// Modules in the order in which they are loaded, each after what it depends on.
// Nothing names crc32_generic as a dependency, and without it "rdma link add"
// fails with "No such file or directory"; later kernels have no such module
// and compute it themselves.
var hostModules = []module{
	{"virtio_pci", false},
	{"virtio_console", false},
	{"crc32_generic", true},
	{"rdma_rxe", false},
	{"virtio_net", false},
	{"sch_tbf", false},
	{"sch_netem", false},
}

// resolveModules returns the files to load for wanted, in order. dep is the text
// of modules.dep: "kernel/a.ko: kernel/b.ko kernel/c.ko", a needs b and c. builtin
// is that of modules.builtin: one path a line, of what the kernel itself contains.
func resolveModules(wanted []module, dep, builtin string) ([]string, error) {
	stem := func(file string) string {
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		return strings.ReplaceAll(name, "-", "_")
	}
	files, needs := make(map[string]string), make(map[string][]string)
	for line := range strings.Lines(dep) {
		file, list, found := strings.Cut(strings.TrimSpace(line), ":")
		if found {
			files[stem(file)] = file
			needs[file] = strings.Fields(list)
		}
	}
	contained := make(map[string]bool)
	for line := range strings.Lines(builtin) {
		contained[stem(strings.TrimSpace(line))] = true
	}
	var order []string
	done := make(map[string]bool)
	var visit func(file string)
	visit = func(file string) {
		if done[file] {
			return
		}
		done[file] = true // before its needs: a circle ends here
		for _, n := range needs[file] {
			visit(n)
		}
		order = append(order, file)
	}
	for _, m := range wanted {
		file, found := files[m.name]
		switch {
		case found:
			visit(file)
		case !m.optional && !contained[m.name]:
			return nil, fmt.Errorf("the kernel has no module %s: the cloud kernel does not, others of Debian do", m.name)
		}
	}
	return order, nil
}
