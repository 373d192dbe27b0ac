"""Trains a small GPT on a text, letter by letter, on all workers of a job.

    nereusctl run -np 2 -- python3 gpt_torch.py --data=FILE

Workers may die and join: each draws its examples at random, and the steps are the job's.
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional

import nereus.torch as nt

CONTEXT = 64  # Letters that the network sees.


class Gpt(nn.Module):
    """Transformer that predicts the letter after each of CONTEXT letters."""

    def __init__(self, letters, width=128, layers=3):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.zeros(CONTEXT, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True,
                                       norm_first=True) for _ in range(layers))
        self.head = nn.Linear(width, letters)
        mask = torch.triu(torch.full((CONTEXT, CONTEXT), -math.inf), 1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        values = self.letters(x) + self.places[:x.shape[1]]
        for layer in self.layers:
            values = layer(values, src_mask=self.mask[:x.shape[1], :x.shape[1]])
        return self.head(values)


def write(model, letters, length=200):
    """Returns a text that the model makes up."""
    chance, codes = torch.Generator().manual_seed(1), [0]
    with torch.no_grad():
        while len(codes) < length:
            last = torch.tensor([codes[-CONTEXT:]], device=model.places.device)
            scores = model(last)[0, -1].cpu()
            codes.append(int(torch.multinomial(scores.softmax(0), 1, generator=chance)))
    return "".join(letters[code] for code in codes[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="FILE", help="text to learn from")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="texts of a worker in a step")
    parser.add_argument("--plot", metavar="PNG", help="file for the losses; needs matplotlib")
    options = parser.parse_args()
    nt.init(settings={"batch": options.batch, "steps": options.steps})
    torch.manual_seed(1)
    with open(options.data, encoding="utf-8") as file:
        text = file.read()
    letters = sorted(set(text))
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", nt.local_rank() % gpus) if gpus else torch.device("cpu")
    codes = torch.tensor([letters.index(letter) for letter in text], device=device)
    model = Gpt(len(letters)).to(device)
    optimizer = nt.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), model=model)
    chance = torch.Generator()
    chance.seed()  # Another one on each worker.
    step, losses = -1, {}
    while step + 1 < options.steps:
        starts = torch.randint(len(codes) - CONTEXT, (options.batch,), generator=chance)
        examples = torch.stack([codes[start:start + CONTEXT + 1] for start in starts])
        try:
            optimizer.zero_grad()
            scores = model(examples[:, :-1])
            loss = functional.cross_entropy(scores.transpose(1, 2), examples[:, 1:])
            loss.backward()
            optimizer.step()
        except nt.JobWentBack:
            continue  # A server was lost. The next step is the one after a checkpoint.
        step = nt.step_info().step if nt.step_info() else step + 1
        losses[step] = float(loss.detach())
        if nt.rank() == 0 and (step + 1) % 25 == 0:
            recent = torch.tensor(list(losses.values())[-25:]).mean()
            print(f"step {step + 1} of {options.steps}: loss {recent:.3f}", flush=True)
    if nt.rank() == 0:
        print(write(model, letters))
        if options.plot:
            from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
            pyplot.plot(list(losses), list(losses.values()))
            pyplot.savefig(options.plot)
    nt.shutdown()


if __name__ == "__main__":
    main()
