#include "report.h"

#include "kvferry.h"

#include <cstdio>

nixl_status_t statusOf(int code) {
	switch (code) {
	case KVF_OK:
		return NIXL_SUCCESS;
	// The peer, or the way there, is gone: NIXL forgets what it knew of the agent, until its metadata is loaded again.
	case KVF_ERR_UNREACHABLE:
	case KVF_ERR_DEADLINE:
	case KVF_ERR_BAD_KEY:
	case KVF_ERR_UNCONFIRMED:
		return NIXL_ERR_REMOTE_DISCONNECT;
	case KVF_ERR_CANCELED:
		return NIXL_ERR_CANCELED;
	case KVF_ERR_INVALID:
	case KVF_ERR_BOUNDS:
	case KVF_ERR_HANDLE:
		return NIXL_ERR_INVALID_PARAM;
	case KVF_ERR_NOT_REGISTERED:
		return NIXL_ERR_NOT_FOUND;
	case KVF_ERR_ACCESS:
		return NIXL_ERR_NOT_ALLOWED;
	case KVF_ERR_UNSUPPORTED:
		return NIXL_ERR_NOT_SUPPORTED;
	case KVF_ERR_PROTOCOL:
	case KVF_ERR_NO_PATH:
		return NIXL_ERR_MISMATCH;
	default: // KVF_ERR_SYSTEM, CLOSED, BUSY, FORKED, INTERNAL
		return NIXL_ERR_BACKEND;
	}
}

nixl_status_t report(nixl_status_t status, const std::string &text) {
	fprintf(stderr, "kvferry: NIXL plugin: %s\n", text.c_str());
	return status;
}

nixl_status_t failed(int code, const std::string &what) { return report(statusOf(code), what + ": " + kvf_error()); }
