package rdma

import (
	"fmt"

	"kvferry/transport"
)

// A status says how a request ended: enum ibv_wc_status of infiniband/verbs.h, whose numbers
// are part of its ABI. Those of other kinds of queue pairs and of tag matching are left out.
type status uint32

const (
	statusOK           status = 0
	statusLocalLength  status = 1
	statusLocalQP      status = 2
	statusLocalProt    status = 4
	statusFlushed      status = 5
	statusMWBind       status = 6
	statusBadResponse  status = 7
	statusLocalAccess  status = 8
	statusRemoteInv    status = 9
	statusRemoteAccess status = 10
	statusRemoteOp     status = 11
	statusRetry        status = 12
	statusRNRRetry     status = 13
	statusRemoteAbort  status = 16
	statusFatal        status = 19
	statusTimeout      status = 20
	statusGeneral      status = 21
)

// statuses are what each means here, and what it is to the engine: with ErrUnreachable a
// slice is sent again over another connection, with any other it fails.
var statuses = map[status]struct {
	name string
	text string
	is   error
}{
	statusLocalLength:  {"IBV_WC_LOC_LEN_ERR", "longer than the port's messages may be", transport.ErrInvalid},
	statusLocalQP:      {"IBV_WC_LOC_QP_OP_ERR", "the queue pair cannot carry the request out", transport.ErrInvalid},
	statusLocalProt:    {"IBV_WC_LOC_PROT_ERR", "local memory is not registered any more", transport.ErrInvalid},
	statusFlushed:      {"IBV_WC_WR_FLUSH_ERR", "the queue pair failed before", transport.ErrUnreachable},
	statusMWBind:       {"IBV_WC_MW_BIND_ERR", "memory window", transport.ErrInvalid},
	statusBadResponse:  {"IBV_WC_BAD_RESP_ERR", "the peer's answer was none", transport.ErrUnreachable},
	statusLocalAccess:  {"IBV_WC_LOC_ACCESS_ERR", "local memory may not be written", transport.ErrInvalid},
	statusRemoteInv:    {"IBV_WC_REM_INV_REQ_ERR", "the peer's queue pair does not take the request", transport.ErrProtocol},
	statusRemoteAccess: {"IBV_WC_REM_ACCESS_ERR", "the peer's memory is not registered there, or no longer", transport.ErrBadKey},
	statusRemoteOp:     {"IBV_WC_REM_OP_ERR", "the peer could not complete the request", transport.ErrUnreachable},
	statusRetry:        {"IBV_WC_RETRY_EXC_ERR", "the peer does not answer", transport.ErrUnreachable},
	statusRNRRetry:     {"IBV_WC_RNR_RETRY_EXC_ERR", "the peer has no receive posted", transport.ErrUnreachable},
	statusRemoteAbort:  {"IBV_WC_REM_ABORT_ERR", "the peer gave up", transport.ErrUnreachable},
	statusFatal:        {"IBV_WC_FATAL_ERR", "the device failed", transport.ErrUnreachable},
	statusTimeout:      {"IBV_WC_RESP_TIMEOUT_ERR", "the peer's answer took too long", transport.ErrUnreachable},
	statusGeneral:      {"IBV_WC_GENERAL_ERR", "the device does not say why", transport.ErrUnreachable},
}

// A CompletionError is a request that the device could not carry out.
type CompletionError struct {
	Rail, Peer string
	Op         string // "write", "read", "immediate", "receive"
	Status     uint32 // enum ibv_wc_status
	Vendor     uint32 // the device's own code, for its vendor's support
}

func (e *CompletionError) Error() string {
	s, ok := statuses[status(e.Status)]
	if !ok {
		s.name, s.text = fmt.Sprintf("status %d", e.Status), "unknown"
	}
	return fmt.Sprintf("%s over %s to %s: %s: %s (vendor code %#x)", e.Op, e.Rail, e.Peer, s.name, s.text, e.Vendor)
}

// Unwrap is the cause in transport's terms. Only a lost connection is worth a
// second try.
func (e *CompletionError) Unwrap() error {
	if s, ok := statuses[status(e.Status)]; ok {
		return s.is
	}
	return transport.ErrUnreachable
}
