"""A process of torch.distributed.all_reduce over Gloo.

For ../sync_benchmark.py.

  torch_sync.py RANK PROCESSES BYTES WARM_UP REPEATS FOLDER

FOLDER is empty and the same for all processes. GLOO_SOCKET_IFNAME selects the
network interface. The output has the format of gloo_sync.cc.
"""

import resource
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, processes, size, warm_up, repeats = map(int, sys.argv[1:6])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes,
                            init_method=f"file://{sys.argv[6]}/meet")
    values = torch.full((size // 4,), float(rank + 1))
    dist.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = []
    for turn in range(warm_up + repeats):
        start = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - start)
        if turn == 0:
            if not torch.all(values == processes * (processes + 1) // 2):
                sys.exit("the sum is wrong")
            values.zero_()  # Repeated sums would overflow soon.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = (usage.ru_utime + usage.ru_stime - before.ru_utime -
           before.ru_stime)
    if rank == 0:
        for seconds in times[warm_up:]:
            print(f"time {seconds:.9f}")
    print(f"process {cpu:.6f} {usage.ru_maxrss * 1024}", flush=True)


if __name__ == "__main__":
    main()
