package connector

import (
	"errors"

	"kvferry/kvcache"
)

// Why a request failed.
var (
	ErrDeadline = errors.New("deadline exceeded")
	ErrTransfer = errors.New("KV transfer failed")
	ErrContent  = errors.New("KV block holds the wrong bytes")
	ErrInvalid  = errors.New("invalid request")
	// ErrOffer: the blocks that the other node offers are not those of the request, or cannot be opened.
	ErrOffer = errors.New("the other node's KV does not fit the request")
	// ErrUndirected: the prompt came ahead, and nobody has said where its KV goes.
	ErrUndirected = errors.New("nobody has said where the KV goes")
	// ErrChanged comes with ErrContent: the block was right before on this node.
	ErrChanged = kvcache.ErrChanged
	// ErrUsed comes with ErrChanged: tokens that may have been drawn from it have left.
	ErrUsed = errors.New("after tokens had left")
	// ErrWithdrawn comes with ErrTransfer: the other node has ended the transfer.
	ErrWithdrawn = errors.New("the other node has withdrawn the transfer")
)
