package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A requirement is a Debian package and what of it shows that it is there: a
// program of the PATH, or a file.
type requirement struct{ pkg, shows string }

var requirements = []requirement{
	{"qemu-system-x86", qemuProgram},
	{"busybox-static", "busybox"},
	{"kmod", "depmod"},
	{"xz-utils", "xz"},
	{"iproute2", "ip"},
	{"iproute2", "tc"},
	{"iproute2", "rdma"},
	{"rdma-core", "/etc/libibverbs.d/rxe.driver"},
	{"ibverbs-providers", "/usr/lib/x86_64-linux-gnu/libibverbs/librxe*"},
}

// cacheName is the folder of kernels among those of kvferry's in the user's cache folder.
const cacheName = "lab"

// extras are installed by Setup and not required: the programs to compare with.
var extras = []requirement{
	{"perftest", "ib_write_bw"},
	{"ibverbs-utils", "ibv_devinfo"},
}

// Both lists go by what is on this machine and not by what dpkg says: a program that
// somebody built is as good as its package.

// missingPackages returns the packages that there says are not there, sorted.
func missingPackages(of []requirement, there func(shows string) bool) []string {
	var missing []string
	for _, r := range of {
		if !there(r.shows) {
			missing = append(missing, r.pkg)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

func onThisMachine(shows string) bool {
	if filepath.IsAbs(shows) {
		found, err := filepath.Glob(shows)
		return err == nil && len(found) > 0
	}
	_, err := exec.LookPath(shows)
	return err == nil
}

// Check returns an error that says what a lab lacks on this machine and how to
// get it. cache is a Config's.
func Check(cache string) error {
	if missing := missingPackages(requirements, onThisMachine); len(missing) > 0 {
		return fmt.Errorf("packages are missing: run kvferry lab setup, or apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	folder, err := CacheFolder(cache, cacheName)
	if err != nil {
		return err
	}
	_, err = cachedKernel(folder)
	return err
}

// Setup installs the packages that a lab needs and downloads the newest kernel
// into the cache. It needs root only if packages are missing, and Debian. log gets a line
// for each step; those of apt are in the error, if it fails.
func Setup(ctx context.Context, cache string, log io.Writer) error {
	folder, err := CacheFolder(cache, cacheName)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) }
	required := missingPackages(requirements, onThisMachine)
	missing := append(slices.Clone(required), missingPackages(extras, onThisMachine)...)
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	switch {
	case len(missing) == 0:
		say("packages are there already")
	case os.Geteuid() != 0 && len(required) > 0:
		return fmt.Errorf("packages are missing and only root installs them: run sudo kvferry lab setup, or sudo apt-get %s", strings.Join(install, " "))
	case os.Geteuid() != 0:
		say("not installed, as only root can: %s", strings.Join(missing, " "))
	default:
		say("installing %s", strings.Join(missing, " "))
		if _, err := output(ctx, "", "apt-get", "update"); err != nil {
			return err
		}
		if _, err := output(ctx, "", "env", append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get"}, install...)...); err != nil {
			return err
		}
	}
	if err := downloadKernel(ctx, folder, say); err != nil {
		return err
	}
	if err := Check(cache); err != nil {
		return err
	}
	k, err := cachedKernel(folder)
	if err == nil {
		say("ready: kernel %s", k.release)
	}
	return err
}
