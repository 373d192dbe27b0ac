#!/usr/bin/env python3
"""Runs clang-tidy over the product and clang's thread-safety analysis over tests.

Usage: tests/clang_tidy.py FLAG... (flags of the compiler)

clang-tidy takes ten seconds for a file, most of them for the headers. So one source
includes many files, which takes less than half of the time. A file that defines a name
which another file of that source has comes into a later source.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))

# Number of files in a source. Larger ones are not checked faster.
FILES = 16

# Benchmarks of other systems, which may not be installed.
PEERS = re.compile(r"^tests/benchmarks/peers/")
# Files that need the headers of the CUDA Toolkit.
NEEDS_CUDA = re.compile(
    r"^(common/device|tests/gpu)/|/(cublas_|cuda_|gpu_|device_|push_stager)")


def files_of(*patterns):
    """Files of these names that are known to git, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    has_cuda = (CUDA / "include").is_dir()
    return sorted(name for name in set(listed)
                  if (ROOT / name).is_file() and not PEERS.search(name)
                  and (has_cuda or not NEEDS_CUDA.search(name)))


def run(command):
    """Returns whether the command succeeded, and its output."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def write_source(files):
    """Returns a temporary source that includes all files."""
    source = tempfile.NamedTemporaryFile("w", suffix=".cc")
    source.write("".join(f'#include "{name}"\n' for name in files))
    source.flush()
    return source


def misfits(files, output):
    """Files that do not compile after the files before them. `output`: of the compiler."""
    named = re.findall(r"^(?:\./)?(\S+\.cc):\d+:\d+: (error|note)", output, re.MULTILINE)
    for kind in ("error", "note"):
        found = [name for name, line in named if line == kind and name in files[1:]]
        if found:
            return set(found)
    return set(files[1:])


def check_group(files, flags):
    """Runs clang-tidy over the files that compile as one source. Returns the others, and
    what it found, or ""."""
    group, later = files, []
    while len(group) > 1:
        with write_source(group) as source:
            passed, output = run(["clang++", *flags, "-fsyntax-only", source.name])
        if passed:
            break
        apart = misfits(group, output)
        later += [name for name in group if name in apart]
        group = [name for name in group if name not in apart]
    with write_source(group) as source:
        passed, output = run(
            ["clang-tidy", "--quiet", "--checks=-bugprone-suspicious-include",
             f"--config-file={ROOT}/.clang-tidy", source.name, "--", *flags,
             "-Wthread-safety"])
    return later, "" if passed else output


def check_files(files, flags):
    """Runs clang-tidy over files. Returns what it found, or ""."""
    found = ""
    while files:
        files, output = check_group(files, flags)
        found += output
    return found


def check_locks(name, flags):
    """Checks a test that has a mutex. Returns what clang found, or ""."""
    passed, output = run(["clang++", *flags, "-fsyntax-only", "-Wthread-safety",
                          "-Werror", name])
    return "" if passed else output


def main(flags):
    files = files_of("common/*.cc", "server/*.cc", "worker/*.cc")
    parts = [files[first:first + FILES] for first in range(0, len(files), FILES)]
    tests = [name for name in files_of("tests/*.cc")
             if "mutex" in (ROOT / name).read_text().lower()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check_files, part, flags) for part in parts]
        jobs += [pool.submit(check_locks, name, flags) for name in tests]
        found = [job.result() for job in jobs]
    for output in filter(None, found):
        print(output)
    print(f"clang-tidy: {len(files)} files, and the locks of {len(tests)} tests: "
          f"{'problems' if any(found) else 'clean'}")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
