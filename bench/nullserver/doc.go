// Package nullserver is a server that answers at given times and does nothing else: what a
// client measures of it is the client. It knows OpenAI's completions and chat APIs and
// SGLang's /generate, and can be as strict as the strictest server: it refuses fields that
// it does not know, token ids, and who has no key.
//
// Tokens are written by one goroutine, the pacer, each at its own time: the first TTFT after
// the request was read, the others ITL apart, by an absolute schedule, so that one that is
// late does not make the next late. How late tokens were is counted and told
// ([Server.Lateness], GET /null/lateness): a client's figures are worth no more than that.
//
// net/http's server costs 6 us a token at 1,000 streams, mostly for locks, buffers and
// wake-ups; a pacer that writes to the sockets itself costs what the kernel costs.
//
// Ownership: a Server owns its listener and its connections. Times are of the server's own
// clock.
package nullserver
