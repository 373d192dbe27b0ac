#pragma once

#include <memory>

#include "server/admin/command.h"

namespace nereus {

// Functions that each make one command of nereusctl. checkpoint_command.cc has
// `checkpoint` and `checkpoints`. A file such as plan_command.cc has each other
// command.

// `plan`: shows how each layer of a model would travel in a cluster, why, and
// the cost. It needs no cluster. With --run it shows the plan of a job that is
// over, with the times that were predicted and measured.
std::unique_ptr<Command> MakePlanCommand();

// `simulate`: predicts the iterations of a job on a cluster. It runs the
// production protocol on a modelled network, and needs no cluster.
std::unique_ptr<Command> MakeSimulateCommand();

// `local`: trains a model with several workers and servers on this computer,
// shows their progress, and reports on the job. After a job without errors, the
// command still fails if the workers' parameters differ with --quorum=all, or
// if --checkpoint-dir has no checkpoint of the last step. After a signal that
// ends the job, the exit code is 128 plus the signal's number, as in shells.
std::unique_ptr<Command> MakeLocalCommand();

// `run`: runs a program of the user as the workers of a job on this computer,
// with servers, and shows its output. The exit code is that of the first
// program that fails, or as for `local` after a signal.
std::unique_ptr<Command> MakeRunCommand();

// `status`: shows the job of a running coordinator, with its members.
std::unique_ptr<Command> MakeStatusCommand();

// `checkpoint`: makes a checkpoint of a running job, and waits for it.
std::unique_ptr<Command> MakeCheckpointCommand();

// `checkpoints`: lists the checkpoints in a folder. It fails if --verify finds
// a damaged one.
std::unique_ptr<Command> MakeCheckpointsCommand();

// `export`: writes the parameters of a checkpoint to one safetensors file, for
// other tools. A layer's matrix is "NAME.weight", float32 {M, N}, and its bias
// "NAME.bias", {M}. Other values behind a matrix are "NAME.rest", and a vector
// layer is "NAME".
std::unique_ptr<Command> MakeExportCommand();

}  // namespace nereus
