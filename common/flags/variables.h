#pragma once

#include <string>

namespace nereus {

// Names of the variables that set a flag of any of our programs, but for
// options of a job (JobOptionTable). One that a program does not know may be
// meant for another; one that is not here, for none.
// tests/integration/command_line_test.cc compares them with --help.
inline const std::string kVariables[] = {
    "NEREUS_ALL_LAYERS",
    "NEREUS_BACKWARD_SHARE",
    "NEREUS_BANDWIDTH",
    "NEREUS_BATCH",
    "NEREUS_CHECKPOINT_DIR",
    "NEREUS_COMPUTE",
    "NEREUS_COMPUTE_TRACE",
    "NEREUS_CONTROL_PORT",
    "NEREUS_COORDINATE_ONLY",
    "NEREUS_COORDINATOR",
    "NEREUS_DATA",
    "NEREUS_DATA_PORT",
    "NEREUS_DELAY",
    "NEREUS_DELAY_IN_TURN",
    "NEREUS_DEVICE",
    "NEREUS_EPOCHS",
    "NEREUS_EXPLAIN",
    "NEREUS_HOLDOUT",
    "NEREUS_HOST",
    "NEREUS_HOST_COPY",
    "NEREUS_ITERATIONS",
    "NEREUS_JITTER",
    "NEREUS_JOB",
    "NEREUS_JSON",
    "NEREUS_LATENCY",
    "NEREUS_LIMIT",
    "NEREUS_LOG_LEVEL",
    "NEREUS_MESSAGE_TIME",
    "NEREUS_MODEL",
    "NEREUS_NAME",
    "NEREUS_OUT",
    "NEREUS_REPLAY",
    "NEREUS_RESTARTS",
    "NEREUS_RESTORE",
    "NEREUS_ROUND",
    "NEREUS_RUN",
    "NEREUS_SEED",
    "NEREUS_SERVER",
    "NEREUS_SERVER_BINARY",
    "NEREUS_SHARD",
    "NEREUS_SHARED_MEMORY",
    "NEREUS_STALL_AFTER",
    "NEREUS_STANDALONE",
    "NEREUS_STATE",
    "NEREUS_STEPS",
    "NEREUS_THREADS",
    "NEREUS_TIMEOUT",
    "NEREUS_TRACE",
    "NEREUS_VERIFY",
    "NEREUS_WORKER_BINARY",
};

// Names of variables of tests, which programs may inherit.
inline const std::string kTestVariables[] = {
    "NEREUS_FUZZ_SECONDS", "NEREUS_MNIST_DIR",      "NEREUS_TEST_SEED",
    "NEREUS_TEST_SEEDS",   "NEREUS_TEST_SEEDS_MAX",
};

}  // namespace nereus
