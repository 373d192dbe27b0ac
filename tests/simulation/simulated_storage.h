#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/checkpoint/storage.h"

namespace nereus {

// What goes wrong with a simulated disk. Probabilities are drawn from the seed.
struct SimulatedStorageOptions {
  // The chance that a call which changes something fails, without effect.
  double failure_probability = 0.0;

  // The chance, at each step of such a call, that the machine crashes there.
  double crash_probability = 0.0;

  // A disk that says that it has flushed what it has not: after a crash, each
  // of the last `unflushed_files_max` files that were written has, by even
  // chance, only a prefix of its bytes; the rest is missing, or zeros.
  bool lies = false;
  int unflushed_files_max = 3;

  // A file system that renames a file before its bytes are on disk: one whose
  // writing a crash ended mostly has its name all the same, and is torn. It
  // ends early, or some of its blocks hold what lay there before, which was of
  // a file of the same name in another folder, or a digit in it is wrong.
  bool tears = false;
};

// A storage in memory whose writes fail, and whose machine crashes: by chance,
// or where a test says. The same seed and calls give the same faults.
//
// Calls that change something consist of steps, and a crash comes after one of
// them. Writing: a part of the temporary file, all of it, the rename.
// Removing a tree: each of its files, in an order that is drawn. From the crash
// to Restart() all calls fail with kUnavailable.
//
// Not thread-safe: one simulation owns it.
class SimulatedStorage : public Storage {
 public:
  explicit SimulatedStorage(uint64_t seed,
                            SimulatedStorageOptions options = {});

  // The next `count` steps are done; the one after is not, and the machine
  // crashes. 0: at the very next step.
  void CrashAfterSteps(int64_t count) { steps_to_crash_ = count; }

  // The next call that changes something fails with `status`, without effect.
  void FailNext(absl::Status status) { next_failure_ = std::move(status); }

  bool crashed() const { return crashed_; }

  // The machine is back: files are as the crash left them, and neither
  // CrashAfterSteps nor FailNext is in force any more.
  void Restart();

  // Steps done since the start, to place a crash at each.
  int64_t steps() const { return steps_; }

  // Whether the file is there with other bytes than were written.
  bool torn(const std::string& name) const {
    return files_.contains(name) && torn_.contains(name);
  }

  // The bytes of a file, to spoil them. REQUIRES: it exists.
  std::string& Contents(const std::string& name);

  absl::Status WriteFile(const std::string& name,
                         absl::Span<const Buffer> pieces) override;
  absl::Status ReadFile(const std::string& name, int64_t offset,
                        const Buffer& into) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& name) override;
  absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) override;
  absl::Status RemoveFile(const std::string& name) override;
  absl::Status RemoveTree(const std::string& folder) override;

 private:
  // What every call begins with. Errors: a bad name, or a crash before.
  absl::Status Begin(const std::string& name) const;
  // And one that changes something: also a failure that was asked for or drawn.
  absl::Status BeginChange(const std::string& name);
  // Before each step. Errors: kUnavailable, the machine crashes here.
  absl::Status Step();
  void Crash();
  absl::Status WriteInSteps(const std::string& name,
                            const std::string& contents);
  void Tear(const std::string& name, const std::string& contents);
  // What lay in a file's place before.
  std::string BytesBefore(const std::string& name) const;
  void MakeFolders(const std::string& name);

  const SimulatedStorageOptions options_;
  Random random_;
  std::map<std::string, std::string> files_;  // By whole name.
  std::set<std::string> folders_;
  std::set<std::string> torn_;         // Files; some may be gone.
  std::deque<std::string> unflushed_;  // Files, newest last.
  std::optional<int64_t> steps_to_crash_;
  absl::Status next_failure_;
  int64_t steps_ = 0;
  bool crashed_ = false;
};

}  // namespace nereus
