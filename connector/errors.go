package connector

import "errors"

// Why a request failed.
var (
	ErrDeadline = errors.New("deadline exceeded")
	ErrTransfer = errors.New("KV transfer failed")
	ErrContent  = errors.New("KV block holds the wrong bytes")
	ErrInvalid  = errors.New("invalid request")
	// ErrUndirected: the prompt came ahead, and nobody has said where its KV goes.
	ErrUndirected = errors.New("nobody has said where the KV goes")
	// ErrChanged comes with ErrContent: the block was right when it landed.
	ErrChanged = errors.New("it has changed since it landed")
	// ErrUsed comes with ErrChanged: tokens that may have been drawn from it have left.
	ErrUsed = errors.New("after tokens had left")
	// ErrWithdrawn comes with ErrTransfer: the other node has ended the transfer.
	ErrWithdrawn = errors.New("the other node has withdrawn the transfer")
)
