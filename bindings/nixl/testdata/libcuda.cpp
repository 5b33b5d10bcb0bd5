// A CUDA driver of as many GPUs as the variable GPUS says, -1 for one that cannot start. Their memory is a memfd.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

static int devices = -1;

extern "C" {
int cuInit(unsigned) {
	devices = atoi(getenv("GPUS"));
	return devices < 0 ? 100 : 0;
}
int cuDeviceGetCount(int *n) {
	*n = devices;
	return 0;
}
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
	*base = address & ~uint64_t(0xfffff);
	*size = 5000;
	return *base == 0x700000 ? 1 : 0;
}
int cuMemGetHandleForAddressRange(int *handle, uint64_t, size_t size, int type, unsigned long long) {
	*handle = memfd_create("gpu", MFD_CLOEXEC);
	return size == 8192 && type == 1 ? ftruncate(*handle, 8192) : 2;
}
}
