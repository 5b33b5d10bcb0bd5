package bench

import (
	"slices"

	"kvferry/proxy/serverinfo"
)

// Modes of a Setting.
const (
	ModeNonDisagg = serverinfo.NonDisagg // one node computes prompts and tokens
	ModeDisagg    = serverinfo.Disagg    // a prefill node and a decode node
)

// noHandoff is a row's hand-off where no KV moves.
const noHandoff = serverinfo.NoHandoff

// A Setting is how a cluster serves: the column of a published table.
type Setting struct {
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Chunked bool   `json:"chunked"` // chunked prefill, budget 512 tokens
	Handoff string `json:"handoff"` // "v0", "pull", "layerwise"; "" without disaggregation
	Link    string `json:"link"`    // "tcp", "rdma", "rdma2" (two NICs); "" without disaggregation
	// Rail is what carries the bytes where all nodes are on one machine: TCP
	// sockets for TCP, "cma" (one copy, from memory to memory) for RDMA, whose NICs
	// take no part of a core for copies either.
	Rail string `json:"rail,omitempty"`
}

// Settings are the five published settings, and three hand-offs of ours over the
// link of tcp, in the order the tables show them.
func Settings() []Setting {
	const sockets = "127.0.0.1:0"
	return []Setting{
		{Name: "nondisagg", Mode: ModeNonDisagg},
		{Name: "chunked", Mode: ModeNonDisagg, Chunked: true},
		{Name: "rdma", Mode: ModeDisagg, Handoff: "v0", Link: "rdma", Rail: "cma"},
		{Name: "rdma2", Mode: ModeDisagg, Handoff: "v0", Link: "rdma2", Rail: "cma"},
		{Name: "tcp", Mode: ModeDisagg, Handoff: "v0", Link: "tcp", Rail: sockets},
		{Name: "pull", Mode: ModeDisagg, Handoff: "pull", Link: "tcp", Rail: sockets},
		{Name: "push", Mode: ModeDisagg, Handoff: "push", Link: "tcp", Rail: sockets},
		{Name: "layerwise", Mode: ModeDisagg, Handoff: "layerwise", Link: "tcp", Rail: sockets},
	}
}

// MeasuredSettings are those of the default run: the published five and
// layerwise, which does all that pull and push do and moves KV earlier.
func MeasuredSettings() []Setting {
	return slices.DeleteFunc(Settings(), func(s Setting) bool { return s.Name == "pull" || s.Name == "push" })
}

// ParseSettings reads a comma-separated list of setting names.
func ParseSettings(list string) ([]Setting, error) {
	known := Settings()
	names := make([]string, len(known))
	for i, s := range known {
		names[i] = s.Name
	}
	var settings []Setting
	err := parseList(list, "setting", names, func(i int) { settings = append(settings, known[i]) })
	return settings, err
}
