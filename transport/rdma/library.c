//go:build linux && cgo

#define _GNU_SOURCE // dlvsym

#include "verbs.h"

#include <dlfcn.h>
#include <stdio.h>

struct kv_calls kv_calls;

#ifdef __GLIBC__
#define find(library, name, version) dlvsym(library, name, version)
#else // which takes no notice of versions
#define find(library, name, version) dlsym(library, name)
#endif

int kv_load(const char *file, char *why, size_t size)
{
	struct kv_calls found;
	const char *missing = NULL;
	void *library = dlopen(file, RTLD_NOW);

	if (!library) {
		snprintf(why, size, "%s", dlerror());
		return KV_ABSENT;
	}
#define FIND(type, name, parameters, arguments, version) found.name = find(library, #name, version);
	KV_OPTIONAL_CALLS(FIND)
#define NEED(type, name, parameters, arguments, version) \
	FIND(type, name, parameters, arguments, version) \
	if (!found.name) \
		missing = #name "@" version;
	KV_CALLS(NEED)
	if (missing) {
		snprintf(why, size, "%s has no %s", file, missing);
		dlclose(library);
		return KV_TOO_OLD;
	}
	kv_calls = found;
	return 0;
}
