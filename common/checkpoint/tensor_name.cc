#include "common/checkpoint/tensor_name.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/checkpoint/shown_name.h"
#include "common/plan/layer_spec.h"

namespace nereus {
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
