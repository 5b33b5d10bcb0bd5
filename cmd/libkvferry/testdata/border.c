// What kvferry.h promises, checked from C: bytes, codes, texts, handles, threads, forks and signals. It
// prints what is not so and exits with 1. Two engines of this process stand for two processes.

#define _GNU_SOURCE // memfd_create
#include <kvferry.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int faults;

#define CHECK(ok, ...) \
	do { \
		if (!(ok)) { \
			__atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST); \
			fprintf(stderr, "border.c:%d: %s: ", __LINE__, #ok); \
			fprintf(stderr, __VA_ARGS__); \
			fprintf(stderr, " (%s)\n", kvf_error()); \
		} \
	} while (0)

// end is for what makes all else meaningless.
#define NEED(ok, ...) \
	do { \
		CHECK(ok, __VA_ARGS__); \
		if (faults) exit(1); \
	} while (0)

enum { SIZE = 1 << 20 };

struct side {
	kvf_engine engine;
	kvf_segment segment;
	char *memory; // malloc'ed, at an odd address
};

static struct side here, there;

static void open_side(struct side *s, const char *name) {
	kvf_engine_options o = {.struct_size = sizeof o, .rails = "127.0.0.1:0", .log = "off", .name = name};
	NEED(kvf_engine_open(&o, &s->engine) == KVF_OK, "open");
	s->memory = (char *)malloc(SIZE + 1) + 1;
	memset(s->memory, 0, SIZE);
	kvf_memory m = {.struct_size = sizeof m, .address = s->memory, .length = SIZE, .name = name};
	NEED(kvf_register(s->engine, &m, &s->segment) == KVF_OK, "register");
}

static kvf_target connect_to(struct side *from, struct side *to) {
	size_t length = 0;
	int code = kvf_advertise(to->engine, &to->segment, 1, NULL, 0, &length);
	NEED(code == KVF_ERR_SPACE && length > 0, "advertise without room: %d, %zu", code, length);
	char *text = malloc(length);
	NEED(kvf_advertise(to->engine, &to->segment, 1, text, length, &length) == KVF_OK, "advertise");
	kvf_target target = 0;
	NEED(kvf_connect(from->engine, text, length, &target) == KVF_OK, "connect");
	free(text);
	return target;
}

// finish waits for n completions and counts those that failed.
static int finish(kvf_engine engine, int n) {
	struct pollfd p = {.fd = kvf_descriptor(engine), .events = POLLIN};
	NEED(p.fd >= 0, "descriptor %d", p.fd);
	int failed = 0;
	while (n > 0) {
		int ready = poll(&p, 1, 60000);
		if (ready < 0 && errno == EINTR) continue;
		NEED(ready == 1, "nothing to poll after a minute");
		kvf_completion all[16];
		int got = kvf_poll(engine, all, sizeof all[0], 16);
		NEED(got > 0 && got <= n, "%d completions of %d", got, n);
		for (int i = 0; i < got; i++) {
			if (all[i].code == KVF_OK && all[i].error[0]) CHECK(0, "a text without an error: %s", all[i].error);
			if (all[i].code != KVF_OK) failed++;
		}
		n -= got;
	}
	return failed;
}

static void transfers(kvf_target target, int round) {
	memset(there.memory, 0, SIZE);
	for (int i = 0; i < SIZE; i++) here.memory[i] = (char)(i * 7 + (i >> 8));
	kvf_range r[2] = {
		{.local = here.memory, .remote = 5, .length = 100, .count = 1000, .local_stride = 200, .remote_stride = 300},
		{.local = here.memory + SIZE - 1, .remote = SIZE - 1, .length = 1},
	};
	kvf_batch batch = 0;
	kvf_batch_options o = {.struct_size = sizeof o, .user_data = 42, .tag = "request 7"};
	NEED(kvf_submit(here.engine, target, KVF_WRITE, r, 2, &o, &batch) == KVF_OK, "submit");
	memset(r, 0xff, sizeof r); // is the caller's again
	CHECK(batch != 0 && finish(here.engine, 1) == 0, "write");
	int wrong = there.memory[SIZE - 1] != here.memory[SIZE - 1];
	for (int k = 0; k < 1000; k++) {
		wrong += memcmp(there.memory + 5 + 300 * k, here.memory + 200 * k, 100) != 0;
		wrong += there.memory[5 + 300 * k + 100] != 0;
	}
	CHECK(wrong == 0, "%d pieces are wrong", wrong);

	kvf_range back = {.local = here.memory + SIZE / 2, .remote = 5, .length = 100, .count = 1000, .local_stride = 100, .remote_stride = 300};
	NEED(kvf_submit(here.engine, target, KVF_READ, &back, 1, NULL, NULL) == KVF_OK, "submit");
	CHECK(finish(here.engine, 1) == 0, "read");
	wrong = 0;
	for (int k = 0; k < 1000; k++) wrong += memcmp(here.memory + SIZE / 2 + 100 * k, here.memory + 200 * k, 100) != 0;
	CHECK(wrong == 0, "%d pieces came back wrong", wrong);

	kvf_rail rails[4];
	int n = kvf_rails(here.engine, rails, sizeof rails[0], 4);
	CHECK(n == 1 && rails[0].written >= 100001ul * round && rails[0].read >= 100000ul * round && !strcmp(rails[0].name, "tcp/0") && rails[0].paths_up == 1,
	      "%d rails, %lu bytes written", n, (unsigned long)rails[0].written);
}

// memfd: memory by its descriptor, which is closed at once, and by an address where something else is.
static void memfd(kvf_target target) {
	int fd = memfd_create("border", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	NEED(fd >= 0 && ftruncate(fd, SIZE) == 0, "memfd");
	char *mine = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(mine != MAP_FAILED, "mmap");
	char place[6000] = "not to be touched";
	kvf_memory m = {.struct_size = sizeof m, .kind = KVF_MEMORY_MEMFD, .address = place, .length = sizeof place, .descriptor = fd, .offset = 4000};
	kvf_segment segment = 0;
	NEED(kvf_register(here.engine, &m, &segment) == KVF_OK, "register");
	m.offset = SIZE - 1;
	kvf_segment none = 0;
	CHECK(kvf_register(here.engine, &m, &none) == KVF_ERR_INVALID && none == 0, "beyond the memfd's end");
	close(fd);
	memset(mine, 'f', SIZE);
	kvf_range r = {.local = place + 1000, .length = 5000};
	NEED(kvf_submit(here.engine, target, KVF_WRITE, &r, 1, NULL, NULL) == KVF_OK, "submit");
	CHECK(finish(here.engine, 1) == 0 && there.memory[0] == 'f' && there.memory[4999] == 'f', "write");
	there.memory[4999] = 'r';
	NEED(kvf_submit(here.engine, target, KVF_READ, &r, 1, NULL, NULL) == KVF_OK, "submit");
	CHECK(finish(here.engine, 1) == 0 && mine[4000 + 5999] == 'r' && mine[4000 + 6000] == 'f', "read");
	CHECK(!strcmp(place, "not to be touched"), "the address was touched");
	CHECK(kvf_deregister(here.engine, segment) == KVF_OK, "deregister");
	munmap(mine, SIZE);
}

// taken_away: memory is checked when it is registered. What is protected or unmapped later fails the batches that touch
// it, on either side, although the host has a SIGSEGV handler of its own.
static void taken_away(kvf_target good) {
	char *theirs = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(theirs != MAP_FAILED, "mmap");
	kvf_memory m = {.struct_size = sizeof m, .address = theirs, .length = SIZE, .name = "taken"};
	struct side taken = {.engine = there.engine, .memory = theirs};
	CHECK(kvf_register(there.engine, &m, &taken.segment) == KVF_ERR_INVALID && strstr(kvf_error(), "read-only") && strstr(kvf_error(), "taken"), "read-only memory");
	m.flags = KVF_PRIVATE;
	CHECK(kvf_register(there.engine, &m, &taken.segment) == KVF_OK && kvf_deregister(there.engine, taken.segment) == KVF_OK, "read-only memory, private");
	mprotect(theirs, SIZE, PROT_NONE);
	CHECK(kvf_register(there.engine, &m, &taken.segment) == KVF_ERR_INVALID, "memory that must not be read");
	mprotect(theirs, SIZE, PROT_READ | PROT_WRITE);
	m.flags = 0;
	NEED(kvf_register(there.engine, &m, &taken.segment) == KVF_OK, "register");
	kvf_target target = connect_to(&here, &taken);
	m = (kvf_memory){.struct_size = sizeof m, .address = theirs, .length = SIZE, .name = "mine", .flags = KVF_PRIVATE};
	kvf_segment mine = 0;
	NEED(kvf_register(here.engine, &m, &mine) == KVF_OK, "register");
	mprotect(theirs, SIZE, PROT_NONE); // as unmapped, and nobody else maps there
	for (int op = KVF_WRITE; op <= KVF_READ; op++) {
		for (size_t length = 100; length <= SIZE / 4; length *= 1000) {
			for (int local = 0; local < 2; local++) {
				kvf_range r = {.local = local ? theirs : here.memory, .length = length};
				NEED(kvf_submit(here.engine, local ? good : target, op, &r, 1, NULL, NULL) == KVF_OK, "submit");
				struct pollfd p = {.fd = kvf_descriptor(here.engine), .events = POLLIN};
				while (poll(&p, 1, 60000) < 0) {}
				kvf_completion c;
				CHECK(kvf_poll(here.engine, &c, sizeof c, 1) == 1 && c.code == KVF_ERR_SYSTEM && strstr(c.error, local ? "\"mine\"" : "\"taken\""), "op %d, %zu bytes, local %d: code %d: %s", op, length, local, c.code, c.error);
			}
		}
	}
	CHECK(kvf_deregister(here.engine, mine) == KVF_OK && kvf_deregister(there.engine, taken.segment) == KVF_OK, "deregister");
	kvf_disconnect(here.engine, target);
}

static void messages(kvf_target target) {
	char bytes[] = "done\0with it", got[64] = "";
	kvf_range r = {.local = here.memory, .length = 100};
	kvf_batch_options o = {.struct_size = sizeof o, .message = bytes, .message_length = sizeof bytes};
	kvf_message m;
	CHECK(kvf_receive(there.engine, &m, sizeof m, got, sizeof got) == 0, "a message before there is one");
	for (int op = KVF_WRITE; op <= KVF_READ; op++) {
		NEED(kvf_submit(here.engine, target, op, &r, 1, &o, NULL) == KVF_OK, "submit");
		struct pollfd p = {.fd = kvf_descriptor(there.engine), .events = POLLIN};
		while (poll(&p, 1, 60000) < 0) {}
		CHECK(kvf_receive(there.engine, &m, sizeof m, got, 3) == KVF_ERR_SPACE && m.length == sizeof bytes, "room for 3: %lu", (unsigned long)m.length);
		CHECK(kvf_receive(there.engine, &m, sizeof m, got, sizeof got) == 1 && m.length == sizeof bytes && !memcmp(got, bytes, sizeof bytes) &&
		          !strcmp(m.sender, "here") && !strcmp(m.segment, "there"), "%lu bytes from %s for %s", (unsigned long)m.length, m.sender, m.segment);
		CHECK(kvf_receive(there.engine, &m, sizeof m, got, sizeof got) == 0, "a message again");
		CHECK(finish(here.engine, 1) == 0, "a batch with a message");
	}
	o.message = NULL;
	CHECK(kvf_submit(here.engine, target, KVF_WRITE, &r, 1, &o, NULL) == KVF_ERR_INVALID, "a message at no address");
}

static void *another(void *out) {
	kvf_poll(0, NULL, 0, 0);
	strcpy(out, kvf_error());
	return NULL;
}

static void errors(kvf_target target) {
	CHECK(kvf_engine_open(NULL, NULL) == KVF_ERR_INVALID, "nothing at all");
	kvf_engine e = 0;
	CHECK(kvf_engine_open(NULL, &e) == KVF_ERR_INVALID && strstr(kvf_error(), "no rails"), "no options");
	kvf_engine_options o = {.struct_size = sizeof o, .rails = "tcp/nosuch0"};
	CHECK(kvf_engine_open(&o, &e) == KVF_ERR_INVALID && strstr(kvf_error(), "nosuch0") && e == 0, "a NIC that is none");
	o.struct_size = 0;
	CHECK(kvf_engine_open(&o, &e) == KVF_ERR_INVALID && strstr(kvf_error(), "struct_size"), "no size");

	char other[256] = "";
	pthread_t t;
	pthread_create(&t, NULL, another, other);
	pthread_join(t, NULL);
	CHECK(strstr(other, "no such handle") && strstr(kvf_error(), "struct_size"), "texts of two threads: %s", other);

	kvf_range r = {.local = &r, .length = 8};
	CHECK(kvf_submit(here.engine, target, KVF_WRITE, &r, 1, NULL, NULL) == KVF_ERR_NOT_REGISTERED, "memory that is not registered");
	r = (kvf_range){.local = here.memory, .length = SIZE};
	CHECK(kvf_submit(here.engine, target, 7, &r, 1, NULL, NULL) == KVF_ERR_INVALID, "op 7");
	CHECK(kvf_submit(here.engine, target, KVF_WRITE, NULL, 1, NULL, NULL) == KVF_ERR_INVALID, "no ranges");
	CHECK(kvf_submit(here.engine, target, KVF_WRITE, &r, SIZE_MAX / 8, NULL, NULL) == KVF_ERR_INVALID, "more ranges than memory has");
	kvf_batch_options long_message = {.struct_size = sizeof long_message, .message = &r, .message_length = SIZE_MAX};
	CHECK(kvf_submit(here.engine, target, KVF_WRITE, &r, 1, &long_message, NULL) == KVF_ERR_INVALID, "a message beyond the end of memory");
	CHECK(kvf_submit(here.engine, 0, KVF_WRITE, &r, 1, NULL, NULL) == KVF_ERR_HANDLE, "no target");
	CHECK(kvf_connect(here.engine, "x", 1, &target) == KVF_ERR_INVALID, "no advertisement");
	CHECK(kvf_cancel(here.engine, 1ull << 60) == KVF_ERR_HANDLE, "no batch");
	kvf_memory m = {.struct_size = sizeof m, .kind = KVF_MEMORY_DMABUF, .address = &m, .length = 1, .descriptor = 0};
	kvf_segment s = 0;
	CHECK(kvf_register(here.engine, &m, &s) == KVF_ERR_NO_PATH && strstr(kvf_error(), "tcp/0 cannot move memory that is not mapped"), "a dma-buf");
	m = (kvf_memory){.struct_size = sizeof m, .address = (void *)-4096, .length = SIZE};
	CHECK(kvf_register(here.engine, &m, &s) == KVF_ERR_INVALID, "memory beyond the end of memory");
	kvf_completion c;
	CHECK(kvf_poll(here.engine, &c, 0, 1) == KVF_ERR_INVALID, "completions of no size");
	CHECK(kvf_poll(here.engine, &c, sizeof c, 1) == 0, "nothing to poll");

	r.remote = 1;
	NEED(kvf_submit(here.engine, target, KVF_WRITE, &r, 1, NULL, NULL) == KVF_OK, "submit");
	struct pollfd p = {.fd = kvf_descriptor(here.engine), .events = POLLIN};
	while (poll(&p, 1, 60000) < 0) {}
	CHECK(kvf_poll(here.engine, &c, sizeof c, 1) == 1 && c.code == KVF_ERR_BOUNDS && strstr(c.error, "out of bounds"), "code %d: %s", c.code, c.error);
}

static void *submitter(void *target) {
	for (int i = 0; i < 100; i++) {
		kvf_range r = {.local = here.memory + 64 * i, .remote = 64 * i, .length = 64};
		CHECK(kvf_submit(here.engine, *(kvf_target *)target, i % 2, &r, 1, NULL, NULL) == KVF_OK, "submit");
	}
	return NULL;
}

static void threads(kvf_target target) {
	pthread_t t[4];
	for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, submitter, &target);
	CHECK(finish(here.engine, 400) == 0, "four threads");
	for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
	kvf_completion c;
	CHECK(kvf_poll(here.engine, &c, sizeof c, 1) == 0, "more completions than batches");
}

static void forks(void) {
	pid_t child = fork();
	if (child == 0) {
		alarm(60); // what hangs is killed
		kvf_completion c;
		kvf_engine_options o = {.struct_size = sizeof o, .rails = "cma"};
		kvf_engine e;
		int ok = kvf_poll(here.engine, &c, sizeof c, 1) == KVF_ERR_FORKED && kvf_engine_open(&o, &e) == KVF_ERR_FORKED &&
		         kvf_engine_close(here.engine) == KVF_ERR_FORKED && strstr(kvf_error(), "forked") && kvf_version() == KVF_VERSION;
		_exit(ok ? 0 : 1);
	}
	int status = -1;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
	CHECK(status == 0, "the child's status is %#x", status);
	CHECK(system("exit 3") == 3 << 8, "fork and exec");
}

static volatile sig_atomic_t heard[65];
static sigjmp_buf back;

static void handle(int sig) {
	heard[sig]++;
	if (sig == SIGSEGV) siglongjmp(back, 1);
}

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGALRM, SIGSEGV};

static void set_signals(void) {
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
		struct sigaction a = {.sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART};
		sigaction(signals[i], &a, NULL);
	}
}

// check_signals: the handlers are still the host's, and get their signals.
static void check_signals(void) {
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
		int sig = signals[i];
		struct sigaction a;
		sigaction(sig, NULL, &a);
		CHECK(a.sa_handler == handle, "signal %d has another handler", sig);
		int before = heard[sig];
		if (sig != SIGSEGV) {
			raise(sig);
		} else if (!sigsetjmp(back, 1)) {
			*(volatile int *)8 = 1;
		}
		CHECK(heard[sig] == before + 1, "signal %d came %d times", sig, heard[sig] - before);
	}
}

int main(void) {
	CHECK(kvf_version() == KVF_VERSION && kvf_build()[0], "version %#x, build %s", kvf_version(), kvf_build());
	set_signals();
	open_side(&here, "here");
	open_side(&there, "there");
	kvf_target target = connect_to(&here, &there);
	transfers(target, 1);
	memfd(target);
	taken_away(target);
	messages(target);
	errors(target);
	threads(target);
	check_signals();
	forks();
	transfers(target, 2); // after all that
	check_signals();

	CHECK(kvf_disconnect(here.engine, target) == KVF_OK && kvf_disconnect(here.engine, target) == KVF_ERR_HANDLE, "disconnect");
	for (int i = 0; i < 2; i++) {
		struct side *s = i ? &here : &there;
		CHECK(kvf_deregister(s->engine, s->segment) == KVF_OK, "deregister");
		CHECK(kvf_deregister(s->engine, s->segment) == KVF_ERR_HANDLE, "deregister again");
		free(s->memory - 1);
		CHECK(kvf_engine_close(s->engine) == KVF_OK, "close");
		CHECK(kvf_engine_close(s->engine) == KVF_ERR_HANDLE, "close again");
	}
	return faults > 0;
}
