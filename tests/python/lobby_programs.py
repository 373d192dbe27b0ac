"""Programs that test_lobby.py runs as the processes of a job: lobby_programs.py NAME [ARGUMENT].

Each prints what the test looks at.
"""

import logging
import os
import signal
import sys
import threading
import time

import nereus
from programs import (RANK, do_step, is_in_wait, is_soon, line_layer, make_values, press_in_wait,
                      stop, wait_until)

SIZE = int(os.environ.get("NEREUS_LOCAL_SIZE", "1"))


def say(text):
    sys.stdout.write(f"{text}\n")  # In one piece, beside lines of the log.


def train(steps=3):
    """Joins the job, and says which rank and position this worker has got."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client:
        while (step := client.begin_step()).step < steps:
            assert (client.traits.rank, step.position) == (RANK, RANK), (RANK, step)
            do_step(client, step, line, gradient)


def gathers():
    """All gather three times, process 0 comes 2 s late to the second one, and all join."""
    with nereus.Lobby() as lobby:
        assert (lobby.rank, lobby.count) == (RANK, SIZE)
        say(lobby.gather(bytes([0, 255, RANK])))
        time.sleep(2 if RANK == 0 else 0)
        begun = time.monotonic()
        lobby.gather(b"")
        took = time.monotonic() - begun
        assert RANK == 0 or took > 1, took
        say([len(value) for value in lobby.gather(b"x" * 65536 if RANK == 1 else b"")])
    assert lobby.closed
    # Process 0 joins last, and has rank 0 all the same.
    time.sleep(1 if RANK == 0 else 0)
    train()


def killed():
    """Process 1 dies after the first gathering, is started again, and comes late to the next."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    mark = os.path.join(os.environ["TEST_FOLDER"], "killed")
    is_again = RANK == 1 and os.path.exists(mark)
    if is_again:
        time.sleep(7)  # The others hear after 5 s for which process they wait.
    lobby = nereus.Lobby()
    first = lobby.gather(b"first of %d%s" % (RANK, b" again" if is_again else b""))
    if RANK == 1 and not is_again:
        open(mark, "wb").close()
        os.kill(os.getpid(), signal.SIGKILL)
    say([*first, *lobby.gather(b"second of %d" % RANK)])
    # The lobby stays open: neither the job nor the end of the process waits for it.
    train()


def killed_while_it_waits():
    """Process 1 dies in a gathering, and the value that it sends in its next life counts."""
    mark = os.path.join(os.environ["TEST_FOLDER"], "killed")
    is_again = os.path.exists(mark)
    with nereus.Lobby() as lobby:
        if RANK == 1 and not is_again:
            try:
                lobby.gather(b"old", timeout=1)
            except nereus.Stalled:
                open(mark, "wb").close()
                os.kill(os.getpid(), signal.SIGKILL)
        if RANK == 0:
            wait_until("process 1 has died", lambda: os.path.exists(mark))
            time.sleep(3)
        say(lobby.gather(b"new %d" % RANK))
    train()


def coordinator_killed():
    """The coordinator is killed between two gatherings, and its successor knows the first one: a
    process that is started again gets it."""
    mark = os.path.join(os.environ["TEST_FOLDER"], "killed")
    is_again = RANK == 1 and os.path.exists(mark)
    lobby = nereus.Lobby()
    first = lobby.gather(b"first of %d%s" % (RANK, b" again" if is_again else b""))
    if RANK == 1 and not is_again:
        open(mark, "wb").close()
        for name in os.listdir("/proc"):
            if is_coordinator(name):
                os.kill(int(name), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    say([*first, *lobby.gather(b"second of %d" % RANK)])
    lobby.close()
    train()


def is_coordinator(name):
    """True if a process is the coordinator of this job. name: that of its folder in /proc."""
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            if b"--coordinate-only" not in file.read().split(b"\0"):
                return False
        with open(f"/proc/{name}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[1]) == os.getppid()
    except OSError:  # It is no process, or it has ended.
        return False


def interrupted():
    """Ctrl-C while this process waits for the other one, which does not come."""
    if RANK == 1:
        time.sleep(240)
    pressed = []
    lobby = nereus.Lobby()
    try:
        press_in_wait(pressed)
        lobby.gather(b"")
    except KeyboardInterrupt:
        stop(f"stopped soon: {is_soon(pressed[0])}")


def wrong_count():
    try:
        nereus.Lobby(count=3).gather(b"")
    except nereus.NereusError as error:
        stop(f"{type(error).__name__}: {error}")


def wrong_values():
    with nereus.Lobby() as lobby:
        for value in ("text", b"x" * 65537):
            try:
                lobby.gather(value)
            except nereus.InvalidArgument as error:
                say(error)
        say(lobby.gather(b"right"))
    try:
        lobby.gather(b"")
    except nereus.NereusError as error:
        say(error)
    train()


def stalled():
    """A timeout names the missing process, and the value of the first call counts."""
    with nereus.Lobby() as lobby:
        if RANK == 0:
            try:
                lobby.gather(b"first", timeout=6)
            except nereus.Stalled as error:
                say(error)
            open(os.path.join(os.environ["TEST_FOLDER"], "stalled"), "wb").close()
        else:
            wait_until("process 0 has stalled", lambda: os.path.exists(
                os.path.join(os.environ["TEST_FOLDER"], "stalled")))
        say(lobby.gather(b"second"))
    train()


def closed_by_another_thread():
    """close ends a wait of another thread, which gets an error."""
    if RANK == 1:
        time.sleep(240)
    lobby, errors = nereus.Lobby(), []

    def wait():
        try:
            lobby.gather(b"")
        except nereus.NereusError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until("the thread waits", lambda: is_in_wait(thread))
    begun = time.monotonic()
    lobby.close()
    thread.join()
    stop(f"{errors} soon: {is_soon(begun)}")


def without_the_others():
    """Process 1 joins without a gathering, and the job begins with another worker."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    if RANK == 1:
        train()
    else:
        nereus.Lobby().gather(b"", timeout=8)


def unreachable():
    try:
        nereus.Lobby(coordinator="127.0.0.1:1", connect_timeout=0.3).gather(b"")
    except nereus.Unreachable as error:
        stop(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
