package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"kvferry/internal/config"
	"kvferry/internal/knob"
)

// workbench is a program with two commands: run, which returns err, and wait, which takes
// a HOST and waits for the end of its context.
func workbench(err error) Program {
	root := &cobra.Command{Use: "bench"}
	run := &cobra.Command{Use: "run", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return err }}
	fs := run.Flags()
	fs.Int("depth", 4, "")
	fs.Int64("size", 0, "")
	fs.Uint32("seed", 0, "")
	fs.Float64("rate", 1, "")
	fs.Duration("timeout", time.Second, "")
	fs.Duration("warmup", time.Second, "")
	fs.Bool("check", false, "")
	fs.String("out", "", "")
	fs.StringArray("fault", nil, "")
	fs.Duration("pause", time.Second, "")
	Needs(fs, map[string]string{"pause": "check"})
	pause := fs.Lookup("pause").Annotations
	pause[knob.Needs] = append(pause[knob.Needs], "fault")
	Positive(fs, "depth", "size", "rate", "timeout")
	wait := &cobra.Command{Use: "wait", Args: AtMostOne("HOST"), RunE: func(cmd *cobra.Command, _ []string) error {
		<-cmd.Context().Done()
		return context.Cause(cmd.Context())
	}}
	root.AddCommand(run, wait)
	return Program{Root: root, Kept: func(*cobra.Command, error) string { return "half of it is kept" }}
}

func execute(ctx context.Context, p Program, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = p.Run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestUsage: what a command line gets wrong is said with the flag and what would do, in no
// other language than ours, and exits 2.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"run --depth x":                     `--depth: "x": write a whole number`,
		"run --depth 1.5":                   `--depth: "1.5": write a whole number`,
		"run --depth 99999999999999999999":  `--depth: "99999999999999999999": it is out of range: write a smaller number`,
		"run --depth 0":                     "--depth: 0: use more than 0, or leave it out for 4",
		"run --size 0":                      "--size: 0: use more than 0, or leave it out for the default",
		"run --depth -1":                    "--depth: -1: use more than 0, or leave it out for 4",
		"run --seed -1":                     `--seed: "-1": write a whole number from 0 to 4294967295`,
		"run --seed 4294967296":             `--seed: "4294967296": write a whole number from 0 to 4294967295`,
		"run --rate fast":                   `--rate: "fast": write a number`,
		"run --rate NaN":                    "--rate: NaN: write a number",
		"run --timeout 5":                   `--timeout: "5": write a time with its unit, like 500ms, 2s or 1m30s`,
		"run --timeout 0s":                  "--timeout: 0s: use more than 0, or leave it out for 1s",
		"run --timeout 99999999999h":        `--timeout: "99999999999h": write a time`,
		"run --warmup -1s":                  "--warmup: -1s: use 0 or more",
		"run --check=maybe":                 `--check: "maybe": write the flag alone for yes`,
		"run --pause 1s":                    "--pause: it is for --check: give both, or leave it out",
		"run --out=":                        "--out: none given: give it a value, or leave it out",
		"run --fault a --fault=":            "--fault: none given",
		"run --out":                         "--out: none given: write the value behind it",
		"run --nope":                        "--nope: there is no such flag",
		"run -out x":                        "-out: there is no such flag: write two dashes, as in --out",
		"run ---out x":                      "---out: this is no flag",
		"run extra":                         `ARGUMENT: "extra": bench run takes none: flags begin with --; give a flag again for another value of it`,
		"wait a b":                          `HOST: "a b": given 2 times`,
		"ruin":                              `COMMAND: "ruin": bench has no such command: is it run?`,
		"nothing --ever":                    `COMMAND: "nothing": bench has no such command: use run, wait`,
		"run --depth 0 --out= --warmup -1s": "--depth: 0: use more than 0, or leave it out for 4\nbench: --out: none given: give it a value, or leave it out\nbench: --warmup: -1s",
	} {
		code, stdout, stderr := execute(t.Context(), workbench(errors.New("it ran")), strings.Fields(args)...)
		if code != ExitUsage || stdout != "" || !strings.HasPrefix(stderr, "bench: "+want) || !strings.Contains(stderr, "--help' for the flags and examples.\n") {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", args, code, ExitUsage, want, stdout, stderr)
		}
		for _, word := range []string{"strconv", "parsing", "unmarshal", "invalid argument", "time: "} {
			if strings.Contains(stderr, word) {
				t.Errorf("%s: %s", args, stderr)
			}
		}
	}
	if code, _, stderr := execute(t.Context(), workbench(nil), strings.Fields("run --warmup 0s --seed 0 --check=false --timeout 1ms")...); code != 0 || stderr != "" {
		t.Errorf("exit %d: %s", code, stderr)
	}
	for _, with := range []string{"--check", "--fault a"} {
		if code, _, stderr := execute(t.Context(), workbench(nil), strings.Fields("run --pause 1s "+with)...); code != 0 || stderr != "" {
			t.Errorf("%s: exit %d: %s", with, code, stderr)
		}
	}
	if code, _, stderr := execute(t.Context(), workbench(nil), "wait", ""); code != ExitUsage || !strings.HasPrefix(stderr, "bench: HOST: none given") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestStatus: an invalid configuration is a matter of the command line, whatever wraps it;
// a fault that came later is not.
func TestStatus(t *testing.T) {
	fault := config.Faults{{Field: "--depth", Err: errors.New("3: too deep")}}
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{nil, 0, ""},
		{errors.New("the disk is full"), ExitFailed, "bench: the disk is full\n"},
		{fault.Err(""), ExitUsage, "bench: --depth: 3: too deep\nRun 'bench run --help' for the flags and examples.\n"},
		{fault[0], ExitFailed, "bench: --depth: 3: too deep\n"},
		{&Status{Code: 7}, 7, ""},
		{&Status{Code: 125, Err: errors.New("no lab")}, 125, "bench: no lab\n"},
		{context.Canceled, ExitFailed, "bench: context canceled\n"}, // nobody has interrupted it
	} {
		if code, _, stderr := execute(t.Context(), workbench(c.err), "run"); code != c.code || stderr != c.want {
			t.Errorf("%v: exit %d, want %d: %s", c.err, code, c.code, stderr)
		}
	}
	p := workbench(errors.New("no lab"))
	for _, c := range p.Root.Commands() {
		ownStatus(c)
	}
	if code, _, _ := execute(t.Context(), p, "run"); code != 125 {
		t.Errorf("exit %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code, _, stderr := execute(ctx, workbench(nil), "wait"); code != ExitInterrupted || stderr != "bench: interrupted; half of it is kept\n" {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestVersion(t *testing.T) {
	for _, args := range []string{"--version", "run --version"} {
		code, stdout, stderr := execute(t.Context(), workbench(errors.New("it ran")), strings.Fields(args)...)
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "bench ") || !strings.Contains(stdout, ", go1.") || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: exit %d: %q, %s", args, code, stdout, stderr)
		}
	}
}

// TestCheck: what flags say comes first, and what could not be read is told of once.
func TestCheck(t *testing.T) {
	var flags, fields config.Faults
	flags.Check("--block", errors.New(`"x": write a size`))
	fields.Add("Blocks", 0, "use 1 or more")
	fields.Add("Rails", nil, "name one")
	err := Check(flags, fields.Err("transfer.Config"), map[string]string{"Blocks": "--block", "Rails": "--rail"})
	if want := "--block: \"x\": write a size\n--rail: none given: name one"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := Check(nil, nil, nil); err != nil {
		t.Error(err)
	}
}
