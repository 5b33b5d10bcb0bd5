// What NIXL finds in the library.
#include "engine.h"
#include "judge.h"
#include "loader.h"
#include "report.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace {

constexpr const char *name = "KVFERRY";

Loader loader; // NIXL

// inner is the backend that faults are injected into: kvferry's, or that of another plugin.
Inner inner(const nixlBackendInitParams *params, const Schedule &schedule) {
	if (schedule.backend == name)
		return Inner(new Ferry(params), [](nixlBackendEngine *engine) { delete engine; });
	std::string path = schedule.plugin;
	if (path.empty())
		path = std::filesystem::path(loader.path).parent_path() / "plugins" / ("libplugin_" + schedule.backend + ".so");
	void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); // as NIXL does
	if (!library)
		throw std::runtime_error(dlerror());
	const auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"));
	const nixlBackendPlugin *other = init ? init() : nullptr;
	if (!other || other->api_version != NIXL_PLUGIN_API_VERSION)
		throw std::runtime_error(path + " is no plugin of this NIXL");
	nixlBackendInitParams theirs = *params;
	theirs.type = schedule.backend;
	Inner made(other->create_engine(&theirs), other->destroy_engine);
	if (!made)
		throw std::runtime_error(path + " gives no backend");
	return made;
}

nixlBackendEngine *make(const nixlBackendInitParams *params) {
	const char *faults = getenv("KVFERRY_FAULTS");
	if (!faults || !*faults)
		return new Ferry(params);
	std::ifstream file(faults);
	if (!file)
		throw std::runtime_error(std::string("KVFERRY_FAULTS: ") + faults + " cannot be read");
	try {
		const Schedule schedule = parseSchedule(std::string((std::istreambuf_iterator<char>(file)), {}));
		return new Judge(params, schedule, inner(params, schedule));
	} catch (const std::exception &e) {
		throw std::runtime_error(std::string("KVFERRY_FAULTS: ") + faults + ": " + e.what());
	}
}

nixlBackendEngine *create(const nixlBackendInitParams *params) {
	// The last check of the classes: a text of seven letters lies in the string itself, so nothing is followed.
	const auto *text = params->type.data(), *begin = reinterpret_cast<const char *>(&params->type);
	if (text < begin || text >= begin + sizeof(params->type) || params->type != name) {
		report(NIXL_ERR_MISMATCH, "NIXL's parameters of a backend are not where this plugin looks for them");
		return nullptr;
	}
	try {
		return make(params);
	} catch (const std::exception &e) {
		report(NIXL_ERR_BACKEND, e.what());
		return nullptr;
	}
}

nixlBackendPlugin plugin = {
	NIXL_PLUGIN_API_VERSION,
	create,
	[](nixlBackendEngine *engine) { delete engine; },
	[] { return name; },
	[] { return kvf_build(); },
	[] { return Ferry::options(); },
	[] { return Ferry::memories(); },
};

} // namespace

extern "C" {

// nixl_plugin_init returns nothing to a NIXL that the plugin does not fit, and says why.
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init() {
	const char *accepted = getenv("KVFERRY_NIXL_VERSION");
	loader = inspect(__builtin_return_address(0));
	const std::string wrong = unfit(loader, accepted ? accepted : "");
	if (wrong.empty())
		return &plugin;
	report(NIXL_ERR_MISMATCH, wrong);
	return nullptr;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
