// Which NIXL is loading the plugin, and whether its classes are those of abi.h.
#pragma once

#include <string>
#include <vector>

// A Loader is what is known of the library that calls the plugin.
struct Loader {
	std::string path;                 // of that library: libnixl.so
	std::string version;              // of the Python package that it lies in; empty: it lies in none
	long listTable = -1;              // bytes of the table of functions of a list of descriptors; -1: not found there
	std::vector<std::string> plugins; // the library's own, in the folder beside it
	long engineTable = -1;            // bytes of a backend's table, by the first of those that has it
};

// inspect looks at the library that has this address in it. Files are read, nothing is loaded.
Loader inspect(const void *address);

// unfit says why the plugin must not be used by that NIXL, or nothing. accepted is a version that the user
// takes for one with the same classes; empty: none.
std::string unfit(const Loader &loader, const std::string &accepted);

// tableSize is how many bytes a table of virtual functions has in a library of 64 bits, by its symbol; -1: it is not there.
long tableSize(const std::string &path, const std::string &symbol);
