"""Options of nereus.Client."""

import difflib
import os
from dataclasses import dataclass, field, fields
from typing import Dict, Optional

from . import _launcher, _native, arguments
from .errors import InvalidArgument

_TEXTS = {"NEREUS_COORDINATOR": "coordinator", "NEREUS_JOB_NAME": "job",
          "NEREUS_NAME": "name", "NEREUS_HOST": "host", "NEREUS_LISTEN": "listen",
          "NEREUS_NODE": "node"}
_PORTS = {"NEREUS_CONTROL_PORT": "control_port", "NEREUS_DATA_PORT": "data_port",
          "NEREUS_HTTP_PORT": "http_port"}

_VARIABLES = (*_TEXTS, *_PORTS, "NEREUS_CONNECT_TIMEOUT", "NEREUS_SHARED_MEMORY",
              "NEREUS_LIBRARY", "NEREUS_RANK", "NEREUS_LOCAL_RANK", "NEREUS_LOCAL_SIZE")
# Variables of Nereus's programs whose names are much like those.
_ALIKE = ("NEREUS_HOSTS",)
# Smallest part of two names' letters that are the same, of names that are alike.
_LIKENESS = 0.8

# Nereus's own default of round_timeout.
ROUND_TIMEOUT = 600.0


@dataclass
class Options:
    """Options of a client. ClientOptions in worker/public/client_options.h says more.

    rank: number that the launcher gave this process among those that it started together,
        from 0: the worker's rank at the start of the job, if all workers have different
        numbers. None: the order of joining decides.
    optimizer: place where the caller expects the job's optimizer to run: "server": the job
        updates the parameters; "worker": the caller does, from the mean gradients; "any":
        the caller asks Client.traits.
    scales_loss: True if the caller multiplies its gradients by Step.loss_scale; a job with
        --loss-scale=dynamic refuses other workers.
    optimizer_has_state: False if the caller runs an optimizer without state. If True, a caller
        that runs the optimizer and has no layer with `state` gets a warning.
    settings: values that must be equal on all workers, such as {"batch": 32}.
    Times are in seconds; None is Nereus's own default.
    """

    coordinator: str = ""  # "HOST:PORT".
    job: str = "default"
    name: str = ""
    rank: Optional[int] = None
    host: str = ""
    listen: str = ""
    node: str = ""
    control_port: int = 0
    data_port: int = 0
    http_port: int = 0  # Port for metrics; 0: none.
    shared_memory: bool = True
    optimizer: str = "server"
    scales_loss: bool = False
    optimizer_has_state: bool = True
    settings: Dict[str, object] = field(default_factory=dict)
    means_apart: bool = False
    connect_timeout: Optional[float] = None
    round_timeout: Optional[float] = ROUND_TIMEOUT
    stall_threshold: Optional[float] = None
    staging_bytes: int = 0

    @classmethod
    def from_environment(cls, **values):
        """Returns the options that the variables of `nereusctl run` set, which are those of
        ClientOptions::FromEnvironment, with `values` in place of them. torchrun, mpirun and
        srun set `rank`, too."""
        known = [option.name for option in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidArgument(f"there is no option {name}; there are "
                                      + ", ".join(known))
        found = {}
        for variable, name in _TEXTS.items():
            if os.environ.get(variable):
                found[name] = os.environ[variable]
        for variable, name in _PORTS.items():
            text = os.environ.get(variable)
            # Kubernetes sets a port like tcp://10.0.0.1:7001 for a Service nereus-data.
            if text and "://" not in text and name not in values:
                found[name] = _number(variable, text)
        if "rank" not in values:
            found["rank"] = _rank()
        timeout = os.environ.get("NEREUS_CONNECT_TIMEOUT")
        if timeout and "connect_timeout" not in values:
            found["connect_timeout"] = _seconds("NEREUS_CONNECT_TIMEOUT", timeout)
        memory = os.environ.get("NEREUS_SHARED_MEMORY") or "auto"
        if memory not in ("auto", "off"):
            raise InvalidArgument(f'the variable NEREUS_SHARED_MEMORY is "{memory}", must be '
                                  "auto or off")
        found["shared_memory"] = memory == "auto"
        return cls(**{**found, **values})


def misspelt_variable():
    """Returns a variable that is set and that Nereus does not know, and the one that was perhaps
    meant; None if there is none."""
    prefix = "NEREUS_"
    for name in sorted(os.environ):
        if not name.startswith(prefix) or name in _VARIABLES + _ALIKE or not os.environ[name]:
            continue
        meant = difflib.get_close_matches(
            name[len(prefix):], [known[len(prefix):] for known in _VARIABLES], 1, _LIKENESS)
        if meant:
            return name, prefix + meant[0]
    return None


def _rank():
    """Returns the number that the launcher gave this process; None if it gave none. On one host
    the number of the process on its host is its number in the job."""
    if os.environ.get("NEREUS_RANK"):
        return _number("NEREUS_RANK", os.environ["NEREUS_RANK"])
    launched = _launcher.number(0)
    if launched is None and os.environ.get("NEREUS_LOCAL_RANK"):
        return _number("NEREUS_LOCAL_RANK", os.environ["NEREUS_LOCAL_RANK"])
    return launched


def _number(variable, text):
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            f'the variable {variable} is "{text}", which is not a number') from None


def _seconds(variable, text):
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(
            f'the variable {variable} is "{text}", which is not a number') from None


def _milliseconds(name, seconds):
    """Returns a time for the library, for which 0 is the default."""
    if seconds is None:
        return 0
    if not arguments.seconds(name, seconds) > 0:
        raise InvalidArgument(f"{name} is {seconds} seconds, must be positive")
    return max(1, round(float(seconds) * 1000))


def native_options(options):
    """Returns the options as nereus_client_options, but for the memory."""
    if options.optimizer not in list(_native.OPTIMIZERS):
        raise InvalidArgument(f"optimizer is {options.optimizer!r}, must be one of "
                              + ", ".join(_native.OPTIMIZERS))

    if not isinstance(options.settings, dict):
        raise InvalidArgument(f"settings is {options.settings!r}, must be a dict")
    settings = (_native.Setting * max(1, len(options.settings)))()
    for entry, (name, value) in zip(settings, options.settings.items()):
        entry.name, entry.value = str(name).encode(), str(value).encode()

    def text(name):
        return arguments.text(name, getattr(options, name)) or None

    def number(name, bits):
        return arguments.integer(name, getattr(options, name), bits)

    def milliseconds(name):
        return _milliseconds(name, getattr(options, name))

    return _native.ClientOptions(
        optimizer=_native.OPTIMIZERS[options.optimizer],
        coordinator_address=text("coordinator"), job=text("job"), name=text("name"),
        host=text("host"), listen=text("listen"), node=text("node"),
        control_port=number("control_port", 32), data_port=number("data_port", 32),
        http_port=number("http_port", 32),
        has_rank=options.rank is not None,
        rank=0 if options.rank is None else number("rank", 32),
        settings=settings, settings_count=len(options.settings),
        without_shared_memory=not options.shared_memory,
        means_apart=bool(options.means_apart), scales_loss=bool(options.scales_loss),
        without_state=not options.optimizer_has_state,
        connect_timeout_ms=milliseconds("connect_timeout"),
        round_timeout_ms=milliseconds("round_timeout"),
        stall_threshold_ms=milliseconds("stall_threshold"),
        staging_bytes=number("staging_bytes", 64))
