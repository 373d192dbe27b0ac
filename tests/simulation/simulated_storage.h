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

// Faults of a simulated disk. Probabilities are drawn from the seed.
struct SimulatedStorageOptions {
  // Chance that a call which changes files fails, without effect.
  double failure_probability = 0.0;

  // Chance, at each step of such a call, that the machine crashes there.
  double crash_probability = 0.0;

  // True if the disk says that files are flushed which are not. After a crash,
  // each of the last `unflushed_files_max` files has, by even chance, only a
  // prefix of its bytes; the rest is missing, or zeros.
  bool lies = false;
  int unflushed_files_max = 3;

  // True if the file system renames a file before its bytes are on disk. A file
  // that a crash interrupts then mostly has its final name, and is torn: it
  // ends early, or some blocks hold bytes of a file of the same name in another
  // folder, or one digit is wrong.
  bool tears = false;
};

// A storage in memory, on a machine that crashes, with writes that fail: by
// chance, or where a test says. The same seed and calls give the same faults.
//
// A call that changes files consists of steps, and a crash comes between two of
// them. The steps of a write are: a part of the temporary file, all of it, the
// rename. The steps of a removal are the files of the tree, in a drawn order.
// From the crash to Restart() all calls fail with kUnavailable.
//
// Not thread-safe: one simulation owns it.
class SimulatedStorage : public Storage {
 public:
  explicit SimulatedStorage(uint64_t seed,
                            SimulatedStorageOptions options = {});

  // Crashes the machine after `count` more steps; 0: at the next step.
  void CrashAfterSteps(int64_t count) { steps_to_crash_ = count; }

  // Fails the next call that changes files with `status`, without effect.
  void FailNext(absl::Status status) { next_failure_ = std::move(status); }

  bool crashed() const { return crashed_; }

  // Brings the machine back. Files are as the crash left them; faults that
  // CrashAfterSteps and FailNext have ordered are forgotten.
  void Restart();

  // Number of steps since the start, to place a crash at each.
  int64_t steps() const { return steps_; }

  // True if the file exists with other bytes than were written.
  bool torn(const std::string& name) const {
    return files_.contains(name) && torn_.contains(name);
  }

  // Returns the bytes of a file, to spoil them. REQUIRES: it exists.
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
  // Begins a call. Errors: a bad name; kUnavailable, the machine has crashed.
  absl::Status Begin(const std::string& name) const;
  // Begins a call that changes files. Errors: those of Begin, and a failure
  // that was ordered or drawn.
  absl::Status BeginChange(const std::string& name);
  // Takes a step. Errors: kUnavailable, the machine crashes here.
  absl::Status Step();
  void Crash();
  absl::Status WriteInSteps(const std::string& name,
                            const std::string& contents);
  // Leaves a torn file under its final name, or a whole one by chance.
  void Tear(const std::string& name, const std::string& contents);
  // Returns the bytes that lay in the place of a file before it was written.
  std::string BytesBefore(const std::string& name) const;
  // Makes the folders that a file's name needs.
  void MakeFolders(const std::string& name);

  const SimulatedStorageOptions options_;
  Random random_;
  std::map<std::string, std::string> files_;  // Bytes of each file, by name.
  std::set<std::string> folders_;
  std::set<std::string> torn_;             // Torn files; some may be removed.
  std::deque<std::string> unflushed_;      // Last files written, newest last.
  std::optional<int64_t> steps_to_crash_;  // See CrashAfterSteps.
  absl::Status next_failure_;              // See FailNext.
  int64_t steps_ = 0;
  bool crashed_ = false;
};

}  // namespace nereus
