#pragma once

#include <cstdint>

namespace nereus {

// What `--version` prints and the handshake reports.
inline constexpr char kVersion[] = "0.1.0";

// Changes whenever two builds could not train together: frames, control
// messages, or what a machine does with either. Compared at registration and on
// every connection.
inline constexpr uint32_t kProtocolVersion = 6;

}  // namespace nereus
