#!/usr/bin/env python3
"""Runs clang-tidy over the product and clang's thread-safety analysis over tests.

Usage: tests/clang_tidy.py [--all]

The build must have made the generated headers. clang-tidy takes ten seconds for a file,
most of them for the headers. So one source includes many files, which takes less than
half of the time. A file that defines a name which another file of that source has comes
into a later source.

A file is not checked again while it, the project's files that it includes, the
configuration, the flags and clang-tidy itself stay as they were when it was last found
clean. ~/.cache/nereus/clang_tidy.json has a digest of these for each file; --all checks
all files.
"""

import concurrent.futures
import functools
import hashlib
import json
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


# Digests of the files that were clean, by their names.
CLEAN = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"),
                     "nereus", "clang_tidy.json")


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


@functools.lru_cache(maxsize=None)
def contents(name):
    """The text of a file of the project, "" if there is none, and the files that it names
    in quotes. A generated header stands for its .proto file."""
    path = ROOT / re.sub(r"\.(grpc\.)?pb\.h$", ".proto", name)
    text = path.read_text() if path.is_file() else ""
    return text, re.findall(r'^\s*#\s*include "(.+?)"|^import "(.+?)"', text, re.MULTILINE)


def digest(name, settings):
    """Digest of all that the result of a file depends on. `settings`: what is the same
    for all files."""
    seen, left = set(), [name]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        left += [included or imported for included, imported in contents(each)[1]]
    found = hashlib.sha256(settings.encode())
    for each in sorted(seen):
        found.update(f"{each}\n{contents(each)[0]}".encode())
    return found.hexdigest()


def read_clean():
    """The digests of CLEAN; none if it cannot be read."""
    try:
        return json.loads(CLEAN.read_text())
    except (OSError, ValueError):
        return {}


def write_clean(digests):
    CLEAN.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=CLEAN.parent, delete=False) as file:
        json.dump(digests, file)
    os.replace(file.name, CLEAN)


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


def main(arguments):
    if arguments not in ([], ["--all"]):
        print(__doc__, file=sys.stderr)
        return 2
    generated = run(["bazel", "info", "bazel-bin"])[1].split()[-1]
    flags = ["-std=c++20", "-I.", "-isystem", generated, "-isystem", f"{CUDA}/include"]
    settings = "\n".join([*flags, (ROOT / ".clang-tidy").read_text(),
                          pathlib.Path(__file__).read_text(),
                          run(["clang-tidy", "--version"])[1]])
    files = files_of("common/*.cc", "server/*.cc", "worker/*.cc")
    tests = [name for name in files_of("tests/*.cc")
             if "mutex" in (ROOT / name).read_text().lower()]
    now = {name: digest(name, settings) for name in files + tests}
    clean = {} if arguments else read_clean()
    clean = {name: clean[name] for name in now if clean.get(name) == now[name]}
    files = [name for name in files if name not in clean]
    tests = [name for name in tests if name not in clean]
    parts = [files[first:first + FILES] for first in range(0, len(files), FILES)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(check_files, part, flags): part for part in parts}
        jobs |= {pool.submit(check_locks, name, flags): [name] for name in tests}
        failed = False
        for job, names in jobs.items():
            if job.result():
                print(job.result())
                failed = True
            else:
                clean |= {name: now[name] for name in names}
    write_clean(clean)
    print(f"clang-tidy: {len(files)} files, and the locks of {len(tests)} tests: "
          f"{'problems' if failed else 'clean'}; {len(now) - len(files) - len(tests)} "
          "have not changed since they were clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
