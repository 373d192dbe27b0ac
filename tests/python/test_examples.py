"""The examples, as their users start them."""

import os
import re

import pytest

from jobs import run  # pylint: disable=unused-import

MNIST = os.environ.get("NEREUS_MNIST_DIR") or "../shared/data/mnist"


@pytest.fixture
def example(root):
    return lambda name: os.path.join(root, "worker", "python", "examples", name)


def test_own_loop_fits_the_line(run, example):
    pytest.importorskip("numpy")
    job = run(example("own_loop.py"))
    assert job.lines[0][-1] == job.lines[1][-1] == "y = 3.00 x + 1.00"


@pytest.mark.parametrize("model, epochs", [("cnn", 1), ("vgg", 2)])
def test_mnist_is_learnt(run, root, example, model, epochs):
    pytest.importorskip("torch")
    folder = os.path.join(root, MNIST)
    if not os.path.isdir(folder):
        pytest.skip("NEREUS_MNIST_DIR names no folder")
    job = run(example("mnist_torch.py"), f"--data={folder}", f"--model={model}",
              f"--epochs={epochs}")
    accuracy = re.findall(r"epoch \d: loss [\d.]+, accuracy ([\d.]+) %", job.text)
    assert len(accuracy) == epochs and float(accuracy[-1]) > 80, job.text


def test_gpt_learns_a_text(run, example, tmp_path):
    pytest.importorskip("torch")
    text = tmp_path / "text"
    text.write_text("to be, or not to be, that is the question: " * 100, encoding="utf-8")
    job = run(example("gpt_torch.py"), f"--data={text}", "--steps=100", "--batch=4")
    losses = [float(loss) for loss in re.findall(r"step \d+ of 100: loss ([\d.]+)", job.text)]
    assert len(losses) == 4 and losses[-1] < 1.5, job.text
