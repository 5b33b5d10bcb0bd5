package bench

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/load"
)

// lengthsChosen is load.LengthsDraw in a sentence, for reports of seed 0.
var lengthsChosen = fmt.Sprintf("Of the published prompts only the sum of the lengths is known. Theirs are draw %d of 300 that were tried: "+
	"the first of 6 with which the fitted engine gives all 90 figures that were published without disaggregation (to 6 %%, P99s to 15).", load.LengthsDraw)

// ParseRows reads a comma-separated list of workload names, or "all".
func ParseRows(list string) ([]load.Workload, error) {
	known := load.Workloads()
	if strings.TrimSpace(list) == "all" {
		return known, nil
	}
	var rows []load.Workload
	err := parseList(list, "row", workloadNames(known), func(i int) { rows = append(rows, known[i]) })
	if err != nil {
		return nil, fmt.Errorf("%w; or all", err)
	}
	return rows, nil
}

func workloadNames(rows []load.Workload) []string {
	names := make([]string, len(rows))
	for i, w := range rows {
		names[i] = w.Name
	}
	return names
}

// parseList calls pick with the index in valid of each element of a
// comma-separated list. Its errors name the bad element and the valid ones.
func parseList(list, what string, valid []string, pick func(i int)) error {
	seen := map[string]bool{}
	for element := range strings.SplitSeq(list, ",") {
		element = strings.TrimSpace(element)
		i := slices.Index(valid, element)
		switch {
		case element == "":
			return fmt.Errorf("%q: it has an empty %s: use %s", list, what, strings.Join(valid, ", "))
		case i < 0:
			return fmt.Errorf("%q: there is no such %s: use %s", element, what, strings.Join(valid, ", "))
		case seen[element]:
			return fmt.Errorf("%q: this %s is named twice: name it once", element, what)
		}
		seen[element] = true
		pick(i)
	}
	return nil
}
