"""The machine of first_run.py: its programs, libraries and GPU. Runs programs, each with a
timeout, and collects their output in one file."""

import collections
import glob
import os
import shutil
import signal
import subprocess
import sys
import time

# Folder of the script. The folder of this module may be another one: Python resolves links
# to modules, and Bazel's runfiles are links.
FOLDER = os.path.dirname(os.path.abspath(sys.argv[0]))

# Program that asks the driver for GPUs, without a library of CUDA. Prints one line: the number
# of GPUs and the driver's version of CUDA, or the reason why there is no GPU.
ASK_DRIVER = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print("no driver:", error)
else:
    count, version = ctypes.c_int(), ctypes.c_int()
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if error:
        print("the driver answers with error", error)
    elif count.value == 0:
        print("the driver has no GPU")
    else:
        print("GPUs", count.value, "CUDA", version.value // 1000, version.value % 1000 // 10)
"""

# Result of a program. `code` is 124 or 137 after a timeout.
Outcome = collections.namedtuple("Outcome", "code output seconds")


class OutOfTime(Exception):
    """The time of the whole run is over."""


def timed_out(outcome):
    return outcome.code in (124, 137)


def top_folder():
    """The folder with the programs in server/, worker/ and tests/: the top folder of a bundle
    or of Bazel's runfiles, or bazel-bin in a checkout."""
    top = os.path.dirname(os.path.dirname(FOLDER))
    built = os.path.join(top, "bazel-bin")
    here = os.access(os.path.join(top, "server/nereus-server"), os.X_OK)
    return top if here or not os.path.isdir(built) else built


def why_no_gpu():
    """The reason why no GPU can be used; empty if one can be."""
    if not os.path.exists("/dev/nvidiactl"):
        return "there is no /dev/nvidiactl"
    # A driver that hangs must not hang the caller.
    try:
        asked = subprocess.run([sys.executable, "-c", ASK_DRIVER], text=True, timeout=60,
                               capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return "the driver did not answer within 60 s"
    answer = asked.stdout.strip() or f"the driver ended its caller, code {asked.returncode}"
    return "" if answer.startswith("GPUs") else answer


def library_folders():
    """Folders in which Python's packages and toolkits keep CUDA's libraries."""
    pythons = [path for path in sys.path if path.endswith("-packages")]
    for prefix in ("/usr", "/usr/local", "/opt/*", os.path.expanduser("~/.local"),
                   os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")):
        if prefix:
            pythons += glob.glob(prefix + "/lib/python3*/*-packages")
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for packages in pythons:
        folders += [packages + "/nvidia/cu13/lib", packages + "/nvidia/cublas/lib"]
    for home in [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda",
                 *sorted(glob.glob("/usr/local/cuda-13*"), reverse=True), "/opt/cuda"]:
        folders += [home + "/lib64", home + "/targets/x86_64-linux/lib"]
    return folders + ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]


def find_cublas():
    """The folder of cuBLAS 13; empty if there is none."""
    name = "libcublas.so.13"
    for folder in library_folders():
        if folder and os.path.exists(os.path.join(folder, name)):
            return folder
    if shutil.which("find"):
        try:
            found = subprocess.run(
                ["find", "/usr", "/opt", "/root", "/home", "-name", name], text=True,
                timeout=30, capture_output=True, check=False).stdout.split("\n")
        except subprocess.TimeoutExpired:
            found = []
        for path in filter(None, found):
            return os.path.dirname(path)
    return ""


def find_sanitizer():
    """The path of compute-sanitizer; empty if there is none."""
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    folders = [os.path.join(os.path.dirname(folder), "bin") for folder in library_folders()]
    folders += glob.glob("/usr/local/cuda*/bin") + glob.glob("/usr/local/cuda*/compute-sanitizer")
    for folder in folders:
        path = os.path.join(folder, "compute-sanitizer")
        if os.access(path, os.X_OK):
            return path
    return ""


def memory_used():
    """Memory in use on GPU 0 in MiB, as the driver counts it; None if it is not known."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--id=0", "--query-gpu=memory.used",
             "--format=csv,noheader,nounits"],
            text=True, timeout=30, capture_output=True, check=False)
        return int(asked.stdout.strip())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


class Machine:
    """Runs programs. Their output goes to first_run.log in `folder`."""

    def __init__(self, folder, emulated, limit_s, timeout_factor):
        self.folder = folder
        self.emulated = emulated
        self.timeout_factor = timeout_factor
        self.top = top_folder()
        self.started = []  # Processes. Some may have ended.
        self.output_begin = 0  # Offset in the log of the output of the last process.
        self.ends_at = time.monotonic() + limit_s
        self.cublas = "" if emulated else find_cublas()
        self.log = os.path.join(folder, "first_run.log")
        open(self.log, "w", encoding="utf-8").close()
        self.environment = dict(os.environ)
        self.environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [
            self.environment.get("LD_LIBRARY_PATH"), self.cublas,
            os.path.join(self.top, "lib")]))
        # Several clients in one process have more streams than the default of 8 queues.
        self.environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self._add_compiler_libraries()

    def _add_compiler_libraries(self):
        """Adds the bundle's libstdc++ if the machine has none or an older one. The
        bundle's libstdc++ must not hide a newer one, because other libraries can need that."""
        bundled = os.path.join(self.top, "lib/compiler")
        server = self.program("server/nereus-server")
        if not server or not os.path.isdir(bundled):
            return
        if self.run([server, "--version"], 20).code != 0:
            self.environment["LD_LIBRARY_PATH"] += ":" + bundled

    def program(self, name):
        """The path of a program below the top folder; empty if it is not there."""
        path = os.path.join(self.top, name)
        return path if os.access(path, os.X_OK) else ""

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

    def seconds_left(self):
        return self.ends_at - time.monotonic()

    def note(self, text):
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(text.rstrip("\n") + "\n")

    def start(self, command, limit_s, output=None, **variables):
        """Starts a command under timeout(1), which ends all processes of the command after
        `limit_s` seconds."""
        if self.seconds_left() < 5:
            raise OutOfTime
        limit_s = max(1, int(min(limit_s * self.timeout_factor, self.seconds_left())))
        command = ["timeout", "-k", "5", str(limit_s), *map(str, command)]
        shown = " ".join([f"{name}={value}" for name, value in variables.items()] + command)
        self.note(f"\n=== {shown}")
        self.output_begin = os.path.getsize(self.log)
        # Programs find their data files below the top folder.
        with open(output or self.log, "ab") as out, open(self.log, "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.top, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                env={**self.environment, **variables})
        self.started = [each for each in self.started if each.poll() is None] + [process]
        return process

    def stop_all(self):
        for process in self.started:
            stop(process)

    def run(self, command, limit_s, **variables):
        """Runs a command to its end, for at most `limit_s` seconds. Returns an Outcome."""
        begin = time.monotonic()
        code = finish(self.start(command, limit_s, **variables),
                      limit_s * self.timeout_factor + 15)
        with open(self.log, "rb") as log:
            log.seek(self.output_begin)
            output = log.read().decode(errors="replace")
        outcome = Outcome(code, output, time.monotonic() - begin)
        self.note(f"=== exit code {code} after {outcome.seconds:.1f} s")
        if timed_out(outcome) and self.seconds_left() <= 1:
            raise OutOfTime
        return outcome


def finish(process, limit_s):
    """Waits for a process. Returns its exit code, or 128 + N if signal N has killed it. Kills
    it after `limit_s` seconds."""
    try:
        code = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 137
    return 128 - code if code < 0 else code


def stop(process):
    """Ends a process that is no longer needed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        finish(process, 10)
