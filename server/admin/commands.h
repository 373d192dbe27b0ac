#pragma once

#include <memory>

#include "server/admin/command.h"

namespace nereus {

// Functions that each make one command of nereusctl. checkpoint_command.cc has
// the commands `checkpoint` and `checkpoints`. Each other command has a file of
// its own, such as plan_command.cc.

// `plan`: shows the route that each layer of a model would take in a cluster,
// why, and what the route costs. It needs no cluster. With --run it shows the
// plan of a job that is over, with the predicted and the measured times.
std::unique_ptr<Command> MakePlanCommand();

// `simulate`: predicts the iterations of a job on a cluster. It runs the
// production protocol on a modelled network, and needs no cluster.
std::unique_ptr<Command> MakeSimulateCommand();

// `local`: trains a model with several workers and servers on this computer,
// shows their progress, and reports on the job. After a job without errors, the
// command still fails if the workers' parameters differ although --quorum is
// all, or if --checkpoint-dir has no checkpoint of the last step. After a
// signal that ends the job, the exit code is 128 plus the signal's number, as
// in shells.
std::unique_ptr<Command> MakeLocalCommand();

// `run`: runs a program of the user as the workers of a job on this computer,
// with servers, and shows its output. If a program fails, the exit code is that
// of the first program that failed. After a signal that ends the job, it is 128
// plus the signal's number.
std::unique_ptr<Command> MakeRunCommand();

// `status`: shows the job of a running coordinator, with its members.
std::unique_ptr<Command> MakeStatusCommand();

// `top`: shows what `status` shows, again and again, until the job is over.
std::unique_ptr<Command> MakeTopCommand();

// `trace`: records what all members of a running job do in some steps, and
// writes it to a file that Perfetto opens.
std::unique_ptr<Command> MakeTraceCommand();

// `explain`: says what limits a job, by a file of `trace`. It needs no cluster.
std::unique_ptr<Command> MakeExplainCommand();

// `share`: shows the devices that jobs share on this computer: which job has
// the turn, which ones wait, and what each has had so far.
std::unique_ptr<Command> MakeShareCommand();

// `drain`: lets a worker or a server leave a running job, and waits until it
// has left.
std::unique_ptr<Command> MakeDrainCommand();

// `checkpoint`: makes a checkpoint of a running job, and waits for it.
std::unique_ptr<Command> MakeCheckpointCommand();

// `checkpoints`: lists the checkpoints in a folder. It fails if it finds a
// damaged one; only with --verify does it read all of their bytes.
std::unique_ptr<Command> MakeCheckpointsCommand();

// `export`: writes the parameters of a checkpoint to one safetensors file, for
// other tools. The matrix of layer NAME is the tensor "NAME.weight", float32
// {M, N}, and its bias "NAME.bias", {M}. If the layer has other values behind
// the matrix, they are "NAME.rest". A vector layer is "NAME". A matrix layer
// that is called "NAME.weight" is exported as layer NAME, unless the model also
// has a layer NAME.
std::unique_ptr<Command> MakeExportCommand();

}  // namespace nereus
