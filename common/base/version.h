#pragma once

#include <cstdint>

namespace nereus {

// Version for people. Programs print it for `--version`, and a process tells it
// when it joins and when it connects.
inline constexpr char kVersion[] = "0.2.0";

// Version of the protocol: frames, control messages and the behaviour of
// machines. A change with which an old and a new build cannot train together
// must raise it. The coordinator compares it when a process joins, and both
// ends of every connection compare it.
inline constexpr uint32_t kProtocolVersion = 19;

}  // namespace nereus
