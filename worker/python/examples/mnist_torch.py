"""Trains a network on MNIST with PyTorch, on all workers of a job.

    nereusctl run -np 2 -- python3 mnist_torch.py --data=FOLDER

FOLDER has t10k-images-idx3-ubyte.gz and its labels: 8,000 images train, the other 2,000 test.
"""

import argparse
import gzip
import os

import numpy
import torch
from torch import nn
from torch.nn import functional

import nereus.torch as nt

TRAINED = 8000


def read(folder, name, header):
    with gzip.open(os.path.join(folder, name)) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header)


def read_mnist(folder):
    images = read(folder, "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28) / 255
    labels = read(folder, "t10k-labels-idx1-ubyte.gz", 8)
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 256), nn.ReLU(inplace=True), nn.Linear(256, 10))


def make_vgg():
    """Like VGG, most parameters are in Linears, which may go by factors."""
    layers = []
    for channels, width in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True),
                   nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 1024), nn.ReLU(inplace=True),
                         nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the images")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the images")
    parser.add_argument("--batch", type=int, default=32, help="images of a worker in a step")
    parser.add_argument("--model", choices=["cnn", "vgg"], default="cnn")
    parser.add_argument("--plot", metavar="PNG", help="file for the losses; needs matplotlib")
    options = parser.parse_args()
    nt.init(settings={"batch": options.batch, "model": options.model})
    torch.manual_seed(1)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", nt.local_rank() % gpus) if gpus else torch.device("cpu")
    images, labels = (values.to(device) for values in read_mnist(options.data))
    model = (make_cnn() if options.model == "cnn" else make_vgg()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = nt.DistributedOptimizer(optimizer, model=model)
    batches, losses, done = TRAINED // options.batch, [], 0
    while (step := nt.begin_step()).contributions_before < options.epochs * batches:
        # Each batch is trained once, though workers may die and join.
        epoch, batch = divmod(step.contributions_before + step.position, batches)
        order = torch.randperm(TRAINED, generator=torch.Generator().manual_seed(epoch))
        own = order[batch * options.batch:][:options.batch]
        model.train()
        try:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[own]), labels[own])
            loss.backward()
            optimizer.step()
        except nt.JobWentBack:
            continue  # A server was lost. The next step is the one after a checkpoint.
        losses.append(float(loss.detach()))
        before, done = done, (step.contributions_before + step.workers) // batches
        if done > before and step.position == 0:
            model.eval()
            with torch.no_grad():
                right = model(images[TRAINED:]).argmax(1) == labels[TRAINED:]
            print(f"epoch {done}: loss {losses[-1]:.3f}, "
                  f"accuracy {100 * float(right.float().mean()):.1f} %", flush=True)
    if nt.rank() == 0:
        for layer in optimizer.plan():
            print(f"{layer['name']}: {layer['scheme']} {layer['reason']}".rstrip())
        if options.plot:
            from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
            pyplot.plot(losses)
            pyplot.savefig(options.plot)
    nt.shutdown()


if __name__ == "__main__":
    main()
