// The one thing of CUDA's driver that is needed: a descriptor of a GPU's memory, for kvferry to register. The driver
// is opened where it is installed; nothing is linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda {

// present says whether a GPU is there, and a driver that can give descriptors. It starts the driver.
bool present();

// A Buffer is an allocation as a dma-buf. Its descriptor is the caller's to close.
struct Buffer {
	int descriptor = -1;
	uint64_t offset = 0; // of the memory that was asked for, in the allocation
};

// buffer describes memory of a GPU. It returns what went wrong, or nothing.
std::string buffer(uintptr_t address, Buffer &out);

} // namespace cuda
