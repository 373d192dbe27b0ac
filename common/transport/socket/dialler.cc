#include "common/transport/socket/dialler.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace nereus {

absl::StatusOr<Dialler::Dialled> Dialler::Dial(const std::string& address) {
  auto found = found_.find(address);
  if (found == found_.end()) {
    // A numeric address needs no name server, and no other thread.
    auto numeric = Resolve(address, /*numeric_only=*/true);
    if (!numeric.ok()) {
      resolver_.Ask(address);
      return Dialled();
    }
    found = found_.emplace(address, *std::move(numeric)).first;
  }
  // Removes the address, whether the attempt succeeds or not. When a name has
  // no address left, the next Dial asks again, since the addresses may have
  // changed.
  std::vector<SocketAddress>& addresses = found->second;
  const SocketAddress next = addresses.front();
  addresses.erase(addresses.begin());
  Dialled dialled;
  dialled.has_more_addresses = !addresses.empty();
  if (addresses.empty()) found_.erase(found);
  auto socket = BeginConnect(next);
  if (!socket.ok()) return socket.status();
  dialled.socket = *std::move(socket);
  return dialled;
}

std::vector<Dialler::LookedUp> Dialler::Take() {
  std::vector<LookedUp> answers;
  for (Resolver::Answer& answer : resolver_.Take()) {
    answers.push_back({answer.address, answer.found.status()});
    if (answer.found.ok()) found_[answer.address] = *std::move(answer.found);
  }
  return answers;
}

// State that the resolver shares with its thread. The thread can run on after
// the resolver is destroyed, because a call that waits for a silent name server
// cannot be interrupted.
struct Resolver::State {
  std::mutex mu;
  std::condition_variable asked_changed;
  std::function<void()> found;  // Constant.
  // Guarded by mu.
  std::deque<std::string> asked;
  std::vector<Answer> answers;
  bool started = false;  // The thread runs.
  bool stopped = false;  // The resolver is destroyed.

  // Answers questions until the resolver is destroyed. The body of the thread.
  void Run() {
    std::unique_lock<std::mutex> lock(mu);
    while (true) {
      asked_changed.wait(lock, [this] { return stopped || !asked.empty(); });
      if (stopped) return;
      const std::string address = std::move(asked.front());
      asked.pop_front();
      lock.unlock();
      auto addresses = Resolve(address, /*numeric_only=*/false);
      lock.lock();
      if (stopped) return;
      answers.push_back({address, std::move(addresses)});
      // Called with the lock held, so that the destructor waits for the call.
      found();
    }
  }
};

Resolver::Resolver(std::function<void()> found)
    : state_(std::make_shared<State>()) {
  state_->found = std::move(found);
}

Resolver::~Resolver() {
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->stopped = true;
  state_->asked_changed.notify_all();
}

void Resolver::Ask(const std::string& address) {
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->asked.push_back(address);
  state_->asked_changed.notify_all();
  if (std::exchange(state_->started, true)) return;
  std::thread([state = state_] { state->Run(); }).detach();
}

std::vector<Resolver::Answer> Resolver::Take() {
  std::lock_guard<std::mutex> lock(state_->mu);
  return std::exchange(state_->answers, {});
}

}  // namespace nereus
