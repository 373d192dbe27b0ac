#include "server/admin/simulate/shared_device.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Steps of each job: those that count, after those until all is steady.
constexpr int kWarmUp = 50;
constexpr int kSteps = 200;
// Distances between the starts of jobs without turns.
constexpr int kStarts = 8;
// Work below this many seconds is done: sums of rounded numbers.
constexpr double kNothing = 1e-12;

// State of a job's step.
struct Player {
  SharingJob job;
  double starts_at = 0;  // Time before which the step does not begin.
  int steps = 0;         // Number of steps done.
  double compute = 0;    // Seconds of computing that are left.
  double link = 0;       // Seconds of the link that are left.
  double delay = 0;      // Seconds after both, in which the job only waits.
  double counts_from = 0;
  double counts_to = 0;

  void Begin(double now) {
    compute = job.compute;
    link = job.link;
    delay = std::max(0.0, job.alone - job.compute - job.link);
    starts_at = now;
  }
  // Computing that is left when the first bytes are ready.
  double LinkFrom() const {
    return std::min(job.compute,
                    std::max(0.0, job.link - (job.alone - job.compute)));
  }
  bool Computes() const { return compute > kNothing; }
  bool Sends() const {
    return link > kNothing && compute <= LinkFrom() + kNothing;
  }
};

// Rates of all jobs now: shares of the device and of the link.
struct Rates {
  std::vector<double> device;
  std::vector<double> link;
};

Rates RatesOf(const std::vector<Player>& players, Sharing sharing, int holder,
              double now) {
  Rates rates;
  double devices = 0;
  double links = 0;
  for (int i = 0; i < static_cast<int>(players.size()); ++i) {
    const Player& player = players[i];
    const bool begun = player.starts_at <= now + kNothing;
    const bool may_compute = sharing == Sharing::kAtOnce || i == holder;
    rates.device.push_back(begun && player.Computes() && may_compute ? 1 : 0);
    rates.link.push_back(begun && player.Sends() ? 1 : 0);
    devices += rates.device.back();
    links += rates.link.back();
  }
  for (double& rate : rates.device) rate /= std::max(devices, 1.0);
  for (double& rate : rates.link) rate /= std::max(links, 1.0);
  return rates;
}

// The job that computes next: with the least share so far, as by the keys of
// common/share/turn_table.h. -1: none asks.
int NextHolder(const std::vector<Player>& players) {
  int next = -1;
  const auto key = [&](int i) {
    return players[i].steps * players[i].job.compute;
  };
  for (int i = 0; i < static_cast<int>(players.size()); ++i) {
    if (players[i].Computes() && (next < 0 || key(i) < key(next))) next = i;
  }
  return next;
}

// Plays until each job has done all steps that count. Returns the seconds of a
// step of each.
std::vector<double> Play(std::vector<Player> players, Sharing sharing) {
  double now = 0;
  int holder = -1;
  const auto is_over = [](const Player& player) {
    return player.steps >= kWarmUp + kSteps;
  };
  while (!absl::c_all_of(players, is_over)) {
    if (holder < 0 || !players[holder].Computes()) {
      holder = NextHolder(players);
    }
    const Rates rates = RatesOf(players, sharing, holder, now);
    // Time until the first change.
    double time = kNever;
    for (size_t i = 0; i < players.size(); ++i) {
      const Player& player = players[i];
      if (player.starts_at > now) time = std::min(time, player.starts_at - now);
      if (rates.device[i] > 0) {
        const double to_send = player.compute - player.LinkFrom();
        const double left = to_send > kNothing ? to_send : player.compute;
        time = std::min(time, left / rates.device[i]);
      }
      if (rates.link[i] > 0) time = std::min(time, player.link / rates.link[i]);
      if (!player.Computes() && player.link <= kNothing) {
        time = std::min(time, player.delay);
      }
    }
    now += time;
    for (size_t i = 0; i < players.size(); ++i) {
      Player& player = players[i];
      const bool waits = !player.Computes() && player.link <= kNothing;
      player.compute -= time * rates.device[i];
      player.link -= time * rates.link[i];
      if (waits) player.delay -= time;
      if (player.Computes() || player.link > kNothing ||
          player.delay > kNothing) {
        continue;
      }
      ++player.steps;
      if (player.steps == kWarmUp) player.counts_from = now;
      if (player.steps == kWarmUp + kSteps) player.counts_to = now;
      player.Begin(now);
    }
  }
  std::vector<double> seconds;
  for (const Player& player : players) {
    seconds.push_back((player.counts_to - player.counts_from) / kSteps);
  }
  return seconds;
}

}  // namespace

std::vector<double> PlayShared(absl::Span<const SharingJob> jobs,
                               Sharing sharing) {
  // With turns, the start makes no difference.
  const int starts = sharing == Sharing::kTurns ? 1 : kStarts;
  std::vector<double> sums(jobs.size());
  for (int start = 0; start < starts; ++start) {
    std::vector<Player> players;
    for (const SharingJob& job : jobs) {
      Player player;
      player.job = job;
      player.Begin(jobs[0].alone * start / starts *
                   static_cast<double>(players.size()));
      players.push_back(player);
    }
    const std::vector<double> seconds = Play(std::move(players), sharing);
    for (size_t i = 0; i < jobs.size(); ++i) sums[i] += seconds[i] / starts;
  }
  return sums;
}

}  // namespace nereus
