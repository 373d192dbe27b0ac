#pragma once

#include <cstddef>
#include <string>

namespace nereus {

// Value that must be equal on all members of a role, and its name for the user:
// {"--batch", "32"}. A process sends its settings when it joins. If they differ
// from the settings of the job, the coordinator refuses the process. Otherwise
// workers with different batch sizes, for example, would train with a wrong
// mean and no error.
struct Setting {
  std::string name;   // Flag that the user sets.
  std::string value;  // Value as text; compared byte by byte.

  bool operator==(const Setting&) const = default;
};

// Largest number of settings of one member.
inline constexpr size_t kSettingsMax = 64;
// Largest length of a setting's name, and of its value, in bytes.
inline constexpr size_t kSettingBytesMax = 256;

}  // namespace nereus
