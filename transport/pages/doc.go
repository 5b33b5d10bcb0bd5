// Package pages maps memory outside the Go heap, as each system does it.
package pages
