package calibrate

import (
	"encoding/json"
	"fmt"
	"strings"

	"kvferry/engine"
)

// WithFields is a copy of a profile with other values of some fields, by their names in the
// file: "costs.prefill_token_ms". It is held to what a file is held to.
func WithFields(p *engine.Profile, values map[string]float64) (*engine.Profile, error) {
	tree, err := fields(p)
	if err != nil {
		return nil, err
	}
	for field, v := range values {
		parent, name := tree, field
		for {
			head, rest, deeper := strings.Cut(name, ".")
			if !deeper {
				break
			}
			next, ok := parent[head].(map[string]any)
			if !ok {
				next = map[string]any{}
				parent[head] = next
			}
			parent, name = next, rest
		}
		parent[name] = v
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return engine.ParseProfile(text)
}

// ReadField is the value of a field; 0 if the profile leaves it out.
func ReadField(p *engine.Profile, field string) (float64, error) {
	tree, err := fields(p)
	if err != nil {
		return 0, err
	}
	var at any = tree
	for name := range strings.SplitSeq(field, ".") {
		section, _ := at.(map[string]any)
		at = section[name]
	}
	v, _ := at.(float64)
	if _, err := WithFields(p, map[string]float64{field: v}); err != nil {
		return 0, fmt.Errorf("field %s: %w", field, err)
	}
	return v, nil
}

// fields are a profile's, as its file has them.
func fields(p *engine.Profile) (map[string]any, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	var tree map[string]any
	return tree, json.Unmarshal(text, &tree)
}
