// gpu LIBRARY: a GPU's memory, by a driver that is none (libcuda.cpp). Over TCP it cannot move, and no descriptor is left. Where
// the driver has no GPU there is no such memory.
#include "agent.h"

#include <filesystem>

static size_t descriptors() {
	size_t n = 0;
	for ([[maybe_unused]] const auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
		n++;
	return n;
}

static nixl_meta_dlist_t list{DRAM_SEG}; // a class that the plugin looks for in who loads it

int main(int, char **argv) {
	auto *loaded = plugin(argv[1]);
	CHECK(loaded);
	if (atoi(getenv("GPUS")) < 1) {
		CHECK(loaded->get_backend_mems() == nixl_mem_list_t{DRAM_SEG});
		return 0;
	}
	CHECK((loaded->get_backend_mems() == nixl_mem_list_t{DRAM_SEG, VRAM_SEG}));
	Agent agent(loaded, "a", {{"rails", "tcp/lo"}});
	CHECK(agent.engine && agent.engine->getSupportedMems().size() == 2);
	nixlBlobDesc memory;
	memory.addr = 0x500100;
	memory.len = 4096;
	memory.devId = 0;
	nixlBackendMD *md = nullptr;
	const size_t before = descriptors();
	CHECK(agent.engine->registerMem(memory, VRAM_SEG, md) == NIXL_ERR_MISMATCH); // no rail over RDMA
	memory.addr = 0x700100; // the driver knows nothing there
	CHECK(agent.engine->registerMem(memory, VRAM_SEG, md) == NIXL_ERR_NOT_SUPPORTED);
	CHECK(descriptors() == before);
	puts("ok");
}
