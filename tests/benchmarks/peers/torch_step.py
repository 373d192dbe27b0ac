"""A process that replays a model in DistributedDataParallel over Gloo.

For ../step_benchmark.py.

  torch_step.py RANK PROCESSES STEPS MODEL TIMES FOLDER

MODEL and TIMES are the table of layers and the JSON file of their times for
nereus-worker --replay. FOLDER is empty and the same for all processes.
GLOO_SOCKET_IFNAME selects the network interface.

A layer is a parameter. Its forward and its backward sleep; backward returns a
gradient that exists from the start. There is no optimizer. A gradient is copied
once, into its bucket (gradient_as_bucket_view, the faster way). All other
options are DistributedDataParallel's defaults.

Prints {"step_seconds": [...], "cpu_seconds_per_step"}. A step lasts from the
end of a backward, with the mean gradients, to the end of the next. The first
step does not count.
"""

import csv
import json
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SLEEP_ERROR_MAX = 0.0005  # After a longer delay, the device was idle.


class Device:
    """A device that sleeps instead of computing, as in nereus-worker."""

    free_at = 0.0

    def compute(self, seconds):
        if not seconds:
            return
        now = time.perf_counter()
        # A sleep lasts too long; the next sleep makes up for it.
        if now - self.free_at > SLEEP_ERROR_MAX:
            self.free_at = now
        self.free_at += seconds
        time.sleep(max(0.0, self.free_at - now))


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(context, values, _, layer):
        context.layer = layer
        layer.device.compute(layer.forward_seconds)
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        layer = context.layer
        layer.device.compute(layer.backward_seconds)
        # Another tensor on the same memory is used without a copy.
        return gradient, layer.gradient.detach(), None


class Layer(torch.nn.Module):
    def __init__(self, device, parameters, times, value):
        super().__init__()
        self.device = device
        self.forward_seconds = times["forward_seconds"]
        self.backward_seconds = times["backward_seconds"]
        self.parameter = torch.nn.Parameter(torch.zeros(parameters))
        self.gradient = torch.full((parameters,), value)

    def forward(self, values):
        return Compute.apply(values, self.parameter, self)


def load(model, times, value):
    with open(times, encoding="utf-8") as file:
        by_name = {layer["name"]: layer for layer in json.load(file)["layers"]}
    device = Device()
    with open(model, encoding="utf-8", newline="") as file:
        return torch.nn.Sequential(*(
            Layer(device, int(row["parameters"]), by_name[row["name"]], value)
            for row in csv.DictReader(file)))


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    rank, processes, steps = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes,
                            init_method=f"file://{sys.argv[6]}/meet")
    model = load(sys.argv[4], sys.argv[5], float(rank + 1))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    values = torch.zeros(1)
    ends = []
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        parallel(values).sum().backward()
        ends.append(time.perf_counter())
        if step == 0:
            mean = (processes + 1) / 2
            if not all(torch.all(parameter.grad == mean)
                       for parameter in model.parameters()):
                sys.exit("the mean is wrong")
            cpu = cpu_seconds()
    cpu = (cpu_seconds() - cpu) / max(1, steps - 1)
    dist.barrier()  # No process leaves while another still waits for it.
    print(json.dumps({"step_seconds": [after - before for before, after
                                       in zip(ends, ends[1:])],
                      "cpu_seconds_per_step": cpu}), flush=True)


if __name__ == "__main__":
    main()
