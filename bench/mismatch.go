package bench

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/cluster"
	"kvferry/proxy/serverinfo"
)

// linkOf is what carries the KV, in a row's words.
func linkOf(i *serverinfo.Info, parse func(string) serverinfo.Link) Link {
	l := Link{Clock: ClockReal, Compute: serverinfo.Unknown, Transfer: serverinfo.Unknown, Label: "compute and transfer unknown: the server does not say what it is"}
	if i == nil {
		return l
	}
	if i.Engines() {
		l.Compute, l.Transfer, l.Label = serverinfo.Measured, "measured", "compute and transfer measured, "+i.Describe(parse)
		if i.Serving == ModeNonDisagg {
			l.Transfer, l.Label = "none", "compute measured, no KV transfer, "+i.Describe(parse)
		}
		return l
	}
	l.Compute = serverinfo.Modelled
	modelled := "compute modelled (" + strings.Join(serverinfo.Distinct(i.Working(), func(n *serverinfo.Node) string { return n.Profile }), ", ") + ")"
	if i.Serving == ModeNonDisagg {
		l.Transfer, l.Label = "none", modelled+", no KV transfer"
		return l
	}
	l.Rail = strings.Join(i.RailNames(), ", ")
	links := i.Links(parse)
	switch {
	case len(links) != 1:
		l.Label = fmt.Sprintf("%s, transfer on %s, nodes with different links: %s", modelled, l.Rail, i.LinkText(parse))
	case links[0].Native:
		l.Transfer, l.Label = "measured", modelled+", transfer measured on "+l.Rail
	default:
		l.Transfer, l.PacedTo = "paced", links[0].BytesPerSecond
		l.Label = modelled + ", transfer on " + l.Rail + " paced to " + links[0].String()
		if links[0].Name != "" && l.PacedTo > 0 {
			l.Label = fmt.Sprintf("%s, transfer on %s paced to %.2f GB/s (%s)", modelled, l.Rail, l.PacedTo/1e9, links[0].Name)
		}
	}
	return l
}

// lacks says what would make the cluster one of the setting; nothing if it is.
func lacks(i *serverinfo.Info, s Setting, parse func(string) serverinfo.Link) []string {
	switch {
	case i.Engines() && i.Serving == s.Mode:
		return nil // what else the setting says, only their connector knows
	case i.Engines() && s.Mode == ModeNonDisagg:
		return []string{"name the engines that serve by themselves to the proxy with --upstream alone"}
	case i.Engines():
		return []string{"name engines to the proxy with --upstream-prefill and --upstream-decode"}
	}
	if i.Serving != s.Mode {
		if s.Mode == ModeNonDisagg {
			return []string{"start decode --role both nodes alone"}
		}
		return []string{"start a prefill and a decode node, and the proxy with --handoff " + s.Handoff}
	}
	var todo []string
	if s.Mode == ModeNonDisagg {
		if slices.ContainsFunc(i.Working(), func(n *serverinfo.Node) bool { return n.Chunked != s.Chunked }) {
			todo = append(todo, "start the nodes "+map[bool]string{true: "with", false: "without"}[s.Chunked]+" --enable-chunked-prefill")
		}
		return todo
	}
	if i.Handoff != s.Handoff {
		todo = append(todo, "start the proxy with --handoff "+s.Handoff)
	}
	if slices.ContainsFunc(i.Links(parse), func(l serverinfo.Link) bool { return !s.over(l, i.RailNames()) }) {
		todo = append(todo, "start the nodes with --link "+s.Link)
	}
	return todo
}

// over says whether a link may carry the setting's KV. A modelled NIC that the
// published settings have stands for its own setting, another one for any. The
// network as it is stands for the settings of its kind: sockets for tcp, RDMA and
// copies between processes for rdma and rdma2. Hand-offs of ours take any link.
func (s Setting) over(l serverinfo.Link, rails []string) bool {
	switch {
	case s.Handoff != "v0":
		return true
	case l.Native:
		sockets := slices.ContainsFunc(rails, func(r string) bool { return strings.HasPrefix(r, "tcp/") })
		return sockets == (s.Link == "tcp")
	case slices.ContainsFunc(Settings(), func(o Setting) bool { return o.Link == l.Name && l.Name != "" }):
		return l.Name == s.Link
	}
	return true
}

// A MismatchError is a server that is not what the setting stands for.
type MismatchError struct {
	URL     string
	Setting string
	Is      string   // what it is
	Fits    []string // names of settings that it is
	Todo    []string // what would make it the setting
}

func (e *MismatchError) Error() string {
	advice := strings.Join(e.Todo, ", ")
	if len(e.Fits) > 0 {
		advice = "name " + strings.Join(e.Fits, " or ") + ", or " + advice
	}
	return fmt.Sprintf("%s is not what serves at %s: that is %s: %s", e.Setting, e.URL, e.Is, advice)
}

// check is a MismatchError if the cluster is none of the setting.
func check(i *serverinfo.Info, url string, s Setting, parse func(string) serverinfo.Link) error {
	todo := lacks(i, s, parse)
	if len(todo) == 0 {
		return nil
	}
	e := &MismatchError{URL: url, Setting: s.Name, Is: i.Describe(parse), Todo: todo}
	for _, o := range Settings() {
		if len(lacks(i, o, parse)) == 0 {
			e.Fits = append(e.Fits, o.Name)
		}
	}
	return e
}

// remarks are what makes the figures those of another cluster than the published
// one, or of several kinds of node.
func remarks(i *serverinfo.Info) []string {
	var notes []string
	nodes := i.Working()
	for _, p := range []struct {
		what string
		of   func(*serverinfo.Node) string
	}{
		{"profile", func(n *serverinfo.Node) string { return strings.TrimSpace(n.Profile + " " + n.Fingerprint) }},
		{"version", func(n *serverinfo.Node) string { return n.Version }},
		{"link", func(n *serverinfo.Node) string { return n.Link }},
	} {
		if len(serverinfo.Distinct(nodes, p.of)) < 2 {
			continue
		}
		var each []string
		for _, n := range nodes {
			each = append(each, n.ID+" "+p.of(n))
		}
		notes = append(notes, fmt.Sprintf("the nodes differ in %s: %s", p.what, strings.Join(each, ", ")))
	}
	return notes
}

// decided are the knobs of the model that a Setting decides, that have no effect on one node of a
// kind, or that the rows name already.
var decided = []string{"prefill", "decode", "both", "handoff", "placement", "profile", "link", "decode-links", "enable-chunked-prefill", "kv-blocks", "max-model-len", "eos"}

// beside returns the settings of the proxy and its nodes that the published cluster did not have,
// as name=value.
func beside(i *serverinfo.Info) (names []string) {
	var none cluster.Spec
	say := func(settings map[string]any) {
		for _, k := range cluster.Knobs.For(cluster.Sim) {
			v, given := settings[strings.ReplaceAll(k.Name, "-", "_")]
			text := k.Name + "=" + fmt.Sprint(v)
			if given && fmt.Sprint(v) != k.Text(&none) && !slices.Contains(decided, k.Name) && !slices.Contains(names, text) {
				names = append(names, text)
			}
		}
	}
	say(i.Settings)
	for _, n := range i.Working() {
		say(n.Settings)
	}
	return names
}

// comparable reports whether the cluster is the published one: as many nodes, of that GPU, with no
// setting besides.
func comparable(i *serverinfo.Info) bool {
	for _, n := range i.Working() {
		if !i.Engines() && !publishedGPU(n.Fingerprint) {
			return false
		}
	}
	if len(beside(i)) > 0 {
		return false
	}
	return i.Serving == ModeNonDisagg && i.Count(ModeNonDisagg) == 1 || i.Serving == ModeDisagg && i.Count("prefill") == 1 && i.Count("decode") == 1
}
