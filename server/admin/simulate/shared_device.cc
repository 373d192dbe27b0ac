#include "server/admin/simulate/shared_device.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace nereus {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Time to play, in steps of all jobs one after the other: until all is steady,
// and then the time that counts.
constexpr int kWarmUp = 25;
constexpr int kRounds = 100;
// Distances between the starts of jobs without turns.
constexpr int kStarts = 8;
// Work below this many seconds is done: sums of rounded numbers.
constexpr double kNothing = 1e-12;

// State of a job's step.
struct Player {
  SharingJob job;
  double starts_at = 0;      // Time before which the step does not begin.
  std::vector<double> ends;  // Times at which steps that count ended.
  int64_t steps = 0;         // Number of steps begun.
  double compute = 0;        // Seconds of computing that are left.
  double link = 0;           // Seconds of the link that are left.
  double delay = 0;          // Seconds after both, in which the job only waits.

  void Begin(double now) {
    ++steps;
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
  // True if the job has computed and sent all, and waits for its delay.
  bool OnlyWaits() const { return !Computes() && link <= kNothing; }
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
    return static_cast<double>(players[i].steps) * players[i].job.compute;
  };
  for (int i = 0; i < static_cast<int>(players.size()); ++i) {
    if (players[i].Computes() && (next < 0 || key(i) < key(next))) next = i;
  }
  return next;
}

// Returns the time until the next change of rates, when no job waits longer
// than for its own delay.
double TimeToChange(const std::vector<Player>& players, const Rates& rates,
                    double now) {
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
    if (player.OnlyWaits()) time = std::min(time, player.delay);
  }
  return time;
}

// Returns the seconds of a step of each job, over the same time for all jobs.
std::vector<double> Play(std::vector<Player> players, Sharing sharing) {
  // Time in which each job would do one step if they went one after the other.
  double round = 0;
  for (const Player& player : players) {
    round += std::max(player.job.alone, player.job.compute);
  }
  double now = 0;
  int holder = -1;
  while (now < (kWarmUp + kRounds) * round) {
    if (holder < 0 || !players[holder].Computes()) {
      holder = NextHolder(players);
    }
    const Rates rates = RatesOf(players, sharing, holder, now);
    const double time = TimeToChange(players, rates, now);
    now += time;
    for (size_t i = 0; i < players.size(); ++i) {
      Player& player = players[i];
      if (player.OnlyWaits()) player.delay -= time;
      player.compute -= time * rates.device[i];
      player.link -= time * rates.link[i];
      if (!player.OnlyWaits() || player.delay > kNothing) continue;
      if (now >= kWarmUp * round) player.ends.push_back(now);
      player.Begin(now);
      // The job asks for another turn.
      if (static_cast<int>(i) == holder) holder = -1;
    }
  }
  std::vector<double> seconds;
  for (const Player& player : players) {
    seconds.push_back((player.ends.back() - player.ends.front()) /
                      static_cast<double>(player.ends.size() - 1));
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
