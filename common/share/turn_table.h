#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace nereus {

// Turns of jobs that share a device (CrossoverScheduler: Luo, Qu, Miao, Cheng
// and Xiong, arXiv 2103.07974. Only its abstract is public: order, memory and
// failures are our own). A job that has the turn computes. It gives the
// turn away before it waits for the network, so that another job can compute
// meanwhile.
//
// Each node decides by itself, and still all nodes must take the same order.
// Otherwise the last gradient of each job leaves only when the node that serves
// the job second has computed it. So the order follows from TurnSlot::key,
// which all nodes know alike. A rule like "least served first", by times that
// each node measures, lets two equal jobs run in opposite orders for ever.

// The part of one client in the turns of a device: what it tells the others.
struct TurnSlot {
  // State of the client.
  enum class State : uint8_t {
    kOut,   // Does not compute.
    kAsks,  // Waits for the turn.
    kIn,    // Has the turn, unless another client has passed this one.
  };

  bool is_alive = false;      // False: the slot is free.
  std::string job;            // Name of the job.
  uint64_t job_id = 0;        // Random number of the job.
  int32_t rank = 0;           // Rank of the worker in its job.
  int64_t process = 0;        // Number of the process, for people.
  State state = State::kOut;  // Since `since`.
  absl::Time since;
  bool has_asked = false;  // True once it has asked for a turn.
  // Time at which the client last tried to take the turn. If it is the holder,
  // its turn began then.
  absl::Time tried_at;
  int64_t step = 0;  // The step that the client computes, or asks for.
  // Place in the order: the client with the smallest key is next. In seconds of
  // the device, divided by the job's weight. Equal on all nodes.
  double key = 0;
  double weight = 1;     // Share of the job, relative to those of others. > 0.
  absl::Duration cost;   // Time of a turn, as agreed by the job; 0: not known.
  absl::Duration limit;  // Time after which another client may pass the holder.
  // Memory of the device that the client keeps, and that it needs besides in
  // its turn, in bytes.
  int64_t resident_bytes = 0;
  int64_t turn_bytes = 0;
  bool is_admitted = false;  // True once it has had a turn: its memory counts.

  // Figures for people: number of turns, their time, the time that the client
  // has waited for them, and the time of its steps without these waits.
  int64_t turn_count = 0;
  absl::Duration turn_time;
  absl::Duration wait_time;
  absl::Duration step_time;
};

// State of one device, as one client has read it.
struct TurnTable {
  // Number of the turn. It grows whenever the turn is taken or given back, so
  // equal numbers mean that the device has changed hands in no way.
  uint64_t turn = 0;
  int holder = -1;           // Index of the slot with the turn; -1: none.
  absl::Time free_since;     // Time at which the turn was given back last.
  int64_t memory_bytes = 0;  // Memory of the device; 0: without limit.
  std::vector<TurnSlot> slots;
};

// Time for which a client that is not next leaves a free device to the next
// one, which may stand still.
inline constexpr absl::Duration kTurnGrace = absl::Milliseconds(1);

// Decision of a client that asks for the turn.
struct TurnDecision {
  // True if the client takes the turn now.
  bool takes = false;
  // Otherwise the time at which it decides again, unless the table changes
  // before.
  absl::Time until = absl::InfiniteFuture();
};
// Decides for the client of slot `own`, which asks for the turn.
TurnDecision DecideTurn(const TurnTable& table, int own, absl::Time now);

// Returns the smallest key of all clients that have asked for a turn; 0 if
// there is none. A job that is new at the device begins with this key.
double LeastKey(const TurnTable& table);

// Returns the longest time for which a client waits for its turn while all
// others take theirs in order: it goes before all others after this time. So a
// job whose key is far behind, because it stood still, does not have the device
// for itself until it has caught up.
absl::Duration PatienceOf(const TurnTable& table, int own);

// True if the client's memory fits beside that of the clients that are admitted
// or have asked before: all that they keep, and the largest need of a turn.
bool FitsMemory(const TurnTable& table, int own);

// Returns what the client of slot `own` waits for, for messages: "job a, worker
// 0 has the device for 1.2 s".
std::string DescribeTurnWait(const TurnTable& table, int own, absl::Time now);

}  // namespace nereus
