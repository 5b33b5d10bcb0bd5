package kvcache

// KilledFor says why a process that nobody here has killed was: since is what [OutOfMemory]
// was before.
func KilledFor(since int64) string {
	if OutOfMemory() > since {
		return "the kernel has ended a process because memory ran out"
	}
	return "somebody else has ended it, or the kernel because memory ran out"
}
