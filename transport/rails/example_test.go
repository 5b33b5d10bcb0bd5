package rails_test

import (
	"fmt"

	"kvferry/transport"
	"kvferry/transport/rails"
)

// Rails as a user names them, for an engine. Here both are addresses; elsewhere they may be
// tcp/eth0, rdma/mlx5_0 and others.
func Example() {
	opened, err := rails.OpenAll([]string{"127.0.0.1:0", "127.0.0.1:0?sndbuf=65536"}, rails.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := transport.New(transport.Config{Rails: opened})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close() // and its rails
	for _, r := range e.Rails() {
		fmt.Println(r.Name)
	}
	_, err = rails.Parse("tcp/eth0?sndbuf=small")
	fmt.Println(err)
	// Output:
	// tcp/0
	// tcp/1
	// "tcp/eth0?sndbuf=small": option sndbuf is "small": use a whole number from 1 to 1073741824
}
