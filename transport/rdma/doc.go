// Package rdma is a rail over one port of an RDMA device.
package rdma
