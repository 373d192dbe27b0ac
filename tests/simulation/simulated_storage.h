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

// Faults of a simulated disk. The storage's seed decides when they strike.
struct SimulatedStorageOptions {
  // Probability that a call which changes files fails, without effect.
  double failure_probability = 0.0;

  // Probability that the machine crashes, at each step of such a call.
  double crash_probability = 0.0;

  // True if the disk reports files as flushed that are not. After a crash, each
  // of the last `unflushed_files_max` files keeps only a prefix of its bytes,
  // with probability 1/2. The rest is missing, or zeros.
  bool lies = false;
  int unflushed_files_max = 3;

  // True if the file system renames a file before its bytes are on disk. If a
  // crash interrupts a write, the file then has its final name in most cases,
  // and is torn: it ends early, or some blocks have bytes of a file of the same
  // name in another folder, or one digit is wrong.
  bool tears = false;
};

// Storage in memory, with writes that fail and a machine that crashes, by
// chance or when a test says so. Equal seeds and calls give equal faults.
//
// A call that changes files consists of steps, and a crash comes between two of
// them. A write makes a part of a temporary file, then all of it, and renames
// it. A removal has a step for each file of the tree, in a drawn order. From a
// crash to Restart() all calls fail with kUnavailable.
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

  // Lets the next write of a file store one other byte, and report success.
  void CorruptNext() { corrupts_next_ = true; }
  // Number of calls of ForgetCached for existing files.
  int forgotten() const { return forgotten_; }

  bool crashed() const { return crashed_; }

  // Starts the machine again after a crash. Files stay as they are. Faults of
  // CrashAfterSteps and FailNext that have not struck yet are dropped.
  void Restart();

  // Number of steps so far. A test may crash the machine at each of them.
  int64_t steps() const { return steps_; }

  // True if the file exists and its bytes differ from those that were written.
  bool torn(const std::string& name) const {
    return files_.contains(name) && torn_.contains(name);
  }

  // Changes one byte of a file, as a disk does long after a write. REQUIRES:
  // the file exists, and has a byte. `byte`: taken modulo the file's length.
  void Rot(const std::string& name, uint64_t byte);

  // Returns the bytes of a file, for tests that change them. REQUIRES: the file
  // exists.
  std::string& Contents(const std::string& name);

  absl::Status WriteFile(const std::string& name,
                         absl::Span<const Buffer> pieces) override;
  absl::Status WriteNewFile(const std::string& name,
                            absl::Span<const Buffer> pieces) override;
  void ForgetCached(const std::string& name) override;
  absl::Status ReadFile(const std::string& name, int64_t offset,
                        const Buffer& into) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& name) override;
  absl::StatusOr<std::vector<StorageEntry>> List(
      const std::string& folder) override;
  absl::Status RemoveFile(const std::string& name) override;
  absl::Status RenameFolder(const std::string& from,
                            const std::string& to) override;
  absl::Status RemoveTree(const std::string& folder) override;

 private:
  // Begins a call. Errors: a bad name; kUnavailable, the machine has crashed.
  absl::Status Begin(const std::string& name) const;
  // Begins a call that changes files. Errors: those of Begin; the error of
  // FailNext; kResourceExhausted, a failure was drawn.
  absl::Status BeginChange(const std::string& name);
  // Takes a step. Errors: kUnavailable, the machine crashes here.
  absl::Status Step();
  void Crash();
  absl::Status WriteInSteps(const std::string& name,
                            const std::string& contents);
  // Leaves a torn file under its final name, or a whole one by chance.
  void Tear(const std::string& name, const std::string& contents);
  // Returns the bytes that the disk still has in a block that was not written:
  // those of a file with the same last name in another folder.
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
  bool corrupts_next_ = false;  // See CorruptNext.
  int forgotten_ = 0;
};

}  // namespace nereus
