"""Runs programs of torch_fuzz.py: fuzz.sh has the arguments.

A few processes, which import torch once, train all programs: each has a job of its own, with a
server of its own. A program fails if its workers end with other values than one process, with an
error that it does not ask for, or not at all.
"""

import argparse
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

import torch

import torch_fuzz
import torch_fuzz_break

WORKERS_MAX = 3
LIMIT_SECONDS = 60  # Longest time of a program.
ENDED = "the process has ended"


class Worker:
    """Process that trains as one worker of a program after the other."""

    def __init__(self, rank, broken):
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), f"--rank={rank}", f"--break={broken}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._answers = queue.Queue()
        self.errors = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("answer "):
                self._answers.put(json.loads(line[len("answer "):]))
        self._answers.put({"error": ENDED})

    def _read_errors(self):
        for line in self._process.stderr:
            self.errors.append(line.rstrip())
            del self.errors[:-20]

    def ask(self, **what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self, until):
        """Returns the answer: {"values": ...} or {"error": text}."""
        try:
            return self._answers.get(timeout=max(0.1, until - time.monotonic()))
        except queue.Empty:
            return {"error": f"no answer within {LIMIT_SECONDS} s"}

    def close(self):
        self._process.kill()
        self._process.wait()


def work(rank):
    """Trains as the programs that standard input names."""
    import nereus.torch as nt
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        program = torch_fuzz.Program(asked["seed"], asked["without"])
        nt.process._Process.left.clear()  # A port may be that of an earlier program's server.
        try:
            found = torch_fuzz.run(
                program, rank, asked["meeting"], coordinator=asked["coordinator"],
                host="127.0.0.1", name=f"worker-{rank}", connect_timeout=20)
            answer = {"values": found.tolist()}
        except BaseException as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
            engine, nt.process._Process.engine = nt.process.engine(), None
            if engine is not None:
                engine.close()
        print("answer", json.dumps(answer), flush=True)


class Runner:
    """Runs programs, with processes that are started anew after a failure."""

    def __init__(self, broken=""):
        self._broken = broken
        self._workers = []
        self._folder = tempfile.TemporaryDirectory()
        self._meetings = itertools.count()

    def close(self):
        for worker in self._workers:
            worker.close()
        self._workers = []

    def run(self, program, without):
        """Runs a program. Returns what is wrong; "" if nothing is."""
        if not self._workers:
            self._workers = [Worker(rank, self._broken) for rank in range(WORKERS_MAX)]
        workers = self._workers[:program.workers]
        server = subprocess.Popen(
            [os.environ["NEREUS_SERVER_BINARY"], "--host=127.0.0.1",
             f"--workers={program.workers}", "--servers=1", "--log-level=error",
             *program.flags()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        meeting = os.path.join(self._folder.name, f"meeting_{next(self._meetings)}")
        try:
            coordinator = re.match(r"listening control=(\S+)", server.stdout.readline())[1]
            for worker in workers:
                worker.ask(seed=program.seed, without=list(without), coordinator=coordinator,
                           meeting=f"file://{meeting}")
            expected = None if program.refusal else torch_fuzz.reference(program)
            until = time.monotonic() + LIMIT_SECONDS
            answers = [worker.answer(until) for worker in workers]
        finally:
            server.kill()
            server.communicate()
        wrong = self._judge(program, answers, expected)
        if wrong or program.refusal:
            wrong += "".join(f"\n    | {line}" for worker in workers
                             for line in worker.errors[-3:] if "warn" not in line) if wrong else ""
            self.close()  # Their state is not known.
        elif program.victim >= 0:
            workers[program.victim].close()
            self._workers[program.victim] = Worker(program.victim, self._broken)
        return wrong

    @staticmethod
    def _judge(program, answers, expected):
        errors = [answer.get("error", "") for answer in answers]
        if program.has("killed"):
            if errors[program.victim] != ENDED:
                return f"worker {program.victim} must be killed: {errors}"
            errors[program.victim] = ""
        if program.refusal:
            if all(errors) and any(re.search(program.refusal, each) for each in errors):
                return ""
            return f"must be refused ({program.refusal}): {errors}"
        if not all(bool(each.isfinite().all()) for each in expected):
            # One process has NaNs, too: the first of them must end the job.
            said = all(re.search("the gradient has (nan|-?inf)", each) for each in errors if each)
            return "" if any(errors) and said else f"must end by a NaN: {errors}"
        if any(errors):
            return f"errors {errors}"
        found = [torch_fuzz.difference(torch.tensor(answer["values"], dtype=torch.float64), each)
                 for answer, each in zip(answers, expected) if "values" in answer]
        if max(found) <= torch_fuzz.TOLERANCE:
            return ""
        return f"parameters differ by {found}"


def main():
    parser = argparse.ArgumentParser(prog="tests/python/fuzz.sh")
    parser.add_argument("--seeds", type=int, default=200, help="number of programs")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="one program, with its features")
    parser.add_argument("--without", default="", help="features, with commas, to leave out")
    parser.add_argument("--having", help="only those of the programs with this feature")
    parser.add_argument("--break", dest="broken", default="", help=(
        "runs without one of the fixes until a program fails: "
        + ", ".join(torch_fuzz_break.BROKEN)))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        if options.broken:
            torch_fuzz_break.BROKEN[options.broken]()
        return work(options.rank)
    torch.set_num_threads(1)
    seeds = [options.seed] if options.seed is not None else range(
        options.first, options.first + options.seeds)
    without = [name for name in options.without.split(",") if name]
    programs = [torch_fuzz.Program(seed, without) for seed in seeds]
    if options.having:
        programs = [program for program in programs if program.has(options.having)]
    runner, failed, begin = Runner(options.broken), 0, time.monotonic()
    try:
        for count, program in enumerate(programs, 1):
            wrong = runner.run(program, without)
            failed += bool(wrong)
            if wrong or options.seed is not None:
                print(f"{program.describe()}\n  {wrong or 'equal'}", flush=True)
            if wrong and options.broken:
                print(f"{options.broken}: found by program {count}")
                return 0
            if sys.stderr.isatty():
                print(f"\r{count} programs, {failed} failed", end="", file=sys.stderr)
    finally:
        runner.close()
    print(f"{len(programs)} programs, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed or options.broken else 0


if __name__ == "__main__":
    sys.exit(main())
