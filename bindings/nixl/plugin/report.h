// Errors of kvferry as NIXL has them. NIXL passes on a number, so the text goes to standard error.
#pragma once

#include "abi.h"

#include <string>

// statusOf is what a code of kvferry.h is for NIXL.
nixl_status_t statusOf(int code);

// report prints a line, and returns the status.
nixl_status_t report(nixl_status_t status, const std::string &text);

// failed reports what kvf_error says of the last call on this thread, after what was tried.
nixl_status_t failed(int code, const std::string &what);
