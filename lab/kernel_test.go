package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNewestKernel(t *testing.T) {
	searched := `linux-image-6.1.0-9-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-50-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-51-rt-amd64 - Linux 6.1 for 64-bit PCs, PREEMPT_RT (signed)
linux-image-6.1.0-50-amd64 - Linux 6.1 for 64-bit PCs (signed)
linux-image-6.1.0-52-amd64-dbg - Debug symbols for linux-image-6.1.0-52-amd64
linux-image-6.1.0-53-amd64-unsigned - Linux 6.1 for 64-bit PCs
linux-image-7.12-amd64 - Linux for 64-bit PCs (meta-package)
linux-image-amd64 - Linux for 64-bit PCs (meta-package)
`
	if got, err := newestKernel(searched); err != nil || got != "linux-image-6.1.0-50-amd64" {
		t.Errorf("%s, %v", got, err)
	}
	searched += "linux-image-6.12.9+deb12-amd64 - Linux\nlinux-image-6.12.117+deb12-amd64 - Linux\n"
	if got, err := newestKernel(searched); err != nil || got != "linux-image-6.12.117+deb12-amd64" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := newestKernel("linux-image-amd64 - Linux"); err == nil || !strings.Contains(err.Error(), "apt-get update") {
		t.Error(err)
	}
}

func TestCachedKernel(t *testing.T) {
	folder := t.TempDir()
	if _, err := cachedKernel(folder); err == nil || !strings.Contains(err.Error(), "kvferry lab setup") {
		t.Error(err)
	}
	for _, file := range []string{
		"linux-image-6.1.0-9-amd64/boot/vmlinuz-6.1.0-9-amd64", "linux-image-6.1.0-9-amd64/lib/modules/6.1.0-9-amd64/modules.dep",
		"linux-image-6.1.0-50-amd64/boot/vmlinuz-6.1.0-50-amd64",
	} {
		file = filepath.Join(folder, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cachedKernel(folder); err == nil || !strings.Contains(err.Error(), "6.1.0-50-amd64 is incomplete") {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(folder, "linux-image-6.1.0-50-amd64")); err != nil {
		t.Fatal(err)
	}
	if k, err := cachedKernel(folder); err != nil || k.release != "6.1.0-9-amd64" {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestResolveModules(t *testing.T) {
	dep := `kernel/rdma/rdma_rxe.ko.xz: kernel/rdma/ib_uverbs.ko.xz kernel/rdma/ib_core.ko.xz kernel/net/udp_tunnel.ko.xz
kernel/rdma/ib_uverbs.ko.xz: kernel/rdma/ib_core.ko.xz
kernel/rdma/ib_core.ko.xz:
kernel/net/udp_tunnel.ko.xz:
kernel/net/sch-tbf.ko:
`
	builtin := "kernel/drivers/virtio_pci.ko\n"
	order, err := resolveModules([]module{{"crc32_generic", true}, {"virtio_pci", false}, {"rdma_rxe", false}, {"sch_tbf", false}}, dep, builtin)
	want := []string{
		"kernel/rdma/ib_core.ko.xz", "kernel/rdma/ib_uverbs.ko.xz", "kernel/net/udp_tunnel.ko.xz", "kernel/rdma/rdma_rxe.ko.xz", "kernel/net/sch-tbf.ko",
	}
	if err != nil || !slices.Equal(order, want) {
		t.Errorf("%q, %v, want %q", order, err, want)
	}
	if _, err := resolveModules([]module{{"siw", false}}, dep, builtin); err == nil || !strings.Contains(err.Error(), "no module siw") {
		t.Error(err)
	}
}

func TestMissingPackages(t *testing.T) {
	got := missingPackages(requirements, func(shows string) bool { return shows != "rdma" && shows != "tc" && shows != "busybox" })
	if want := []string{"busybox-static", "iproute2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestParseLDD(t *testing.T) {
	files, err := parseLDD(`	linux-vdso.so.1 (0x00007ffd)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
	/lib64/ld-linux-x86-64.so.2 (0x00007f)
`)
	if want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("%q, %v", files, err)
	}
	if _, err := parseLDD("\tlibx.so => not found\n"); err == nil || !strings.Contains(err.Error(), "libx.so") {
		t.Error(err)
	}
}

func TestArchive(t *testing.T) {
	a := newArchive()
	a.file("/a/b/c", 0o755, []byte("hello"))
	a.symlink("/a/b/c", "lost") // the first stays
	a.device("/dev/console", 5, 1)
	text := string(a.bytes())
	at := 0
	for _, want := range []string{"a\x00", "a/b\x00", "a/b/c\x00", "hello", "dev\x00", "dev/console\x00", "TRAILER!!!"} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("no %q, or not there, in %q", want, text)
		}
		at += i
	}
	if strings.Contains(text, "lost") || len(text)%4 != 0 {
		t.Errorf("%q", text)
	}
}
