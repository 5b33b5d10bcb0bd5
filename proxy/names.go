package proxy

import (
	"kvferry/proxy/members"
	"kvferry/proxy/openai"
)

// A LoRA is an adapter that clients may ask for by name.
type LoRA = openai.LoRA

// servedName is what answers and metrics call the model: the first of the proxy's own names,
// or the nodes'.
func (p *Proxy) servedName(c members.Cluster) string { return p.nodes.labelOf(c.Model) }

// model is what requests to a cluster are checked against.
func (p *Proxy) model(c members.Cluster) openai.Model {
	return openai.Model{
		Name: p.servedName(c), Aliases: p.cfg.ServedNames[min(len(p.cfg.ServedNames), 1):], Adapters: p.adapters.Names(),
		MaxModelLen: c.MaxModelLen, Vocab: c.Vocab, File: p.file,
	}
}
