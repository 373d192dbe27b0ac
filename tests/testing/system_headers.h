// The system's headers that most tests include. They are compiled once
// (common/bazel/precompiled.bzl).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/bazel/system_headers.h"
