// The safetensors format. EncodeSafetensorsHeader builds the JSON as text.
// DecodeSafetensorsHeader parses it event by event through HeaderHandler:
//
//   kStart --{--> kHeader --{--> kTensor --[--> kShape or kOffsets
//                    |              '--}--> kHeader
//                    |--{--> kMetadata --}--> kHeader
//                    '--}--> kEnd
//
// A file may come from elsewhere and be hostile. So the parser builds no tree
// of the JSON, no function is recursive, and each number is checked before it
// is used.

#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/checkpoint/storage.h"
#include "common/plan/layer_spec.h"
#include "nlohmann/json.hpp"

namespace nereus {

namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and values are copied as they are");

constexpr char kMetadataKey[] = "__metadata__";
constexpr char kType[] = "F32";
constexpr int64_t kElementBytes = 4;
constexpr int64_t kAlignmentBytes = 64;

// Returns the length in bytes of a tensor of this shape. Errors:
// kInvalidArgument.
absl::StatusOr<int64_t> BytesOf(const std::string& name,
                                absl::Span<const int64_t> shape) {
  const auto error = [&](absl::string_view what) {
    return InvalidArgumentError("tensor ", ShownName(name), " of shape [",
                                absl::StrJoin(shape, ", "), "] ", what);
  };
  if (shape.size() > kSafetensorsDimensionsMax) {
    return error(absl::StrCat("has ", shape.size(), " dimensions, at most ",
                              kSafetensorsDimensionsMax));
  }
  int64_t bytes = kElementBytes;
  for (const int64_t extent : shape) {
    if (extent < 0) return error("has a negative extent");
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return error("has more bytes than 63 bits can say");
    }
  }
  return bytes;
}

// Returns `text` as a JSON string. Errors: kInvalidArgument, not UTF-8.
absl::StatusOr<std::string> Quote(const std::string& text) {
  std::string quoted =
      Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  // dump() replaces bytes that are not UTF-8. If it has replaced any, the text
  // in the file would be another one.
  if (Json::parse(quoted) != Json(text)) {
    return InvalidArgumentError("tensor or metadata ", ShownName(text),
                                " is not UTF-8");
  }
  return quoted;
}

// Receiver of a header's JSON, event by event. So it finds a name that comes
// twice: a tree of the JSON would have this name once. If a function returns
// false, the parsing ends.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderHandler(SafetensorsHeader* header) : header_(header) {}

  // First error, or OK.
  const absl::Status& status() const { return status_; }

  // Refuse values that no header has.
  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("true or false"); }
  bool number_float(double, const std::string& text) override {
    return Fail(absl::StrCat("number ", ShownName(text)));
  }
  bool number_integer(int64_t value) override {
    return Fail(absl::StrCat("number ", value));
  }
  bool binary(Json::binary_t&) override { return Fail("bytes"); }

  // Takes a number, which may come only in shapes and offsets.
  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Fail(absl::StrCat("number ", value));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Fail(absl::StrCat("number ", value, " above 2^63 - 1"));
    }
    std::vector<int64_t>& numbers =
        place_ == Place::kShape ? tensor_.shape : offsets_;
    if (numbers.size() >= kSafetensorsDimensionsMax) {
      return Fail("list of too many numbers");
    }
    numbers.push_back(static_cast<int64_t>(value));
    return true;
  }

  // Takes a string, which may come only in the metadata and as a type.
  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      header_->metadata[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") {
      return Fail(absl::StrCat("string ", ShownName(value)));
    }
    if (value != kType) {
      return FailWith(absl::StrCat("tensor ", ShownName(tensor_.name),
                                   " has dtype ", ShownName(value),
                                   ", only F32 is known"));
    }
    return true;
  }

  // Begins an object: the header, the metadata, or a tensor.
  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Enter(Place::kHeader);
    if (place_ != Place::kHeader) return Fail("object");
    fields_.clear();
    if (key_ == kMetadataKey) return Enter(Place::kMetadata);
    tensor_ = SafetensorsTensor();
    tensor_.name = key_;
    offsets_.clear();
    return Enter(Place::kTensor);
  }

  // Takes a key. No key may come twice in the header, in the metadata or in a
  // tensor.
  bool key(std::string& key) override {
    std::set<std::string>& keys = place_ == Place::kHeader ? names_ : fields_;
    if (!keys.insert(key).second) {
      return FailWith(
          absl::StrCat(Where(), ": ", ShownName(key), " occurs twice"));
    }
    key_ = std::move(key);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kHeader) return Enter(Place::kEnd);
    if (place_ == Place::kTensor && !FinishTensor()) return false;
    return Enter(Place::kHeader);
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      return Enter(Place::kShape);
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      return Enter(Place::kOffsets);
    }
    return Fail("list");
  }

  // Ends a list. Lists come only in tensors, so the tensor goes on.
  bool end_array() override { return Enter(Place::kTensor); }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return FailWith(absl::StrCat("not JSON at byte ", position, ": ",
                                 ShownName(error.what())));
  }

 private:
  // Position in the header; the diagram at the top has the transitions.
  enum class Place {
    kStart,
    kHeader,
    kMetadata,
    kTensor,
    kShape,
    kOffsets,
    kEnd,
  };

  bool Enter(Place place) {
    place_ = place;
    return true;
  }

  // Checks a tensor at its end: it must have all three fields, and its offsets
  // must fit its shape.
  bool FinishTensor() {
    if (fields_.size() != 3 || offsets_.size() != 2) {
      return FailWith(absl::StrCat(
          Where(), " has ", fields_.size(), " fields and ", offsets_.size(),
          " offsets, not dtype, shape and 2 data_offsets"));
    }
    const auto bytes = BytesOf(tensor_.name, tensor_.shape);
    if (!bytes.ok()) return FailWith(bytes.status().message());
    tensor_.offset = offsets_[0];
    tensor_.bytes = offsets_[1] - offsets_[0];
    if (tensor_.bytes != *bytes) {
      return FailWith(absl::StrCat(Where(), " has data_offsets ", offsets_[0],
                                   " to ", offsets_[1], ", its shape [",
                                   absl::StrJoin(tensor_.shape, ", "),
                                   "] means ", *bytes, " bytes"));
    }
    header_->tensors.push_back(std::move(tensor_));
    return true;
  }

  // Returns the position for messages.
  std::string Where() const {
    if (place_ == Place::kHeader) return "header";
    if (place_ == Place::kMetadata) return kMetadataKey;
    return absl::StrCat("tensor ", ShownName(tensor_.name));
  }

  // Notes the error that `found` may not come in the current position.
  bool Fail(absl::string_view found) {
    return FailWith(
        absl::StrCat("unexpected ", found, " for ", ShownName(key_)));
  }

  // Notes an error, unless there is an earlier one.
  bool FailWith(absl::string_view message) {
    status_.Update(InvalidArgumentError(message));
    return false;
  }

  SafetensorsHeader* header_;    // Result; not owned.
  Place place_ = Place::kStart;  // Current position.
  std::string key_;              // Last key.
  std::set<std::string> names_;  // Keys of the header.
  // Keys of the current tensor or of the metadata.
  std::set<std::string> fields_;
  SafetensorsTensor tensor_;      // Tensor that is being read.
  std::vector<int64_t> offsets_;  // data_offsets of tensor_.
  absl::Status status_;           // First error.
};

}  // namespace

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> entries;
    for (const auto& [key, value] : metadata) {
      const std::string key_text = NEREUS_TRY(Quote(key));
      const std::string value_text = NEREUS_TRY(Quote(value));
      entries.push_back(absl::StrCat(key_text, ":", value_text));
    }
    members.push_back(absl::StrCat("\"", kMetadataKey, "\":{",
                                   absl::StrJoin(entries, ","), "}"));
  }
  std::set<absl::string_view> names = {kMetadataKey};
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return InvalidArgumentError("tensor name ", ShownName(tensor.name),
                                  " occurs twice or is reserved");
    }
    const std::string name = NEREUS_TRY(Quote(tensor.name));
    const int64_t bytes = NEREUS_TRY(BytesOf(tensor.name, tensor.shape));
    const int64_t begin = end;
    if (__builtin_add_overflow(begin, bytes, &end)) {
      return InvalidArgumentError(
          "with tensor ", name,
          " the file has more bytes than 63 bits can say");
    }
    members.push_back(
        absl::StrCat(name, ":{\"dtype\":\"", kType, "\",\"shape\":[",
                     absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                     begin, ",", end, "]}"));
  }
  std::string header = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  const int64_t text_bytes = std::ssize(header);
  const int64_t rest = (kSafetensorsPrefixBytes + text_bytes) % kAlignmentBytes;
  if (rest > 0) header.append(kAlignmentBytes - rest, ' ');
  const uint64_t bytes = header.size();
  if (bytes > kSafetensorsHeaderBytesMax) {
    return InvalidArgumentError("the header of ", tensors.size(),
                                " tensors has ", bytes, " bytes, at most ",
                                kSafetensorsHeaderBytesMax);
  }
  std::string prefix(kSafetensorsPrefixBytes, '\0');
  std::memcpy(prefix.data(), &bytes, sizeof(bytes));
  return prefix + header;
}

absl::StatusOr<int64_t> DecodeSafetensorsPrefix(absl::string_view prefix,
                                                int64_t file_bytes) {
  if (prefix.size() != kSafetensorsPrefixBytes ||
      file_bytes < kSafetensorsPrefixBytes) {
    return InvalidArgumentError(
        "a safetensors file of ", file_bytes, " bytes, fewer than the ",
        kSafetensorsPrefixBytes, " that it begins with");
  }
  uint64_t bytes = 0;
  std::memcpy(&bytes, prefix.data(), sizeof(bytes));
  const int64_t bytes_max = std::min(kSafetensorsHeaderBytesMax,
                                     file_bytes - kSafetensorsPrefixBytes);
  if (bytes > static_cast<uint64_t>(bytes_max)) {
    return InvalidArgumentError("a safetensors header of ", bytes,
                                " bytes, at most ", bytes_max, " in a file of ",
                                file_bytes);
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    absl::string_view header, int64_t file_bytes) {
  absl::string_view text = header;
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  if (text.empty() || text.front() != '{' || text.back() != '}') {
    return InvalidArgumentError("a safetensors header that is no JSON object");
  }
  SafetensorsHeader result;
  HeaderHandler handler(&result);
  Json::sax_parse(text.begin(), text.end(), &handler);
  if (!handler.status().ok()) {
    return InvalidArgumentError("safetensors header: ",
                                handler.status().message());
  }
  result.data_offset = kSafetensorsPrefixBytes + std::ssize(header);
  // If a tensor without elements and another tensor begin at the same byte, the
  // tensor without elements comes first.
  absl::c_sort(result.tensors, [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.bytes, a.name) <
           std::tie(b.offset, b.bytes, b.name);
  });
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : result.tensors) {
    if (tensor.offset != end) {
      return InvalidArgumentError(
          "safetensors header: tensor ", ShownName(tensor.name),
          " begins at byte ", tensor.offset, ", the one before ends at ", end);
    }
    end += tensor.bytes;
  }
  if (end != file_bytes - result.data_offset) {
    return InvalidArgumentError("safetensors header: the tensors end at byte ",
                                end, " of the data, the data at ",
                                file_bytes - result.data_offset);
  }
  return result;
}

namespace {

// Name that the safetensors format reserves, and the text that EncodeLayerName
// returns for a layer with this name.
constexpr absl::string_view kReserved = "__metadata__";
constexpr absl::string_view kReservedWritten = "%5F_metadata__";

// Returns "." and the name of an array of state, for all arrays of all
// optimizers. With this list, DecodeTensorName needs no manifest.
std::vector<std::string> StateSuffixes() {
  std::vector<std::string> suffixes;
  const auto add = [&](OptimizerPlace place, UpdateRule rule, int arrays) {
    for (const std::string& name : StateNames(place, rule, arrays)) {
      suffixes.push_back(absl::StrCat(".", name));
    }
  };
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    add(OptimizerPlace::kServer, rule, OptimizerStateCount(rule));
  }
  add(OptimizerPlace::kWorker, UpdateRule::kSgd, kStateArraysMax);
  return suffixes;
}

// Returns the entry of StateSuffixes with which `text` ends, or "".
absl::string_view StateSuffixOf(absl::string_view text) {
  static const auto& suffixes = *new std::vector<std::string>(StateSuffixes());
  for (const std::string& suffix : suffixes) {
    if (absl::EndsWith(text, suffix)) return suffix;
  }
  return "";
}

// Escapes a layer's name so that it cannot look like a range or a state.
std::string EncodeLayerName(absl::string_view layer) {
  if (layer == kReserved) return std::string(kReservedWritten);
  const absl::string_view suffix = StateSuffixOf(layer);
  const absl::string_view stem = absl::StripSuffix(layer, suffix);
  const std::string written =
      absl::StrReplaceAll(stem, {{"%", "%25"}, {"[", "%5B"}, {"]", "%5D"}});
  if (suffix.empty()) return written;
  return absl::StrCat(written, "%2E", suffix.substr(1));
}

// Returns the layer's name for a text of EncodeLayerName. For any other text,
// returns some name. EncodeLayerName does not turn this name into the same
// text, so DecodeTensorName refuses the text.
std::string DecodeLayerName(absl::string_view written) {
  return absl::StrReplaceAll(
      written,
      {{"%25", "%"}, {"%5B", "["}, {"%5D", "]"}, {"%2E", "."}, {"%5F", "_"}});
}

}  // namespace

std::vector<std::string> StateNames(OptimizerPlace place, UpdateRule rule,
                                    int state_arrays) {
  std::vector<std::string> names;
  for (int i = 0; i < state_arrays; ++i) {
    names.push_back(place == OptimizerPlace::kServer
                        ? std::string(OptimizerStateName(rule, i))
                        : absl::StrCat("state", i));
  }
  return names;
}

std::string EncodeTensorName(const TensorName& name) {
  std::string text = EncodeLayerName(name.layer);
  if (!name.whole) absl::StrAppend(&text, "[", name.first, ":", name.last, "]");
  if (!name.state.empty()) absl::StrAppend(&text, ".", name.state);
  return text;
}

absl::StatusOr<TensorName> DecodeTensorName(absl::string_view text) {
  TensorName name;
  absl::string_view rest = text;
  const absl::string_view suffix = StateSuffixOf(rest);
  if (!suffix.empty()) {
    name.state = std::string(suffix.substr(1));
    rest = absl::StripSuffix(rest, suffix);
  }
  const size_t bracket = rest.find('[');
  bool is_name = true;
  if (bracket != absl::string_view::npos) {
    absl::string_view range = rest.substr(bracket + 1);
    const size_t colon = range.find(':');
    name.whole = false;
    is_name = colon != absl::string_view::npos &&
              absl::ConsumeSuffix(&range, "]") &&
              absl::SimpleAtoi(range.substr(0, colon), &name.first) &&
              absl::SimpleAtoi(range.substr(colon + 1), &name.last) &&
              name.first >= 0 && name.first < name.last;
    rest = rest.substr(0, bracket);
  }
  name.layer = DecodeLayerName(rest);
  // Accepts only the text that EncodeTensorName returns, so that each tensor
  // has exactly one name.
  if (!is_name || !ValidateLayerName(name.layer).ok() ||
      EncodeTensorName(name) != text) {
    return InvalidArgumentError("tensor name ", ShownName(text),
                                " is not <layer>[<first>:<last>].<state>, "
                                "where the range and the state are optional");
  }
  return name;
}

}  // namespace nereus
