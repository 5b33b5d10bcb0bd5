// Which faults are injected, and when: read from a file, and decided without a clock or a transfer at hand.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

enum class Kind { Delay, Drop, Repeat, Reorder, Tear, Replay, Flip, Stall, Flap };

// Whether a kind hits notifications that come; the others hit transfers that are posted.
constexpr bool hitsNotifications(Kind kind) { return kind <= Kind::Reorder; }

struct Fault {
	Kind kind;
	std::string name;       // of the kind
	uint64_t from = 0;      // the first that may be hit, of those that it sees
	uint64_t count = 1;     // how many are hit at most; 0: all
	double probability = 1; // of each
	std::string skip;       // notifications that begin so are not seen; empty: none
	bool timed = false;     // ms was given
	uint64_t ms = 0;
	uint64_t after = 1; // Replay: transfers
	uint64_t bytes = 1; // Flip
};

struct Schedule {
	std::string backend = "KVFERRY"; // what moves the bytes
	std::string plugin;              // its file; empty: where NIXL's own are
	std::string log;                 // what was injected: a JSON object a line
	uint64_t seed = 1;
	std::vector<Fault> faults;
};

// parseSchedule reads one. It throws std::runtime_error, which names the field and what would do.
Schedule parseSchedule(const std::string &text);

// A Drawn fault has hit something.
struct Drawn {
	const Fault *fault = nullptr; // nullptr: nothing was hit
	uint64_t number = 0;          // of what was hit, among those that the fault sees
	uint64_t random = 0;          // for what it does
};

// Draws decides what is hit. The same events in the same order have the same faults.
class Draws {
public:
	explicit Draws(const Schedule &schedule);
	// next decides for one more notification, or one more transfer. Of several faults that would hit it the first does.
	Drawn notification(const std::string &message);
	Drawn transfer();

private:
	struct State {
		Fault fault;
		std::mt19937_64 random;
		uint64_t seen = 0, hit = 0;
	};
	Drawn next(bool notification, const std::string &message);
	std::vector<State> states;
};

// A Note is a notification: sender and message.
using Note = std::pair<std::string, std::string>;

// Notes holds back and repeats notifications that have been hit.
class Notes {
public:
	// Injected is one fault that has taken effect.
	struct Injected {
		Drawn drawn;
		Note note;
	};
	// step takes notifications that have come at a time, in milliseconds, and returns those to deliver now. What was injected
	// is appended.
	std::vector<Note> step(uint64_t now, const std::vector<Note> &come, Draws &draws, std::vector<Injected> &injected);

private:
	struct Held {
		Note note;
		Drawn drawn;
		uint64_t due;
		bool untilNext; // or as soon as another has passed
	};
	std::vector<Held> held;
};
