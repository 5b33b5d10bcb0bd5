// What a user may say of the engine: parameters of the backend, or else the environment.
#pragma once

#include "abi.h"

#include <string>

struct Settings {
	std::string rails;      // as kvferry names them, with commas between
	unsigned timeoutMs = 0; // of a transfer
};

// settings reads them. It throws std::runtime_error, whose text names the parameter or variable and what would do.
Settings settings(const nixl_b_params_t &params);
