//go:build !race

package wire

func received(int) {}

func sending(int) {}
