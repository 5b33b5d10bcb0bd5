package engines

// What kvferry lab connectors says of itself.
const (
	Short = "Connectors of real vLLM side by side: is it the right KV, and how soon is it there?"

	Long = `Run unmodified vLLM for CPU on this machine, as a prefill instance P and a decode instance
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
130 interrupted (what was measured is kept).`

	Example = `  kvferry lab vllm setup && kvferry lab connectors
  kvferry lab connectors --settings nixl-ucx,mooncake --prompts 60 --rounds 4
  kvferry lab connectors --settings kvferry-pull/cma,nixl-kvferry --checksums
  kvferry lab connectors --link 1gbit --settings kvferry-pull/tcp,kvferry-layerwise/tcp
  kvferry lab connectors --identity
  kvferry lab connectors --faults --settings kvferry-pull,mooncake
  kvferry lab connectors --faults=kill-p-during,flip
  kvferry lab connectors --model smollm2`
)
