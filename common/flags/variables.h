#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace nereus {

// Removes the variables that Kubernetes sets in every pod for a Service whose
// name begins with "nereus": for a Service nereus-data these are
// NEREUS_DATA_PORT=tcp://10.0.0.1:7001, which would be the value of
// --data-port, NEREUS_DATA_SERVICE_HOST, NEREUS_DATA_PORT_7001_TCP_ADDR and
// others. (A pod with enableServiceLinks: false has none of them.) REQUIRES:
// the process has no other thread that uses its environment.
void DropServiceVariables();

// Returns the names of all flags of Nereus programs that an environment
// variable can set, except for the options of a job, which are in
// JobOptionTable. ParseFlags accepts their variables in every program, because
// a shell often sets variables for several programs. It warns of other
// variables that begin with NEREUS_. tests/integration/command_line_test.cc
// compares this list with --help.
inline std::vector<std::string> FlagsWithVariables() {
  return absl::StrSplit(
      "all-layers backward-share bandwidth batch checkpoint-dir compute "
      "compute-trace connect-timeout control-port coordinate-only "
      "coordinator data data-port delay delay-in-turn device epochs explain "
      "holdout host host-copy hosts http-port interval iterations jitter job "
      "json last-status latency limit listen log-format log-level max-spans "
      "memory-bandwidth message-time model name node once out rank replay "
      "restarts restore round run seed server server-binary shard share "
      "share-optional share-weight shared-memory spin stall-after standalone "
      "state steps threads timeout trace verify waits-at-end worker-binary",
      ' ');
}

// Returns the names of variables that set no flag. `nereusctl run` sets them
// for the programs that it runs.
inline std::vector<std::string> ProgramVariables() {
  return {"NEREUS_LOCAL_RANK", "NEREUS_LOCAL_SIZE"};
}

// Returns the names of variables that the client and the Python package read,
// and that set no flag. NEREUS_LIBRARY is the path of libnereus.so. Programs of
// a job inherit these variables.
inline std::vector<std::string> PackageVariables() {
  return {"NEREUS_LIBRARY", "NEREUS_SHARE_RELEASE"};
}

// Returns the names of variables that tests read. Programs that tests start
// inherit these variables.
inline std::vector<std::string> TestVariables() {
  return absl::StrSplit(
      "NEREUS_CRDS NEREUS_FUZZ_SECONDS NEREUS_MNIST_DIR NEREUS_POD_TIMES "
      "NEREUS_SCREENSHOTS NEREUS_TEST_LARGE_IMAGES NEREUS_TEST_SEED "
      "NEREUS_TEST_SEEDS NEREUS_TEST_SEEDS_MAX NEREUS_TEST_SEEDS_TIMES",
      ' ');
}

}  // namespace nereus
