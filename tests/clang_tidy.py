#!/usr/bin/env python3
"""Runs clang-tidy over the product and clang's thread-safety analysis over tests.

Usage: tests/clang_tidy.py FLAG... (flags of the compiler)

clang-tidy takes ten seconds for a file, nearly all of them for the headers. So the
files of a folder are included in one source, which takes little longer than one file.
Where two files of a folder define the same name, that source does not compile: then
its halves are checked, and so on.
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


def check_folder(files, flags):
    """Runs clang-tidy over files of one folder. Returns what it found, or ""."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as source:
        source.write("".join(f'#include "{name}"\n' for name in files))
        source.flush()
        passed, output = run(
            ["clang-tidy", "--quiet", "--checks=-bugprone-suspicious-include",
             f"--config-file={ROOT}/.clang-tidy", source.name, "--", *flags,
             "-Wthread-safety"])
    if passed:
        return ""
    if "clang-diagnostic-error" in output and len(files) > 1:
        half = len(files) // 2
        return check_folder(files[:half], flags) + check_folder(files[half:], flags)
    return output


def check_locks(name, flags):
    """Checks a test that has a mutex. Returns what clang found, or ""."""
    passed, output = run(["clang++", *flags, "-fsyntax-only", "-Wthread-safety",
                          "-Werror", name])
    return "" if passed else output


def main(flags):
    folders = {}
    for name in files_of("common/*.cc", "server/*.cc", "worker/*.cc"):
        folders.setdefault(os.path.dirname(name), []).append(name)
    tests = [name for name in files_of("tests/*.cc")
             if "mutex" in (ROOT / name).read_text().lower()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check_folder, files, flags) for files in folders.values()]
        jobs += [pool.submit(check_locks, name, flags) for name in tests]
        found = [job.result() for job in jobs]
    for output in filter(None, found):
        print(output)
    files = sum(len(files) for files in folders.values())
    print(f"clang-tidy: {files} files in {len(folders)} folders, and the locks of"
          f" {len(tests)} tests: {'problems' if any(found) else 'clean'}")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
