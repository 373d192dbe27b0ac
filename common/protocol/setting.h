#pragma once

#include <cstddef>
#include <string>

namespace nereus {

// A value that must be the same on all members of a role, with the name by
// which the user knows it: {"--batch", "32"}. Members say theirs at joining.
struct Setting {
  std::string name;
  std::string value;

  bool operator==(const Setting&) const = default;
};

// Settings that one member may have.
inline constexpr size_t kSettingsMax = 64;

}  // namespace nereus
