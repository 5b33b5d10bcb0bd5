package lab

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadLines(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  []string
		whole bool
	}{
		{"a\nb\n<end>", []string{"a", "b"}, true},
		{"a\r\n\nb<end>late\n", []string{"a", "", "b"}, true},
		{"<end>", nil, true},
		{"a\nb", []string{"a", "b"}, false},
		{"", nil, false},
		{strings.Repeat("x", maxLine+10) + "\n<end>", []string{strings.Repeat("x", maxLine+10)}, true},
		{strings.Repeat("x", 2*maxLine) + "<end>", []string{strings.Repeat("x", maxLine), strings.Repeat("x", maxLine)}, true},
	} {
		for name, in := range map[string]io.Reader{
			"bytes": iotest.OneByteReader(strings.NewReader(c.text)), "chunks": strings.NewReader(c.text),
		} {
			if name == "bytes" && len(c.text) > maxLine {
				continue // quadratic, if nobody sends like that
			}
			var got []string
			whole := readLines(in, "<end>", func(text string) { got = append(got, text) })
			// Where a long line is cut depends on how it comes in.
			if joined := strings.Join(got, "\n"); len(c.text) < maxLine && !slices.Equal(got, c.want) ||
				strings.ReplaceAll(joined, "\n", "") != strings.Join(c.want, "") || whole != c.whole {
				t.Errorf("%s of %.20q: %.60q, whole %v", name, c.text, got, whole)
			}
		}
	}
}

func TestPrinter(t *testing.T) {
	var stdout, stderr bytes.Buffer
	var seen []Line
	p := Printer{Stdout: &stdout, Stderr: &stderr, Log: &stderr, OnLine: func(l Line) { seen = append(seen, l) }}
	p.Print(Line{1, false, "out"})
	p.Print(Line{2, true, "err"})
	p.Note("booting %d", 2)
	if stdout.String() != "host1| out\n" || stderr.String() != "host2| err\nbooting 2\n" || len(seen) != 2 {
		t.Errorf("%q, %q, %v", stdout.String(), stderr.String(), seen)
	}
}

func TestTail(t *testing.T) {
	var k tail
	for range 10000 {
		if _, err := k.Write([]byte("0123456789\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got := k.find("89"); !strings.HasSuffix(got, "89") {
		t.Errorf("found %q", got)
	}
	if got := k.find("panic"); got != "" {
		t.Errorf("found %q", got)
	}
	if got := k.last(2); len(k.buf) != tailSize || got != "\t0123456789\n\t0123456789" {
		t.Errorf("%d kept, ends with %q", len(k.buf), got)
	}
}
