package load_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/kvcache"
	"kvferry/load"
)

// A golden is what a tool's own dataset gave for a command line: testdata/datasets/golden.py
// says which versions, and how.
type golden struct {
	Tool, Line    string
	Spec          load.Spec
	BOS           *bool // whether the tokenizer puts one before texts; nil without a tokenizer
	N             int
	Input, Output int // tokens in all
	First         [][3]any
	All           string
	Next          [2]float64 // of Python's and numpy's generator, after the dataset
}

func goldens(t *testing.T) (all []golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/datasets/golden.json")
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all) < 90 {
		t.Fatalf("%d cases, %v", len(all), err)
	}
	return all
}

// spec is the load that should give the same.
func (g golden) spec(tokenizers map[bool]*pieces) load.Spec {
	s := g.Spec
	s.Compat, s.Rate = g.Tool, math.Inf(1) // no gaps are drawn
	if s.File != "" {
		s.File = filepath.Join("testdata/datasets", s.File)
	}
	if g.BOS != nil {
		s.Tokenizer = tokenizers[*g.BOS]
	}
	return s
}

// digest is the beginning of a SHA-256.
func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16] }

// said is the digest of a prompt: of its text, or of its tokens where it has none.
func said(r load.Request) string {
	if r.Text != "" || len(r.Prompt) == 0 {
		return digest(r.Text)
	}
	return digest(numbers(r.Prompt))
}

func numbers(ids []kvcache.Token) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

// TestGolden: the same seed gives the same requests as the tool's own dataset, to the token
// and the letter, and leaves the tool's generators where the tool left them.
func TestGolden(t *testing.T) {
	tokenizers := map[bool]*pieces{false: newPieces(t, false), true: newPieces(t, true)}
	for i, want := range goldens(t) {
		if testing.Short() && i%2 > 0 {
			continue
		}
		tokenizer := "no tokenizer"
		if want.BOS != nil {
			tokenizer = fmt.Sprintf("bos %t", *want.BOS)
		}
		t.Run(fmt.Sprint(want.Tool, " ", want.Spec.Kind, " ", want.Line, " ", tokenizer), func(t *testing.T) {
			l, err := want.spec(tokenizers).Open()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got, err := load.Collect(l)
			if err != nil {
				t.Fatal(err)
			}
			var rows []string
			input, output := 0, 0
			for i, r := range got {
				if r.Continues {
					if len(r.After) != 1 || r.After[0] != i-1 {
						t.Fatalf("request %d follows %v", i, r.After)
					}
					rows[len(rows)-1] += said(r)
					continue
				}
				input, output = input+len(r.Prompt), output+r.MaxTokens
				rows = append(rows, fmt.Sprintf("%d %d %s", len(r.Prompt), r.MaxTokens, said(r)))
			}
			if len(rows) != want.N || input != want.Input || output != want.Output {
				t.Errorf("%d requests of %d and %d tokens, want %d of %d and %d", len(rows), input, output, want.N, want.Input, want.Output)
			}
			for i, first := range want.First {
				if row := fmt.Sprintf("%.0f %.0f %s", first[0], first[1], first[2]); i < len(rows) && rows[i] != row {
					t.Errorf("request %d: %s, want %s; %.200q", i, rows[i], row, got[i].Text)
				}
			}
			if all := digest(strings.Join(append(rows, ""), "\n")); all != want.All {
				t.Errorf("the requests are not all the same")
			}
			if next := [2]float64{l.Generators.Python.Random(), l.Generators.Numpy.RandomSample()}; next != want.Next {
				t.Errorf("the generators go on with %v, want %v", next, want.Next)
			}
		})
	}
}
