//go:build !rdma || !cgo || !linux

package rdma

func openDevice(*Config) (device, error) { return nil, ErrNotBuilt }
