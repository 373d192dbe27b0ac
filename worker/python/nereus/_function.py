"""Functions as the workers of a job: nereus.run.

The workers are processes of their own. The function reaches them through a file, and each
result comes back through another one.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback

from . import _programs
from .errors import InvalidArgument, LibraryError, NereusError

_WORKER = "import sys; from nereus import _function; _function.work(sys.argv[1])"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(function, args=(), kwargs=None, np=2, flags=()):
    """Calls a function on `np` workers of a new job on this computer, and returns the list of
    their results, in the order of local ranks.

    function: with its arguments, anything that pickle takes; with the package cloudpickle,
        functions of a notebook as well. All workers call it with the same arguments.
    flags: of `nereusctl run`, such as "--wire=bf16".
    The function joins the job and leaves it, or else the job is not finished. The workers' lines
    are printed as they come. Errors: NereusError, with the traceback of the worker that failed
    first, or the job is not finished; InvalidArgument, pickle does not take the function;
    LibraryError, there is no nereusctl.
    """
    if not isinstance(np, int) or np < 1:
        raise InvalidArgument(f"np is {np!r}, must be a positive number")
    if isinstance(flags, str):
        raise InvalidArgument(f"flags is the text {flags!r}, must be a list of texts")
    control = _programs.find("nereusctl")
    if control is None:
        raise LibraryError("nereusctl is not on the PATH: install the wheel, or "
                           "deploy/install.sh")
    with tempfile.TemporaryDirectory(prefix="nereus-run-") as folder:
        with open(os.path.join(folder, "call"), "wb") as file:
            # The paths come first: to read the function may import its module.
            file.write(pickle.dumps(sys.path) + _pickled(function, args, kwargs or {}))
        code = _run_job([control, "run", "-np", str(np), *flags, "--", sys.executable, "-c",
                         _WORKER, folder])
        return _results(folder, np, code)


def _pickled(function, args, kwargs):
    """Returns a call as bytes. A function of the main program goes by value, because the
    workers run another one."""
    try:
        import cloudpickle as by_value
    except ImportError:
        by_value = None
    if by_value is None and getattr(function, "__module__", None) == "__main__":
        raise InvalidArgument(
            f"{getattr(function, '__name__', function)!r} is defined in the main program or in "
            "a notebook: install cloudpickle, or move it to a module")
    try:
        return (by_value or pickle).dumps((function, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"the function cannot be sent to the workers: {error}") from None


def _run_job(command):
    """Runs a job, prints its lines, and returns its exit code. If an exception comes, such as
    Ctrl-C, the job ends first."""
    paths = [_PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=environment) as job:
        try:
            for line in job.stdout:
                print(line, end="", flush=True)
        except BaseException:
            job.terminate()
            raise
    return job.returncode


def _results(folder, count, code):
    """Returns the results of all workers."""
    failures = sorted((os.path.getmtime(path), path) for path in
                      (os.path.join(folder, f"error-{worker}") for worker in range(count))
                      if os.path.exists(path))
    if failures:
        with open(failures[0][1], encoding="utf-8") as file:
            raise NereusError(f"the function failed on a worker:\n{file.read()}")
    if code != 0:
        raise NereusError(f"the job failed: nereusctl run ended with code {code}; its lines "
                          "above say why")
    results = []
    for worker in range(count):
        path = os.path.join(folder, f"result-{worker}")
        if not os.path.exists(path):
            raise NereusError(f"the function ended worker {worker}'s process, by sys.exit or "
                              "os._exit, and returned nothing")
        with open(path, "rb") as file:
            results.append(pickle.load(file))
    return results


def work(folder):
    """Calls the function as one worker."""
    number = os.environ["NEREUS_LOCAL_RANK"]

    def write(name, content):
        draft = os.path.join(folder, f"{name}-{number}.draft")
        with open(draft, "wb") as file:
            file.write(content)
        os.replace(draft, os.path.join(folder, f"{name}-{number}"))

    try:
        with open(os.path.join(folder, "call"), "rb") as file:
            sys.path.extend(path for path in pickle.load(file) if path not in sys.path)
            function, args, kwargs = pickle.load(file)
        write("result", pickle.dumps(function(*args, **kwargs)))
    except Exception:
        write("error", traceback.format_exc().encode())
        raise
