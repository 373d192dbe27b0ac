"""The machine and the table of first_run.py. The machine runs programs, each with a timeout, and
collects their output in one file; the table has one row for each value."""

import dataclasses
import glob
import json
import operator
import os
import platform
import shutil
import subprocess
import sys
import time

# Folder of the script. The folder of this module may be another one: Python resolves links
# to modules, and Bazel's runfiles are links.
FOLDER = os.path.dirname(os.path.abspath(sys.argv[0]))

# Seconds that a run may take, quick and not. They are less than 8 and 40 minutes, because programs
# take a while to end after a timeout.
QUICK_LIMIT_S = 450
LIMIT_S = 2340

RELATIONS = {">=": operator.ge, "<=": operator.le, "=": operator.eq}


# Program that asks the driver for GPUs, without a library of CUDA. Prints nothing if there is one.
ASK_DRIVER = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if error or count.value == 0:
    print(f"the driver has {count.value} GPUs and answers with error {error}")
"""


class ProgramFailed(Exception):
    """A program did not end well; the message says how."""


class OutOfTime(Exception):
    """The time of the whole run is over."""


@dataclasses.dataclass
class Outcome:
    """Result of a program. `code` is 124 or 137 after a timeout."""
    code: int
    output: str
    seconds: float

    def timed_out(self):
        return self.code in (124, 137)

    def why(self):
        """How the program failed."""
        if self.timed_out():
            return f"the timeout ended it after {self.seconds:.0f} s; see first_run.log"
        lines = self.output.strip().split("\n")
        return f"exit code {self.code}: {lines[-1][:160] or 'no output'}; see first_run.log"


def ask_nvidia_smi(question):
    """Answers of the driver for each GPU; empty if it does not answer."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", f"--query-gpu={question}", "--format=csv,noheader,nounits"],
            text=True, timeout=60, capture_output=True, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return asked.stdout.strip().split("\n") if asked.returncode == 0 else []


def memory_used():
    """Memory in use on GPU 0 in MiB; None if it is not known."""
    time.sleep(2)  # The driver frees the memory of a process a moment after its end.
    used = ask_nvidia_smi("memory.used")
    return int(used[0]) if used and used[0].isdigit() else None


def find_library_folder(name):
    """The folder in which Python's packages or a toolkit keep a library of CUDA; empty if there
    is none."""
    pythons = [path for path in sys.path if path.endswith("-packages")]
    for prefix in ("/usr", "/usr/local", "/opt/*", os.path.expanduser("~/.local"),
                   os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")):
        if prefix:
            pythons += glob.glob(prefix + "/lib/python3*/*-packages")
    folders = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    folders += [packages + part for packages in pythons
                for part in ("/nvidia/cu13/lib", "/nvidia/cublas/lib")]
    for home in [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda",
                 *sorted(glob.glob("/usr/local/cuda-13*"), reverse=True), "/opt/cuda"]:
        folders += [home + "/lib64", home + "/targets/x86_64-linux/lib"]
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    return next((each for each in folders if os.path.exists(os.path.join(each, name))), "")


class Machine:
    """Runs programs, one at a time. Their output goes to first_run.log."""

    def __init__(self, options):
        self.emulated = options.emulated
        self.timeout_factor = options.timeout_factor
        self.ends_at = time.monotonic() + (QUICK_LIMIT_S if options.quick else LIMIT_S)
        self.log = os.path.join(options.out, "first_run.log")
        open(self.log, "w", encoding="utf-8").close()
        # The folder with the programs in server/, worker/ and tests/: the top folder of a bundle
        # or of Bazel's runfiles, or bazel-bin in a checkout.
        self.top = os.path.dirname(os.path.dirname(FOLDER))
        built = os.path.join(self.top, "bazel-bin")
        if not os.path.exists(os.path.join(self.top, "server/nereus-server")):
            self.top = built if os.path.isdir(built) else self.top
        self.cublas = "" if self.emulated else find_library_folder("libcublas.so.13")
        self.environment = dict(os.environ)
        # Several clients in one process have more streams than the default of 8 queues.
        self.environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [
            self.environment.get("LD_LIBRARY_PATH"), self.cublas, os.path.join(self.top, "lib")]))
        self._add_compiler_libraries()
        self.why_no_gpu = "" if self.emulated else self._why_no_gpu()

    def _add_compiler_libraries(self):
        """Adds libstdc++ of the bundle if the machine has none or an older one. It must not hide
        a newer one, because other libraries can need that."""
        bundled = os.path.join(self.top, "lib/compiler")
        if os.path.isdir(bundled) and self.run(
                [self.program("server/nereus-server"), "--version"], 20).code != 0:
            self.environment["LD_LIBRARY_PATH"] += ":" + bundled

    def _why_no_gpu(self):
        """The reason why no GPU can be used; empty if one can be."""
        if not os.path.exists("/dev/nvidiactl"):
            return "there is no /dev/nvidiactl"
        # A driver that hangs must not hang the caller.
        outcome = self.run([sys.executable, "-c", ASK_DRIVER], 60)
        return outcome.why() if outcome.code != 0 else outcome.output.strip()

    def describe(self):
        """Facts about the machine, on which values depend."""
        facts = {"GPU": "emulated" if self.emulated else self.why_no_gpu,
                 "cuBLAS 13": "emulated" if self.emulated else
                              self.cublas or "not found: factor products cannot run",
                 "CPU cores": str(os.cpu_count()), "system": platform.platform()}
        if not facts["GPU"]:
            asked = ask_nvidia_smi("name,driver_version,pcie.link.gen.current,pcie.link.gen.max,"
                                   "pcie.link.width.current,memory.total,compute_mode")
            facts["GPU"] = "; ".join(asked[:8]) or "nvidia-smi does not say which"
        return facts

    def program(self, name):
        """The path of a program below the top folder."""
        path = os.path.join(self.top, name)
        if not os.access(path, os.X_OK):
            raise FileNotFoundError(f"{name} is not here")
        return path

    def test(self, name):
        """The path of a program of tests/gpu, or of its emulated twin."""
        if self.emulated:
            name = (name.replace("_test", "_emulation_test") if name.endswith("_test")
                    else name + "_emulated")
        return self.program("tests/gpu/" + name)

    def tests(self):
        """The names of all tests in tests/gpu that this run can use."""
        ending = "_emulation_test" if self.emulated else "_test"
        names = [os.path.basename(path) for path in
                 sorted(glob.glob(os.path.join(self.top, "tests/gpu/*" + ending)))]
        return [name.replace("_emulation", "") for name in names
                if self.emulated or not name.endswith("_emulation_test")]

    def worker(self):
        return self.program("tests/gpu/emulated_gpu_worker" if self.emulated
                            else "worker/trainer/nereus-worker")

    def sanitizer(self):
        """The path of compute-sanitizer; empty if there is none."""
        places = ["/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer"]
        folders = [folder for place in places for folder in glob.glob(place)]
        return "" if self.emulated else shutil.which(
            "compute-sanitizer", path=":".join([os.environ["PATH"], *folders])) or ""

    def run(self, command, limit_s, **variables):
        """Runs a command to its end, under timeout(1), which ends all processes of the command
        after `limit_s` seconds. Returns an Outcome."""
        begin = time.monotonic()
        if self.ends_at - begin < 5:
            raise OutOfTime("the time of the whole run is over")
        limit_s = max(1, int(min(limit_s * self.timeout_factor, self.ends_at - begin)))
        command = ["timeout", "-k", "5", str(limit_s), *map(str, command)]
        shown = " ".join([f"{name}={value}" for name, value in variables.items()] + command)
        with open(self.log, "a+", encoding="utf-8", errors="replace") as log:
            log.write(f"\n=== {shown}\n")
            log.flush()
            output_begin = log.tell()
            # Programs find their data files below the top folder.
            code = subprocess.run(command, cwd=self.top, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, env={**self.environment, **variables},
                                  check=False).returncode
            log.seek(output_begin)
            output = log.read()
            outcome = Outcome(code if code >= 0 else 128 - code, output,
                              time.monotonic() - begin)
            log.write(f"=== exit code {outcome.code} after {outcome.seconds:.1f} s\n")
        return outcome


def show(value):
    """A value as text. Numbers with a fraction have three digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


class Table:
    """Rows in the order of their steps. Each row is written to first_run.json at once, so that an
    interrupted run leaves its values. The result of a row is pass, fail, skipped (there is no
    value; the note says why) or noted (a value without a threshold, or a speed that is not
    judged)."""

    def __init__(self, options, facts):
        self.options = options
        self.facts = facts  # Facts about the machine.
        self.step = ""  # Step to which rows are added.
        self.rows = []
        self.began = time.monotonic()

    def add(self, name, value, unit="", limit=None, note="", speed=False):
        """Adds a row. `limit`: relation and threshold of the value. `speed`: the value depends on
        the speed of the GPU, so it is not judged if the GPU is emulated."""
        if limit is None:
            result = "noted"
        elif speed and self.options.emulated:
            result = "noted"
            note = note or "not judged, since the GPU is emulated"
        else:
            result = "pass" if RELATIONS[limit[0]](value, limit[1]) else "fail"
        self._append(name, value, unit, f"{limit[0]} {show(limit[1])}" if limit else "", result,
                     note)

    def skip(self, name, why):
        self._append(name, None, "", "", "skipped", why)

    def fail(self, name, why):
        self._append(name, None, "", "", "fail", why)

    def guard(self, name, function, *arguments, **variables):
        """Calls the function. If it raises an error, the row `name` says so, and the run goes
        on."""
        try:
            function(*arguments, **variables)
        except (FileNotFoundError, OutOfTime) as error:
            self.skip(name, str(error))
        except ProgramFailed as error:
            self.fail(name, str(error))
        except Exception as error:  # pylint: disable=broad-except
            # The script has a defect, or does not expect a program's output.
            self.fail(name, f"{type(error).__name__}: {error}; see first_run.log")

    def count(self, result):
        return sum(row["result"] == result for row in self.rows)

    def _append(self, name, value, unit, threshold, result, note):
        self.rows.append({"step": self.step, "name": name, "value": value, "unit": unit,
                          "threshold": threshold, "result": result, "note": note})
        print(f"{result:8} {self.step}: {name} {show(value)} {unit} {threshold} {note}".rstrip(),
              flush=True)
        self._write_json()

    def _write_json(self):
        report = {"emulated": self.options.emulated, "quick": self.options.quick,
                  "machine": self.facts, "seconds": round(time.monotonic() - self.began, 1),
                  "passed": self.count("pass"), "failed": self.count("fail"),
                  "skipped": self.count("skipped"), "noted": self.count("noted"),
                  "rows": self.rows}
        with open(os.path.join(self.options.out, "first_run.json"), "w",
                  encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")

    def finish(self):
        """Prints the table, and writes first_run.md."""
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        lines += ["", "| step | what | value | unit | threshold | result | note |",
                  "| --- | --- | --- | --- | --- | --- | --- |"]
        for row in self.rows:
            cells = [show(row["value"]) if key == "value" else row[key].replace("|", "/")
                     for key in ("step", "name", "value", "unit", "threshold", "result", "note")]
            lines.append(f"| {' | '.join(cells)} |")
        counts = [f"{self.count(result)} {word}" for result, word in (
            ("pass", "passed"), ("fail", "failed"), ("skipped", "skipped"), ("noted", "noted"))]
        lines += ["", f"{', '.join(counts)} in {time.monotonic() - self.began:.0f} s"]
        text = "\n".join(lines) + "\n"
        with open(os.path.join(self.options.out, "first_run.md"), "w", encoding="utf-8") as file:
            file.write(text)
        print("\n" + text, end="", flush=True)
