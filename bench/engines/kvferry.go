package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"kvferry/internal/proc"
)

// A need is what of kvferry a setting takes.
type need int

const (
	nothing need = iota
	library      // the Python package, and libkvferry.so
	plugin       // NIXL's plugin, which uses the library
)

// targets make what is needed, in a checkout.
var targets = [...]string{library: "lib", plugin: "nixl"}

const (
	libraryFile = "libkvferry.so"
	pluginFile  = "libplugin_KVFERRY.so"
)

// A kvferryFolder has kvferry: a checkout, or a folder in which Python finds the package that a
// wheel has installed.
type kvferryFolder string

// findKVFerry returns the folder that is asked for, or else the checkout that this process is in, or
// the folder in which the wheel has installed this program.
func findKVFerry(asked string) (kvferryFolder, error) {
	if asked != "" {
		absolute, err := filepath.Abs(asked)
		if f := kvferryFolder(absolute); err != nil || f.there() {
			return f, err
		}
		return "", fmt.Errorf("%q: it has no Python package kvferry.vllm: name a checkout of kvferry, or the site-packages that the wheel is installed in", asked)
	}
	var folders []string
	if here, err := os.Getwd(); err == nil {
		folders = above(here)
	}
	if program, err := os.Executable(); err == nil {
		// A wheel's programs are in bin, beside lib/python3.12/site-packages.
		packages, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(program)), "lib", "python3*", "site-packages"))
		folders = slices.Concat(folders, above(filepath.Dir(program)), packages)
	}
	for _, folder := range folders {
		if f := kvferryFolder(folder); f.there() {
			return f, nil
		}
	}
	return "", errors.New("kvferry's Python package is not found: run this in a checkout of kvferry, or name the folder that has it (--kvferry)")
}

// above are a folder and all that it is in.
func above(folder string) (all []string) {
	for ; ; folder = filepath.Dir(folder) {
		all = append(all, folder)
		if folder == filepath.Dir(folder) {
			return all
		}
	}
}

// there says that the folder has a kvferry with the connector.
func (f kvferryFolder) there() bool {
	_, err := os.Stat(filepath.Join(f.module(), "vllm", "__init__.py"))
	return err == nil
}

// isCheckout says that what is needed is made of source.
func (f kvferryFolder) isCheckout() bool {
	_, err := os.Stat(filepath.Join(string(f), "go.mod"))
	return err == nil
}

// module is the folder of the Python package.
func (f kvferryFolder) module() string {
	if f.isCheckout() {
		return filepath.Join(string(f), "bindings", "python", "kvferry")
	}
	return filepath.Join(string(f), "kvferry")
}

// libraries is the folder of the library, and of the plugin.
func (f kvferryFolder) libraries() string {
	if f.isCheckout() {
		return filepath.Join(string(f), "bin")
	}
	return f.module()
}

// make has what is needed be there. A checkout's is made anew, so that it is the source's; what the
// compilers print goes to a log.
func (f kvferryFolder) make(ctx context.Context, n need, log string) error {
	file := filepath.Join(f.libraries(), map[need]string{library: libraryFile, plugin: pluginFile}[n])
	if f.isCheckout() {
		out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := proc.Run(ctx, proc.Cmd{Args: []string{"make", "-C", string(f), targets[n]}, Log: out}); err != nil {
			return fmt.Errorf("make %s in %s, which makes %s: %w", targets[n], f, filepath.Base(file), err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%w: this kvferry was installed without it", err)
	}
	return nil
}

// prepare has what the settings need of kvferry be there, in the folder of Python's modules that the
// instances look into. What is not to be had is an error of the settings that need it.
func (x *run) prepare(ctx context.Context) error {
	most := nothing
	for i := range x.settings {
		s := &x.settings[i]
		if slices.ContainsFunc(x.faults, func(f Fault) bool { return f.Wrapped != nil && f.befalls(s) }) {
			s.Needs = plugin
		}
		most = max(most, s.Needs)
	}
	if most == nothing {
		return nil
	}
	f, err := x.e.kvferry(x.cfg.KVFerry)
	if err == nil {
		x.plugins = f.libraries()
		x.e.env = append(slices.Clone(x.e.env), "KVFERRY_LIBRARY="+filepath.Join(f.libraries(), libraryFile))
		err = os.Symlink(f.module(), filepath.Join(x.scratch, driverFolder, "kvferry"))
	}
	needs := map[need]error{}
	for n := library; n <= most; n++ {
		if err == nil {
			err = f.make(ctx, n, filepath.Join(x.cfg.Out, logFolder, "make.log"))
		}
		needs[n] = err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, s := range x.settings {
		if err := needs[s.Needs]; err != nil {
			x.result.Errors[s.String()] = err.Error()
		}
	}
	return nil
}
