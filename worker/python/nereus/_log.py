"""Log lines of the library, as records of Python's logger "nereus".

The library keeps its lines in a ring of limited length. A daemon thread takes them from
there, so that the library never calls Python.
"""

import ctypes
import logging
import threading

from . import _native

LINES_MAX = 1000
LINE_BYTES_MAX = 64 * 1024
PERIOD_SECONDS = 0.1

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_logger = logging.getLogger("nereus")

_lock = threading.Lock()
_thread = None


def start():
    """Starts the thread, if this process has not."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LogThread(_native.library())


def stop():
    """Stops the thread, if this process has started it."""
    global _thread
    with _lock:
        thread, _thread = _thread, None
    if thread is not None:
        thread.stop()


class LogThread:
    """Thread that logs the library's lines. The library drops lines that the logger would
    drop, so that they cost nothing."""

    def __init__(self, library):
        self._library = library
        self._text = ctypes.create_string_buffer(LINE_BYTES_MAX)
        self._level = None  # Lowest level that the library writes.
        self._stop = threading.Event()
        self._follow_level()
        library.nereus_collect_log(LINES_MAX)
        self._thread = threading.Thread(target=self._run, name="nereus-log", daemon=True)
        self._thread.start()

    def stop(self):
        """Logs the lines that are left. Later lines go to standard error."""
        self._stop.set()
        self._thread.join(timeout=1)
        self._take_lines()
        self._library.nereus_collect_log(0)

    def _run(self):
        while not self._stop.wait(PERIOD_SECONDS):
            self._follow_level()
            self._take_lines()

    def _follow_level(self):
        wanted = _logger.getEffectiveLevel()
        level = sum(wanted > known for known in _LEVELS[:-1])
        if level != self._level:
            self._library.nereus_set_log_level(level)
            self._level = level

    def _take_lines(self):
        level, length = ctypes.c_int32(), ctypes.c_int64()
        while self._library.nereus_next_log_line(
                ctypes.byref(level), self._text, LINE_BYTES_MAX, ctypes.byref(length)) == 0:
            _logger.log(_LEVELS[level.value], "%s",
                        self._text.value.decode("utf-8", "replace"))
