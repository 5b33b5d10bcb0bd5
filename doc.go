// Package kvferry is a testbed for disaggregated LLM serving: prefill nodes
// compute a prompt's KV cache, ferry its blocks to decode nodes over real network
// paths, and a proxy serves the whole, on GPUs that are modelled. A bench measures it. A
// second clock, a virtual one, runs the same code over modelled links.
//
// There is no code here. docs/design.md follows one KV block through the files. The
// packages, from the commands down:
//
//	cmd/kvferry                          the program: serve, bench, sim, reproduce, compare, daemons, rails, labs
//	cmd/proxy, cmd/prefill, cmd/decode   the daemons under names of their own
//	cmd/libkvferry                       the transfer engine as a C library: kvferry.h
//	internal/cli                         command lines: flags to a Config, help, signals, exit statuses
//	bench/matrix                         servers x clients: programs run pair by pair, one table
//	bench/engines                        connectors of real vLLM side by side: tokens, KV, times
//	bench/nics                           the experiments on several NICs, held to limits
//	bench/rail                           how fast rails move bytes, how they take faults, and whether each is fit to serve
//	bench                                the published table: measured, computed, reported; tests of how close every profile is
//	bench/sglang                         SGLang's published runs beside modelled servers
//	bench/calibrate                      a profile for a server that runs, or from a datasheet: series, fit, check
//	bench/serve                          any load against any server, or the model of one; the highest rate, the steady part
//	bench/simulation                     any cluster and load in virtual time, and sweeps
//	bench/result                         results read from files, ours, vLLM's and SGLang's, and set side by side
//	bench/report                         what a run came to: vLLM's report, SGLang's, and ours
//	bindings/nixl                        a backend plugin for NIXL over kvferry.h, in C++: tests
//	lab/vllm                             unmodified vLLM for CPU in an environment of its own
//	cluster                              a cluster: its Spec and its knobs; as processes of this machine, or modelled
//	bench/observe                        what the machine and the server did during a run
//	bench/client                         the client: SSE, open and closed loops, metrics
//	bench/client/clienttest              a server to test clients on
//	bench/client/wire                    HTTP/1.1 for ten thousand streams on one core
//	bench/nullserver/nullservertest      null servers that end with their tests
//	bench/nullserver                     a server that answers at given times: what is measured of it is the client
//	node                                 a prefill or decode node: legs, KV, peers, its lease
//	proxy                                HTTP API, admission, placement, requests on their way, metrics
//	proxy/upstream                       real engines in place of nodes: legs over HTTP, failover
//	proxy/upstream/upstreamtest          engines that answer wrong, for tests
//	proxy/adapters                       LoRA adapters that clients may ask for, load and unload
//	proxy/wire                           bodies, errors and names of requests, whatever the endpoint
//	proxy/admission                      bounds on clients: connections, memory for bodies
//	proxy/members                        which nodes there are: watched, leased, listed
//	proxy/members/memberstest            what every membership must do
//	proxy/migration                      which running requests go on on other nodes
//	proxy/metrics                        what is counted of requests and nodes, under vLLM's names
//	proxy/tracing                        a served request's spans
//	proxy/ahead                          how far a node is, and what is on its way there
//	proxy/turn                           requests go on in the order in which a node has named them
//	proxy/health                         whether a node is there, gets on and is to be trusted
//	proxy/cors                           which web pages of other origins may use the API
//	proxy/chunks                         answers over connections taken from net/http
//	proxy/profile                        CPU profiles of the proxy, for who asks
//	proxy/serverinfo                     what a proxy says of itself and its nodes
//	proxy/unpack                         compressed bodies of requests
//	proxy/sglang                         the wire format of POST /generate
//	proxy/openai                         the API's wire format: requests, answers, errors, tokens
//	node/byzantine                       nodes for tests that break the control plane's protocol in one step
//	bench/document/documenttest          reports that must stay as they are
//	bench/document                       reports: tables, plots and notes once, as text, Markdown, HTML and CSV
//	bench/stats                          numbers only: percentiles, histograms, fairness
//	sim                                  the same in virtual time: event loop, modelled links
//	placement                            which node takes a request
//	attempt                              one submission of a request: which leg is next, its tokens in order
//	connector                            a node's side of every hand-off: moves, checks, windows, holds
//	handoff/handofftest                  every hand-off there is or could be, for tests
//	handoff                              the ways of KV from prefill to decode, as values
//	engine/modelled                      the GPU's stand-in: steps that are waited out, KV that follows from the tokens
//	engine/batching                      continuous batching: what forms the steps
//	engine/enginetest                    what every scheduler must do, and the smallest that does
//	engine/datasheet                     a profile from a model's config.json and a GPU's datasheet
//	engine/eos                           after how many tokens the modelled model ends an answer
//	engine                               what an engine is: sequences, steps, scheduler, executor; modelled costs
//	tokenizer                            a model's tokenizer: text to token ids and back, chats to text
//	load                                 what is asked, and when: random, traces, published rows
//	load/dispatch                        which request of a load goes out when
//	load/loadtest                        what every source of requests must do
//	load/tooldraws                       Python's and numpy's random numbers, as vLLM's and SGLang's clients draw them
//	load/trace                           files of loads: records of JSON and CSV, and runs of agents
//	kvtransfer                           a node's transfer half: blocks granted, moved, checked, released
//	kvcache                              blocks, block tables, prefix hashes, bytes
//	bindings/capi                        the transfer engine for other languages: handles, codes, completions
//	transport                            the transfer engine: segment, batch, slice, rail
//	transport/account                    what a rail has done: counts
//	transport/immediate                  which immediate has come before
//	transport/pacing                     a modelled NIC: when what moves over it arrives
//	transport/selection                  which path takes which slice: rates, records, the choice
//	transport/rails                      a rail by its name: tcp/eth0, rdma/mlx5_0
//	transport/tcp                        a rail over TCP
//	transport/bundle                     several connections to one peer's rail as one, and how many
//	transport/cma                        a rail between processes of one machine, by cross-memory attach
//	transport/shm                        likewise, one-sided: the initiator copies, into memory that it maps
//	transport/process                    what one process of a machine may know of another, and touch
//	transport/socket                     what tcp and cma are made of: frames over a stream socket
//	transport/rdma                       a rail over RDMA verbs
//	transport/topology                   which NIC is near which memory: discovery and the matrix
//	transport/nic                        what the system says of a network interface: routes, carrier
//	transport/transporttest              a rail in memory, and what every rail must do
//	transport/connection                 what rails keep of their connections: room in the queue, those lost, those served
//	transport/descriptor                 memory that a file descriptor stands for: memfd, dma-buf
//	transport/access                     what a key opens: ranges, in which direction
//	transport/pages                      memory outside the Go heap, or taken away
//	internal/otlp/otlptest               a collector of spans, in memory
//	internal/otlp                        spans on their way to an OpenTelemetry collector
//	fabric                               what transfers take that share NICs, switches and buses
//	proto                                the control plane's messages
//	internal/clock/clocktest             a clock that can be stopped, waits that end
//	internal/clock                       time and timers that fire on time
//	lab/nics                             two hosts joined by links of chosen rates
//	lab                                  emulated hosts with RDMA NICs, to run all of this on
//	lab/wire                             what a long or bad link does to packets
//	internal/arch                        tests of the tree: imports, pages, examples, the Makefile
//	internal/model                       models' files: where they are, and what config.json says
//	internal/knob                        settings in a table: flags, JSON, command lines, sweeps
//	internal/config                      what is wrong with a configuration, field by field
//	internal/progress                    how far a run is: a bar on a terminal, lines in a log
//	internal/proc                        child processes: started, announced, logged, stopped, tied to their parent
//	internal/version                     which build this is
//
// Imports point down that list, or from a rail to the transport it lies in;
// internal/arch holds them to it.
package kvferry
