package rail

import (
	"log/slog"
	"math/bits"
	"syscall"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// newEngine owns the rails also when it fails. Which of them are near which memory is
// this machine's topology, with the rows of a matrix file instead of those found.
func newEngine(matrix string, cfg transport.Config) (*transport.Engine, error) {
	log := cfg.Logger
	config.Default(&log, slog.Default())
	var err error
	if cfg.Rank, err = rails.Ranks(cfg.Rails, matrix, log); err != nil {
		err = &config.Fault{Field: "Matrix", Err: err}
	}
	var e *transport.Engine
	if err == nil {
		e, err = transport.New(cfg)
	}
	if err != nil {
		for _, r := range cfg.Rails {
			_ = r.Close()
		}
	}
	return e, err
}

// DefaultSegment is 1 GiB, or a power of two that takes no more than an eighth of
// the memory that is left on this machine: both ends may be here.
func DefaultSegment() int64 {
	left, ok := kvcache.Available()
	if !ok {
		return 1 << 28
	}
	return min(1<<30, int64(1)<<(bits.Len64(uint64(max(left/8, 1)))-1))
}

// warm writes all of the memory, so that every page is there and none is the
// kernel's zero page.
func warm(mem []byte, salt uint64) {
	const chunks = 4
	each := (len(mem)/chunks + 8) &^ 7
	eachThread(chunks, func(i int) {
		at := min(i*each, len(mem))
		FillPattern(mem[at:min(at+each, len(mem))], salt, int64(at))
	})
}

// cpuSeconds is the CPU time of this process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
