// Package engines sets connectors of real, unmodified vLLM side by side: each moves the KV of the
// same prompts from a prefill instance P to a decode instance D, two processes of this machine with
// one core each, in the environment that package lab/vllm makes. Compute and transfer are measured,
// nothing is modelled.
//
//	prompt ──▶ P computes it, one token ──params──▶ D takes the KV, 16 tokens
//	               blocks ═════ the connector ═════▶ blocks
//
// What is compared is data ([Settings]): a name, the kv_transfer_config of P and of D, variables,
// and the kv_transfer_params of their requests. The first is mono, one undivided instance: its
// tokens are what the others must give.
//
// Tokens alone say nothing of a transfer: an instance that was given no KV computes the prompt
// itself, and gives the same tokens. So each row shows what D computed of the prompts, by vLLM's own
// counter, how many bytes it received, and whether the KV in the blocks of P and D is the same, by a
// digest of the memory of both. A row of which that does not hold fails.
//
// Parts know little of each other:
//
//   - exchange.go is a pure machine, one prompt's way: it is told what the instances say and when,
//     and says what they are asked next. It has no processes and no clock.
//   - instance.go owns a process with vLLM (files/driver.py), which takes orders and gives events,
//     a line of JSON each. It has a process group of its own, and ends with this process.
//   - run.go has the prompts go their ways, setting after setting in turns.
//   - ordeal.go is a pure machine too: the way of a prompt that a fault befalls, what is done to whom
//     at which moment, and what the answer is taken for. trial.go has processes and links around it,
//     and judge.go has the faults come, one after the other.
//   - place.go is where instances are: on this machine, or on two hosts of a NIC lab. kvferry.go finds and
//     makes what of kvferry they use.
//
// Times are those of this process, which is the client: TTFT is from asking P to D's first token.
package engines
