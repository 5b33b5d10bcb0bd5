package rails

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"kvferry/transport"
	"kvferry/transport/topology"
)

// Ranks says how far each of an engine's rails is from memory at a location, for
// transport.Config.Rank: 0 preferred, 1 available, 2 not in the matrix, which is for
// what the user has given as a rail although nothing is known of it, or it is out of
// the question, like lo. The matrix is this machine's, with the rows of matrixFile
// replacing those found, if it is not empty. For one rail it is nil: there is nothing
// to choose.
func Ranks(opened []transport.Rail, matrixFile string, log *slog.Logger) (func(location, rail string) int, error) {
	var o topology.Options
	if matrixFile != "" {
		m, err := topology.ReadMatrix(matrixFile)
		if err != nil {
			return nil, err
		}
		o.Override = m
	}
	if len(opened) < 2 {
		return nil, nil
	}
	machine, err := topology.Discover("/")
	if err != nil {
		if matrixFile == "" {
			log.Warn("transport/topology: rails are all taken to be near the memory", "err", err)
			return nil, nil
		}
		machine = &topology.Machine{}
	}
	matrix, warnings, err := machine.Matrix(o)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	devices, near := make(map[string]string, len(opened)), make(map[string]bool)
	var foreign []string
	for _, r := range opened {
		_, device, _ := strings.Cut(r.Name(), "/")
		switch k := of(r); {
		case k == nil:
		case k.near:
			near[r.Name()] = true
		case k.nic != nil:
			if device = k.nic(r); !described(device, "/sys/class/net") {
				foreign = append(foreign, device)
			}
		}
		devices[r.Name()] = device
		for _, w := range warnings {
			if w.NIC == device {
				log.Warn("transport/topology: "+w.String(), "rail", r.Name())
			}
		}
	}
	if len(foreign) > 0 && matrixFile == "" {
		log.Warn("transport/topology: /sys is of another network namespace, and says nothing of these NICs: rails are all taken to be near the memory (mount -t sysfs sysfs /sys in this one)", "nics", foreign)
		return nil, nil
	}
	return func(location, rail string) int {
		if near[rail] {
			return topology.RankPreferred
		}
		if rank := matrix.Rank(location, devices[rail]); rank != topology.RankExcluded {
			return rank
		}
		return topology.RankAvailable + 1
	}, nil
}

// described says whether a folder such as /sys/class/net describes the interface of
// that name in this process's network namespace. It is that of whoever mounted it:
// after nsenter -n, another machine's eth0 may be there under the same name.
func described(name, folder string) bool {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return true // no interface: there is nothing to mistake
	}
	read := func(file string) string {
		text, _ := os.ReadFile(filepath.Join(folder, name, file))
		return strings.TrimSpace(string(text))
	}
	mac := read("address")
	return read("ifindex") == strconv.Itoa(i.Index) && (mac == i.HardwareAddr.String() || len(i.HardwareAddr) == 0)
}
