package rdma

import "kvferry/transport"

// New opens the device and serves. The caller closes the rail, or gives it to an
// engine.
func New(cfg Config) (transport.Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return nil, &transport.Error{Op: "open", Rail: cfg.Name, Err: ErrNotBuilt}
}
