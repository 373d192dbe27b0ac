"""SIGTERM as a request to leave the job."""

import os
import signal
import threading

# Exit code of a process that SIGTERM ended: 128 + 15.
EXIT_CODE = 143

# Seconds from the first SIGTERM to the end of the process: within the 10 seconds that
# `docker stop` grants.
_PATIENCE = 9


class LeaveSignal:
    """Notes SIGTERM, so that the program can leave its job before it ends:

        with nereus.Client(layers) as client, nereus.LeaveSignal() as signal:
            while ...:
                step = client.begin_step()
                if signal.is_set or step.should_leave:
                    client.leave(early=True)
                    sys.exit(nereus.LeaveSignal.EXIT_CODE if signal.is_set else 0)

    If the process has not ended 9 seconds after the first SIGTERM, or gets another one, it
    ends at once, with EXIT_CODE. Does nothing if the program has a handler of its own for
    SIGTERM, or in another thread than the main thread. nereus.torch uses one by itself."""

    EXIT_CODE = EXIT_CODE

    def __init__(self):
        self.is_set = False
        self._installed = (threading.current_thread() is threading.main_thread()
                           and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        if self._installed:
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number, _frame):
        if self.is_set:
            os._exit(EXIT_CODE)
        self.is_set = True
        timer = threading.Timer(_PATIENCE, os._exit, (EXIT_CODE,))
        timer.daemon = True
        timer.start()

    def close(self):
        """Lets SIGTERM end the process again."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._installed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
