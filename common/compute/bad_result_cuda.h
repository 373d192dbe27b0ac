#pragma once

#include <cstdint>

namespace nereus {

// Value of a result that a kernel found to be NaN or infinite. Kernels write it
// to memory that the host reads, too, and only if there is such a value. So a
// result that is finite costs no access to that memory.
struct BadResult {
  int64_t index = kNone;  // Index of the value in its layer.
  int64_t step = 0;       // Step of the result.
  int64_t of = 0;         // Kind of the result: a number of the caller.

  static constexpr int64_t kNone = -1;  // No value was found.
};

// Place and values of a BadResult that a kernel notes.
struct NoteBadResult {
  // Pinned host memory. Null: the kernel does not look at its results.
  BadResult* place = nullptr;
  int64_t offset = 0;  // Index in the layer of the kernel's first value.
  int64_t step = 0;    // BadResult::step.
  int64_t of = 0;      // BadResult::of.
};

}  // namespace nereus
