#ifndef KVFERRY_VERBS_H
#define KVFERRY_VERBS_H

#include "calls.h"
#include "ibverbs.h"

// The C side of package rdma. Functions return 0 or an errno, unless they say otherwise.

// The calls as they were found in the library.
struct kv_calls {
#define KV_FIELD(type, name, parameters, arguments, version) type(*name) parameters;
	KV_CALLS(KV_FIELD)
	KV_OPTIONAL_CALLS(KV_FIELD)
};

extern struct kv_calls kv_calls;

enum { KV_ABSENT = 1, KV_TOO_OLD };

// Opens the library and finds its calls. It stays open. Returns 0, or one of the above and the
// reason in why, which has size bytes.
int kv_load(const char *file, char *why, size_t size);

// A function of each call's name, to be used once kv_load has returned 0. They are static: a
// driver must find the library's own.
#define KV_FUNCTION(type, name, parameters, arguments, version) \
	static inline type name parameters { return kv_calls.name arguments; }
KV_CALLS(KV_FUNCTION)

// What follows has to be many calls of libibverbs and one call from Go.

enum { KV_WRITE, KV_WRITE_IMM, KV_READ };
enum { KV_SIGNALED = 1, KV_INLINE = 2 };

#define KV_MAX_PAIRS 16

// Laid out as Go's workRequest and completion; verbs_linux.go checks the sizes.
struct kv_wr {
	uint64_t id;
	uint64_t local, remote;
	uint32_t length;
	uint32_t lkey, rkey;
	uint32_t imm;
	uint16_t pair;
	uint8_t op;
	uint8_t flags;
	uint32_t pad;
};

struct kv_wc {
	uint64_t id;
	uint32_t status;
	uint32_t vendor;
	uint32_t imm;
	uint32_t pad;
};

// The queue pairs of one connection, their completion queue and its channel.
struct kv_pairs {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp[KV_MAX_PAIRS];
	int n;
	int max_inline;
	unsigned unacked; // events taken from the channel
};

int kv_pairs_new(struct ibv_context *ctx, struct ibv_pd *pd, uint8_t port, int n, int depth, int max_inline, struct kv_pairs **out);

// Connects pair i to the peer's.
int kv_pairs_start(struct kv_pairs *p, int i, uint8_t port, uint8_t gid_index, int global, const uint8_t *gid, uint16_t lid, uint8_t mtu,
	uint32_t peer_qpn, uint32_t peer_psn, uint32_t psn, uint8_t reads, uint8_t peer_reads);

// Posts requests, runs of one pair at a time.
int kv_post(struct kv_pairs *p, const struct kv_wr *wrs, int n);

// Posts n receives of no memory to pair i.
int kv_receive(struct kv_pairs *p, int i, int n);

// Takes up to max completions, spinning up to spin_ns for the first. Returns how
// many, or -errno.
int kv_poll(struct kv_pairs *p, struct kv_wc *out, int max, int64_t spin_ns);

// Asks for an event at the next completion, and polls.
int kv_arm(struct kv_pairs *p, struct kv_wc *out, int max);

// Takes an event off the channel: EAGAIN if there is none.
int kv_event(struct kv_pairs *p);

// Puts all pairs in the error state.
int kv_pairs_fail(struct kv_pairs *p);

// Destroys what there is. Returns the first error.
int kv_pairs_free(struct kv_pairs *p);

// Takes an asynchronous event if there is one: EAGAIN if not.
int kv_async(struct ibv_context *ctx, int *type, int *port);

// The library writes what there was of attr when the call got its version, which is less than
// there is in all.
int kv_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);

// Both let the device read and write what they register, and return null with errno set if they
// cannot. iova is what requests call the first byte of a dma-buf's part: both are at the same place of a page.
struct ibv_mr *kv_reg_mr(struct ibv_pd *pd, void *addr, size_t length);
struct ibv_mr *kv_reg_dmabuf_mr(struct ibv_pd *pd, int fd, uint64_t offset, size_t length, uint64_t iova);

#endif
