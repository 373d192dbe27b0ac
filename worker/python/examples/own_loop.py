"""A training loop with NumPy: fits y = 3 x + 1. The servers run the optimizer.

    nereusctl run -np 2 -- python3 own_loop.py
"""

import numpy

import nereus

STEPS = 1000
BATCH = 4


def main():
    # The model: y = line[0] * x + line[1]. The client writes it.
    line = numpy.zeros(2, numpy.float32)
    gradient = numpy.zeros_like(line)
    layer = nereus.Layer("line", "vector", line, rows=BATCH)

    with nereus.Client([layer], settings={"batch": BATCH}) as client:
        while (step := client.begin_step()).step < STEPS:
            # Each worker takes its own part of the examples.
            first = (step.contributions_before + step.position) * BATCH
            x = numpy.arange(first, first + BATCH) % 7 - 3.0
            error = line[0] * x + line[1] - (3.0 * x + 1.0)
            gradient[:] = (error * x).mean(), error.mean()
            if step.step % 200 == 0:
                print(f"step {step.step}: loss {(error * error).mean() / 2:.3g}")
            try:
                client.push("line", step, gradient)
                client.wait_all(step)
            except nereus.JobWentBack:
                continue  # The next step begins with the parameters of a checkpoint.
    print(f"y = {line[0]:.2f} x + {line[1]:.2f}")


if __name__ == "__main__":
    main()
