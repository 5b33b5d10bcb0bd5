package nics

// What kvferry lab nics and the commands below it say of themselves.
const (
	Short = "Several NICs in the NIC lab: rate, selection, failover, held to limits"

	Long = `Run the experiments on several NICs in the NIC lab, two network namespaces of this
machine joined by shaped links (it takes root), and hold their figures to limits:

  transfer    1, 2 and 4 links of 2 Gbit/s, blocks of 1 MiB and of 64 KiB
  selection   links of 4, 2, 2 and 1 Gbit/s: affinity, static, round-robin, single
  MPTCP       the kernel's aggregation, on the same links
  failover    four links under load: one is cut and restored, one slows to a tenth,
              one turns into a black hole; every byte is checked

Figures are medians of --rounds. The last line is the efficiency of each: percent of
the ideal payload rate, 1448/1514 of the links' rates.

Exit status: 0 every figure is within its limit; 1 one is not, or the run could not
go on; 2 bad flags; 130 interrupted (the tables are of what was measured).`

	MooncakeShort = "A published workload over 1, 2 and 4 NICs: TTFT and TPOT on real links"

	MooncakeLong = `Serve a workload of Mooncake's table with a prefill node on host 1 of the NIC lab
and a decode node on host 2, their KV over 1, 2 and 4 shaped links, proxy and
clients on the management link. Compute is modelled; the transfer is what the links
carry. It needs root, and proxy, prefill and decode beside kvferry (make build).

Exit status: 0 all cells sound; 1 a cell has faults; 2 bad flags; 130 interrupted.`

	MooncakeExample = `  make build && bin/kvferry lab nics mooncake
  bin/kvferry lab nics mooncake --rate 1gbit --counts 1,2 --settings tcp --row 256/q4 --num-prompts 200`

	HandoffShort = "A cluster over long links: when the second token comes, held to a bound"

	HandoffLong = `Serve prompts with proxy and prefill node on host 1 of the NIC lab and a decode node on
host 2, over links with a round trip of --rtt, the control plane too. The prompts are asked
one after the other, for two tokens. Compute is modelled; the transfer is what the links
carry. The second token, median of all, must come within

  prefill + 2 round trips + wire of the last part + one decode step

where a part is a layer (layerwise) or all of the KV (push). Two round trips leave none for
asking the decode node first: the last line says how many prompts went ahead of that, by the
proxy's metrics. It needs root, and proxy, prefill and decode beside kvferry (make build).

Exit status: 0 the second token is within the bound; 1 it is not, or the run could not go on;
2 bad flags; 130 interrupted.`

	HandoffExample = `  make build && bin/kvferry lab nics handoff
  bin/kvferry lab nics handoff --nics 2 --rate 2gbit --rtt 40ms`

	WANShort = "Four NICs over links that are long or lose packets, held to limits"

	WANLong = `Measure four rails together in the NIC lab, on links of 500 Mbit/s that are long, lose
packets, reorder them or fall silent (kvferry lab net --help), and hold the figures to limits. It
takes root.

  near, rtt10, rtt20, rtt40, rtt100   round trips of 2, 10, 20, 40 and 100 ms, no loss
  loss-one, loss-all, loss-much       0.1 % of packets lost on one link, on all; 1 % on one
  mixed                               1000, 500, 500 and 250 Mbit/s, the fast one loses 0.1 %
  jitter                              one link jitters and reorders
  far                                 one link has a round trip of 40 ms, the others 2 ms
  holes                               the links are black holes in turn
  silent                              a black hole both ways and each way, at a round trip of 0.4 ms:
                                      when it is found, when the link has its share again
  flaps                               ten flaps in a minute: when the link has its share again

Beside the rails, on links of their own of the same kind, with congestion control cubic: one MPTCP
connection over all links, and UCX (ucx_perftest, puts over four rails), if they are there.

A rate is a percentage of the ideal payload rate, 1448/1514 of the links' rates; each runs in a lab of
its own, in turns with the others, and a figure is the median of --rounds. The links take CPU
time too. A round in which the CPUs were all busy, or the hypervisor took some, or the links lost
packets for that, is measured once more, and then left out; a figure with fewer than half of its
rounds left is marked disturbed, and says nothing of the rails.

Exit status: 0 every figure is within its limit; 1 one is not, or was disturbed, or the run
could not go on; 2 bad flags; 130 interrupted (the table is of what was measured).`

	WANExample = `  kvferry lab nics wan --cases rtt40,loss-one --rounds 1
  kvferry lab nics wan --cases loss-all --options congestion=bbr`
)
