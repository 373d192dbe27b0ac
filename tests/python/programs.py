"""Programs that test_client.py runs as the workers of a job: programs.py NAME [ARGUMENT].

Each prints what the test looks at. NEREUS_LOCAL_RANK is the number of the worker.
"""

import array
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import nereus

BATCH = 4
# Exit code that ends a job at once, for programs that do not finish it.
STOP = 9
RANK = int(os.environ.get("NEREUS_LOCAL_RANK", "0"))


def make_values(kind, values):
    """Returns an array of a framework with these values."""
    if kind == "array":
        return array.array("f", values)
    if kind == "torch":
        import torch
        return torch.tensor(values)
    import numpy
    return numpy.array(values, numpy.float32)


def bits(values):
    return memoryview(array.array("f", [float(value) for value in values])).hex()


def line_layer(values, **fields):
    return nereus.Layer("line", "vector", values, rows=BATCH, **fields)


def gradient_of(step, line):
    """Returns the gradient of y = line[0] x + line[1] for this worker's examples."""
    first = (step.contributions_before + step.position) * BATCH
    errors = [(x, line[0] * x + line[1] - (3 * x + 1))
              for x in (i % 7 - 3 for i in range(first, first + BATCH))]
    return (sum(error * x for x, error in errors) / BATCH,
            sum(error for _, error in errors) / BATCH)


def do_step(client, step, line, gradient):
    gradient[0], gradient[1] = gradient_of(step, line)
    client.push("line", step, gradient)
    client.wait_all(step)


def train(kind="array", steps=300):
    """The servers run the optimizer."""
    line, gradient = make_values(kind, [0.0, 0.0]), make_values(kind, [0.0, 0.0])
    with nereus.Client([line_layer(line)], settings={"batch": BATCH}) as client:
        assert not client.traits.updates_parameters
        while (step := client.begin_step()).step < int(steps):
            assert step.workers == int(os.environ["NEREUS_LOCAL_SIZE"])
            do_step(client, step, line, gradient)
    assert client.closed
    # In one piece: print writes the end of the line apart, after a line of the log perhaps.
    sys.stdout.write(f"y = {line[0]:.2f} x + {line[1]:.2f}, bits {bits(line)}\n")


def terminated(steps=60):
    """Worker 1 gets SIGTERM in its fifth step, leaves early, and is started again."""
    mark = os.path.join(os.environ["TEST_FOLDER"], "terminated")
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client, nereus.LeaveSignal() as leave:
        if RANK == 1 and os.path.exists(mark):
            open(mark + " twice", "wb").close()
        while (step := client.begin_step()).step < steps:
            if leave.is_set or step.should_leave:
                client.leave(early=True)
                sys.exit(leave.EXIT_CODE if leave.is_set else 0)
            do_step(client, step, line, gradient)
            if RANK == 1 and step.step == 4:
                open(mark, "wb").close()
                os.kill(os.getpid(), signal.SIGTERM)
            # Worker 0 waits for the other one to come back.
            while RANK == 0 and step.step == 20 and not os.path.exists(mark + " twice"):
                time.sleep(0.01)
    sys.stdout.write(f"terminated {os.path.exists(mark)}, bits {bits(line)}\n")


def own_optimizer(means_apart=""):
    """The worker runs the optimizer, with momentum as its state."""
    line, velocity, gradient = (make_values("array", [0.0, 0.0]) for _ in range(3))
    layer = line_layer(line, state=velocity)
    with nereus.Client([layer], optimizer="worker", means_apart=bool(means_apart)) as client:
        assert client.traits.updates_parameters
        while (step := client.begin_step()).step < 300:
            gradient[0], gradient[1] = gradient_of(step, line)
            client.push(0, step, gradient)
            client.wait(0, step.step)
            mean = client.mean("line")
            assert mean.readonly and not client.skipped(step)
            if not means_apart:
                assert mean.tolist() == gradient.tolist()
            for i in range(2):
                velocity[i] = 0.5 * velocity[i] + mean[i]
                line[i] -= 0.05 * velocity[i]
    print(f"y = {line[0]:.2f} x + {line[1]:.2f}, bits {bits(line)}")


def meddle():
    """The worker runs the optimizer. After step 50 worker 1 changes one of 3,000 parameters."""
    values, gradient = make_values("array", [0.0] * 3000), make_values("array", [0.0] * 3000)
    layer = nereus.Layer("big", "vector", values, rows=BATCH)
    line, slope = make_values("array", [0.0, 0.0]), make_values("array", [1.0, 1.0])
    with nereus.Client([line_layer(line), layer], optimizer="worker") as client:
        while (step := client.begin_step()).step < 20000:
            client.push("big", step, gradient)
            client.push("line", step, slope)
            client.wait_all(step)
            for i in range(2):
                line[i] -= 0.001 * slope[i]
            time.sleep(0.005)
            if step.step == 50 and RANK == 1:
                line[1] += 0.5
                print(f"meddled at {time.time()}", flush=True)


def factors():
    """A fully connected layer goes by its factors, and an empty gradient is allowed."""
    import numpy
    weight = numpy.zeros((3, 2), numpy.float32)
    target = numpy.array([[1, 2], [3, 4], [5, 6]], numpy.float32)
    layer = nereus.Layer("fc", "fc", weight, rows=BATCH, has_factors=True)
    random = numpy.random.default_rng(RANK)
    with nereus.Client([layer]) as client:
        while (step := client.begin_step()).step < 300:
            client.wait_forward("fc")
            x = random.standard_normal((BATCH, 2), numpy.float32)
            given = (x @ (weight - target).T / BATCH).astype(numpy.float32)
            print("takes", client.takes_factors("fc"))
            client.push_factors("fc", step, given, x)
            client.wait_all(step)
    print(f"error {abs(weight - target).max():.2f}, bits {bits(weight.ravel())}")


def learnt_rows():
    """The job learns the rows of a layer in the first step; a worker loses the factors."""
    import numpy
    weight = numpy.zeros((3, 2), numpy.float32)
    target = numpy.array([[1, 2], [3, 4], [5, 6]], numpy.float32)
    layer = nereus.Layer("fc", "fc", weight, rows=0, has_factors=True)
    random = numpy.random.default_rng(RANK)
    batch = BATCH - RANK
    last_rows = None
    with nereus.Client([layer]) as client:
        # The plan without factors comes some steps after the worker has lost them.
        while (step := client.begin_step()).step < 300 or last_rows != 0:
            rows = client.factor_rows("fc")
            if step.step < 2 or rows != last_rows:
                print("step", step.step if step.step < 2 else "later", "rows", rows)
            last_rows = rows
            x = random.standard_normal((batch, 2), numpy.float32)
            given = (x @ (weight - target).T / batch).astype(numpy.float32)
            if step.step == 0:
                client.set_factor_rows([batch])
            if step.step == 200 and RANK == 1:
                client.set_factor_rows([-1])
            if rows > 0 and not (step.step >= 200 and RANK == 1):
                pad = ((0, rows - batch), (0, 0))
                client.push_factors("fc", step, numpy.pad(given, pad), numpy.pad(x, pad))
            else:
                client.push("fc", step, given.T @ x)
            client.wait_all(step)
    print(f"error {abs(weight - target).max():.2f}, bits {bits(weight.ravel())}")


def report():
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client:
        do_step(client, client.begin_step(), line, gradient)
        print(client.report()["layers"][0]["name"], repr(client))
        try:
            client.checkpoint()
        except nereus.NereusError as error:
            print(type(error).__name__, error)


def turns():
    """Shares its device, and computes in and outside of steps."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client:
        with client.device_turn():
            print("has the turn")
            shown = subprocess.run(
                [os.environ["NEREUSCTL"], "share", os.environ["NEREUS_SHARE"], "--json"],
                capture_output=True, text=True, check=True).stdout
            own, = json.loads(shown)[0]["clients"]
            print(own["job"], own["worker"], own["state"], own["weight"])
        client.set_device_memory(3 << 20, 1 << 20)
        try:
            client.set_device_memory(-1)
        except nereus.InvalidArgument as error:
            print(error)
        for _ in range(5):
            do_step(client, client.begin_step(), line, gradient)
        step = client.begin_step()
        with client.device_turn(timeout=0.01):
            print("has it in a step")
        do_step(client, step, line, gradient)
        try:
            with client.device_turn(), client.device_turn():
                pass
        except nereus.NereusError as error:
            print(error)


def gather():
    """Gathers before the first step, twice in a row, and after each step."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    own = bytes([0, 255, RANK])
    with nereus.Client([line_layer(line)]) as client:
        print("first", [each.hex() for each in client.gather(own)],
              [each.hex() for each in client.gather(b"")])
        for _ in range(3):
            step = client.begin_step()
            do_step(client, step, line, gradient)
            if RANK == 0:
                time.sleep(0.2)
            values = client.gather(b"%d in %d" % (RANK, step.step))
            print(b", ".join(values).decode())
        for value in (b"x" * 65537, "text"):
            try:
                client.gather(value)
            except nereus.NereusError as error:
                print(type(error).__name__, error)
        stalled = os.path.join(os.environ["TEST_FOLDER"], "stalled")
        if RANK == 0:
            try:
                client.gather(b"last", timeout=0.01)
            except nereus.Stalled as error:
                print(error)
            open(stalled, "wb").close()
        else:
            wait_until("worker 0 has stalled", lambda: os.path.exists(stalled))
        print(client.gather(b"last"))
        client.leave()


def wait_until(what, is_true):
    """Waits for another thread or process."""
    until = time.monotonic() + 120
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.01)


def is_in_wait(thread):
    """True if a thread is in a call of a client that waits."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code is not nereus._waits.wait.__code__:
        frame = frame.f_back
    return frame is not None


def press_in_wait(pressed):
    """Presses Ctrl-C once the main thread waits, and notes when."""
    def press():
        wait_until("the main thread waits", lambda: is_in_wait(threading.main_thread()))
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def interrupted(where):
    """Ctrl-C while this worker waits for the other one, which does not come."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    if where == "connect" and RANK == 1:
        time.sleep(240)
    pressed = []
    try:
        if where == "connect":
            press_in_wait(pressed)
        client = nereus.Client([line_layer(line)])
        step = client.begin_step()
        if RANK == 1:
            time.sleep(240)
        client.push(0, step, gradient)
        press_in_wait(pressed)
        getattr(client, where)(*{"wait": (0, step), "wait_all": (step,),
                                 "wait_forward": (0,), "leave": ()}[where])
    except KeyboardInterrupt:
        stop(f"stopped soon: {is_soon(pressed[0])}")


def is_soon(begun):
    """True if little time has passed: a second, or more on a machine with other work."""
    return time.monotonic() - begun < 5


def stop(text):
    """Prints a text and ends the process without its handlers, and so the job."""
    print(text)
    sys.stdout.flush()
    os._exit(STOP)


def timeouts():
    """A wait with a timeout fails in time, names what is missing, and may go on."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    stalled = os.path.join(os.environ["TEST_FOLDER"], "stalled")
    with nereus.Client([line_layer(line)]) as client:
        step = client.begin_step(timeout=120)
        if RANK == 1:
            wait_until("worker 0 has stalled", lambda: os.path.exists(stalled))
        client.push(0, step, gradient)
        if RANK == 0:
            begun = time.monotonic()
            try:
                client.wait(0, step, timeout=0.3)
            except nereus.Stalled as error:
                in_time = time.monotonic() - begun >= 0.3 and is_soon(begun)
                print(f"stalled in time: {in_time}; {error}")
            open(stalled, "wb").close()
        client.wait(0, step)


def forked():
    """A forked child gets an error from each call, and does not disturb its parent."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client:
        step = client.begin_step()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for call in (lambda: client.push(0, step, gradient), client.report,
                         lambda: nereus.Client([line_layer(line)])):
                try:
                    call()
                except nereus.Forked as error:
                    print("child:", error)
            client.close()
            print("child: closed")
            sys.exit(0)  # With the handlers of the exit.
        print("child's code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        do_step(client, step, line, gradient)
    print("parent: done")


def mismatch(what):
    """Worker 1 has other layers, or another setting."""
    size = 3 if what == "layer" and RANK == 1 else 2
    layers = [nereus.Layer(name, "vector", make_values("array", [0.0] * count))
              for name, count in (("first", 2), ("second", size), ("third", size))]
    batch = 8 if what == "setting" and RANK == 1 else 4
    try:
        nereus.Client(layers, settings={"batch": batch}, connect_timeout=5)
    except nereus.ModelMismatch as error:
        stop(f"mismatch: {error}")


def closed():
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    client = nereus.Client([line_layer(line)])
    step = client.begin_step()
    do_step(client, step, line, gradient)
    client.leave()
    client.close()
    client.close()
    for call in (client.begin_step, client.leave, client.report,
                 lambda: client.push(0, step, gradient), lambda: client.wait_all(step)):
        try:
            call()
        except nereus.InvalidArgument as error:
            print("after close:", error)


def closed_by_another_thread():
    """close ends a wait of another thread, which gets an error."""
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    client = nereus.Client([line_layer(line)])
    step = client.begin_step()
    if RANK == 1:
        time.sleep(60)
    client.push(0, step, gradient)
    errors = []

    def wait():
        try:
            client.wait_all(step)
        except nereus.InvalidArgument as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until("the thread waits", lambda: is_in_wait(thread))
    begun = time.monotonic()
    client.close()
    thread.join()
    stop(f"{errors} soon: {is_soon(begun)}")


def wrong_calls():
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    with nereus.Client([line_layer(line)]) as client:
        step = client.begin_step()
        for call in (lambda: client.push("lime", step, gradient),
                     lambda: client.push(1, step, gradient),
                     lambda: client.push(0, step, array.array("f", [0])),
                     lambda: client.push(0, step, array.array("d", [0, 0])),
                     lambda: client.push(0, step.step + 7, gradient),
                     lambda: client.mean(0)):
            try:
                call()
            except nereus.NereusError as error:
                print(f"{type(error).__name__}: {error}")
        do_step(client, step, line, gradient)


def without_leave(how):
    """Worker 1 ends with an open client, because of an exception or without one. Or the
    program drops the client."""
    logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    client = nereus.Client([line_layer(line)])
    do_step(client, client.begin_step(), line, gradient)
    if how == "dropped":
        del client
        stop("dropped")
    if how == "exception" and RANK == 1:
        raise LookupError("of the caller")
    globals()["client_of_the_module"] = client


def exception():
    """An exception out of a with statement closes the client, and comes out."""
    line = make_values("array", [0.0, 0.0])
    try:
        with nereus.Client([line_layer(line)]) as client:
            raise LookupError("of the caller")
    except LookupError as error:
        stop(f"{error} {client.closed}")


def aborted():
    """Worker 1 waits for a round when worker 0 ends the job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The end of the servers sends one.
    line, gradient = make_values("array", [0.0, 0.0]), make_values("array", [0.0, 0.0])
    try:
        with nereus.Client([line_layer(line)]) as client:
            do_step(client, client.begin_step(), line, gradient)  # Both have joined.
            step = client.begin_step()
            if RANK == 0:
                client.abort("the data is wrong")
                print("aborted")
                return
            client.push(0, step, gradient)
            client.wait_all(step)
    except nereus.NereusError as error:
        stop(f"{type(error).__name__} {error}")


def logged():
    """Lines of the library are records, at the level of the logger."""
    logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s",
                        level=logging.INFO)
    train("array", 3)


def unreachable():
    try:
        nereus.Client([line_layer(make_values("array", [0.0, 0.0]))],
                      coordinator="127.0.0.1:1", connect_timeout=0.3)
    except nereus.Unreachable as error:
        stop(f"{type(error).__name__}: {error}")


class FakeCuda:
    """Array that says that it is on a GPU."""

    def __init__(self, values):
        self.__cuda_array_interface__ = {**values.__array_interface__, "version": 3}


def cuda():
    """A layer on a GPU needs the other library, which is not there."""
    values = make_values("numpy", [0.0, 0.0])
    layer = line_layer(FakeCuda(values))
    try:
        nereus.Client([layer])
    except nereus.NereusError as error:
        stop(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
