"""A process that trains in PyTorch: with DDP over Gloo, with nereus.torch, or by itself.

For ../torch_benchmark.py.

  torch_train.py VARIANT MODEL RANK PROCESSES STEPS BATCH DEVICE FOLDER

Prints {"step_seconds": [...], "megabytes", "parameters", "ways", "checksum"}.
"""

import collections
import hashlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional


def vgg():
    """VGG-like net for images of 32 x 32; most of its parameters are in Linears."""
    layers, channels = [], 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True),
                   nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 2048), nn.ReLU(inplace=True),
                         nn.Linear(2048, 2048), nn.ReLU(inplace=True), nn.Linear(2048, 100))


class Block(nn.Module):
    """Basic block of ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.short = (nn.Sequential() if inputs == outputs and stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)))

    def forward(self, x):
        return functional.relu(self.body(x) + self.short(x))


def resnet18():
    """ResNet-18 with half of its channels, for images of 32 x 32."""
    layers, channels = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32),
                        nn.ReLU(inplace=True)], 32
    for width, stride in ((32, 1), (64, 2), (128, 2), (256, 2)):
        layers += [Block(channels, width, stride), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


class Gpt(nn.Module):
    """Small transformer over 64 tokens of 96 kinds."""

    def __init__(self, width=256, layers=4):
        super().__init__()
        self.tokens = nn.Embedding(96, width)
        self.places = nn.Parameter(torch.zeros(64, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, 96)
        self.mask = torch.triu(torch.full((64, 64), float("-inf")), 1)

    def forward(self, x):
        values = self.tokens(x) + self.places
        for layer in self.layers:
            values = layer(values, src_mask=self.mask)
        return self.head(values).transpose(1, 2)


def make(model, device):
    """Returns the model, and a function that makes examples."""
    torch.manual_seed(1)
    if model.startswith("torchvision."):
        import torchvision
        net = getattr(torchvision.models, model.split(".")[1])(weights=None)
        side, classes = 224, 1000
    else:
        net, side, classes = {"vgg": vgg, "resnet18": resnet18, "gpt": Gpt}[model](), 32, 96
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    net = net.to(device)

    def examples(batch, generator):
        if model == "gpt":
            text = torch.randint(0, 96, (batch, 65), generator=generator)
            return text[:, :-1], text[:, 1:]
        return (torch.randn(batch, 3, side, side, generator=generator),
                torch.randint(0, classes, (batch,), generator=generator))

    return net, examples


def wrap(variant, net, optimizer, rank, processes, device, folder):
    """Returns the model to call, the optimizer, and a function that ends the training and
    returns how layers travelled."""
    if variant == "torch":
        return net, optimizer, dict
    if variant.startswith("ddp"):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("gloo", rank=rank, world_size=processes,
                                init_method=f"file://{folder}/meet")
        best = {"gradient_as_bucket_view": True, "static_graph": True}
        net = DistributedDataParallel(net, **(best if variant == "ddp-best" else {}))

        def end_ddp():
            dist.barrier()
            return {}

        return net, optimizer, end_ddp
    import nereus.torch as nt
    nt.init()
    optimizer = nt.DistributedOptimizer(optimizer, model=net,
                                        factors=False if variant == "dense" else "auto",
                                        overlap="dear" if variant == "dear" else None)

    def end():
        optimizer.synchronize()
        ways = collections.Counter(layer["scheme"] for layer in optimizer.plan())
        nt.shutdown()
        return dict(ways)

    return net, optimizer, end


def main():
    variant, model, folder = sys.argv[1], sys.argv[2], sys.argv[8]
    rank, processes, steps, batch = map(int, sys.argv[3:7])
    device = torch.device(sys.argv[7])
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net, examples = make(model, device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    called, optimizer, end = wrap(variant, net, optimizer, rank, processes, device, folder)
    x, y = (each.to(device) for each in examples(batch, torch.Generator().manual_seed(rank)))
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(called(x), y).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    ways = end()
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(json.dumps({
        "step_seconds": seconds, "ways": ways, "checksum": digest.hexdigest()[:8],
        "megabytes": sum(each.numel() for each in net.parameters()) * 4e-6,
        "parameters": len(list(net.parameters()))}), flush=True)


if __name__ == "__main__":
    main()
