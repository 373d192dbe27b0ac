#ifndef NEREUS_COMMON_FLAGS_VARIABLES_H_
#define NEREUS_COMMON_FLAGS_VARIABLES_H_

#include <string>

namespace nereus {

// Names of the variables that set a flag of any of our programs. One that a
// program does not know may be meant for another; one that is not here, for
// none. tests/integration/command_line_test.cc compares them with --help.
inline const std::string kVariables[] = {
    "NEREUS_ALL_LAYERS",
    "NEREUS_BACKUP",
    "NEREUS_BACKWARD_SHARE",
    "NEREUS_BANDWIDTH",
    "NEREUS_BATCH",
    "NEREUS_BETA1",
    "NEREUS_BETA2",
    "NEREUS_BLOCK",
    "NEREUS_CHECKPOINT_DIR",
    "NEREUS_CHECKPOINT_EVERY",
    "NEREUS_CHECKPOINTS_KEPT",
    "NEREUS_COMPUTE",
    "NEREUS_COMPUTE_TRACE",
    "NEREUS_CONTROL_PORT",
    "NEREUS_COORDINATE_ONLY",
    "NEREUS_COORDINATOR",
    "NEREUS_COST",
    "NEREUS_DATA",
    "NEREUS_DATA_PORT",
    "NEREUS_DELAY",
    "NEREUS_DELAY_IN_TURN",
    "NEREUS_DENSE_STEPS",
    "NEREUS_DETERMINISTIC",
    "NEREUS_DEVICE",
    "NEREUS_EPOCHS",
    "NEREUS_EPSILON",
    "NEREUS_EXPLAIN",
    "NEREUS_FUSION",
    "NEREUS_HOLDOUT",
    "NEREUS_HOST",
    "NEREUS_HOST_COPY",
    "NEREUS_ITERATIONS",
    "NEREUS_JITTER",
    "NEREUS_JOB",
    "NEREUS_JSON",
    "NEREUS_LATENCY",
    "NEREUS_LEARNING_RATE",
    "NEREUS_LEASE",
    "NEREUS_LIMIT",
    "NEREUS_LOG_LEVEL",
    "NEREUS_LOSS_SCALE",
    "NEREUS_MAX_WORKERS",
    "NEREUS_MESSAGE_TIME",
    "NEREUS_MIN_WORKERS",
    "NEREUS_MODEL",
    "NEREUS_MOMENTUM",
    "NEREUS_NAME",
    "NEREUS_NAN",
    "NEREUS_OPTIMIZER",
    "NEREUS_OUT",
    "NEREUS_OVERLAP",
    "NEREUS_QUORUM",
    "NEREUS_REPLAY",
    "NEREUS_RESTARTS",
    "NEREUS_RESTORE",
    "NEREUS_RESYNC",
    "NEREUS_ROUND",
    "NEREUS_RUN",
    "NEREUS_SCHEME",
    "NEREUS_SEED",
    "NEREUS_SERVER",
    "NEREUS_SERVER_BINARY",
    "NEREUS_SERVERS",
    "NEREUS_SHARD",
    "NEREUS_SHARED_MEMORY",
    "NEREUS_SPARSITY",
    "NEREUS_STALENESS",
    "NEREUS_STALL_AFTER",
    "NEREUS_STANDALONE",
    "NEREUS_STATE",
    "NEREUS_STEPS",
    "NEREUS_THREADS",
    "NEREUS_TIMEOUT",
    "NEREUS_TRACE",
    "NEREUS_UPDATE",
    "NEREUS_VERIFY",
    "NEREUS_WEIGHT_DECAY",
    "NEREUS_WIRE",
    "NEREUS_WORKER_BINARY",
    "NEREUS_WORKERS",
};

// Names of variables of tests, which programs may inherit.
inline const std::string kTestVariables[] = {
    "NEREUS_FUZZ_SECONDS", "NEREUS_MNIST_DIR",      "NEREUS_TEST_SEED",
    "NEREUS_TEST_SEEDS",   "NEREUS_TEST_SEEDS_MAX",
};

}  // namespace nereus

#endif  // NEREUS_COMMON_FLAGS_VARIABLES_H_
