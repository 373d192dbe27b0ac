#!/usr/bin/env python3
"""Measures how much there is to read.

  tests/benchmarks/sizes.py [--json]
  bazel build --config=walk //tests/benchmarks:gradient_walk    for the last two figures

Prints, for the files that git knows:
  product, tests   lines of C++ code, without blank lines and comments
  test lines       all lines of C++ under tests
  modules          .cc files with their headers, and headers alone, without tests
  begin_step       classes that declare BeginStep in headers and sources of the product
  glossary         terms of docs/glossary.md
  way              modules whose functions run in a step of one worker and one server, from
                   Client::Push to the return of WaitAll
  push locks       mutexes that Client::Push takes on the caller's thread
"""

import argparse
import collections
import json
import os
import re
import subprocess

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
WALK = "bazel-bin/tests/benchmarks/gradient_walk"
LOCK = re.compile(r"^nereus::Mutex::Lock\(")


def output(*command):
    return subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def code_lines(text):
    return sum(1 for line in text.splitlines()
               if line.strip() and not line.lstrip().startswith("//"))


def module_of(path):
    return os.path.splitext(path)[0]


def walk(program):
    """The modules on the way of a gradient, and the number of locks of Push; None if the program
    was built without --config=walk."""
    done = subprocess.run([program], cwd=TOP, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    entered = [line.split() for line in done.stdout.splitlines()]
    addresses = sorted({address for _, address in entered})
    found = subprocess.run(["addr2line", "--exe", program, "--functions", "--demangle"],
                           input="\n".join(addresses), cwd=TOP, check=True,
                           capture_output=True, text=True).stdout.splitlines()
    functions = dict(zip(addresses, found[0::2]))
    files = dict(zip(addresses, found[1::2]))
    modules = set()
    for place in files.values():
        known = re.search(r"(?:^|/)((?:common|server|worker)/[\w/]+)\.(?:cc|h):", place)
        if known:
            modules.add(known.group(1))
    locks = sum(1 for where, address in entered
                if where == "push" and LOCK.match(functions[address]))
    return sorted(modules), locks


def measure():
    files = [path for path in output("git", "ls-files").splitlines()
             if path.endswith((".cc", ".h", ".cu"))]
    product = [path for path in files if not path.startswith("tests/")]
    tests = [path for path in files if path.startswith("tests/")]
    classes = collections.Counter(
        path for path in product
        for _ in re.findall(r"StatusOr<StepInfo> BeginStep\((?!Stream)", read(path))
        if path.endswith(".h") or "override;" in read(path))
    terms = [line for line in read("docs/glossary.md").splitlines() if line.startswith("| ")]
    figures = {
        "product": sum(code_lines(read(path)) for path in product),
        "tests": sum(code_lines(read(path)) for path in tests),
        "test_lines": sum(len(read(path).splitlines()) for path in tests),
        "modules": len({module_of(path) for path in product}),
        "begin_step": len(classes),
        "glossary": len(terms) - 2,
    }
    walked = walk(WALK) if os.path.exists(os.path.join(TOP, WALK)) else None
    if walked is not None:
        modules, locks = walked
        figures.update(way=len(modules), push_locks=locks, way_modules=modules)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "way_modules":
            print(f"{name.replace('_', ' '):12} {value}")
    for module in figures.get("way_modules", []):
        print("  " + module)


if __name__ == "__main__":
    main()
