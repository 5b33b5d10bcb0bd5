package topology_test

import (
	"fmt"

	"kvferry/transport/topology"
)

// Which rails are for memory on NUMA node 1 of the lab's machine, which has two
// sockets and two NICs on each.
func Example() {
	machine, err := topology.Discover("testdata/machines/lab-numa-4-nic.txt") // "/" is this machine
	if err != nil {
		fmt.Println(err)
		return
	}
	matrix, warnings, err := machine.Matrix(topology.Options{Exclude: []string{"eth3"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, rail := range []string{"tcp/eth0", "tcp/eth2", "rdma/rxe2", "tcp/eth3"} {
		fmt.Println(rail, matrix.Rank("cpu:1", rail))
	}
	fmt.Println(machine.Why("cpu:1", "eth0"))
	fmt.Println(len(warnings), "warnings")
	// Output:
	// tcp/eth0 1
	// tcp/eth2 0
	// rdma/rxe2 0
	// tcp/eth3 -1
	// across sockets, distance 21
	// 0 warnings
}

// A matrix as Mooncake writes it: which NICs are for memory at which location. A rail asks
// by its own name.
func ExampleParseMatrix() {
	matrix, err := topology.ParseMatrix([]byte(`{
		"cpu:0":  [["mlx5_0"], ["mlx5_1"]],
		"cpu:1":  [["mlx5_1"], ["mlx5_0"]],
		"cuda:0": [["mlx5_0"], []]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	names := map[int]string{topology.RankPreferred: "preferred", topology.RankAvailable: "available", topology.RankExcluded: "not to be used"}
	for _, location := range matrix.Locations() {
		for _, rail := range []string{"rdma/mlx5_0", "rdma/mlx5_1"} {
			fmt.Println(location, rail, names[matrix.Rank(location, rail)])
		}
	}
	// Output:
	// cpu:0 rdma/mlx5_0 preferred
	// cpu:0 rdma/mlx5_1 available
	// cpu:1 rdma/mlx5_0 available
	// cpu:1 rdma/mlx5_1 preferred
	// cuda:0 rdma/mlx5_0 preferred
	// cuda:0 rdma/mlx5_1 not to be used
}
