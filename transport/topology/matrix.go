package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kvferry/internal/config"
)

// Any is the location of memory that is anywhere.
const Any = "*"

// CheckLocation reads where memory can be placed: at a NUMA node, cpu:1, or anywhere, *.
func CheckLocation(location string) error {
	if location == Any {
		return nil
	}
	_, err := nodeOf(location)
	return err
}

// nodeOf is N of cpu:N, below 1024: as many nodes as Linux can have (NODES_SHIFT is 10 at
// most), and as Bind's mask has room for.
func nodeOf(location string) (int, error) {
	number, ok := strings.CutPrefix(location, "cpu:")
	node, err := strconv.ParseUint(number, 10, 10)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q: write cpu:N, a NUMA node from cpu:0, or * for anywhere", location)
	}
	return int(node), nil
}

// A Matrix says for each memory location which NICs to use. Its JSON is Mooncake's:
//
//	{"cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]], "cuda:0": [["mlx5_0"], ["mlx5_1", "mlx5_2"]]}
//
// It is only read once it is made; goroutines may share it.
type Matrix map[string]Choice

// A Choice is the NICs of a location, by the names that rails have: interfaces
// and RDMA devices.
type Choice struct {
	Preferred, Available []string
}

// Ranks of a NIC at a location.
const (
	RankExcluded  = -1 // not in the matrix: whoever opened a rail on it anyway uses it last
	RankPreferred = 0
	RankAvailable = 1 // when the preferred ones cannot be used, or are busy
)

// Rank is how a NIC is to be used for memory at a location. The NIC is an interface
// or an RDMA device, or a rail on one: eth0, mlx5_0, tcp/eth0, rdma/mlx5_0. A
// location without a row has that of "*"; without that one too, all NICs of the
// matrix are preferred. A matrix without rows prefers any NIC.
//
// It compares names one by one: look up once for a segment, not for each slice.
func (m Matrix) Rank(location, nic string) int {
	if _, name, isRail := strings.Cut(nic, "/"); isRail {
		nic = name
	}
	row, ok := m[location]
	if !ok {
		row, ok = m[Any]
	}
	switch {
	case ok && slices.Contains(row.Preferred, nic):
		return RankPreferred
	case ok && slices.Contains(row.Available, nic):
		return RankAvailable
	case ok:
		return RankExcluded
	case len(m) == 0:
		return RankPreferred
	}
	for _, row := range m {
		if slices.Contains(row.Preferred, nic) || slices.Contains(row.Available, nic) {
			return RankPreferred
		}
	}
	return RankExcluded
}

// Locations are the rows' names: NUMA nodes, GPUs, others, each by number.
func (m Matrix) Locations() []string { return slices.SortedFunc(maps.Keys(m), compareNames) }

// names are all NICs of the matrix.
func (m Matrix) names() map[string]bool {
	all := map[string]bool{}
	for _, row := range m {
		for _, name := range slices.Concat(row.Preferred, row.Available) {
			all[name] = true
		}
	}
	return all
}

// MarshalJSON implements json.Marshaler: a list of two lists.
func (c Choice) MarshalJSON() ([]byte, error) {
	// Empty lists are [], not null.
	return json.Marshal([2][]string{append([]string{}, c.Preferred...), append([]string{}, c.Available...)})
}

// Encode is the matrix as JSON, a line for each location.
func (m Matrix) Encode() []byte {
	var b bytes.Buffer
	b.WriteString("{")
	for i, location := range m.Locations() {
		key, _ := json.Marshal(location) // a string
		row, _ := json.Marshal(m[location])
		fmt.Fprintf(&b, "%s\n  %s: %s", map[bool]string{true: ",", false: ""}[i > 0], key, row)
	}
	b.WriteString("\n}\n")
	return b.Bytes()
}

var (
	locationForm = regexp.MustCompile(`^(\*|[a-z]+:[0-9]+)$`)
	nicForm      = regexp.MustCompile(`^[^\s/:]{1,64}$`)
)

// ParseMatrix reads JSON as Mooncake writes it, and says of each fault where it is. It goes
// through tokens, since a map would keep the last of two rows of one location and say nothing.
func ParseMatrix(text []byte) (Matrix, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf(`not a matrix%s: write {"cpu:0": [["mlx5_0"], ["mlx5_1"]]}`, because(err))
	}
	m := Matrix{}
	var faults []error
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("after %d locations: %w", len(m), err)
		}
		location, _ := t.(string)
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("location %q: %w", location, err)
		}
		row, err := parseChoice(raw)
		if _, twice := m[location]; err == nil && twice {
			err = errors.New("is there twice: leave one out")
		}
		if err == nil && !locationForm.MatchString(location) {
			err = errors.New("is no location: write cpu:0 for a NUMA node, cuda:0 for a GPU, or * for any memory")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("location %q %w", location, err))
		}
		m[location] = row
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("after location %d: %w", len(m), err)
	}
	if d.More() {
		faults = append(faults, errors.New("something follows the matrix: leave it out"))
	}
	if len(m) == 0 {
		faults = append(faults, errors.New(`no location in it: write {"cpu:0": [["mlx5_0"], ["mlx5_1"]]}`))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return m, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}

// parseChoice reads [[preferred], [available]]; the second list may be missing.
func parseChoice(raw json.RawMessage) (Choice, error) {
	var lists [][]string
	const form = `write [["mlx5_0"], ["mlx5_1"]], preferred NICs and available ones`
	if err := json.Unmarshal(raw, &lists); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return Choice{}, fmt.Errorf("has a %s where a list of lists of names is due: %s", kind.Value, form)
		}
		return Choice{}, err
	}
	if len(lists) < 1 || len(lists) > 2 {
		return Choice{}, fmt.Errorf("has %d lists: %s", len(lists), form)
	}
	seen := map[string]bool{}
	for _, name := range slices.Concat(lists...) {
		switch {
		case !nicForm.MatchString(name):
			return Choice{}, fmt.Errorf("has a NIC %q: write the name of an interface or an RDMA device, like mlx5_0", name)
		case seen[name]:
			return Choice{}, fmt.Errorf("has %s twice: leave it in one list, once", name)
		}
		seen[name] = true
	}
	if len(seen) == 0 {
		return Choice{}, errors.New("has no NIC: memory there could not be moved; name one, or leave the location out")
	}
	c := Choice{Preferred: lists[0]}
	if len(lists) > 1 {
		c.Available = lists[1]
	}
	return c, nil
}

// ReadMatrix reads a file as ParseMatrix does. All faults are in one line, behind the file's
// name.
func ReadMatrix(file string) (Matrix, error) {
	text, err := config.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m, err := ParseMatrix(text)
	if err != nil {
		return nil, fmt.Errorf("%q: %s", file, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return m, nil
}
