#include "server/admin/trace_archive.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/base/json_text.h"
#include "common/base/version.h"
#include "nlohmann/json.hpp"
#include "server/admin/trace_json.h"

namespace nereus {
namespace {

constexpr const char* kManifestName = "perfetto_manifest.json";
constexpr const char* kJobName = "job.json";

// A TAR archive is a list of blocks of this length. A member is a header of one
// block, and its content, padded with zeros.
constexpr size_t kBlock = 512;

// Offsets and lengths of the header's fields.
constexpr size_t kNameBytes = 100;
constexpr size_t kSizeAt = 124;
constexpr size_t kSizeDigits = 11;
constexpr size_t kChecksumAt = 148;
constexpr size_t kTypeAt = 156;
constexpr size_t kMagicAt = 257;

// Longest file that is read, and that can be written: the size has 11 octal
// digits.
constexpr int64_t kArchiveBytesMax = int64_t{1} << 31;

// Appends a member to an archive. The checksum of a header is the sum of its
// bytes, with spaces in the place of the checksum.
void AppendMember(const std::string& name, const std::string& content,
                  std::string& archive) {
  std::string header(kBlock, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    std::copy(text.begin(), text.end(), header.begin() + at);
  };
  put(0, name);
  put(kNameBytes, "0000644");  // Mode.
  put(108, "0000000");         // User.
  put(116, "0000000");         // Group.
  put(kSizeAt, absl::StrFormat("%011o", content.size()));
  put(136, "00000000000");  // Time.
  put(kChecksumAt, "        ");
  put(kTypeAt, "0");  // A file.
  put(kMagicAt, std::string("ustar\00000", 8));
  unsigned int sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(kChecksumAt, absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
  archive += header;
  archive += content;
  archive.append((kBlock - content.size() % kBlock) % kBlock, '\0');
}

// Returns the content of the member `name`. Errors: kDataLoss.
absl::StatusOr<absl::string_view> FindMember(absl::string_view archive,
                                             absl::string_view name) {
  while (archive.size() >= kBlock && archive[0] != '\0') {
    const absl::string_view header = archive.substr(0, kBlock);
    int64_t size = 0;
    for (const char digit : header.substr(kSizeAt, kSizeDigits)) {
      if (digit < '0' || digit > '7') return DataLossError("is no TAR archive");
      size = size * 8 + (digit - '0');
    }
    archive.remove_prefix(kBlock);
    if (!absl::StartsWith(header.substr(kMagicAt), "ustar") ||
        size > static_cast<int64_t>(archive.size())) {
      return DataLossError("is no TAR archive, or not whole");
    }
    const absl::string_view content =
        archive.substr(0, static_cast<size_t>(size));
    const absl::string_view found = header.substr(0, kNameBytes);
    if (found.substr(0, found.find('\0')) == name) return content;
    const auto blocks = (static_cast<size_t>(size) + kBlock - 1) / kBlock;
    archive.remove_prefix(std::min(archive.size(), blocks * kBlock));
  }
  return DataLossError("has no ", name, ": it is no file of `nereusctl trace`");
}

std::string FormatManifest(const JobTrace& trace) {
  nlohmann::ordered_json attributes = {{"nereus.version", kVersion},
                                       {"nereus.job", trace.job_name},
                                       {"nereus.epoch", trace.job->epoch},
                                       {"nereus.first_step", trace.first_step},
                                       {"nereus.last_step", trace.last_step}};
  for (const MemberTrace& member : trace.members) {
    const std::string prefix = absl::StrCat("nereus.", member.name, ".");
    attributes[prefix + "spans_lost"] = member.lost;
    if (member.clock.empty()) continue;
    attributes[prefix + "clock_offset_ns"] =
        absl::ToInt64Nanoseconds(member.clock.back().offset);
    // A time between two comparisons has a share of the error of each.
    absl::Duration error;
    for (const ClockSample& sample : member.clock) {
      error = std::max(error, sample.error);
    }
    attributes[prefix + "clock_error_ns"] = absl::ToInt64Nanoseconds(error);
  }
  // Perfetto finds a manifest by its first bytes.
  return absl::StrCat("{\"perfetto_manifest\": ",
                      FormatJson({{"version", 1},
                                  {"attributes", attributes},
                                  {"files", {{{"path", kJobName}}}}}),
                      "}\n");
}

}  // namespace

absl::Status WriteTraceArchive(const std::string& path, const JobTrace& trace) {
  std::string archive;
  AppendMember(kManifestName, FormatManifest(trace), archive);
  AppendMember(kJobName, FormatTraceJson(trace), archive);
  archive.append(2 * kBlock, '\0');  // The end of an archive.
  if (static_cast<int64_t>(archive.size()) > kArchiveBytesMax) {
    return UnavailableError("the trace has ", archive.size(),
                            " bytes: trace fewer steps");
  }
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << archive;
  file.close();
  if (file) return absl::OkStatus();
  return UnavailableError(path, " cannot be written: ", strerror(errno));
}

absl::StatusOr<JobTrace> ReadTraceArchive(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t bytes = file ? static_cast<int64_t>(file.tellg()) : -1;
  if (bytes < 0) {
    return UnavailableError(path, " cannot be read: ", strerror(errno));
  }
  if (bytes > kArchiveBytesMax) {
    return DataLossError(path, " has ", bytes, " bytes: it is no trace");
  }
  std::string archive(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  if (!file.read(archive.data(), bytes)) {
    return UnavailableError(path, " cannot be read: ", strerror(errno));
  }
  const absl::StatusOr<absl::string_view> job = FindMember(archive, kJobName);
  if (!job.ok()) return DataLossError(path, " ", job.status().message());
  absl::StatusOr<JobTrace> trace = ParseTraceJson(*job);
  if (trace.ok()) return trace;
  return DataLossError(path, ": ", kJobName, " ", trace.status().message());
}

}  // namespace nereus
