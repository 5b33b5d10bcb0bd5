// JSON, as much as a schedule of faults needs: it is read whole, and members keep their order.
#pragma once

#include <string>
#include <utility>
#include <vector>

struct Json {
	enum Kind { Null, Bool, Number, Text, List, Object } kind = Null;
	bool truth = false;
	double number = 0;
	std::string text;
	std::vector<Json> items;
	std::vector<std::pair<std::string, Json>> members;
};

// parseJson reads a value, and nothing behind it. It throws std::runtime_error, which names the line.
Json parseJson(const std::string &text);

// quoted is a text as JSON has it.
std::string quoted(const std::string &text);
