#pragma once

#include <cstdint>

namespace nereus {

// Version for people: printed by `--version`, reported at the handshake.
inline constexpr char kVersion[] = "0.1.0";

// Version of the protocol. It changes whenever two builds could not train
// together: frames, control messages, or the behaviour of a machine. It is
// compared when a member joins and on every connection.
inline constexpr uint32_t kProtocolVersion = 10;

}  // namespace nereus
