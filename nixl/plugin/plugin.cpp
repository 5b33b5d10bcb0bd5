// What NIXL finds in the library.
#include "engine.h"
#include "loader.h"
#include "report.h"

#include <cstdlib>
#include <exception>

namespace {

constexpr const char *name = "KVFERRY";

nixlBackendEngine *create(const nixlBackendInitParams *params) {
	// The last check of the classes: a text of seven letters lies in the string itself, so nothing is followed.
	if (params->type.data() < reinterpret_cast<const char *>(&params->type) || params->type.data() >= reinterpret_cast<const char *>(&params->type + 1) ||
	    params->type != name) {
		report(NIXL_ERR_MISMATCH, "NIXL's parameters of a backend are not where this plugin looks for them");
		return nullptr;
	}
	try {
		return new Ferry(params);
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
	const std::string wrong = unfit(inspect(__builtin_return_address(0)), accepted ? accepted : "");
	if (wrong.empty())
		return &plugin;
	report(NIXL_ERR_MISMATCH, wrong);
	return nullptr;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
