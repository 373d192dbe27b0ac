#include "tests/simulation/simulated_storage.h"

#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

absl::Status CrashedError() {
  return UnavailableError("the simulated machine has crashed");
}

absl::Status NoSuchFile(const std::string& name) {
  return NotFoundError("there is no ", name);
}

// Number of bytes in a block. Blocks are shorter than a real disk's, so that a
// manifest has many of them.
constexpr size_t kBlockBytes = 64;

std::string LastPart(const std::string& name) {
  return name.substr(name.rfind('/') + 1);  // All of it, if there is no slash.
}

}  // namespace

SimulatedStorage::SimulatedStorage(uint64_t seed,
                                   SimulatedStorageOptions options)
    : options_(options), random_(seed) {}

void SimulatedStorage::Restart() {
  crashed_ = false;
  steps_to_crash_.reset();
  next_failure_ = absl::OkStatus();
}

std::string& SimulatedStorage::Contents(const std::string& name) {
  const auto found = files_.find(name);
  NEREUS_CHECK(found != files_.end()) << name;
  return found->second;
}

void SimulatedStorage::Rot(const std::string& name, uint64_t byte) {
  std::string& contents = Contents(name);
  NEREUS_CHECK(!contents.empty()) << name;
  contents[byte % contents.size()] ^= 1;
  torn_.insert(name);
}

absl::Status SimulatedStorage::Begin(const std::string& name) const {
  if (crashed_) return CrashedError();
  return ValidateStorageName(name);
}

absl::Status SimulatedStorage::BeginChange(const std::string& name) {
  NEREUS_TRY(Begin(name));
  if (!next_failure_.ok()) {
    return std::exchange(next_failure_, absl::OkStatus());
  }
  if (random_.Chance(options_.failure_probability)) {
    return ResourceExhaustedError("cannot change ", name,
                                  ": the simulated disk is full");
  }
  return absl::OkStatus();
}

absl::Status SimulatedStorage::Step() {
  if (steps_to_crash_ == 0 || random_.Chance(options_.crash_probability)) {
    Crash();
    return CrashedError();
  }
  if (steps_to_crash_.has_value()) --*steps_to_crash_;
  ++steps_;
  return absl::OkStatus();
}

// If the disk lies, it has lost the ends of some files that were written last.
void SimulatedStorage::Crash() {
  crashed_ = true;
  if (!options_.lies) return;
  for (const std::string& name : unflushed_) {
    const auto file = files_.find(name);
    if (file == files_.end() || random_.Chance(0.5)) continue;
    const std::string whole = file->second;
    file->second.resize(random_.Below(whole.size() + 1));
    if (random_.Chance(0.5)) file->second.resize(whole.size(), '\0');
    if (file->second != whole) torn_.insert(name);
  }
  unflushed_.clear();
}

absl::Status SimulatedStorage::WriteFile(const std::string& name,
                                         absl::Span<const Buffer> pieces) {
  NEREUS_TRY(BeginChange(name));
  size_t bytes = 0;
  for (const Buffer& piece : pieces) bytes += piece.bytes();
  std::string contents;
  contents.reserve(bytes);
  for (const Buffer& piece : pieces) {
    if (piece.bytes() == 0) continue;
    contents.append(reinterpret_cast<const char*>(piece.data()), piece.bytes());
  }
  if (!contents.empty() && std::exchange(corrupts_next_, false)) {
    contents.back() ^= 1;
  }
  const absl::Status written = WriteInSteps(name, contents);
  if (crashed_ && options_.tears && random_.Chance(0.75)) Tear(name, contents);
  return written;
}

absl::Status SimulatedStorage::WriteNewFile(const std::string& name,
                                            absl::Span<const Buffer> pieces) {
  NEREUS_TRY(Begin(name));
  if (files_.contains(name)) return AlreadyExistsError(name, " exists");
  return WriteFile(name, pieces);
}

void SimulatedStorage::ForgetCached(const std::string& name) {
  if (files_.contains(name)) ++forgotten_;
}

// Writes a temporary file in two steps, and renames it in a third. A crash
// between two steps leaves the effect of the earlier steps.
absl::Status SimulatedStorage::WriteInSteps(const std::string& name,
                                            const std::string& contents) {
  NEREUS_TRY(Step());
  MakeFolders(name);
  const std::string temporary =
      absl::StrCat(name, ".", random_.Below(1000000), kTemporarySuffix);
  files_[temporary] = contents.substr(0, random_.Below(contents.size() + 1));
  NEREUS_TRY(Step());
  files_[temporary] = contents;
  NEREUS_TRY(Step());
  files_[name] = std::move(files_[temporary]);
  files_.erase(temporary);
  torn_.erase(name);
  unflushed_.push_back(name);
  if (unflushed_.size() > static_cast<size_t>(options_.unflushed_files_max)) {
    unflushed_.pop_front();
  }
  // A crash here comes after the rename, and before the call returns.
  return Step();
}

void SimulatedStorage::MakeFolders(const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos;
       slash = name.find('/', slash + 1)) {
    folders_.insert(name.substr(0, slash));
  }
}

std::string SimulatedStorage::BytesBefore(const std::string& name) const {
  const std::string part = LastPart(name);
  std::string before;
  for (const auto& [other, bytes] : files_) {
    if (other != name && LastPart(other) == part) before = bytes;
  }
  return before;
}

// Tears a file as real disks do: the file ends early, some blocks have the
// bytes that were there before, or a bit has flipped.
void SimulatedStorage::Tear(const std::string& name,
                            const std::string& contents) {
  std::string left = contents;
  const size_t bytes = contents.size();
  const size_t begin = random_.Below(bytes + 1) / kBlockBytes * kBlockBytes;
  switch (random_.Below(3)) {
    case 0:
      left.resize(begin);
      break;
    case 1: {
      std::string before = BytesBefore(name);
      before.resize(bytes, '\0');
      const size_t blocks = 1 + random_.Below(bytes / kBlockBytes + 1);
      left.replace(begin, blocks * kBlockBytes, before, begin,
                   blocks * kBlockBytes);
      break;
    }
    default:
      const size_t digit = left.find_first_of("0123456789", begin);
      if (digit != std::string::npos) left[digit] ^= 1;
  }
  MakeFolders(name);
  torn_.erase(name);
  if (left != contents) torn_.insert(name);
  files_[name] = std::move(left);
}

absl::Status SimulatedStorage::ReadFile(const std::string& name, int64_t offset,
                                        const Buffer& into) {
  NEREUS_TRY(Begin(name));
  const auto file = files_.find(name);
  if (file == files_.end()) return NoSuchFile(name);
  const auto bytes = std::ssize(file->second);
  if (offset < 0 || into.bytes() > bytes - offset) {
    return OutOfRangeError(name, " ends at byte ", bytes, ", before byte ",
                           offset + into.bytes(), ", up to which it is read");
  }
  if (into.bytes() > 0) {
    std::memcpy(into.data(), file->second.data() + offset,
                static_cast<size_t>(into.bytes()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SimulatedStorage::FileBytes(const std::string& name) {
  NEREUS_TRY(Begin(name));
  const auto file = files_.find(name);
  if (file == files_.end()) return NoSuchFile(name);
  return std::ssize(file->second);
}

absl::StatusOr<std::vector<StorageEntry>> SimulatedStorage::List(
    const std::string& folder) {
  if (crashed_) return CrashedError();
  if (!folder.empty()) {
    NEREUS_TRY(ValidateStorageName(folder));
    if (!folders_.contains(folder)) return NoSuchFile(folder);
  }
  const std::string prefix = folder.empty() ? "" : absl::StrCat(folder, "/");
  const auto is_direct = [&](const std::string& name) {
    return absl::StartsWith(name, prefix) &&
           name.find('/', prefix.size()) == std::string::npos;
  };
  std::vector<StorageEntry> entries;
  for (const std::string& name : folders_) {
    if (!is_direct(name)) continue;
    entries.push_back({name.substr(prefix.size()), true, 0});
  }
  for (const auto& [name, contents] : files_) {
    if (!is_direct(name)) continue;
    entries.push_back(
        {name.substr(prefix.size()), false, std::ssize(contents)});
  }
  absl::c_sort(entries,
               [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

absl::Status SimulatedStorage::RemoveFile(const std::string& name) {
  NEREUS_TRY(BeginChange(name));
  if (!files_.contains(name)) return NoSuchFile(name);
  NEREUS_TRY(Step());
  files_.erase(name);
  return Step();
}

// Crashes before or after the rename, never within.
absl::Status SimulatedStorage::RenameFolder(const std::string& from,
                                            const std::string& to) {
  NEREUS_TRY(ValidateStoragePart(from));
  NEREUS_TRY(ValidateStoragePart(to));
  NEREUS_TRY(BeginChange(from));
  if (!folders_.contains(from)) {
    if (files_.contains(from)) {
      return FailedPreconditionError(from, " is not a folder");
    }
    return NoSuchFile(from);
  }
  const auto is_within = [](const std::string& name, const std::string& in) {
    return name == in || absl::StartsWith(name, absl::StrCat(in, "/"));
  };
  const auto is_taken = [&](const auto& named) {
    return is_within(named.first, to);
  };
  if (absl::c_any_of(files_, is_taken)) {
    return FailedPreconditionError(to, " exists");
  }
  NEREUS_TRY(Step());
  std::map<std::string, std::string> files;
  for (auto& [name, contents] : files_) {
    files[is_within(name, from) ? to + name.substr(from.size()) : name] =
        std::move(contents);
  }
  files_ = std::move(files);
  std::set<std::string> folders;
  for (const std::string& name : folders_) {
    folders.insert(is_within(name, from) ? to + name.substr(from.size())
                                         : name);
  }
  folders_ = std::move(folders);
  return Step();
}

// Removes files in a drawn order, so that a crash may leave any part of the
// tree.
absl::Status SimulatedStorage::RemoveTree(const std::string& folder) {
  NEREUS_TRY(BeginChange(folder));
  if (!folders_.contains(folder)) return NoSuchFile(folder);
  const std::string prefix = absl::StrCat(folder, "/");
  std::vector<std::string> names;
  for (const auto& [name, contents] : files_) {
    if (absl::StartsWith(name, prefix)) names.push_back(name);
  }
  for (size_t i = names.size(); i > 1; --i) {
    std::swap(names[i - 1], names[random_.Below(i)]);
  }
  for (const std::string& name : names) {
    NEREUS_TRY(Step());
    files_.erase(name);
  }
  NEREUS_TRY(Step());
  std::erase_if(folders_, [&](const std::string& name) {
    return name == folder || absl::StartsWith(name, prefix);
  });
  return absl::OkStatus();
}

}  // namespace nereus
