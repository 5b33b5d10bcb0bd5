//go:build cshared

// The border to C: every function of kvferry.h looks here whether the process was forked, before
// it enters Go, whose runtime does not survive that. The text of an error lies here too, one a thread.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "_cgo_export.h"

static atomic_bool forked;
static _Thread_local char text[1024];

static void in_child(void) { atomic_store(&forked, 1); }

__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, in_child); }

static int refuse(void) {
	snprintf(text, sizeof text, "this process was forked with libkvferry in it: load the library after the fork, or exec");
	return KVF_ERR_FORKED;
}

#define ENTER(call) (atomic_load(&forked) ? refuse() : (call))

uint32_t kvf_version(void) { return KVF_VERSION; }

const char *kvf_error(void) { return text; }

const char *kvf_build(void) {
	static _Thread_local char build[64];
	if (!atomic_load(&forked)) kvfBuild(build, sizeof build);
	return build;
}

int kvf_engine_open(const kvf_engine_options *options, kvf_engine *engine) {
	return ENTER(kvfEngineOpen((kvf_engine_options *)options, engine, text, sizeof text));
}

int kvf_engine_close(kvf_engine engine) { return ENTER(kvfEngineClose(engine, text, sizeof text)); }

int kvf_register(kvf_engine engine, const kvf_memory *memory, kvf_segment *segment) {
	return ENTER(kvfRegister(engine, (kvf_memory *)memory, segment, text, sizeof text));
}

int kvf_deregister(kvf_engine engine, kvf_segment segment) {
	return ENTER(kvfDeregister(engine, segment, text, sizeof text));
}

int kvf_advertise(kvf_engine engine, const kvf_segment *segments, size_t count, char *buffer, size_t capacity, size_t *length) {
	return ENTER(kvfAdvertise(engine, (kvf_segment *)segments, count, buffer, capacity, length, text, sizeof text));
}

int kvf_connect(kvf_engine engine, const char *advertisement, size_t length, kvf_target *target) {
	return ENTER(kvfConnect(engine, (char *)advertisement, length, target, text, sizeof text));
}

int kvf_disconnect(kvf_engine engine, kvf_target target) {
	return ENTER(kvfDisconnect(engine, target, text, sizeof text));
}

int kvf_submit(kvf_engine engine, kvf_target target, int op, const kvf_range *ranges, size_t count,
               const kvf_batch_options *options, kvf_batch *batch) {
	return ENTER(kvfSubmit(engine, target, op, (kvf_range *)ranges, count, (kvf_batch_options *)options, batch, text, sizeof text));
}

int kvf_cancel(kvf_engine engine, kvf_batch batch) { return ENTER(kvfCancel(engine, batch, text, sizeof text)); }

int kvf_poll(kvf_engine engine, kvf_completion *completions, size_t size, size_t capacity) {
	return ENTER(kvfPoll(engine, completions, size, capacity, text, sizeof text));
}

int kvf_receive(kvf_engine engine, kvf_message *message, size_t size, void *buffer, size_t capacity) {
	return ENTER(kvfReceive(engine, message, size, buffer, capacity, text, sizeof text));
}

int kvf_descriptor(kvf_engine engine) { return ENTER(kvfDescriptor(engine, text, sizeof text)); }

int kvf_rails(kvf_engine engine, kvf_rail *rails, size_t size, size_t capacity) {
	return ENTER(kvfRails(engine, rails, size, capacity, text, sizeof text));
}
