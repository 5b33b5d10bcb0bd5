package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// A monitor speaks QMP, QEMU's control protocol: a JSON value a line. QEMU greets
// first, wants qmp_capabilities before anything else, and puts events between its
// answers. The protocol is in QEMU's docs/interop/qmp-spec.rst.
type monitor struct {
	mu  sync.Mutex // held from a command to its answer: no number says whose it is
	out *json.Encoder
	in  *json.Decoder
}

// openMonitor may wait for the greeting, which comes when QEMU has started.
func openMonitor(conn io.ReadWriter) (*monitor, error) {
	m := &monitor{out: json.NewEncoder(conn), in: json.NewDecoder(conn)}
	var greeting struct{ QMP *struct{} }
	if err := m.in.Decode(&greeting); err != nil {
		return nil, fmt.Errorf("no greeting of QEMU's monitor: %w", err)
	}
	if greeting.QMP == nil {
		return nil, fmt.Errorf("QEMU's monitor does not speak QMP")
	}
	return m, m.execute("qmp_capabilities", nil)
}

// execute waits for the command's answer, without a limit: who closes the connection
// ends the wait. Events in between are dropped.
func (m *monitor) execute(command string, arguments map[string]any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := m.out.Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		var answer struct {
			Return *json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := m.in.Decode(&answer); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("%s: QEMU says %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
	}
}

// setLink pulls the cable of a NIC or plugs it in.
func (m *monitor) setLink(nic int, up bool) error {
	return m.execute("set_link", map[string]any{"name": netdev(nic), "up": up})
}
