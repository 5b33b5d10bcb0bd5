//go:build !linux

package nics

import (
	"errors"
	"io"
	"sync/atomic"

	"kvferry/lab"
	"kvferry/lab/wire"
)

var errLinux = errors.New("a lab needs Linux: it is made of network namespaces")

// Check reports why no lab can be had here.
func Check() error { return errLinux }

type network struct{}

func newNetwork(Config) (*network, error)                              { return nil, errLinux }
func (*network) startHost(int, *folder, func(lab.Line)) (*host, error) { return nil, errLinux }
func (*network) setLink(int, bool) error                               { return errLinux }
func (*network) changeRate(int, int64) error                           { return errLinux }
func (*network) blackHole(int) error                                   { return errLinux }
func (*network) silence() error                                        { return errLinux }
func (*network) clear(int) error                                       { return errLinux }
func (*network) traffic(int, int) (Traffic, error)                     { return Traffic{}, errLinux }
func (*network) changeCondition(int, int, string, string) error        { return errLinux }
func (*network) lines(int) (c wire.Link, lines [Hosts]wire.Counts, dropped int64, by By, err error) {
	return c, lines, 0, by, errLinux
}
func (*network) do(int, func() error) error { return errLinux }
func (*network) namespace(int) int          { return -1 }
func (*network) close()                     {}

type host struct {
	number      int
	killed      atomic.Bool
	ready, over chan struct{}
	code        int
	err         error
}

func (*host) Tell(string) {}
func (*host) kill()       {}
func (*host) close()      {}

type folder struct{}

func openFolder(string, int) (*folder, error)         { return nil, errLinux }
func (*folder) create(string) (io.WriteCloser, error) { return nil, errLinux }
func (*folder) close()                                {}

func monotonic() int64 { return 0 }
