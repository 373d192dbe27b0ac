#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/network/event_queue.h"
#include "common/share/turn_board.h"
#include "common/share/turn_taker.h"

namespace nereus {

// Device of one simulated node, which clients of several jobs share: the board
// of production in ordinary memory, on virtual time. A client that waits for
// its turn tries again a moment after each change of the board, as a process
// that the kernel wakes.
//
// Watches the turns for the laws about them: one holder, no idle device while a
// client asks, a bounded wait.
class SimulatedDevice {
 public:
  using Task = std::function<void()>;
  // Process of a client.
  struct Process {
    // Runs a task: at once, later if the process stands still, never if it is
    // dead.
    std::function<void(const Task&)> run;
    // True if the process runs.
    std::function<bool()> is_running;
  };

  // Client of the device.
  class Client {
   public:
    TurnBoard& board() { return *board_; }
    // Sets the taker that uses the board. Not owned; must outlive this, or the
    // client's process.
    void Serve(TurnTaker* taker) { taker_ = taker; }
    // Calls `has_turn` as soon as the taker has the turn: at once, if it has it
    // now. REQUIRES: the taker has asked.
    void Await(Task has_turn);
    // Forgets what Await waits for.
    void StopWaiting() { awaits_ = nullptr; }

   private:
    friend class SimulatedDevice;
    void Try();

    SimulatedDevice* device_ = nullptr;
    std::unique_ptr<TurnBoard> board_;
    TurnTaker* taker_ = nullptr;
    Process process_;
    Task awaits_;  // Null: the client does not wait.
    absl::Time asked_at_;
  };

  // `events` is not owned, and must outlive this.
  SimulatedDevice(EventQueue* events, uint64_t seed, int64_t memory_bytes = 0);

  // Adds a client. The device owns it.
  Client& Add(Process process);
  // Notes that the client's process is dead: the kernel frees its locks.
  void Kill(Client& client);

  // Returns the table as a person would see it.
  TurnTable Table() const;
  // Turn that a client has had.
  struct Turn {
    uint64_t job_id = 0;
    int32_t rank = 0;
    int64_t step = 0;
    bool operator==(const Turn&) const = default;
  };
  // All turns so far, in order.
  const std::vector<Turn>& history() const { return history_; }
  // Longest time for which the device was free while a client asked whose
  // process runs and whose memory fits.
  absl::Duration idle_max() const { return idle_max_; }
  // Longest wait for a turn.
  absl::Duration wait_max() const { return wait_max_; }
  // Largest number of clients that had the turn at one time.
  int holders_max() const { return holders_max_; }

 private:
  void OnChange();
  void OnTurn(const TurnTaker& taker, absl::Time asked_at);
  // Notes which client has the turn, and which ones ask.
  void Observe();

  EventQueue& events_;
  Random random_;
  std::unique_ptr<TurnBoardMemory> memory_;
  std::array<bool, kTurnSlots> alive_ = {};
  std::vector<std::unique_ptr<Client>> clients_;  // Dead ones, too.
  std::vector<Turn> history_;
  std::optional<absl::Time> idle_since_;
  absl::Duration idle_max_;
  absl::Duration wait_max_;
  int holders_max_ = 0;
};

}  // namespace nereus
