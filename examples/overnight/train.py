"""Train a small GPT on the source of Python's standard library for some seconds, and save it as model.pt.

It could be better in several ways: propose.py knows some.
"""

import os
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mpsq_report

LAYERS, HEADS, WIDTH, BLOCK = 2, 16, 48, 32
BATCH, ITERS, WARM_UP = 16, 60, 10
LEARNING_RATE, DECAY, EPSILON, DROPOUT, RISE = 5e-4, 0.1, 1e-8, 0.2, 60
VOCABULARY = 128


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).split(WIDTH, dim=-1)
        size = WIDTH // HEADS
        heads = []
        for at in range(0, WIDTH, size):
            one = (each[..., at : at + size] for each in (q, k, v))
            heads.append(functional.scaled_dot_product_attention(*one, is_causal=True))
        return self.out(torch.cat(heads, dim=-1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.before = Attention(), nn.LayerNorm(WIDTH)
        self.middle, self.after = nn.LayerNorm(WIDTH), nn.Dropout(DROPOUT)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.after(self.attention(self.before(x)))
        hidden = functional.gelu(self.wide(self.middle(x)))
        return x + self.after(self.narrow(hidden))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def loss(self, x, y):
        hidden = self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        logits = self.head(self.last(hidden))
        return functional.cross_entropy(logits.view(-1, VOCABULARY), y.reshape(-1))


class AdamW:
    """A few lines, because importing that of torch takes longer than this training."""

    def __init__(self, model):
        self.steps, self.weights = 0, [*model.parameters()]
        self.means, self.squares = ([torch.zeros_like(weight) for weight in self.weights] for _ in range(2))

    def step(self):
        self.steps += 1
        rate = LEARNING_RATE * min(1.0, self.steps / RISE)
        with torch.no_grad():
            for weight, mean, square in zip(self.weights, self.means, self.squares, strict=True):
                mean.lerp_(weight.grad, 0.1)
                square.lerp_(weight.grad.square(), 0.01)
                spread = (square / (1 - 0.99**self.steps)).sqrt_().add_(EPSILON)
                weight.mul_(1 - rate * DECAY).addcdiv_(mean, spread, value=-rate / (1 - 0.9**self.steps))


def text(split):
    """Return the characters of every tenth module of the standard library (val), or of the others (train)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for number, path in enumerate(sorted(folder.glob("*.py"))) if (number % 10 == 0) == (split == "val")]
    data = b"".join(path.read_bytes() for path in paths[:40])
    return torch.frombuffer(bytearray(data.decode("ascii", "ignore"), "ascii"), dtype=torch.uint8).long()


def batch(data, generator=None):
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,), generator=generator)
    rows = torch.stack([data[at : at + BLOCK + 1] for at in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def main():
    torch.set_num_threads(1)  # on a CPU, more would wait for each other in a model of this size
    report = mpsq_report.Reporter()
    seed = int(os.environ.get("MPSQ_SEED", 1337))
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, data = GPT().to(device), text("train")
    torch.manual_seed(seed)  # so that the batches do not depend on how the weights were drawn
    optimizer = AdamW(model)
    report.hello(workload="overnight", device=device, planned_iters=ITERS, seed=seed)
    for i in range(ITERS):
        began = time.perf_counter()
        x, y = (each.to(device) for each in batch(data))
        loss = model.loss(x, y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        loss_now = loss.item()
        phase = "warmup" if i < WARM_UP else "measure"
        report.iter(i, time.perf_counter() - began, loss=loss_now, synced=True, phase=phase)
    torch.save(model.state_dict(), "model.pt")
    print(f"train_loss {loss_now:.4f}")


if __name__ == "__main__":
    main()
