#pragma once

#include <cstddef>
#include <string>

namespace nereus {

// Value that must be equal on all members of a role, and its name for the user:
// {"--batch", "32"}. A member sends its settings when it joins. The coordinator
// refuses the member if they differ from those of the job. Training with
// different batch sizes would otherwise give a wrong mean without any error.
struct Setting {
  std::string name;   // Flag that the user sets.
  std::string value;  // Value as text; compared byte by byte.

  bool operator==(const Setting&) const = default;
};

// Number of settings that one member may have.
inline constexpr size_t kSettingsMax = 64;

}  // namespace nereus
