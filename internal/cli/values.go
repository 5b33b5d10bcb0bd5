package cli

import (
	"strings"

	"kvferry/bench"
	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/bench/simulation"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/engine/datasheet"
	"kvferry/internal/knob"
	"kvferry/internal/model"
	"kvferry/load"
)

// values are what flags of a command, without the program's name, take that choose among names, for a shell's
// completion: those of the daemons, and these. They are taken from the tables that the flags
// are read by, where there are any.
func values(command string) map[string][]string {
	all := map[string][]string{}
	knobWords(all, cluster.Knobs)
	if command == "bench" || command == "sim" {
		knobWords(all, load.AllKnobs())
	}
	switch command {
	case "reproduce mooncake":
		all["rows"] = []string{"all"}
		for _, w := range load.Workloads() {
			all["rows"] = append(all["rows"], w.Name)
		}
		for _, s := range bench.Settings() {
			all["settings"] = append(all["settings"], s.Name)
		}
		all["clock"] = []string{"real", "virtual", "both"}
	case "bench":
		all["clock"] = []string{"real", "virtual", "both"}
		all["compat"] = []string{load.CompatVLLM, load.CompatSGLang, compatNone}
		all["backend"] = client.BackendNames()
		for _, q := range serve.RateQuantities {
			all["find-rate"] = append(all["find-rate"], string(q))
		}
		for _, m := range serve.SteadyMethods {
			all["steady-state"] = append(all["steady-state"], string(m))
		}
	case "sim":
		for _, example := range simulation.SweepExamples() {
			name, _, _ := strings.Cut(example, "=")
			all["sweep"] = append(all["sweep"], name+"=")
		}
	case "rail bench":
		knobWords(all, railKnobs.For(benching))
	case "lab connectors":
		knobWords(all, connectorKnobs)
	case "profile":
		all["gpu"], all["quantization"], all["engine"] = datasheet.Names(), model.QuantizationNames(), engine.Schedulers()
	case "rail topo":
		all["names"] = []string{"all", "rdma", "net"}
		all["format"] = []string{"text", "json", "matrix"}
	}
	return all
}

// knobWords adds the words of knobs.
func knobWords[S any](all map[string][]string, knobs knob.Table[S]) {
	for _, k := range knobs {
		if k.Values != nil {
			all[k.Name] = k.Values()
		}
	}
}
