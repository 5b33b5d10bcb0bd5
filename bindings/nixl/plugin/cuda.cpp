#include "cuda.h"

#include <dlfcn.h>
#include <unistd.h>

namespace {

// As CUDA's driver API has them: results are ints, addresses of a GPU 64 bits.
using Init = int (*)(unsigned flags);
using Count = int (*)(int *devices);
using AddressRange = int (*)(uint64_t *base, size_t *size, uint64_t address);
using RangeHandle = int (*)(void *handle, uint64_t address, size_t size, int type, unsigned long long flags);
constexpr int dmaBuf = 1;

struct Driver {
	AddressRange range = nullptr;
	RangeHandle handle = nullptr;
	Driver() {
		if (void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
			const auto init = reinterpret_cast<Init>(dlsym(library, "cuInit"));
			const auto count = reinterpret_cast<Count>(dlsym(library, "cuDeviceGetCount"));
			int devices = 0;
			if (!init || !count || init(0) != 0 || count(&devices) != 0 || devices < 1)
				return; // the driver of a GPU that is not here
			range = reinterpret_cast<AddressRange>(dlsym(library, "cuMemGetAddressRange_v2"));
			handle = reinterpret_cast<RangeHandle>(dlsym(library, "cuMemGetHandleForAddressRange"));
		}
	}
};

const Driver &driver() {
	static const Driver found;
	return found;
}

} // namespace

namespace cuda {

bool present() { return driver().range && driver().handle; }

std::string buffer(uintptr_t address, Buffer &out) {
	if (!present())
		return "no GPU, or no CUDA driver that exports memory as a dma-buf (libcuda.so.1)";
	uint64_t base = 0;
	size_t size = 0;
	if (const int err = driver().range(&base, &size, address))
		return "cuMemGetAddressRange: error " + std::to_string(err);
	const size_t page = size_t(sysconf(_SC_PAGESIZE));
	if (const int err = driver().handle(&out.descriptor, base, (size + page - 1) / page * page, dmaBuf, 0))
		return "cuMemGetHandleForAddressRange: error " + std::to_string(err);
	out.offset = address - base;
	return "";
}

} // namespace cuda
