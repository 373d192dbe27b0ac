"""How the program ends: as it should, or by an error."""

import sys

_hook = None
_failed = False


def watch():
    """Watches for errors that end the program. Call it before `has_failed`."""
    global _hook
    if _hook is None:
        _hook, sys.excepthook = sys.excepthook, _on_error


def _on_error(kind, error, trace):
    note_failure()
    _hook(kind, error, trace)


def note_failure():
    """Notes that the program ends by an error, of which the user hears by other means."""
    global _failed
    _failed = True


def note_new_client():
    """Notes that the program goes on after an error, with another client."""
    global _failed
    _failed = False


def has_failed():
    """Returns True if an error ends the program. sys.exit() is no error."""
    return _failed
