#include "settings.h"

#include <cstdlib>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <set>
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
		all.rails = everyInterface();
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

std::string everyInterface() {
	ifaddrs *first = nullptr;
	if (getifaddrs(&first) != 0)
		return "tcp/lo";
	std::set<std::string> names;
	for (const ifaddrs *at = first; at; at = at->ifa_next) {
		const unsigned up = IFF_UP | IFF_RUNNING;
		if (!at->ifa_addr || (at->ifa_flags & up) != up || at->ifa_flags & IFF_LOOPBACK)
			continue;
		const int family = at->ifa_addr->sa_family;
		const auto *v6 = reinterpret_cast<const sockaddr_in6 *>(at->ifa_addr);
		if (family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)))
			names.insert(at->ifa_name);
	}
	freeifaddrs(first);
	std::string rails;
	for (const auto &name : names)
		rails += (rails.empty() ? "tcp/" : ",tcp/") + name;
	return rails.empty() ? "tcp/lo" : rails;
}
