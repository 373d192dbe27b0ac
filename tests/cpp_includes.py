"""Finds C++ files that use a name of a header of the system without including the header.

The precompiled headers (common/bazel/precompiled.bzl) would hide this from the compiler: they
give each file the headers below. A file has what it or a header of the project includes.
"""

import os
import re

PRECOMPILED = ("common/bazel/system_headers.h", "tests/testing/system_headers.h")

# Header of the system, and names that a file without this header must not use.
NAMES = {
    "algorithm": r"\bstd::(min|max|clamp|minmax|sort|stable_sort|find|find_if|any_of|all_of"
                 r"|none_of|count|count_if|copy|copy_n|copy_if|fill|fill_n|equal|mismatch|reverse"
                 r"|remove|remove_if|replace|rotate|shuffle|transform|unique|lower_bound"
                 r"|upper_bound|equal_range|max_element|min_element|nth_element|is_sorted)\(",
    "atomic": r"\bstd::(atomic|memory_order)",
    "cmath": r"\bstd::(sqrt|cbrt|abs|fabs|pow|exp|log|log2|floor|ceil|round|lround|llround|trunc"
             r"|nextafter|hypot|sin|cos|tanh|isfinite|isnan|isinf|ldexp|frexp)\(",
    "cstdint": r"\bu?int(8|16|32|64|ptr)_t\b",
    "cstring": r"\bstd::(memcpy|memmove|memset|memcmp|strlen|strcmp|strncmp|strchr)\(",
    "deque": r"\bstd::deque\b",
    "functional": r"\bstd::(function|reference_wrapper|ref|hash|greater|less)\b",
    "limits": r"\bstd::numeric_limits\b",
    "map": r"\bstd::(multi)?map\b",
    "memory": r"\bstd::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared"
              r"|enable_shared_from_this)\b",
    "optional": r"\bstd::(optional|nullopt)\b",
    "set": r"\bstd::(multi)?set\b",
    "string": r"\bstd::(string|to_string)\b",
    "thread": r"\bstd::(thread|this_thread)\b",
    "utility": r"\bstd::(move|forward|exchange|swap|pair|make_pair|in_place)\b",
    "variant": r"\bstd::(variant|visit|monostate|holds_alternative|get_if)\b",
    "vector": r"\bstd::vector\b",
    "absl/algorithm/container.h": r"\babsl::c_\w+\(",
    "absl/status/statusor.h": r"\babsl::StatusOr\b",
    "absl/strings/str_cat.h": r"\babsl::(StrCat|StrAppend|Hex|kZeroPad\d+)\b",
    "absl/strings/str_join.h": r"\babsl::StrJoin\b",
    "absl/time/time.h": r"\babsl::(Time|Duration|Nanoseconds|Microseconds|Milliseconds|Seconds"
                        r"|Minutes|Hours|FormatDuration|ParseDuration|ToDoubleSeconds|UnixEpoch"
                        r"|(Infinite|Zero)Duration|Infinite(Past|Future))\b",
    "absl/types/span.h": r"\babsl::(Span|MakeSpan|MakeConstSpan)\b",
    "gmock/gmock.h": r"\bEXPECT_THAT\(",
    "gtest/gtest.h": r"^(TEST|TEST_F|TEST_P)\(",
}
# Headers that have all of another one.
HAVE = {"gmock/gmock.h": "gtest/gtest.h", "stdint.h": "cstdint"}

INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|"(\\.|[^"\\\n])*"')


class Includes:
    """`read` returns the text of a file of the project."""

    def __init__(self, files, read):
        self._files = set(files)
        self._read = read
        self._reached = {}

    def _reach(self, path):
        """Returns the system's headers that a file includes, itself or through the project."""
        if path not in self._reached:
            self._reached[path] = reached = set()
            for header in INCLUDE.findall(self._read(path)):
                if header in self._files:
                    reached |= self._reach(header)
                else:
                    reached |= {header, HAVE.get(header, header)}
        return self._reached[path]

    def check(self, path):
        """Yields the findings of a C++ file."""
        missing = NAMES.keys() - self._reach(path)
        text = COMMENT_OR_TEXT.sub("", self._read(path))
        for header in sorted(missing):
            used = re.search(NAMES[header], text, re.MULTILINE)
            if used:
                number = text[:used.start()].count("\n") + 1
                yield number, f"uses {used[0].rstrip('(')} without #include of {header}"

    def check_precompiled(self):
        """Yields a finding for each precompiled header that NAMES has not."""
        for path in PRECOMPILED:
            for header in sorted(self._reach(path) - NAMES.keys()):
                yield path, 1, f"tests/cpp_includes.py has no names of {header}"
