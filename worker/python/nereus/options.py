"""Options of nereus.Client."""

import os
from dataclasses import dataclass, field, fields
from typing import Dict, Optional

from . import _native
from .errors import InvalidArgument

_TEXTS = {"NEREUS_COORDINATOR": "coordinator", "NEREUS_JOB_NAME": "job",
          "NEREUS_NAME": "name", "NEREUS_HOST": "host", "NEREUS_NODE": "node"}
_PORTS = {"NEREUS_CONTROL_PORT": "control_port", "NEREUS_DATA_PORT": "data_port"}


@dataclass
class Options:
    """Options of a client. ClientOptions in worker/public/client_options.h says more.

    optimizer: place where the caller expects the job's optimizer to run: "server": the job
        updates the parameters; "worker": the caller does, from the mean gradients; "any":
        the caller asks Client.traits.
    settings: values that must be equal on all workers, such as {"batch": 32}.
    Times are in seconds; None is Nereus's own default.
    """

    coordinator: str = ""  # "HOST:PORT".
    job: str = "default"
    name: str = ""
    host: str = ""
    node: str = ""
    control_port: int = 0
    data_port: int = 0
    shared_memory: bool = True
    optimizer: str = "server"
    settings: Dict[str, object] = field(default_factory=dict)
    means_apart: bool = False
    connect_timeout: Optional[float] = None
    round_timeout: float = 600.0
    stall_threshold: Optional[float] = None
    staging_bytes: int = 0

    @classmethod
    def from_environment(cls, **values):
        """Returns the options that the variables of `nereusctl run` set, which are those of
        ClientOptions::FromEnvironment, with `values` in place of them."""
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
            if text and name not in values:
                found[name] = _port(variable, text)
        memory = os.environ.get("NEREUS_SHARED_MEMORY") or "auto"
        if memory not in ("auto", "off"):
            raise InvalidArgument(f'the variable NEREUS_SHARED_MEMORY is "{memory}", must be '
                                  "auto or off")
        found["shared_memory"] = memory == "auto"
        return cls(**{**found, **values})


def _port(variable, text):
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            f'the variable {variable} is "{text}", which is not a number') from None


def _milliseconds(name, seconds):
    """Returns a time for the library, for which 0 is the default."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise InvalidArgument(f"{name} is {seconds} seconds, must be positive")
    return max(1, round(seconds * 1000))


def native_options(options):
    """Returns the options as nereus_client_options, but for the memory."""
    if options.optimizer not in _native.OPTIMIZERS:
        raise InvalidArgument(f"optimizer is {options.optimizer!r}, must be one of "
                              + ", ".join(_native.OPTIMIZERS))

    def text(value):
        return value.encode() if value else None

    settings = (_native.Setting * max(1, len(options.settings)))()
    for entry, (name, value) in zip(settings, options.settings.items()):
        entry.name, entry.value = str(name).encode(), str(value).encode()
    return _native.ClientOptions(
        optimizer=_native.OPTIMIZERS[options.optimizer],
        coordinator_address=text(options.coordinator), job=text(options.job),
        name=text(options.name), host=text(options.host), node=text(options.node),
        control_port=options.control_port, data_port=options.data_port,
        settings=settings, settings_count=len(options.settings),
        without_shared_memory=not options.shared_memory, means_apart=options.means_apart,
        connect_timeout_ms=_milliseconds("connect_timeout", options.connect_timeout),
        round_timeout_ms=_milliseconds("round_timeout", options.round_timeout),
        stall_threshold_ms=_milliseconds("stall_threshold", options.stall_threshold),
        staging_bytes=options.staging_bytes)
