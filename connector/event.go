package connector

import (
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// Remote is the other side of a transfer, as the control plane described it.
type Remote struct {
	Node       string
	Transfer   uint64 // on that node
	Blocks     []kvcache.Entry
	Tokens     int
	FirstToken kvcache.Token // of a prompt that is computed
}

// An Event is something that happened to the node.
type Event interface{ event() }

type (
	// Submit brings a leg of a request.
	Submit struct {
		ID          uint64
		Leg         handoff.Leg
		Handoff     handoff.Handoff
		Prompt      []kvcache.Token
		Prefix      []kvcache.Hash // this and the next five: see engine.Request
		Adapter     string
		AdapterRank int
		Salt        string
		Variant     uint64
		Words       engine.Words
		MaxTokens   int
		Age         time.Duration // since the proxy accepted it
		Deadline    time.Duration // on the node's clock
		Remote      Remote
		Ahead       bool // of a leg that writes: Remote is not known yet, and comes in a Direct
		Reserve     int  // of a migration: tokens of the answer that may come with the KV
		Checks      Checks
	}
	// Direct says where the KV of a leg goes that came ahead.
	Direct struct {
		ID     uint64
		Remote Remote
	}
	// Migrate has the KV of a request that generates here written to another node, which has
	// Remote's blocks for it. Known is how many of its tokens, prompt included, that node knows.
	// It ends in Migrated.
	Migrate struct {
		ID     uint64
		Remote Remote
		Known  int
	}
	// Resume ends a Migrate: the request goes on here. If the other node found the KV wrong,
	// Doubt has the blocks here checked.
	Resume struct {
		ID    uint64
		Doubt bool
	}
	// Continue is of a request that is taken over: all of its KV is in our blocks. Tokens are
	// those that it has beyond its prompt.
	Continue struct {
		ID     uint64
		Tokens []kvcache.Token
	}
	// Cancel ends a request; nothing more is said of it but Closed and Drop.
	Cancel struct{ ID uint64 }
	// StepDone ends the step that Launch started.
	StepDone struct {
		At     time.Duration
		Tokens []kvcache.Token
	}
	// StepRead: the step under way reads and writes no KV any more. A driver need not tell.
	StepRead struct{}
	// LayerDone: the step under way has this layer's KV in its blocks, or will have
	// it at a time to come. A driver that has no clock to wait for may tell of the layers
	// after it too, and when their KV will be there.
	LayerDone struct {
		Layer int
		At    time.Duration
		After []time.Duration
	}
	// Copied ends a copy within the node.
	Copied engine.Copied
	// Produce asks for the tensors of a transfer that a decode step fetches.
	Produce struct{ Transfer uint64 }
	// Release ends the hold on a transfer's blocks.
	Release struct{ Transfer uint64 }
	// Produced: the producer has made a tensor of this request available.
	Produced struct {
		ID     uint64
		Tensor int
	}
	// Gone: the producer does not have this request's transfer (any more), which
	// wraps ErrWithdrawn, or is itself gone.
	Gone struct {
		ID  uint64
		Err error
	}
	// Moved ends a Move, well or not, or those of More parts after it too. Err wraps
	// ErrWithdrawn if the other node's window was closed.
	Moved struct {
		ID         uint64
		Part, More int
		Bytes      int64 // of all these parts
		Posted, At time.Duration
		Err        error
	}
	// Arrived is an immediate: a part that the other side wrote is in our blocks, and so are
	// More parts after it.
	Arrived struct {
		ID         uint64
		Part, More int
		Token      kvcache.Token // the first token, with the last part; of a request that comes here, its blocks that are here
		At         time.Duration
	}
	// Checked ends a Check. Err is not nil if a block was bad, and wraps ErrChanged if it was right
	// before on this node. From is the first bad one's index in the block table.
	Checked struct {
		ID     uint64
		Part   int
		Blocks int // checked completely by now
		Bad    int
		From   int
		Err    error
		Again  bool          // as of the Check, with its Refs
		Refs   []kvcache.Ref //
	}
	// Closed ends a Close: nothing outside can touch the request's blocks any more.
	Closed struct{ ID uint64 }
	// Lapsed is Closed of offered blocks that nobody came for: the driver has closed their
	// window when the lease was over.
	Lapsed struct{ ID uint64 }
)

func (Submit) event()    {}
func (Direct) event()    {}
func (Migrate) event()   {}
func (Resume) event()    {}
func (Continue) event()  {}
func (Cancel) event()    {}
func (StepDone) event()  {}
func (StepRead) event()  {}
func (LayerDone) event() {}
func (Copied) event()    {}
func (Produce) event()   {}
func (Release) event()   {}
func (Produced) event()  {}
func (Gone) event()      {}
func (Moved) event()     {}
func (Arrived) event()   {}
func (Checked) event()   {}
func (Closed) event()    {}
func (Lapsed) event()    {}
