package cli

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/matrix"

	"kvferry/internal/config"
)

func matrixCommand(terminal bool) *cobra.Command {
	var out string
	var force, dry bool
	cmd := &cobra.Command{
		Use:   "matrix FILE",
		Short: "Servers x clients: each client against each server, one table",
		Long: `Run each client of FILE against each of its servers, one pair after another, and
print one table of what the clients report. FILE is YAML or JSON:

  model: Qwen2.5-7B-Instruct           # what {model} stands for
  servers:
    - name: triton                     # a folder's name too
      command: ./triton.sh {model} {port}
      env: {SGLANG_ENABLE_FLASHINFER_GEMM: "1"}
      ready: {line: ready to roll, within: 15m}
      stop: {signal: INT, within: 30s}
    - name: running                    # one that runs already
      url: http://10.0.0.7:8000
  clients:
    - name: x16
      bench: --num-prompts 128         # flags of kvferry bench
    - name: other
      command: python3 bench.py {url} {model} {out}/result.json
      within: 1h

A command is a line for the shell, or a list of words that are run as they are.
A bench line is flags of kvferry bench; the server's URL and {out} are added,
unless it says where to send requests and where results go. In commands, URLs, folders and variables:

` + matrix.Placeholders + `

Of a server: command or url, env, dir (default: that of FILE), host, port
(default: one that is free), url, model, ready (line: a regular expression in its
output; url: it answers 200; within: default ` + briefly(matrix.DefaultReady) + `), stop (signal: default
TERM; within: then it is killed, default ` + briefly(matrix.DefaultStop) + `), share: true has one process
serve all clients; else each pair has a server of its own. Of a client: bench or
command, env, dir (default: {out}), within (then it is ended; default ` + briefly(matrix.DefaultClient) + `), stop.

Each pair has a folder, SERVER/CLIENT in --out: stdout and stderr of the client,
server.log, result, and pair.json, which says how it went. The figures come from
summary.json of kvferry bench, from result files of vLLM's and SGLang's clients in
result, or from their reports on stdout. A server that is not ready in time (ready's
within; default ` + briefly(matrix.DefaultRunning) + ` for one that runs already) fails its pairs, a client that fails or hangs
fails its own, and the rest goes on. The same command with the same --out resumes a run:
pairs that are done, by the same command lines, are not run again.

What a command starts ends with it, and with kvferry, kill -9 included, unless it leaves
the command's process group: a command that starts a container or uses setsid has to end
that itself. A server is not started at a port where somebody else listens: its pairs fail.

Exit status: 0 all pairs are done; 1 a pair failed; 2 FILE or a flag is wrong;
130 interrupted (pairs that are done are kept).`,
		Example: `  kvferry lab matrix examples/matrix/two-handoffs.yaml
  kvferry lab matrix examples/matrix/deepseek-v3.yaml --dry-run
  kvferry lab matrix my.yaml --out results --force`,
		Args: AtMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				var bad config.Faults
				bad.Check("FILE", errors.New("none given: name a file of servers and clients, like examples/matrix/two-handoffs.yaml"))
				return bad.Err("")
			}
			f, err := matrix.ReadFile(args[0])
			if err != nil {
				return config.Named(err, map[string]string{"File": "FILE"})
			}
			folder := resultsFolder(out)
			if dry {
				return matrix.Describe(cmd.OutOrStdout(), f, folder, force)
			}
			err = matrix.Run(cmd.Context(), matrix.Config{
				File: f, Out: folder, Force: force, Resume: "kvferry lab matrix " + args[0] + " --out " + folder,
				Stdout: cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(), Terminal: terminal,
			})
			return config.Named(err, map[string]string{"Out": "--out"})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&out, "out", "", "folder for the results, and of the run to go on with (default kvferry-out/<time>)")
	fs.BoolVar(&force, "force", false, "run pairs again that are done")
	fs.BoolVar(&dry, "dry-run", false, "print what would be run, and run nothing")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return cmd
}

// briefly is a time without the zeros of Go's form: 15m, not 15m0s.
func briefly(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = strings.TrimSuffix(s, zero[1:])
		}
	}
	return s
}
