package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"kvferry/bench/document"
	"kvferry/transport/topology"
)

// printTopology writes a machine and its matrix. Warnings go to stderr where
// stdout is for a program that knows nothing of them.
func printTopology(stdout, stderr io.Writer, format string, m *topology.Machine, matrix topology.Matrix, warnings []topology.Warning) error {
	switch format {
	case "json":
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(describe(m, matrix, warnings))
	case "matrix":
		for _, w := range warnings {
			fmt.Fprintf(stderr, "kvferry: warning: %s\n", w)
		}
		_, err := stdout.Write(matrix.Encode())
		return err
	}
	var b strings.Builder
	nodeTable(m).WriteText(&b)
	nicTable(m).WriteText(&b)
	if len(m.GPUs) > 0 {
		gpuTable(m).WriteText(&b)
	}
	if len(matrix) > 0 {
		writeMatrix(&b, m, matrix)
	}
	if len(warnings) == 0 {
		b.WriteString("No warnings.\n")
	} else {
		fmt.Fprintf(&b, "Warnings: %d\n", len(warnings))
		for _, w := range warnings {
			fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(wrapText(w.String(), 96), "\n", "\n    "))
		}
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}

func nodeTable(m *topology.Machine) document.Table {
	t := document.Table{Title: "NUMA nodes", Head: []string{"location", "socket", "CPUs", "memory", "distances"}, Left: 5}
	for _, n := range m.Nodes {
		var distances []string
		for _, d := range n.Distances {
			distances = append(distances, fmt.Sprint(d))
		}
		t.Rows = append(t.Rows, []string{n.Location(), orDash(n.Socket), n.CPUs, fmt.Sprintf("%.1f GiB", float64(n.Memory)/(1<<30)), strings.Join(distances, " ")})
	}
	return t
}

func nicTable(m *topology.Machine) document.Table {
	t := document.Table{Title: "NICs", Head: []string{"NIC", "RDMA", "state", "port", "node", "PCI", "PCIe link", "device"}, Left: 8}
	for _, n := range m.NICs {
		name := cmp.Or(n.Netdev, "-")
		t.Rows = append(t.Rows, []string{
			name, rdmaNames(n), state(n), topology.FormatSpeed(float64(n.Speed)), orDash(n.Node), n.PCI, n.Link.String(), device(n),
		})
	}
	return t
}

func rdmaNames(n topology.NIC) string {
	var names []string
	for _, d := range n.RDMA {
		names = append(names, d.Name)
	}
	return strings.Join(names, " ")
}

// state is the interface's and, where it says something else, the RDMA device's.
func state(n topology.NIC) string {
	text := map[bool]string{true: "up", false: "down"}[n.Up]
	switch {
	case n.Netdev == "":
		return strings.ToLower(n.RDMA[0].State)
	case n.Enabled && !n.Up:
		text = "no link"
	}
	for _, d := range n.RDMA {
		if d.Active() != n.Up {
			text += ", " + d.Name + " " + strings.ToLower(d.State)
		}
	}
	return text
}

// device is what a NIC is made of.
func device(n topology.NIC) string {
	switch {
	case len(n.Parts) > 0:
		return "on " + strings.Join(n.Parts, ", ")
	case n.Kind != topology.Hardware:
		return string(n.Kind)
	}
	text := strings.TrimSpace(n.Driver + " " + n.Model)
	if n.Master != "" {
		text += ", part of " + n.Master
	}
	return text
}

func gpuTable(m *topology.Machine) document.Table {
	t := document.Table{Title: "GPUs", Head: []string{"location", "node", "PCI", "PCIe link", "device"}, Left: 5}
	for _, g := range m.GPUs {
		location := cmp.Or(g.Location, "-")
		t.Rows = append(t.Rows, []string{location, orDash(g.Node), g.PCI, g.Link.String(), g.Model})
	}
	return t
}

// orDash is a number that may be unknown.
func orDash(n int) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// writeMatrix writes a row for each location and a column for each NIC, with the
// reason of every pair, and what the words mean.
func writeMatrix(b *strings.Builder, m *topology.Machine, matrix topology.Matrix) {
	t := document.Table{Title: "Matrix: * preferred, else available", Head: []string{"memory at"}}
	var nics []topology.NIC
	for _, n := range m.NICs {
		if slices.ContainsFunc(matrix.Locations(), func(location string) bool { return rank(matrix, location, n) >= 0 }) {
			nics = append(nics, n)
			t.Head = append(t.Head, " "+n.Name)
		}
	}
	t.Left = len(t.Head)
	used := map[topology.Nearness]bool{}
	hops := false
	for _, location := range matrix.Locations() {
		row := []string{location}
		for _, n := range nics {
			why := m.Why(location, n.Name)
			cell := map[int]string{topology.RankPreferred: "*", topology.RankAvailable: " "}[rank(matrix, location, n)]
			if cell == "" {
				row = append(row, " -")
				continue
			}
			used[why.Nearness] = true
			cell += why.Nearness.Short()
			if why.Nearness < topology.SameNode {
				cell += fmt.Sprintf(" %d", why.Hops)
				hops = true
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	text := strings.TrimSuffix(t.Text(), "\n")
	b.WriteString(text)
	for n := topology.SameSwitch; n <= topology.Unknown; n++ {
		if used[n] {
			fmt.Fprintf(b, "  %-8s %s\n", n.Short(), n)
		}
	}
	if hops {
		b.WriteString("  a number is the hops between GPU and NIC on the PCI path\n")
	}
	b.WriteString("\n")
}

// rank is the best rank that the NIC has by one of its names.
func rank(matrix topology.Matrix, location string, n topology.NIC) int {
	best := topology.RankExcluded
	names := []string{n.Netdev}
	for _, d := range n.RDMA {
		names = append(names, d.Name)
	}
	for _, name := range names {
		if r := matrix.Rank(location, name); r >= 0 && (best < 0 || r < best) {
			best = r
		}
	}
	return best
}

// A topologyPair is a memory location and a NIC's name in the JSON.
type topologyPair struct {
	Location string            `json:"location"`
	NIC      string            `json:"nic"`
	Choice   string            `json:"choice"`
	Why      topology.Nearness `json:"why"`
	Hops     int               `json:"pci_hops,omitempty"`
	Distance int               `json:"numa_distance,omitempty"`
}

// describe is the JSON form.
func describe(m *topology.Machine, matrix topology.Matrix, warnings []topology.Warning) any {
	out := struct {
		*topology.Machine
		Matrix   topology.Matrix    `json:"matrix"`
		Pairs    []topologyPair     `json:"pairs"`
		Warnings []topology.Warning `json:"warnings"`
	}{m, matrix, []topologyPair{}, append([]topology.Warning{}, warnings...)}
	for _, location := range matrix.Locations() {
		for i, names := range [][]string{matrix[location].Preferred, matrix[location].Available} {
			for _, name := range names {
				why := m.Why(location, name)
				out.Pairs = append(out.Pairs, topologyPair{
					location, name, []string{"preferred", "available"}[i], why.Nearness, why.Hops, why.Distance,
				})
			}
		}
	}
	return out
}

// wrapText breaks text into lines of at most width characters.
func wrapText(text string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
