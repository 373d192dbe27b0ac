#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace nereus {

// Value of an enum, and its name for users. A table lists all values of an
// enum, in the order of the enum:
//
//   constexpr Named<Quorum> kNames[] = {
//       {Quorum::kAll, "all"}, {Quorum::kSolo, "solo"}};
//   absl::string_view QuorumName(Quorum quorum) {
//     return NameOf<kNames>(quorum);
//   }
template <typename Enum>
struct Named {
  Enum value;              // Value of the enum.
  absl::string_view name;  // Name of the value.
};

// True if `value` is the value of an enumerator. In __PRETTY_FUNCTION__ the
// compiler writes such a value by its name, "value = nereus::Quorum::kAll", and
// any other value as a cast, "value = (nereus::Quorum)4".
template <auto value>
constexpr bool IsEnumerator() {
  return std::string_view(__PRETTY_FUNCTION__).find("value = (") ==
         std::string_view::npos;
}

// Number of enumerators of an enum, whose values begin at 0 and have no gaps.
template <typename Enum, int n = 0>
constexpr int EnumeratorCount() {
  if constexpr (IsEnumerator<static_cast<Enum>(n)>()) {
    return EnumeratorCount<Enum, n + 1>();
  } else {
    return n;
  }
}

// True if `table` lists every enumerator of its enum, whose values have no
// gaps. Checks that the values in the table follow each other, and that the
// enum has no value right before the table's first or right after its last.
// NameOf requires it, so a new enumerator without a name does not compile.
template <const auto& table>
constexpr bool IsComplete() {
  constexpr auto kNumber = [](const auto& row) {
    return static_cast<int>(row.value);
  };
  constexpr int kCount = std::size(table);
  constexpr int kFirst = kNumber(table[0]);
  for (int i = 0; i < kCount; ++i) {
    if (kNumber(table[i]) != kFirst + i) return false;
  }
  using Enum = std::remove_const_t<decltype(table[0].value)>;
  return !IsEnumerator<static_cast<Enum>(kFirst - 1)>() &&
         !IsEnumerator<static_cast<Enum>(kFirst + kCount)>();
}

// Returns the name of `value`, or "unknown" for a number that is no enumerator.
template <const auto& table, typename Enum>
absl::string_view NameOf(Enum value) {
  static_assert(IsComplete<table>(), "an enumerator has no name");
  for (const Named<Enum>& row : table) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

// Returns the value of the enum with this name. `what` says in messages what
// the enum is, for example "scheme". Errors: kInvalidArgument, with `name` and
// all names of the table. The message escapes `name` and cuts it to 64 bytes,
// because `name` may come from a peer or a file.
template <const auto& table>
auto ParseName(absl::string_view what, absl::string_view name)
    -> absl::StatusOr<std::remove_const_t<decltype(table[0].value)>> {
  for (const auto& row : table) {
    if (row.name == name) return row.value;
  }
  constexpr size_t kShownBytesMax = 64;
  const auto append = [](std::string* out, const auto& row) {
    out->append(row.name.data(), row.name.size());
  };
  return InvalidArgumentError(
      "unknown ", what, " \"", absl::CHexEscape(name.substr(0, kShownBytesMax)),
      name.size() > kShownBytesMax ? "...\"" : "\"", ", known are ",
      absl::StrJoin(table, ", ", append));
}

}  // namespace nereus
