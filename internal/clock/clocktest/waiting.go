package clocktest

import (
	"flag"
	"fmt"
	"os"
)

// SideBySide is for the TestMain of a package whose tests wait most of the time, for modelled
// GPUs and links, deadlines and child processes: call it after what children do, and before Run.
// Eight of the tests that are parallel run at once, not one a CPU.
//
// A process built with the race detector sleeps for a second before it exits, lest another
// thread be about to report. Children of the tests sleep for 10 ms: they have ended their
// goroutines by then. They collect garbage after 400 % growth, where daemons do
// after 20: that takes a quarter of their CPU there. GORACE and GOGC in the environment go before.
func SideBySide() {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for name, value := range map[string]string{"GORACE": "atexit_sleep_ms=10", "GOGC": "400"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
}
