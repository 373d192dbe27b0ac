#!/usr/bin/env python3
"""Breaks the code on purpose, one mutation at a time, and says which test finds it.

  tests/simulation/mutations.py --check
  tests/simulation/mutations.py --list [--only=REGEX]
  tests/simulation/mutations.py [--only=REGEX] [--jobs=N] [--disk-cache=DIR]
      [--json=FILE]

mutation_list.py has the mutations: a text in the code, its replacement, and the
tests that should find it. The script works in a copy of the checkout, a git
worktree in a temporary folder. The copy has the changes that are not committed,
but no files that git does not know. First the script runs all tests without a
mutation; they must pass. Then, for each mutation, it edits the copy, and builds
and runs its tests, up to the first one that fails. It prints a row of the table
in docs/testing.md. At the end it prints the whole table and removes the copy,
also if it is interrupted.

The first build compiles all that the tests need; --disk-cache makes it shorter.
The copy and its build take some GB below $TMPDIR, or else /tmp.

Exits with 0 if tests found every mutation. Exits with 1 if a mutation was not
found, did not build, or does not fit the code any more. With --check it only
checks that all mutations fit.
"""

import argparse
import collections
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from mutation_list import MUTATIONS, misfits

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
TEXT_MAX = 160  # Length of a message in the table.

# Failure of a test. `case`: the test case. `seed`: seed that fails; None if the
# test has no seeds, or if the seed is unknown. `message`: first line of the reason.
Failure = collections.namedtuple("Failure", ["target", "case", "seed", "message"])
# Outcome of a mutation. `failure`: failure of the test that found it, or None.
# `error`: reason why the mutation could not be tried, or "".
Outcome = collections.namedtuple("Outcome", ["name", "failure", "error", "seconds"])


class CannotTry(Exception):
    """Says that a mutation, or the tests without one, cannot be built or run."""


def note(text):
    """Shows progress."""
    print(text, file=sys.stderr, flush=True)


def shorten(text):
    text = " ".join(text.split())
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX - 3] + "..."


def read_below(folder):
    """Returns a function that reads a file by its path below `folder`."""
    def read(path):
        with open(os.path.join(folder, path), encoding="utf-8") as file:
            return file.read()
    return read


# The copy.

class Copy:
    """A copy of the checkout that is edited, built and removed."""

    def __init__(self, options):
        self.options = options
        self.folder = ""  # Temporary folder with the worktree and its build.
        self.tree = ""    # The worktree.

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="nereus-mutations-")
        self.tree = os.path.join(self.folder, "tree")
        try:
            self.git("worktree", "add", "--detach", self.tree, self.snapshot())
            settings = os.path.join(TOP, "user.bazelrc")  # Not in git.
            if os.path.exists(settings):
                shutil.copy(settings, self.tree)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def git(self, *arguments):
        result = subprocess.run(["git", "-C", TOP, *arguments], text=True,
                                capture_output=True, check=False)
        if result.returncode != 0:
            raise CannotTry(f"git {arguments[0]}: {shorten(result.stderr)}")
        return result.stdout.strip()

    def snapshot(self):
        """Returns a commit of the current checkout, which is on no branch."""
        changed = self.git("-c", "user.name=mutations",
                           "-c", "user.email=mutations@localhost", "stash", "create")
        return changed or "HEAD"

    def remove(self):
        """Stops Bazel and removes the folder. Signals do not interrupt this."""
        before = {number: signal.signal(number, signal.SIG_IGN)
                  for number in (signal.SIGINT, signal.SIGTERM)}
        note(f"removing {self.folder}")
        if os.path.isdir(os.path.join(self.folder, "output")):
            subprocess.run([*self.bazel(), "shutdown"], cwd=self.tree,
                           capture_output=True, check=False)
        # Bazel's outputs are read-only.
        subprocess.run(["chmod", "-R", "u+w", self.folder], capture_output=True,
                       check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run(["git", "-C", TOP, "worktree", "prune"], check=False)
        for number, handler in before.items():
            signal.signal(number, handler)

    def bazel(self):
        return ["bazel", f"--output_base={self.folder}/output"]

    def build(self, target):
        command = [*self.bazel(), "build", target]
        if self.options.jobs:
            command.append(f"--jobs={self.options.jobs}")
        if self.options.disk_cache:
            command.append(f"--disk_cache={os.path.abspath(self.options.disk_cache)}")
        result = subprocess.run(command, cwd=self.tree, text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            lines = result.stdout.splitlines()
            errors = [line for line in lines if re.search(r"\berror: ", line)]
            errors += [line for line in lines if line.startswith("ERROR")]
            raise CannotTry(f"{target} does not build: "
                            f"{shorten((errors or lines or ['no output'])[0])}")

    def apply(self, mutation):
        """Edits the files. Returns their old texts, by path."""
        old_texts = {}
        read = read_below(self.tree)
        for edit in mutation.edits:
            text = read(edit.file)
            if text.count(edit.old) != 1:
                raise CannotTry(f"{edit.file} has the old text {text.count(edit.old)} times")
            old_texts.setdefault(edit.file, text)
            self.write(edit.file, text.replace(edit.old, edit.new))
        return old_texts

    def write(self, path, text):
        with open(os.path.join(self.tree, path), "w", encoding="utf-8") as file:
            file.write(text)


# Tests.

def run_test(copy, test, seeds):
    """Runs a built test until its first failure.

    Returns its output and its exit status: negative after a signal, None if the
    test took too long.
    """
    package, name = test.target[2:].split(":")
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("NEREUS_TEST_")}
    environment["TEST_TARGET"] = test.target
    if test.seeds:
        environment["NEREUS_TEST_SEEDS"] = str(seeds)
    command = [os.path.join(copy.tree, "bazel-bin", package, name),
               f"--gtest_filter={test.filter}", "--gtest_break_on_failure"]
    try:
        result = subprocess.run(command, cwd=copy.tree, env=environment, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                timeout=copy.options.timeout)
    except subprocess.TimeoutExpired as late:
        return (late.output or b"").decode(errors="replace"), None
    except OSError as error:
        raise CannotTry(f"{test.target} does not run: {error.strerror}") from error
    output = result.stdout.decode(errors="replace")
    if result.returncode == 0 and re.search(r"^\[==========\] Running 0 tests", output, re.M):
        raise CannotTry(f"{test.target} has no test {test.filter}")
    return output, result.returncode


def find_message(output):
    """Returns the reason of the first failed assertion, or "" if there is none."""
    block = re.search(r"^\S+:\d+: Failure\n(.*?)(?=^Google Test trace:|^\[ |\n\n|\Z)",
                      output, re.M | re.S)
    if block is None:
        return ""
    lines = block[1].splitlines()
    # A message that the test adds to an assertion says more than the assertion.
    added = [line for line in lines
             if not re.match(r"Value of: |\s*Actual: |\s*Expected: ", line)]
    if not added or added[0].startswith("Expected"):
        return shorten(" ".join(lines))
    return shorten(added[0])


def find_crash_seed(copy, test):
    """Returns the first seed that crashes the test, because a crash names no seed."""
    if not test.seeds:
        return None
    good, bad = 0, test.seeds  # Numbers of seeds that pass, and that crash.
    probe = 1
    while bad - good > 1:
        count = min(probe, (good + bad) // 2)
        _, status = run_test(copy, test, count)
        if status == 0:
            good, probe = count, probe * 4
        else:
            bad = count
    return bad - 1


def try_test(copy, test):
    """Builds and runs a test. Returns its Failure, or None if it passes."""
    copy.build(test.target)
    output, status = run_test(copy, test, test.seeds)
    if status == 0:
        return None
    cases = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    case = cases[-1] if cases else test.filter
    message = find_message(output)
    seed = re.search(r"NEREUS_TEST_SEED=(\d+)", output)
    if message:
        return Failure(test.target, case, int(seed[1]) if seed else None, message)
    if status is None:
        return Failure(test.target, case, None, f"not over after {copy.options.timeout} s")
    broken = re.search(r"broken invariant: .*", output)
    if broken:
        message = shorten(broken[0])
    elif status < 0:
        message = f"ended by {signal.Signals(-status).name}"
    else:
        message = f"exit code {status}"
    crashed = test._replace(filter=case)
    return Failure(test.target, case, find_crash_seed(copy, crashed), message)


def run_unmutated(copy, mutations):
    """Checks that all tests pass, so that a later failure comes from a mutation."""
    tests = list(dict.fromkeys(test for each in mutations for test in each.tests))
    for number, test in enumerate(tests, 1):
        note(f"[{number}/{len(tests)}] without a mutation: {test.target} {test.filter}")
        failure = try_test(copy, test)
        if failure is not None:
            raise CannotTry(f"without a mutation, {describe(failure)}")


# Mutations.

def try_mutation(copy, mutation):
    begun = time.monotonic()
    failure = None
    error = ""
    old_texts = {}
    try:
        old_texts = copy.apply(mutation)
        for test in mutation.tests:
            note(f"    {test.target} {test.filter}"
                 + (f", {test.seeds} seeds" if test.seeds else ""))
            failure = try_test(copy, test)
            if failure is not None:
                break
    except CannotTry as reason:
        error = str(reason)
    for path, text in old_texts.items():
        copy.write(path, text)
    return Outcome(mutation.name, failure, error, time.monotonic() - begun)


def describe(failure):
    seed = "" if failure.seed is None else f", seed {failure.seed}"
    name = failure.target.split(":")[1]
    return f"`{name}`, `{failure.case}`{seed}: {failure.message}"


def row(outcome):
    if outcome.error:
        found = f"NOT TRIED: {outcome.error}"
    elif outcome.failure is None:
        found = "NOT FOUND"
    else:
        found = describe(outcome.failure)
    return f"| {outcome.name} | {found.replace('|', chr(92) + '|')} |"


def write_json(path, outcomes):
    results = []
    for outcome in outcomes:
        failure = outcome.failure
        results.append({"name": outcome.name, "found": failure is not None,
                        "error": outcome.error, "seconds": round(outcome.seconds, 1),
                        "by": None if failure is None else failure._asdict()})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
        file.write("\n")


def report(outcomes, total, options):
    """Prints the table. Returns the exit code."""
    print("\n| mutation | found by |\n| --- | --- |")
    for outcome in outcomes:
        print(row(outcome))
    if options.json:
        write_json(options.json, outcomes)
    found = sum(outcome.failure is not None for outcome in outcomes)
    print(f"\n{found} of {total} mutations were found")
    return 0 if found == total else 1


def check():
    findings = list(misfits(read_below(TOP)))
    for path, message in findings:
        print(f"{path}: {message}")
    print(f"{len(MUTATIONS)} mutations, {len(findings)} do not fit the code")
    return 1 if findings else 0


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true",
                        help="only check that every old text occurs once in its file, and every "
                        "name in docs/testing.md")
    parser.add_argument("--list", action="store_true",
                        help="only print the names of the mutations and their tests")
    parser.add_argument("--only", metavar="REGEX", default="",
                        help="the mutations with a name that matches (default: all)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="number of actions that Bazel runs at a time")
    parser.add_argument("--disk-cache", metavar="DIR", help="Bazel's --disk_cache")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", default=900,
                        help="time limit of a test; a longer run is a failure (default: 900)")
    parser.add_argument("--no-baseline", action="store_true",
                        help="do not run the tests without a mutation first")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes there, too")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.check:
        return check()
    chosen = [each for each in MUTATIONS if re.search(options.only, each.name)]
    if not chosen:
        sys.exit(f"no mutation has a name that matches {options.only}")
    if options.list:
        for each in chosen:
            print(each.name)
            for test in each.tests:
                print(f"    {test.target} {test.filter}"
                      + (f", {test.seeds} seeds" if test.seeds else ""))
        return 0
    # A signal raises an exception, so that the copy is removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # Mutated tests may crash.
    outcomes = []
    try:
        with Copy(options) as copy:
            if not options.no_baseline:
                run_unmutated(copy, chosen)
            for number, mutation in enumerate(chosen, 1):
                note(f"[{number}/{len(chosen)}] {mutation.name}")
                outcomes.append(try_mutation(copy, mutation))
                note(f"    {outcomes[-1].seconds:.0f} s")
                print(row(outcomes[-1]), flush=True)
    except CannotTry as reason:
        note(str(reason))
        return 1
    finally:
        code = report(outcomes, len(chosen), options) if outcomes else 1
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
