/* kvferry's transfer engine: byte ranges between registered memory of different processes, over TCP,
 * RDMA, or memory to memory, over several NICs, with failover.
 *
 *   engine    rails, which are NICs to use, and what moves over them
 *   segment   registered memory of the caller's
 *   target    a peer's segments, by the advertisement that the peer gave
 *   batch     ranges submitted together; it ends once, with a completion
 *
 * Transfers are one-sided: the peer registers memory, advertises it, and takes no further part. A completed
 * WRITE's bytes are in the peer's memory, a completed READ's are here.
 *
 * Every function may be called from any thread, several at once, and none calls back. None waits for a
 * peer but kvf_deregister and kvf_engine_close. A function returns KVF_OK or a count, or one of the negative
 * codes of kvf_code: kvf_error then has a text for people, for this thread, until the next error.
 *
 * Versions: a program compiled with this header runs with a library of the same major version, if its
 * minor version is the same or higher (kvf_version). Structs grow at their end, so set struct_size to the
 * size of the struct and all that you do not use to zero.
 *
 * The library must not be used in a process that was forked with it (KVF_ERR_FORKED); fork and exec is fine. It
 * leaves the host's signal handlers alone. docs/c-interface.md says more. */
#ifndef KVFERRY_H
#define KVFERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVF_VERSION_MAJOR 1
#define KVF_VERSION_MINOR 0
#define KVF_VERSION (KVF_VERSION_MAJOR << 16 | KVF_VERSION_MINOR)

/* kvf_version is KVF_VERSION of the library. */
uint32_t kvf_version(void);

/* kvf_build is the commit that the library was built of. */
const char *kvf_build(void);

typedef enum kvf_code {
	KVF_OK = 0,
	KVF_ERR_INVALID = -1,         /* an argument, or a field of one */
	KVF_ERR_HANDLE = -2,          /* no such engine, segment, target or batch */
	KVF_ERR_FORKED = -3,          /* this process was forked with the library in it */
	KVF_ERR_UNSUPPORTED = -4,     /* this library cannot do that */
	KVF_ERR_SPACE = -5,           /* the caller's buffer is too small */
	KVF_ERR_INTERNAL = -6,        /* a fault of the library's */
	KVF_ERR_SYSTEM = -7,          /* what the operating system said */
	KVF_ERR_CLOSED = -8,          /* the engine or segment is closed */
	KVF_ERR_NOT_REGISTERED = -9,  /* local memory in no registered segment */
	KVF_ERR_NO_PATH = -10,        /* no rail here reaches one of the peer's */
	KVF_ERR_UNREACHABLE = -11,    /* the peer cannot be connected */
	KVF_ERR_DEADLINE = -12,       /* the batch's time was up */
	KVF_ERR_CANCELED = -13,       /* the batch was canceled */
	KVF_ERR_BAD_KEY = -14,        /* the peer has closed the segment */
	KVF_ERR_BOUNDS = -15,         /* outside what the peer has opened */
	KVF_ERR_ACCESS = -16,         /* not in that direction */
	KVF_ERR_UNCONFIRMED = -17,    /* the segment was closed after the batch may have come */
	KVF_ERR_BUSY = -18,           /* too much waits to be taken, here (kvf_submit) or at the peer (kvf_receive) */
	KVF_ERR_PROTOCOL = -19        /* the peer speaks something else */
} kvf_code;

/* kvf_error is the text of the last error on this thread. It is the library's, until the next error. */
const char *kvf_error(void);

/* Handles are never zero and never used twice. One of something that is closed is KVF_ERR_HANDLE. */
typedef uint64_t kvf_engine;
typedef uint64_t kvf_segment;
typedef uint64_t kvf_target;
typedef uint64_t kvf_batch;

/* Texts end in a zero byte and are the caller's again when the function returns. */
typedef struct kvf_engine_options {
	uint32_t struct_size;
	uint32_t timeout_ms;    /* of batches without one of their own; 0: 30 s */
	const char *rails;      /* with commas between: "tcp/eth0?conns=2,rdma/mlx5_0"; "tcp/all": TCP over each NIC (docs/c-interface.md) */
	const char *selection;  /* "affinity", "static", "round-robin", "single"; NULL: affinity */
	const char *matrix;     /* a file: which NIC is near which memory; NULL: ask the machine */
	const char *log;        /* to standard error from this level on: "debug", "info", "warn", "error", "off"; NULL: warn */
	uint64_t slice_bytes;   /* the most that goes over one rail in one operation; 0: 1 MiB */
	const char *name;       /* what peers are told with messages, up to 255 bytes; NULL: none */
} kvf_engine_options;

int kvf_engine_open(const kvf_engine_options *options, kvf_engine *engine);

/* kvf_engine_close ends all batches and closes what the engine has. When it returns all memory is the caller's,
 * and completions that were not polled are gone. */
int kvf_engine_close(kvf_engine engine);

enum {
	KVF_MEMORY_HOST = 0,    /* mapped into this process; also what a GPU's driver pinned, cudaHostAlloc */
	KVF_MEMORY_DMABUF = 1,  /* a GPU's, by a dma-buf of it: over RDMA only, else KVF_ERR_NO_PATH */
	KVF_MEMORY_MEMFD = 2    /* of a memfd, which the library maps, and seals against shrinking */
};

enum {
	KVF_PRIVATE = 1  /* no key for peers: only the local side of this engine's batches */
};

typedef struct kvf_memory {
	uint32_t struct_size;
	uint32_t kind;
	void *address;         /* the first byte; of a DMABUF or MEMFD what ranges call it, and no more */
	uint64_t length;       /* bytes */
	const char *name;      /* for errors; NULL: none */
	const char *location;  /* what it is near: "cpu:0", "cuda:1"; NULL: cpu:0 */
	uint32_t flags;
	int32_t descriptor;    /* of a DMABUF or MEMFD: the caller's, who may close it when kvf_register has returned */
	uint64_t offset;       /* of a DMABUF or MEMFD: of the first byte in it; need not be aligned */
} kvf_memory;

/* kvf_register makes a segment of memory, which is used where it is and must stay mapped until kvf_deregister or
 * kvf_engine_close returns. Memory that is not mapped, and read-only memory that is not KVF_PRIVATE, is KVF_ERR_INVALID.
 * Transfers that touch memory which was unmapped or protected since end with KVF_ERR_SYSTEM. Memory may be registered more than once. That of a descriptor is the library's to keep; no other memory
 * may be registered under the same addresses. */
int kvf_register(kvf_engine engine, const kvf_memory *memory, kvf_segment *segment);

/* kvf_deregister returns when the memory is the caller's again: when the batches that use it have ended. */
int kvf_deregister(kvf_engine engine, kvf_segment segment);

/* kvf_advertise writes what a peer needs of segments, as text without newlines or a zero byte. Whoever has
 * it may read and write them. *length is how long it is, also if that is KVF_ERR_SPACE. */
int kvf_advertise(kvf_engine engine, const kvf_segment *segments, size_t count, char *buffer, size_t capacity, size_t *length);

/* kvf_connect opens what a peer has advertised. Connections are made in the background and made again when
 * they are lost. */
int kvf_connect(kvf_engine engine, const char *advertisement, size_t length, kvf_target *target);

/* kvf_disconnect lets the connections go that nothing else uses. Batches under way go on. */
int kvf_disconnect(kvf_engine engine, kvf_target target);

enum {
	KVF_WRITE = 0,  /* local memory to the target */
	KVF_READ = 1    /* target to local memory */
};

/* A kvf_range is count pieces of length bytes, at equal distances in both memories. Pieces that touch in
 * both are moved as one. */
typedef struct kvf_range {
	void *local;            /* the first piece; all of them are in one registered segment */
	uint64_t remote;        /* its offset in the target's segment, bytes */
	uint64_t length;        /* of each piece, bytes */
	uint64_t count;         /* 0 is 1 */
	int64_t local_stride;   /* from one piece's first byte to the next one's; may be negative */
	int64_t remote_stride;
	uint32_t segment;       /* of the target, in the order of its advertisement */
	uint32_t reserved;      /* 0 */
} kvf_range;

enum {
	KVF_BY_SIZE = 0,  /* batches of up to 32 KiB are urgent */
	KVF_BULK = 1,
	KVF_URGENT = 2    /* may go past bulk to the same peer, up to 1 MiB */
};

typedef struct kvf_batch_options {
	uint32_t struct_size;
	uint32_t timeout_ms;   /* from kvf_submit; 0: the engine's */
	uint64_t user_data;    /* comes back with the completion */
	const char *tag;       /* names the serving request in errors; NULL: none */
	uint32_t priority;
	uint32_t reserved;     /* 0 */
	const void *message;   /* for the peer, once all ranges are done, READs too: up to 64 KiB; NULL: none */
	uint64_t message_length;
} kvf_batch_options;

/* kvf_submit starts a batch and does not wait for it. ranges and options are the caller's again when it
 * returns, the memory that they name when the completion is polled. options may be NULL, and so may batch. A batch has
 * at most 1,048,576 pieces; one without ranges is its message. 65,536 batches may be under way or wait to be polled: of
 * one more nothing is done, KVF_ERR_BUSY. */
int kvf_submit(kvf_engine engine, kvf_target target, int op, const kvf_range *ranges, size_t count,
               const kvf_batch_options *options, kvf_batch *batch);

/* kvf_cancel ends a batch early: its completion comes soon, most often with KVF_ERR_CANCELED. */
int kvf_cancel(kvf_engine engine, kvf_batch batch);

typedef struct kvf_completion {
	kvf_batch batch;
	uint64_t user_data;
	uint64_t bytes;        /* of its ranges */
	uint64_t elapsed_ns;   /* from kvf_submit to its end */
	int32_t code;          /* KVF_OK, or how it failed */
	uint32_t reserved;
	char error[256];       /* the text; empty for KVF_OK */
} kvf_completion;

/* kvf_poll takes completions, at most capacity, oldest first, and returns how many. Every batch has exactly one.
 * size is sizeof(kvf_completion). It does not wait. */
int kvf_poll(kvf_engine engine, kvf_completion *completions, size_t size, size_t capacity);

typedef struct kvf_message {
	uint64_t length;       /* of the message, bytes */
	char sender[256];      /* name of the peer's engine: what it says of itself */
	char segment[256];     /* name of the segment that the batch was submitted for, the first of its target's */
} kvf_message;

/* kvf_receive takes the oldest message of a peer's batch and puts it into buffer: it returns 1, or 0 if there is
 * none. A message comes exactly once, when all bytes of its batch are there, and waits until it is taken; those of several batches
 * come in any order. One longer than capacity stays: KVF_ERR_SPACE, and message->length. size is sizeof(kvf_message).
 *
 * 16,384 messages may wait, or 16 MiB of them. One that finds no room does not come: its batch ends with KVF_ERR_BUSY at
 * the peer, all its bytes are there, and a batch without ranges sends the message again. */
int kvf_receive(kvf_engine engine, kvf_message *message, size_t size, void *buffer, size_t capacity);

/* kvf_descriptor returns a file descriptor that is readable (poll, epoll, select) while a completion or a message waits.
 * It is the engine's, which closes it; do not read it. */
int kvf_descriptor(kvf_engine engine);

typedef struct kvf_rail {
	char name[64];          /* "tcp/eth0" */
	char address[128];      /* what peers dial */
	uint64_t written;       /* bytes of this engine's batches that have arrived */
	uint64_t read;          /* likewise */
	uint64_t slices;        /* operations posted */
	uint64_t errors;        /* of them failed */
	uint64_t retries;       /* queued again, here or on another rail */
	uint64_t resent;        /* bytes of those that had been posted */
	uint64_t in_flight;     /* bytes queued and posted now */
	uint64_t rate;          /* bytes/s that its paths were last seen to deliver */
	uint64_t dials;         /* attempts to connect */
	uint64_t dial_errors;
	uint64_t connections;   /* open now */
	uint64_t paths;         /* to peers */
	uint64_t paths_up;      /* of them connected */
	uint64_t downs;         /* times that a path was lost or given up */
} kvf_rail;

/* kvf_rails writes what each rail has done so far, at most capacity of them, and returns how many rails there
 * are. size is sizeof(kvf_rail). */
int kvf_rails(kvf_engine engine, kvf_rail *rails, size_t size, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
