#include "settings.h"

#include <cstdlib>
#include <stdexcept>

namespace {

// find is a parameter, or else the variable of the environment, and which of the two it was; empty if neither is set.
std::string find(const nixl_b_params_t &params, const char *name, const char *variable, std::string &where) {
	const auto it = params.find(name);
	if (it != params.end() && !it->second.empty()) {
		where = std::string("parameter ") + name;
		return it->second;
	}
	const char *value = getenv(variable);
	where = variable;
	return value ? value : "";
}

} // namespace

Settings settings(const nixl_b_params_t &params) {
	for (const auto &[name, value] : params)
		if (name != "rails" && name != "timeout")
			throw std::runtime_error("parameter " + name + ": there is none: use rails, timeout");
	Settings all;
	std::string where;
	all.rails = find(params, "rails", "KVFERRY_RAILS", where);
	if (all.rails.empty())
		all.rails = "tcp/all"; // each NIC
	const std::string timeout = find(params, "timeout", "KVFERRY_TIMEOUT", where);
	if (!timeout.empty()) {
		char *end = nullptr;
		const double seconds = strtod(timeout.c_str(), &end);
		if (*end != 0 || !(seconds >= 0.001 && seconds <= 86400))
			throw std::runtime_error(where + " \"" + timeout + "\": use seconds, from 0.001 to 86400");
		all.timeoutMs = unsigned(seconds * 1000);
	}
	return all;
}
