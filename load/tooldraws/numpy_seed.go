package tooldraws

// seedSequence is SeedSequence(seed).generate_state(4, uint64): what numpy hashes a seed to,
// so that near seeds give far streams (after O'Neill, "Developing a seed_seq alternative",
// 2015). Each uint64 is two words, the low one first.
func seedSequence(seed uint64) [4]uint64 {
	pool := mixed([]uint32{uint32(seed), uint32(seed >> 32)})
	var words [8]uint32
	hash := uint32(0x8b51f9dd)
	for i := range words {
		v := pool[i%len(pool)] ^ hash
		hash *= 0x58f38ded
		v *= hash
		words[i] = v ^ v>>16
	}
	var state [4]uint64
	for i := range state {
		state[i] = uint64(words[2*i+1])<<32 | uint64(words[2*i])
	}
	return state
}

// mixed is the pool of entropy: the words of the seed, filled up with zeros, hashed, and
// each mixed into every other. A seed below 2^32 is one word; a second word of 0 gives the
// same pool.
func mixed(seed []uint32) [4]uint32 {
	var pool [4]uint32
	hash := uint32(0x43b0d7e5)
	scramble := func(v uint32) uint32 {
		v ^= hash
		hash *= 0x931e8875
		v *= hash
		return v ^ v>>16
	}
	for i := range pool {
		if i < len(seed) {
			pool[i] = seed[i]
		}
		pool[i] = scramble(pool[i])
	}
	for from := range pool {
		for to := range pool {
			if from != to {
				v := pool[to]*0xca01f9dd - scramble(pool[from])*0x4973f715
				pool[to] = v ^ v>>16
			}
		}
	}
	return pool
}
