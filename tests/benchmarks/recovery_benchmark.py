#!/usr/bin/env python3
"""Measures the standstill of a job after the death of a member.

  bazel build //server:nereus-server //tests/benchmarks:recovery_worker
  tests/benchmarks/recovery_benchmark.py
  tests/benchmarks/recovery_benchmark.py --memory

Starts a separate coordinator, servers and workers on loopback. A killed process
is restarted at once with the same flags. Each worker's gradient is 1, so each
worker knows the value of each parameter, and ends the run if a value is wrong.

Seconds count from the signal. Figures are medians with minimum and maximum:
  resumed  all other workers have done the first round without the victim; if
           the victim is a server or the coordinator: all workers
  gap      the longest time between two rounds that all other workers have done
  back     the victim has finished a step again; if it was stopped, the time
           counts from its continuation; for a server with --backup=1: each
           shard's backup is current again
  lost     number of steps that are done again
With --memory: the servers' resident memory while a worker is ten times slower
than the others, and another worker joins and leaves a hundred times.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import time

from recovery_cluster import Cluster, Failure

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
LIMIT = 300  # Ends a wait that hangs, in seconds.


def wait_rounds(cluster, count):
    """Waits until each worker has finished `count` more rounds."""
    now = time.monotonic()
    cluster.wait(lambda: all(len(w.steps_after(now)) >= count
                             for w in cluster.workers),
                 LIMIT + count, f"{count} rounds of all workers")


def rounds_of(members, first):
    """Returns (seconds, step) of the rounds from `first` on done by all."""
    done = {}
    for member in members:
        mine = {}
        for seconds, step in member.steps:
            if step >= first:
                mine.setdefault(step, seconds)
        for step, seconds in mine.items():
            done.setdefault(step, []).append(seconds)
    return sorted((max(times), step) for step, times in done.items()
                  if len(times) == len(members))


def longest_gap(members, since):
    """Returns the longest time between two rounds, the second after `since`."""
    first = min(m.steps[-1][1] for m in members) - 10000
    times = [seconds for seconds, _ in rounds_of(members, first)]
    return max(b - a for a, b in zip(times, times[1:]) if b > since)


def without_victim(cluster, victim, since):
    """Waits for the first round without `victim`; returns its seconds.

    The victim may have contributed to the step after its last, but to no later
    step.
    """
    others = [w for w in cluster.workers if w is not victim]
    last = max(step for seconds, step in victim.steps if seconds < since + 0.05)
    cluster.wait(lambda: rounds_of(others, last + 2), LIMIT,
                 f"round without {victim.name}, after step {last}")
    return rounds_of(others, last + 2)[0][0] - since, others


def wait_back(cluster, victim, since):
    """Waits until `victim` has joined and finished a step; returns seconds."""
    def steps():
        joined = [seconds for seconds in victim.joins if seconds > since]
        return joined and victim.steps_after(joined[0])

    cluster.wait(steps, LIMIT, f"step of {victim.name}, joined again")
    return steps()[0][0] - since


def kill_worker(cluster, chance, _):
    victim = chance.choice(cluster.workers)
    killed = victim.kill()
    victim.start()
    resumed, others = without_victim(cluster, victim, killed)
    back = wait_back(cluster, victim, killed)
    wait_rounds(cluster, 3)
    return {"resumed": resumed, "gap": longest_gap(others, killed),
            "back": back}


def stop_worker(cluster, chance, options):
    victim = chance.choice(cluster.workers)
    stopped = victim.send_signal(signal.SIGSTOP)
    time.sleep(options.stop_seconds)
    resumed, others = without_victim(cluster, victim, stopped)
    gap = longest_gap(others, stopped)
    continued = victim.send_signal(signal.SIGCONT)
    back = wait_back(cluster, victim, continued)
    return {"resumed": resumed, "gap": gap, "back": back}


def first_after_return(worker, killed, listening):
    """Returns the index of the worker's first step after the job went back."""
    steps = worker.steps
    for i in range(1, len(steps)):
        if steps[i][0] > killed and steps[i][1] <= steps[i - 1][1]:
            return i
    # The job went back by zero steps.
    return next(i for i, event in enumerate(steps) if event[0] > listening)


def kill_copied_server(cluster, chance):
    def copies():
        return cluster.coordinator.log_text().count("the backup of every shard is current again")

    victim = chance.choice(cluster.servers)
    before = copies()
    killed = victim.kill()
    victim.start()
    cluster.wait(lambda: copies() > before, LIMIT, f"copies with {victim.name}")
    back = time.monotonic() - killed
    wait_rounds(cluster, 3)
    for worker in cluster.workers:
        steps = [step for _, step in worker.steps]
        if steps != sorted(set(steps)):
            raise Failure(f"{worker.name} has done a step again")
    return {"gap": longest_gap(cluster.workers, killed), "back": back}


def kill_server(cluster, chance, _):
    if cluster.backup:
        return kill_copied_server(cluster, chance)
    victim = chance.choice(cluster.servers)
    victim.address = None
    killed = victim.kill()
    victim.start()
    cluster.wait(lambda: victim.address, LIMIT, f"{victim.name} again")
    listening = time.monotonic()
    cluster.wait(lambda: all(len(w.steps_after(listening)) >= 3
                             for w in cluster.workers),
                 LIMIT, f"rounds with the new {victim.name}")
    firsts = {w: first_after_return(w, killed, listening)
              for w in cluster.workers}
    steps = set(w.steps[i][1] for w, i in firsts.items())
    if len(steps) != 1:
        raise Failure(f"workers go on from different steps: {sorted(steps)}")
    last = max(w.steps[i - 1][1] for w, i in firsts.items())
    seconds = max(w.steps[i][0] for w, i in firsts.items()) - killed
    return {"resumed": seconds, "lost": last + 1 - steps.pop()}


def kill_coordinator(cluster, _, __):
    victim = cluster.coordinator
    killed = victim.kill()
    victim.start()
    pattern = rf"epoch \d+ with {len(cluster.workers)} workers"
    cluster.wait(lambda: re.search(pattern, victim.log_text()), LIMIT,
                 "epoch of the new coordinator")
    wait_rounds(cluster, 5)
    return {"gap": longest_gap(cluster.workers, killed)}


def stop_coordinator(cluster, _, options):
    victim = cluster.coordinator
    stopped = victim.send_signal(signal.SIGSTOP)
    time.sleep(options.stop_seconds)
    victim.send_signal(signal.SIGCONT)
    wait_rounds(cluster, 5)
    return {"gap": longest_gap(cluster.workers, stopped)}


CASES = {"worker": kill_worker, "server": kill_server,
         "coordinator": kill_coordinator, "stopped": stop_worker,
         "coordinator-stopped": stop_coordinator}


def measure_case(name, options):
    """Measures all repeats in a single job, one recovery after the other."""
    chance = random.Random(options.seed)
    samples = []
    with Cluster(TOP, options) as cluster:
        cluster.start_workers([options.sleep_ms] * options.workers)
        wait_rounds(cluster, 10)
        last = [event[0] for event in cluster.workers[0].steps[-10:]]
        step_seconds = (last[-1] - last[0]) / (len(last) - 1)
        for _ in range(options.repeats):
            # Draws a moment between two checkpoints, and within a step.
            wait_rounds(cluster, chance.randint(5, 24))
            time.sleep(chance.uniform(0, step_seconds))
            samples.append(CASES[name](cluster, chance, options))
    result = {"case": name, "repeats": options.repeats,
              "step_seconds": step_seconds}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        result[key] = {"median": statistics.median(values),
                       "min": min(values), "max": max(values)}
    return result


def case_in_words(result):
    parts = [f"{result['case']:<19} step {result['step_seconds']:.3f} s"]
    for key in ("resumed", "gap", "back", "lost"):
        if key in result:
            form = "{:.0f}" if key == "lost" else "{:.2f}"
            values = [form.format(result[key][k])
                      for k in ("median", "min", "max")]
            parts.append(f"{key} {values[0]} ({values[1]} to {values[2]})")
    return ", ".join(parts)


def watch_memory(cluster, options):
    """Samples the memory of each server while a worker joins and leaves."""
    watched = [cluster.coordinator, *cluster.servers]
    samples = {member.name: [] for member in watched}
    guest = cluster.make_worker("guest", options.sleep_ms, steps=20)
    cluster.others.append(guest)

    def has_left():
        return guest.popen is None or guest.popen.poll() is not None

    next_sample = options.warmup_rounds
    visit_rounds = max(1, options.rounds // max(1, options.visits))
    next_visit = visit_rounds // 2
    step = 0
    # A busy machine may see many rounds at once; no visit is left out then.
    while step < options.rounds or guest.lives < options.visits:
        target = min(next_sample, next_visit, options.rounds)
        cluster.wait(lambda t=target: cluster.workers[0].steps and
                     cluster.workers[0].steps[-1][1] >= t, 600,
                     f"step {target}")
        step = cluster.workers[0].steps[-1][1]
        if step >= next_sample:
            for member in watched:
                samples[member.name].append(member.memory_kib())
            next_sample += options.sample_rounds
        if step >= next_visit:
            cluster.wait(has_left, LIMIT, "guest that has left")
            if guest.lives < options.visits:
                guest.start()
            next_visit += visit_rounds
    cluster.wait(has_left, LIMIT, "guest that has left")
    return samples, guest.lives


def measure_memory(options):
    with Cluster(TOP, options) as cluster:
        cluster.start_workers([options.sleep_ms] * (options.workers - 1)
                              + [10 * options.sleep_ms])
        samples, visits = watch_memory(cluster, options)
    processes = {}
    for name, values in samples.items():
        processes[name] = {
            "first_kib": values[0], "last_kib": values[-1],
            "max_kib": max(values),
            "first_ten_kib": statistics.median(values[:10]),
            "last_ten_kib": statistics.median(values[-10:]),
            "samples_kib": values}
    return {"rounds": options.rounds, "visits": visits, "processes": processes}


def memory_in_words(result):
    lines = [f"{result['rounds']} rounds, {result['visits']} visits; MiB"]
    for name, m in result["processes"].items():
        mib = {key: m[key + "_kib"] / 1024 for key in
               ("first", "last", "max", "first_ten", "last_ten")}
        growth = 100 * (mib["last_ten"] / mib["first_ten"] - 1)
        lines.append(
            f"{name:<11} first {mib['first']:.1f}, last {mib['last']:.1f}, "
            f"most {mib['max']:.1f}; medians of the first and last ten "
            f"{mib['first_ten']:.1f}, {mib['last_ten']:.1f} ({growth:+.1f} %)")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--parameters", type=int, help="parameters of each "
                        "layer; default: 1000000, with --memory 100000")
    parser.add_argument("--sleep-ms", type=int, help="sleep of each worker "
                        "per step; default: 20, with --memory 2 (slow worker: "
                        "20)")
    parser.add_argument("--stop-seconds", type=float, default=10)
    for name, value in [("repeats", 5), ("workers", 4), ("servers", 2),
                        ("layers", 3), ("lease", 4), ("seed", 1),
                        ("rounds", 10500), ("backup", 0), ("warmup-rounds", 500),
                        ("sample-rounds", 100), ("visits", 100)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true",
                        help="prints a JSON object per line")
    options = parser.parse_args()
    if options.parameters is None:
        options.parameters = 100000 if options.memory else 1000000
    if options.sleep_ms is None:
        options.sleep_ms = 2 if options.memory else 20
    return options


def main():
    options = parse_arguments()
    # Ends by an exception, so that the started processes end too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def report(result, in_words):
        print(json.dumps(result) if options.json else in_words(result),
              flush=True)

    try:
        if options.memory:
            report(measure_memory(options), memory_in_words)
        else:
            for name in options.cases.split(","):
                report(measure_case(name, options), case_in_words)
    except Failure as failure:
        print(f"recovery_benchmark: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
