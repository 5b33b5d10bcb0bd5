//go:build !linux

package topology

// mapInterfaces knows of no RDMA devices but those of Linux.
func mapInterfaces([]string) map[string][]string { return nil }
