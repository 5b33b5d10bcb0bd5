package cli

import (
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/engines"
	"kvferry/internal/config"
	"kvferry/internal/knob"
	"kvferry/lab"
)

// connectorKnobs are the flags of kvferry lab connectors.
var connectorKnobs = knob.Table[engines.Config]{
	{Name: "settings", Fields: []string{"Settings"}, Values: engines.Names, Value: knob.List(func(c *engines.Config) *[]string { return &c.Settings }), Help: "a list of the names above (default all); mono is run in any case"},
	{Name: "prompts", Fields: []string{"Prompts"}, Default: "24", Positive: true, Value: knob.Int(func(c *engines.Config) *int { return &c.Prompts }), Help: "prompts a setting, spread over the three lengths"},
	{Name: "rounds", Fields: []string{"Rounds"}, Default: "2", Positive: true, Value: knob.Int(func(c *engines.Config) *int { return &c.Rounds }), Help: "over which the prompts are spread; the settings take turns, and each turn has new instances"},
	{Name: "model", Fields: []string{"Model"}, Default: engines.Tiny, Values: words(engines.Tiny, engines.SmolLM2), Value: knob.Text(func(c *engines.Config) *string { return &c.Model }), Help: "tiny, smollm2, or the folder of any model that vLLM runs; tokens are held to mono's with tiny alone"},
	{Name: "cache", Fields: []string{"Cache"}, Value: knob.Text(func(c *engines.Config) *string { return &c.Cache }), Help: vllmCache},
	{Name: "kvferry", Fields: []string{"KVFerry"}, Value: knob.Text(func(c *engines.Config) *string { return &c.KVFerry }), Help: "folder of kvferry: a checkout, or the site-packages that its wheel is in (default: the checkout here, or the wheel of this kvferry)"},
	{Name: "link", Fields: []string{"Link"}, Value: knob.Parsed(func(c *engines.Config) *int64 { return &c.Link }, lab.ParseRate), Help: "join P and D by a link of the NIC lab, of a `rate` such as 2gbit: settings over tcp; it takes root"},
	{Name: "checksums", Fields: []string{"Checksums"}, Value: knob.Bool(func(c *engines.Config) *bool { return &c.Checksums }), Help: "have kvferry's connector check each block, from P to D"},
	{Name: "faults", Fields: []string{"Faults"}, Values: engines.FaultNames, Value: knob.List(func(c *engines.Config) *[]string { return &c.Faults }), Help: "kill, cut and falsify instead, and say what becomes of the prompts: --faults for all, --faults=NAME,NAME for some; over --link, by default of 100mbit"},
	{Name: "seed", Fields: []string{"Seed"}, Default: "1", Value: knob.Uint64(func(c *engines.Config) *uint64 { return &c.Seed }), Help: "of faults that come by chance"},
	{Name: "start-timeout", Fields: []string{"Start"}, Default: "5m0s", Positive: true, Value: knob.Duration(func(c *engines.Config) *time.Duration { return &c.Start }), Help: "how long an instance may take to be ready"},
	{Name: "timeout", Fields: []string{"Timeout"}, Positive: true, Value: knob.Duration(func(c *engines.Config) *time.Duration { return &c.Timeout }), Help: "how long an instance may take for an answer (default 1m; with --faults 30s, and what takes longer hangs)"},
	{Name: "out", Fields: []string{"Out"}, Value: knob.Text(func(c *engines.Config) *string { return &c.Out }), Help: outHelp},
}

func connectorsCommand(terminal bool) *cobra.Command {
	var cfg engines.Config
	cmd := &cobra.Command{
		Use:   "connectors",
		Short: "Connectors of real vLLM side by side: is it the right KV, and how soon is it there?",
		Long: `Run unmodified vLLM for CPU on this machine, as a prefill instance P and a decode instance
D with one core each, and have a connector move the KV of each prompt from P to D. It needs
the environment that kvferry lab vllm setup makes, 5 GB of memory, and no GPU.

  mono               one undivided instance: the tokens that all others must give
  kvferry-pull       kvferry's connector: D reads. Over tcp, two rails of tcp, and cma
  kvferry-layerwise  the same: P writes each layer as it is computed. Over tcp and cma
  nixl-kvferry       vLLM's NixlConnector with kvferry's plugin of NIXL: D reads
  nixl-ucx           vLLM's NixlConnector, NIXL over UCX on TCP: D reads
  nixl-push          vLLM's NixlPushConnector, the same: P writes
  mooncake           vLLM's MooncakeConnector, Mooncake's transfer engine on TCP: P writes
  example            vLLM's ExampleConnector: files in a folder in memory

kvferry's connector, library and plugin are those of the checkout that this is run in, where
they are made first (make lib, make nixl), or else those of the wheel; --kvferry names another
folder.

The client asks P for one token of a prompt, then D, with the kv_transfer_params that P has
answered, for 16; layerwise, it asks both at once. TTFT is from asking P to D's first token,
both legs; TPOT is D's. Prompts have 128, 512 and 2,048 random tokens, the same in each
setting. KV GB/s is a prompt's KV by the time from P's answer to D's first token, less one
step of D. CPU seconds are of all instances, a prompt. Compute and transfer are measured,
nothing is modelled.

Equal tokens do not prove a transfer: a D that gets nothing computes the prompt itself. So a
row fails if D computed more than one token of a prompt, by vLLM's counter; if D received no
KV; if the KV in D's blocks is not that in P's, by a digest of the memory of both; or, with
the tiny model, if an answer is not mono's. A setting that cannot run has a mark, and the
last lines that its processes printed stand below the table.

With --link, P and D are on two hosts of the NIC lab with a link of that rate between them,
or two links where there are two rails. It takes root.

With --faults, one fault at a time befalls a prompt: P or D is killed, P is stopped, the link is
cut or loses all that it carries, a bit of the KV flips, the backend of NIXL misbehaves, a
thousand requests are left. The table says what became of the prompt, and when: the right tokens (with P's KV, or
computed by D), an error, none in time (a hang), or wrong tokens; whether the next prompt is
right; and how many of P's blocks nobody gives back. A fault that did not come at its moment is
marked. It takes root, and a minute a row.

A row is marked with ~ if other programs had over half of the CPUs, or the hypervisor over 2 %.

It takes eight minutes with two idle cores. Each figure is a median over the prompts.

Exit status: 0 all rows are sound; 1 a row fails (with --faults: one of kvferry's), or vLLM is
not set up; 2 bad flags;
130 interrupted (what was measured is kept).`,
		Example: `  kvferry lab vllm setup && kvferry lab connectors
  kvferry lab connectors --settings nixl-ucx,mooncake --prompts 60 --rounds 4
  kvferry lab connectors --settings kvferry-pull/cma,nixl-kvferry --checksums
  kvferry lab connectors --link 1gbit --settings kvferry-pull/tcp,kvferry-layerwise/tcp
  kvferry lab connectors --prompts 100 --rounds 1                  # are all tokens those of mono?
  kvferry lab connectors --faults --settings kvferry-pull,mooncake
  kvferry lab connectors --faults=kill-p-during,flip
  kvferry lab connectors --model smollm2`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bad := knob.Unread(cmd.Flags())
			cfg.Out, cfg.Stdout, cfg.Progress, cfg.Terminal = resultsFolder(cfg.Out), cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			if err := Check(bad, cfg.Validate(), connectorKnobs.Names()); err != nil {
				return err
			}
			return config.Named(engines.Run(cmd.Context(), cfg), connectorKnobs.Names())
		},
	}
	for _, g := range connectorKnobs.Flags(&cfg, 0) {
		cmd.Flags().AddFlagSet(g.Flags)
	}
	cmd.Flags().Lookup("faults").NoOptDefVal = engines.AllFaults
	return cmd
}
