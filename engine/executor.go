package engine

import (
	"context"
	"time"

	"kvferry/kvcache"
)

// An Executor computes steps. There is one at a time: the driver runs the next
// only after the last has returned.
//
// Run computes step, which the scheduler launched at step.At, and returns when
// it ended on the driver's clock, not before that time, with one token for each
// Work that samples, in order of Works. layer, if not nil, is called for layers
// 0, 1, ... in order, each as soon as the KV of that layer is in the blocks of
// all the step's prompts and no later than Run returns, with the time it was
// there. An error ends the node: an engine that cannot compute serves nobody.
type Executor interface {
	Run(ctx context.Context, step *Step, layer func(layer int, at time.Duration)) (end time.Duration, tokens []kvcache.Token, err error)
}
