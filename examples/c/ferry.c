// Two processes, one writes into the other's memory. The target registers memory, writes its advertisement
// to a file, and takes no further part; the initiator connects, keeps some batches under way, and at last
// reads back what it wrote. See README.md.

#include <kvferry.h>

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void need(int code, const char *what) {
	if (code < 0) {
		fprintf(stderr, "ferry: %s: %s (%d)\n", what, kvf_error(), code);
		exit(1);
	}
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static kvf_engine open_engine(const char *rails) {
	kvf_engine_options o = {.struct_size = sizeof o, .rails = rails};
	kvf_engine engine;
	need(kvf_engine_open(&o, &engine), rails);
	return engine;
}

// memory is size bytes that are there, and their segment.
static char *memory(kvf_engine engine, size_t size, const char *name, kvf_segment *segment) {
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		perror("ferry: mmap");
		exit(1);
	}
	madvise(at, size, MADV_HUGEPAGE); // if there are any
	for (size_t i = 0; i < size; i += 8) *(uint64_t *)(at + i) = i * 0x9e3779b97f4a7c15u;
	kvf_memory m = {.struct_size = sizeof m, .address = at, .length = size, .name = name, .location = "cpu:0"};
	need(kvf_register(engine, &m, segment), name);
	return at;
}

static int target(const char *rails, const char *file, size_t size) {
	kvf_engine engine = open_engine(rails);
	kvf_segment segment;
	memory(engine, size, "kv", &segment);
	char text[4096], part[4096];
	size_t length;
	need(kvf_advertise(engine, &segment, 1, text, sizeof text, &length), "advertise");
	snprintf(part, sizeof part, "%s.part", file);
	FILE *f = fopen(part, "w");
	if (!f || fwrite(text, 1, length, f) != length || fclose(f) || rename(part, file)) {
		perror(file);
		return 1;
	}
	while (getchar() != EOF) {} // serve until standard input ends
	need(kvf_engine_close(engine), "close");
	return 0;
}

// shuffle is the numbers below n in a random order.
static uint32_t *shuffle(size_t n) {
	uint32_t *order = malloc(n * sizeof *order);
	for (size_t i = 0; i < n; i++) {
		size_t k = random() % (i + 1);
		order[i] = order[k];
		order[k] = i;
	}
	return order;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int initiator(const char *rails, const char *file, size_t size, size_t block, size_t batch, int depth, double seconds) {
	enum { MOST = 1 << 20 };
	char text[4096];
	size_t length = 0, blocks = size / block;
	FILE *f;
	for (double end = now() + 30; !(f = fopen(file, "r")); usleep(10000)) {
		if (now() > end) {
			perror(file);
			return 1;
		}
	}
	length = fread(text, 1, sizeof text, f);
	fclose(f);

	kvf_engine engine = open_engine(rails);
	kvf_segment segment;
	kvf_target peer;
	char *local = memory(engine, size, "local", &segment);
	need(kvf_connect(engine, text, length, &peer), "connect");
	uint32_t *from = shuffle(blocks), *to = shuffle(blocks);
	kvf_range *ranges = calloc(batch, sizeof *ranges);
	double *posts = malloc(MOST * sizeof *posts);
	struct pollfd ready = {.fd = kvf_descriptor(engine), .events = POLLIN};
	need(ready.fd, "descriptor");

	size_t next = 0, moved = 0, batches = 0;
	double warm = now() + 0.2, begin = 0, end = 0;
	for (int under = 0;;) {
		double t = now();
		if (!begin && t >= warm) begin = t, moved = 0, batches = 0;
		if (begin && !end && t >= begin + seconds) end = t;
		for (; under < depth && !end; under++) {
			for (size_t i = 0; i < batch; i++, next = (next + 1) % blocks) {
				ranges[i] = (kvf_range){.local = local + from[next] * block, .remote = to[next] * block, .length = block};
			}
			t = now();
			need(kvf_submit(engine, peer, KVF_WRITE, ranges, batch, NULL, NULL), "submit");
			posts[batches++ % MOST] = now() - t;
		}
		if (!under) break;
		kvf_completion done[16];
		poll(&ready, 1, -1);
		int n = kvf_poll(engine, done, sizeof done[0], 16);
		need(n, "poll");
		for (int i = 0; i < n; i++, under--) {
			if (done[i].code != KVF_OK) {
				fprintf(stderr, "ferry: %s\n", done[i].error);
				return 1;
			}
			if (!end) moved += done[i].bytes;
		}
	}
	size_t posted = batches < MOST ? batches : MOST;
	qsort(posts, posted, sizeof *posts, compare);
	printf("%zu B x %zu, %d under way: %.2f GB/s, submit p50 %.1f us, p99 %.1f us\n", block, batch, depth,
	       moved / (end - begin) / 1e9, posts[posted / 2] * 1e6, posts[posted * 99 / 100] * 1e6);

	// The last batch once more: read what is there, over what was written from here.
	char *copy = malloc(block * batch);
	for (size_t i = 0; i < batch; i++) {
		memcpy(copy + i * block, ranges[i].local, block);
		memset(ranges[i].local, 0, block);
	}
	need(kvf_submit(engine, peer, KVF_READ, ranges, batch, NULL, NULL), "submit");
	kvf_completion done;
	while (kvf_poll(engine, &done, sizeof done, 1) == 0) poll(&ready, 1, -1);
	int wrong = done.code != KVF_OK;
	for (size_t i = 0; i < batch; i++) wrong += memcmp(copy + i * block, ranges[i].local, block) != 0;
	printf("read back: %s\n", wrong ? "other bytes" : "the same bytes");
	need(kvf_engine_close(engine), "close");
	return wrong != 0;
}

int main(int argc, char **argv) {
	size_t size = (size_t)256 << 20;
	if (argc >= 4 && !strcmp(argv[1], "target")) return target(argv[2], argv[3], size);
	if (argc >= 4 && !strcmp(argv[1], "initiator")) {
		size_t block = argc > 4 ? strtoull(argv[4], NULL, 10) : 1 << 20, batch = argc > 5 ? strtoull(argv[5], NULL, 10) : 16;
		int depth = argc > 6 ? atoi(argv[6]) : 4;
		double seconds = argc > 7 ? atof(argv[7]) : 2;
		if (block && batch && depth > 0 && block * batch <= size) return initiator(argv[2], argv[3], size, block, batch, depth, seconds);
	}
	fprintf(stderr, "ferry target RAILS FILE\nferry initiator RAILS FILE [BLOCK [BATCH [DEPTH [SECONDS]]]]\n");
	return 2;
}
