#!/usr/bin/env python3
"""Checks the source for the rules that no compiler knows. Run from anywhere.

Prints one line per finding, `file:line: rule`, and exits 1 if there is any.
CONTRIBUTING.md and docs/architecture.md say why the rules are there.
"""

import fnmatch
import os
import re
import subprocess
import sys

from cpp_includes import Includes
from simulation.mutation_list import misfits

FUNCTION_LINES_MAX = 70
PRODUCT_FUNCTION_LINES_MAX = 60
COLUMNS_MAX = {".cc": 80, ".h": 80, ".cu": 80, ".proto": 100, ".py": 100,
               ".sh": 100, ".md": 100}

# Folders of the project from which the files of each folder may include, beside their
# own folder and common/base. A mark may come first. "pure" forbids threads, clocks,
# sockets, files, and randomness without a seed: such a folder decides, and its
# callers act. "grpc" allows gRPC's headers.
FOLDERS = {
    "common/base": "",
    "common/bazel": "",
    "common/tensor": "",
    "common/compute": "pure",
    "common/plan": "pure",
    "common/protocol": "pure common/compute common/plan common/tensor",
    "common/messages": "pure common/plan common/protocol proto",
    "common/network": "pure common/protocol",
    "common/share": "pure",
    "common/share/file": "common/share",
    "common/transport": "pure common/messages common/protocol common/tensor proto",
    "common/transport/memory": "common/protocol common/tensor",
    "common/transport/socket": "common/protocol common/tensor common/transport "
                               "common/transport/memory",
    "common/trace": "common/protocol",
    "common/driver": "common/compute common/plan common/protocol common/rpc "
                     "common/tensor common/trace common/transport "
                     "common/transport/socket",
    "common/device": "common/tensor",
    "common/checkpoint": "common/compute common/plan common/protocol common/tensor",
    "common/http": "",
    "common/metrics": "common/http common/protocol common/transport",
    "common/rpc": "grpc common/messages common/plan common/protocol proto",
    "common/flags": "common/compute common/plan common/protocol",
    "server/shard": "pure common/compute common/plan common/protocol common/tensor",
    "server/coordinator": "pure common/messages common/plan common/protocol proto",
    "server/process": "grpc common/checkpoint common/driver common/flags "
                      "common/messages common/plan common/protocol common/rpc "
                      "common/transport common/transport/socket proto "
                      "common/metrics server/coordinator server/report "
                      "server/shard",
    "server/report": "common/metrics common/plan common/protocol",
    "server/admin": "common/checkpoint common/compute common/flags common/messages "
                    "common/plan common/protocol common/rpc common/share "
                    "common/share/file server/admin/simulate "
                    "server/process server/report",
    "server/admin/simulate": "pure common/network common/plan common/protocol "
                             "server/shard worker/machine",
    "worker/public": "common/compute common/plan common/protocol common/tensor",
    "worker/machine": "pure common/compute common/plan common/protocol common/share "
                      "common/tensor worker/public",
    "worker/measure": "common/plan common/protocol common/trace worker/public",
    "worker/client": "common/compute common/driver common/messages common/plan common/trace "
                     "common/metrics common/protocol common/rpc common/share "
                     "common/share/file common/tensor common/transport common/transport/socket "
                     "worker/machine worker/measure "
                     "worker/public",
    "worker/gpu": "common/compute common/device common/driver common/metrics common/plan "
                  "common/protocol common/tensor common/trace worker/client "
                  "worker/measure worker/public",
    "worker/c_api": "common/plan common/protocol worker/client worker/public",
    "worker/trainer": "common/compute common/device common/flags common/messages "
                      "common/plan worker/measure worker/client worker/public",
    "worker/examples": "worker/public",
}
IMPURE = re.compile(
    r"#include [<\"](thread|mutex|shared_mutex|condition_variable|future|chrono"
    r"|ctime|time\.h|fstream|filesystem|cstdio|stdio\.h|fcntl\.h|unistd\.h"
    r"|poll\.h|netdb\.h|sys/.*|netinet/.*|arpa/.*|absl/synchronization/.*"
    r"|absl/time/clock\.h|common/base/(clock|identity|mutex|socket)\.h)[>\"]"
    r"|std::random_device|std::getenv|\bgetenv\(")
GRPC = re.compile(r"#include ([<\"](grpc|grpcpp)/|.*\.grpc\.pb\.h)")

# Paths that exist on one machine only. The expression is cut in two so that this line
# is no such path.
MACHINE_PATH = re.compile(
    r"(?<![\w.~$})-])/(?:" + r"home|root|Users|work|mnt|media|tmp)/\w")

# A comment begins with the thing that it is about, and a process has a name: the
# rules of CONTRIBUTING.md that a regular expression can check.
VAGUE_BEGINNING = re.compile(
    r"(Of|By|What|Where|Whose|Who|Whom|As|It|One|Those|The same)\b")
NAMELESS_PROCESS = re.compile(
    r"\b(who|whom|whoever|nobody|somebody|everybody|anybody|someone|anyone|everyone"
    r"|one who|those who)\b", re.IGNORECASE)

CODE_COMMENT = re.compile(
    r"^\s*(?://|#) (?:return\b[^.]*;|(?:if|for|while|switch) \(.*[{;]|#include "
    r"|[\w:<>*&.\[\]]+(?:->\w+)*\([^ ]*\);|(?:const )?[\w:<>*&]+ \w+ = .*;|\}+)$")
BLOCK_WITHOUT_LIMIT = re.compile(
    r"\b(namespace|class|struct|enum|union|extern)\b|= ?\{$|^\s*\{$|\)\"|R\"")


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def list_files():
    """All files of the project: known to git, or new and not ignored."""
    git = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=False)
    if git.returncode == 0 and git.stdout:
        names = git.stdout.decode().split("\0")
        return sorted(set(name for name in names if os.path.isfile(name)))
    found = []  # An unpacked archive has no repository.
    for folder, folders, names in os.walk("."):
        folders[:] = [f for f in folders
                      if f not in (".git", "__pycache__")
                      and not f.startswith("bazel-")]
        found += [os.path.relpath(os.path.join(folder, n)) for n in names]
    return sorted(found)


def check_text(path, lines):
    """Checks the rules for all text files."""
    for number, line in enumerate(lines, 1):
        if re.search(r"\s$", line):
            yield number, "a space at the end of the line"
        if re.search(r"\bTODO\b(?!\((#\d+|[a-z][\w.-]*)\))", line):
            yield number, "a TO" + "DO needs a name or an issue, as TO" + "DO(#12)"
        if re.search(r"\b(FIX" + r"ME|XX" + r"X|HA" + r"CK)\b", line):
            yield number, "unfinished: finish it, or write a TO" + "DO(#issue)"
        if MACHINE_PATH.search(line):
            yield number, "the path of one machine: " + line.strip()
    if path.endswith(".md") and len("".join(lines).strip()) < 200:
        yield 1, "a document with nothing in it"


def check_width(path, lines):
    """Checks the width of lines. Tables and samples in documents may be wider."""
    limit = COLUMNS_MAX[os.path.splitext(path)[1]]
    is_sample = False
    for number, line in enumerate(lines, 1):
        if path.endswith(".md"):
            is_sample ^= line.startswith("```")
            if is_sample or line.startswith("|"):
                continue
        if len(line) > limit and "://" not in line:
            yield number, f"{len(line)} columns, the limit is {limit}"


def comments(lines):
    """Yields the number and text of each line of a comment, and whether the comment
    begins there."""
    goes_on = False
    for number, line in enumerate(lines, 1):
        alone = re.match(r"\s*//+ ?(.*)", line)
        after_code = re.search(r"[;,{}()\\] +// (.*)", line)
        if alone:
            yield number, alone[1], not goes_on
            goes_on = bool(alone[1])
        elif after_code:
            yield number, after_code[1], True
            goes_on = True  # The next line, if it is a comment alone.
        else:
            goes_on = False


def check_prose(lines):
    for number, text, begins in comments(lines):
        if begins and VAGUE_BEGINNING.match(text):
            yield number, f"begin with the thing that the comment is about: {text}"
        if NAMELESS_PROCESS.search(text):
            yield number, f"name the worker, server, caller or thread: {text}"


TRY_IN_PLACE = re.compile(r"(^|[;{}=)]|\breturn)\s*$")
TRY_IN_LIST = re.compile(r"([=(,] \{|\w\{|^\s*\.\w+ =)\s*$")


def check_try(lines):
    """Checks the places of NEREUS_TRY, which may return from within an expression. Then
    compilers do not destroy the elements of an initializer list that exist already."""
    code = [re.sub(r"//.*", "", line).rstrip() for line in lines]
    for number, line in enumerate(code, 1):
        for use in re.finditer(r"\bNEREUS_TRY\(", line):
            before = next((text for text in [line[:use.start()], *code[number - 2::-1]]
                           if text.strip()), "")
            if "#define" in line:
                continue
            if TRY_IN_LIST.search(before) or not TRY_IN_PLACE.search(before):
                yield number, ("NEREUS_TRY is a statement, the right side of =, or the "
                               "operand of return")


def check_using(lines):
    """Checks that the rest of the file has each name of a using-declaration."""
    for number, line in enumerate(lines, 1):
        used = re.match(r"using (?:\w+::)+(\w+);", line)
        if used and not any(re.search(rf"\b{used[1]}\b", other)
                            for other in lines[:number - 1] + lines[number:]):
            yield number, f"nothing uses {used[1]}"


def is_product(path):
    return path.startswith(("common/", "server/", "worker/"))


def statement_start(lines, index):
    """The first line of the statement or signature that `index` ends."""
    while index > 0:
        before = lines[index - 1].strip()
        if not before or before[-1] in ";{}:" or before.startswith(("//", "#")):
            break
        index -= 1
    return index


def check_functions(path, lines):
    """Checks the lengths of functions. Finds them by their indentation, which clang-format
    makes consistent."""
    limit = PRODUCT_FUNCTION_LINES_MAX if is_product(path) else FUNCTION_LINES_MAX
    opened = {}  # Indentation -> (first line, text of the statement).
    for index, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}") and indent in opened:
            first, text = opened.pop(indent)
            length = index - first + 1
            if (length > limit
                    and not BLOCK_WITHOUT_LIMIT.search(text)):
                yield first + 1, (f"a function of {length} lines, the limit is "
                                  f"{limit}")
        if line.endswith("{"):
            first = statement_start(lines, index)
            start = lines[first]
            opened[len(start) - len(start.lstrip())] = (
                first, "\n".join(lines[first:index + 1]))


def check_includes(folder, lines):
    """Checks that files include what FOLDERS allows. Tests may include everything."""
    if folder.startswith("tests"):
        return
    if folder not in FOLDERS:
        yield 1, f"FOLDERS does not say what {folder} may include"
        return
    allowed = FOLDERS[folder].split()
    for number, line in enumerate(lines, 1):
        if "pure" in allowed and IMPURE.search(line):
            yield number, "not in a pure folder: " + line.strip()
        if "grpc" not in allowed and GRPC.match(line):
            yield number, "gRPC is for the folders that FOLDERS marks so"
        included = re.match(r'#include "((?:common|server|worker|tests|proto)/.*)/', line)
        if included and included[1] not in [folder, "common/base", *allowed]:
            yield number, f"{folder} must not include {included[1]}"


def check_cpp(path, lines):
    for number, line in enumerate(lines, 1):
        if CODE_COMMENT.match(line):
            yield number, "code in a comment: " + line.strip()
    yield from check_includes(os.path.dirname(path), lines)
    yield from check_using(lines)
    if path.endswith(".h"):
        if "#pragma once" not in lines:
            yield 1, "there is no #pragma once"
    yield from check_functions(path, lines)


def check_targets(path, read):
    """Checks that a target has the file: without one it would never be compiled."""
    folder, name = os.path.split(path)
    build = os.path.join(folder, "BUILD")
    stem, suffix = os.path.splitext(name)
    if not os.path.isfile(build):
        yield 1, f"there is no {build}"
    elif not any(text in read(build) for text in
                 (f'"{name}"', f'"{stem}"', f'["*{suffix}"]')):
        yield 1, f"no target of {build} has it"


def check_suites(files, read):
    """Checks that the suites of the top folder have the tests of every folder."""
    top = read("BUILD")
    for path in files:
        if not fnmatch.fnmatchcase(path, "tests/*/BUILD"):
            continue
        text = read(path)
        if "cc_test(" not in text and "nereus_tests(" not in text:
            continue
        label = f"//{os.path.dirname(path)}"
        if "\ntest_suites()\n" not in text:
            yield path, 1, "there is no test_suites()"
        if f'"{label}"' not in top:
            yield "BUILD", 1, f"no suite has {label}"


def check_file(path, read, includes):
    try:
        text = read(path)
    except UnicodeDecodeError:
        return  # Not text.
    lines = text.splitlines()
    yield from check_text(path, lines)
    if text and not text.endswith("\n"):
        yield len(lines), "no line feed at the end"
    suffix = os.path.splitext(path)[1]
    if suffix in COLUMNS_MAX:
        yield from check_width(path, lines)
    if suffix in (".cc", ".h", ".cu", ".proto"):
        yield from check_prose(lines)
        yield from check_try(lines)
    if suffix in (".cc", ".h", ".cu"):
        yield from check_cpp(path, lines)
        yield from includes.check(path)
    if suffix in (".cc", ".h", ".proto"):
        yield from check_targets(path, read)


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    contents = {}

    def read(path):
        if path not in contents:
            with open(path, encoding="utf-8") as file:
                contents[path] = file.read()
        return contents[path]

    files = list_files()
    includes = Includes(files, read)
    findings = list(includes.check_precompiled())
    for path in files:
        findings += [(path, *finding) for finding in check_file(path, read, includes)]
    findings += check_suites(files, read)
    findings += [(path, 1, message) for path, message in misfits(read)]
    for path, number, message in findings:
        print(f"{path}:{number}: {message}")
    print(f"style: {len(files)} files, {len(findings)} findings")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
