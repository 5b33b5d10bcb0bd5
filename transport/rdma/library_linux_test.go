//go:build cgo

package rdma

import (
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLibrary: libibverbs has all calls that are looked for, by their versions.
func TestLibrary(t *testing.T) {
	err := library()
	if err != nil && strings.Contains(err.Error(), "No such file") {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestNoLibrary: what is not there, or too old, is named with what helps.
func TestNoLibrary(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old.so")
	compileC(t, "void ibv_get_device_list(void) {}", "-shared", "-fPIC", "-o", old)
	for file, want := range map[string]string{
		filepath.Join(dir, "libibverbs.so.1"): "apt-get install libibverbs1 ibverbs-providers",
		old:                                   "old.so has no ibv_",
	} {
		err := load(file)
		if !errors.Is(err, ErrNoVerbs) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%v, want %q of %s", err, want, file)
		}
	}
}

// TestLayout holds ibverbs.h and calls.h to the header of libibverbs: sizes, offsets, values,
// and the types of functions, which the compiler compares.
func TestLayout(t *testing.T) {
	if out, err := exec.Command("gcc", "-E", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: there is no infiniband/verbs.h to compare with (apt-get install libibverbs-dev): %s", out)
	}
	ours := layout(t, `#include "ibverbs.h"`)
	theirs := layout(t, `
		#include <infiniband/verbs.h>
		#include "calls.h"
		#define DECLARE(type, name, parameters, arguments, version) type(name) parameters;
		KV_CALLS(DECLARE)
		KV_OPTIONAL_CALLS(DECLARE)`)
	if len(ours) < 100 {
		t.Fatalf("only %d things were found in ibverbs.h: %v", len(ours), ours)
	}
	// Only the library makes these, and their ends are left out.
	begun := []string{"size of ibv_device", "size of ibv_context", "size of ibv_comp_channel", "size of ibv_cq", "size of ibv_qp"}
	for what, is := range ours {
		if theirs[what] != is && !slices.Contains(begun, what) {
			t.Errorf("%s: %s, libibverbs has %q", what, is, theirs[what])
		}
	}
}

// layout is what the compiler makes of a text of C: the size of each struct, where its fields are,
// the values of enumerators.
func layout(t *testing.T, text string) map[string]string {
	t.Helper()
	object := filepath.Join(t.TempDir(), "layout.o")
	compileC(t, text, "-c", "-g", "-fno-eliminate-unused-debug-types", "-I.", "-o", object)
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for r := data.Reader(); ; {
		entry, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if entry == nil {
			return all
		}
		switch entry.Tag {
		case dwarf.TagStructType, dwarf.TagUnionType, dwarf.TagEnumerationType:
		default:
			continue
		}
		typ, err := data.Type(entry.Offset)
		if err != nil {
			t.Fatal(err)
		}
		switch typ := typ.(type) {
		case *dwarf.EnumType:
			for _, v := range typ.Val {
				all[v.Name] = fmt.Sprint(v.Val)
			}
		case *dwarf.StructType:
			if strings.HasPrefix(typ.StructName, "ibv_") && !typ.Incomplete {
				all["size of "+typ.StructName] = fmt.Sprint(typ.ByteSize)
				fields(all, typ.StructName, typ, 0)
			}
		}
	}
}

// fields adds the fields of a struct or union, and those of structs in it.
func fields(all map[string]string, name string, of *dwarf.StructType, at int64) {
	for _, f := range of.Field {
		path := name
		if f.Name != "" {
			path += "." + f.Name
		}
		within, nested := f.Type.(*dwarf.StructType)
		switch {
		case strings.HasPrefix(f.Name, "unused"):
		case nested:
			fields(all, path, within, at+f.ByteOffset)
		default:
			all[path] = fmt.Sprintf("%d bytes at %d", f.Type.Size(), at+f.ByteOffset)
			if p, ok := f.Type.(*dwarf.PtrType); ok {
				all[path] += ", " + p.String()
			}
		}
	}
}

func compileC(t *testing.T, text string, args ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
