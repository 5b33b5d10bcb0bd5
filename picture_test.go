package kvferry

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

const pictureCommand = "kvbench mooncake --clock virtual --rows 1024/q2"

// TestPicture: the plots in README.md are those that the command under them writes into
// report.html, mean TTFT and mean TPOT side by side on white, with the same figures.
// Virtual time gives the same everywhere.
func TestPicture(t *testing.T) {
	t.Parallel()
	const name = "docs/img/mooncake-1024.svg"
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(readme); !strings.Contains(text, "]("+name+")") || !strings.Contains(text, "    go run ./cmd/"+pictureCommand+"\n") {
		t.Errorf("README.md does not show %s, or does not say that %s draws it", name, pictureCommand)
	}
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	args := strings.Fields(pictureCommand)
	cmd := exec.Command(filepath.Join(dir, args[0]), append(args[1:], "--out", out)...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, said)
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := beside(string(page), "Mean TTFT (ms)", "Mean TPOT (ms)")
	if err != nil {
		t.Fatal(err)
	}
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
	if len(want) < 40 || !slices.Equal(want, got) {
		t.Errorf("%s says %q, and the command %q: run go test -run TestPicture -update .", name, got, want)
	}
	if len(kept) > 60_000 {
		t.Errorf("%s has %d bytes, more than a page should wait for", name, len(kept))
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
