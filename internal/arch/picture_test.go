package arch

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "draw docs/img/*.svg again")

var (
	svg    = regexp.MustCompile(`(?s)<svg.*?</svg>`)
	viewed = regexp.MustCompile(`viewBox="0 0 ([0-9.]+) ([0-9.]+)"`)
	letter = regexp.MustCompile(`<text[^>]*>([^<]*)<`)
)

// pictures are the plots that pages show, and the commands of those pages that draw them.
var pictures = []struct {
	name, page, command string
	titles              []string
}{
	{"mooncake-1024.svg", "README.md", "go run ./cmd/kvferry reproduce mooncake --clock virtual --rows 1024/q2", []string{"Mean TTFT (ms)", "Mean TPOT (ms)"}},
	{"lora-placement.svg", "docs/placement.md", loraCommand, []string{"Mean E2EL (ms)", "P99 E2EL (ms)"}},
}

const loraCommand = `kvferry sim --profile sglang-lora-trace --both 4 $(printf ' --lora-name lora-%d=128' $(seq 0 31)) \
        --lora-request-distribution zipf --lora-zipf-alpha 1 --max-cpu-loras 8 --num-prompts 4000 \
        --random-input-len 400 --random-output-len 100 --random-range-ratio 0.9 --goodput e2el:10000 \
        --sweep rate=4,8,12,16,20 --sweep placement=least-loaded,static,adapter-affinity,dlora`

// TestPicture: the plots of pages are those that the command under them writes into
// report.html, side by side on white, with the same figures. Virtual time gives the same everywhere.
func TestPicture(t *testing.T) {
	t.Parallel()
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pictures {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			page, err := os.ReadFile(p.page)
			if err != nil {
				t.Fatal(err)
			}
			if text := string(page); !strings.Contains(text, "img/"+p.name+")") || !strings.Contains(text, "    "+p.command+"\n") {
				t.Errorf("%s does not show %s, or does not say that %s draws it", p.page, p.name, p.command)
			}
			out := t.TempDir()
			cmd := exec.Command("sh", "-c", strings.TrimPrefix(p.command, "go run ./cmd/")+" --out "+out)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", p.command, err, said)
			}
			report, err := os.ReadFile(filepath.Join(out, "report.html"))
			if err != nil {
				t.Fatal(err)
			}
			drawn, err := beside(string(report), p.titles...)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("docs", "img", p.name)
			if *update {
				if err := os.WriteFile(name, []byte(drawn), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			kept, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want, got := letters(drawn), letters(string(kept))
			if len(want) < 30 || !slices.Equal(want, got) {
				t.Errorf("%s says %q, and the command %q: run go test ./internal/arch -run TestPicture -update", name, got, want)
			}
			if len(kept) > 60_000 {
				t.Errorf("%s has %d bytes, more than a page should wait for", name, len(kept))
			}
		})
	}
}

// letters are the words and figures in a picture.
func letters(svg string) (all []string) {
	for _, m := range letter.FindAllStringSubmatch(svg, -1) {
		all = append(all, m[1])
	}
	return all
}

// beside sets the first plot of each title of a report side by side. The ground is white:
// pages are dark for some readers.
func beside(report string, titles ...string) (string, error) {
	var plots strings.Builder
	width, height := 0.0, 0.0
	for _, title := range titles {
		all := svg.FindAllString(report, -1)
		i := slices.IndexFunc(all, func(s string) bool { return slices.Contains(letters(s), title) })
		if i < 0 {
			return "", fmt.Errorf("the report has no plot %q", title)
		}
		box := viewed.FindStringSubmatch(all[i])
		if box == nil {
			return "", fmt.Errorf("the plot %q has no size", title)
		}
		var w, h float64
		if _, err := fmt.Sscan(box[1], &w); err != nil {
			return "", err
		}
		if _, err := fmt.Sscan(box[2], &h); err != nil {
			return "", err
		}
		plots.WriteString(strings.Replace(all[i], "<svg", fmt.Sprintf(`<svg x="%g" width="%g" height="%g"`, width, w, h), 1) + "\n")
		width, height = width+w, max(height, h)
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n",
		width, height, &plots), nil
}
