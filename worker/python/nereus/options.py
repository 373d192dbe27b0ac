"""Options of nereus.Client."""

import difflib
import os
from dataclasses import dataclass, field, fields
from typing import Dict, Optional

from . import _launcher, _native, arguments
from .errors import InvalidArgument

_TEXTS = {"NEREUS_COORDINATOR": "coordinator", "NEREUS_JOB_NAME": "job",
          "NEREUS_NAME": "name", "NEREUS_HOST": "host", "NEREUS_LISTEN": "listen",
          "NEREUS_NODE": "node", "NEREUS_SHARE": "share"}
_PORTS = {"NEREUS_CONTROL_PORT": "control_port", "NEREUS_DATA_PORT": "data_port",
          "NEREUS_HTTP_PORT": "http_port"}

_VARIABLES = (*_TEXTS, *_PORTS, "NEREUS_CONNECT_TIMEOUT", "NEREUS_SHARED_MEMORY",
              "NEREUS_SHARE_WEIGHT", "NEREUS_SHARE_OPTIONAL", "NEREUS_SHARE_RELEASE",
              "NEREUS_LIBRARY", "NEREUS_RANK", "NEREUS_LOCAL_RANK", "NEREUS_LOCAL_SIZE")
# Variables of Nereus's programs whose names are much like those.
_ALIKE = ("NEREUS_HOSTS", "NEREUS_SHARD")
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
    share: folder of a device that other jobs use, too: their workers take turns, step by step
        (docs/sharing.md, ShareOptions in worker/public/client_options.h). share_weight: share
        of the job in the device. share_limit: time after which other jobs pass a worker that
        has the turn and does nothing. share_memory_bytes: memory of the device;
        share_resident_bytes, share_turn_bytes: what of it this worker keeps, and needs besides
        in its turn; nereus.torch measures them on a GPU. share_release: True if nereus.torch
        gives memory that PyTorch keeps for later back to the GPU at the end of each turn.
        share_with_group: True if the folder belongs to a group. share_is_optional: True if the
        worker trains without turns where the folder cannot be used.
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
    share: str = ""
    share_weight: float = 1.0
    share_limit: Optional[float] = None
    share_memory_bytes: int = 0
    share_resident_bytes: int = 0
    share_turn_bytes: int = 0
    share_release: bool = False
    share_with_group: bool = False
    share_is_optional: bool = False

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
            found["connect_timeout"] = _float("NEREUS_CONNECT_TIMEOUT", timeout)
        found["shared_memory"] = _choice("NEREUS_SHARED_MEMORY", "auto", "off")
        found["share_release"] = not _choice("NEREUS_SHARE_RELEASE", "off", "on")
        found["share_is_optional"] = not _choice("NEREUS_SHARE_OPTIONAL", "off", "on")
        weight = os.environ.get("NEREUS_SHARE_WEIGHT")
        if weight:
            found["share_weight"] = _float("NEREUS_SHARE_WEIGHT", weight)
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


def _choice(variable, default, other):
    """Returns True if a variable has its default, and False if it has the other value."""
    text = os.environ.get(variable) or default
    if text not in (default, other):
        raise InvalidArgument(f'the variable {variable} is "{text}", must be {default} or '
                              f"{other}")
    return text == default


def _float(variable, text):
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
        staging_bytes=number("staging_bytes", 64),
        share=text("share"), share_weight=arguments.real("share_weight", options.share_weight),
        share_limit_ms=milliseconds("share_limit"),
        share_memory_bytes=number("share_memory_bytes", 64),
        share_resident_bytes=number("share_resident_bytes", 64),
        share_turn_bytes=number("share_turn_bytes", 64),
        share_with_group=bool(options.share_with_group),
        share_is_optional=bool(options.share_is_optional))
