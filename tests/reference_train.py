"""A trainer that does what nanoGPT's train.py does (github.com/karpathy/nanoGPT, MIT), to hold the built-in workload
against: a stand-in, written for this purpose, since the original cannot be fetched where the comparison runs.

    python reference_train.py --data=DIR --config=gpt2 --device=cuda --dtype=bfloat16 --compile=True --max_iters=59

The same steps in the same order: modules initialised by torch and then by their own rule, tokens in train.bin and
val.bin (uint16) mapped anew for each batch, pinned memory, the next batch fetched behind the forward, autocast, a
GradScaler that is off but for float16, clipping, fused AdamW, the loss read at every log_interval-th iteration, an
evaluation of both splits at iteration 0 and every eval_interval, iterations 0 to max_iters. Its lines are those of
train.py; the last one is its own.
"""

import inspect
import math
import pickle
import sys
import time
from ast import literal_eval
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group  # noqa: F401
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: F401

CONFIGS = {
    "tiny": {
        "n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 32, "batch_size": 4, "dropout": 0.0, "vocab_size": 0,
        "learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 10, "beta2": 0.99,
    },
    "shakespeare_char": {
        "n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "dropout": 0.2, "vocab_size": 0,
        "learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 100, "beta2": 0.99,
    },
    "gpt2": {
        "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 12, "dropout": 0.0,
        "vocab_size": 50304, "learning_rate": 6e-4, "min_lr": 6e-5, "warmup_iters": 20, "beta2": 0.95,
    },
}  # fmt: skip
SETTINGS = {
    "data": "", "device": "cuda", "dtype": "bfloat16", "compile": True, "max_iters": 5000, "log_interval": 10,
    "eval_interval": 250, "eval_iters": 200, "weight_decay": 0.1, "beta1": 0.9, "grad_clip": 1.0, "seed": 1337,
    "steady_from": 20,
}  # fmt: skip


@dataclass
class Shape:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool = False


class LayerNorm(nn.Module):
    def __init__(self, n: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.c_attn = nn.Linear(s.n_embd, 3 * s.n_embd, bias=s.bias)
        self.c_proj = nn.Linear(s.n_embd, s.n_embd, bias=s.bias)
        self.resid_dropout = nn.Dropout(s.dropout)
        self.n_head, self.n_embd, self.dropout = s.n_head, s.n_embd, s.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k, q, v = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (k, q, v))
        dropout = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.c_fc = nn.Linear(s.n_embd, 4 * s.n_embd, bias=s.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * s.n_embd, s.n_embd, bias=s.bias)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.ln_1, self.attn = LayerNorm(s.n_embd, s.bias), Attention(s)
        self.ln_2, self.mlp = LayerNorm(s.n_embd, s.bias), MLP(s)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        parts = {"wte": nn.Embedding(s.vocab_size, s.n_embd), "wpe": nn.Embedding(s.block_size, s.n_embd)}
        parts |= {"drop": nn.Dropout(s.dropout), "h": nn.ModuleList([Block(s) for _ in range(s.n_layer)])}
        self.transformer = nn.ModuleDict({**parts, "ln_f": LayerNorm(s.n_embd, s.bias)})
        self.lm_head = nn.Linear(s.n_embd, s.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * s.n_layer))
        print(f"number of parameters: {self.n_params() / 1e6:.2f}M")

    def n_params(self) -> int:
        return sum(p.numel() for p in self.parameters()) - self.transformer.wpe.weight.numel()

    def _init(self, module) -> None:
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def optimizer(self, s: dict):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        decayed, others = ([p for p in params.values() if (p.dim() >= 2) is wanted] for wanted in (True, False))
        for word, part in (("decayed", decayed), ("non-decayed", others)):
            print(f"num {word} parameter tensors: {len(part)}, with {sum(p.numel() for p in part):,} parameters")
        fused = "fused" in inspect.signature(torch.optim.AdamW).parameters and "cuda" in s["device"]
        groups = [{"params": decayed, "weight_decay": s["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
        betas, extra = (s["beta1"], s["beta2"]), {"fused": True} if fused else {}
        print(f"using fused AdamW: {fused}")
        return torch.optim.AdamW(groups, lr=s["learning_rate"], betas=betas, **extra)

    def mfu(self, sequences: int, dt: float) -> float:
        s = self.shape
        flops = 6 * self.n_params() + 12 * s.n_layer * s.n_head * (s.n_embd // s.n_head) * s.block_size
        return flops * s.block_size * sequences / dt / 312e12


def settings_of(words: list[str]) -> dict:
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    s = {**SETTINGS, **CONFIGS[options.pop("config", "shakespeare_char")]}
    for key, text in options.items():
        try:
            value = literal_eval(text)
        except (SyntaxError, ValueError):
            value = text
        assert type(value) is type(s[key]), f"{key}: {value!r}"
        print(f"Overriding: {key} = {value}")
        s[key] = value
    return s


def main(words: list[str]) -> None:
    s = settings_of(words)
    device, accum, B, T = s["device"], 1, s["batch_size"], s["block_size"]
    kind = "cuda" if "cuda" in device else "cpu"
    print(f"tokens per iteration will be: {accum * B * T:,}")
    torch.manual_seed(s["seed"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[s["dtype"]]
    ctx = nullcontext() if kind == "cpu" and dtype is torch.float32 else torch.amp.autocast(kind, dtype=dtype)

    def get_batch(split: str):
        data = np.memmap(Path(s["data"], f"{split}.bin"), dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - T, (B,))
        x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in ix])
        if kind == "cuda":
            return (part.pin_memory().to(device, non_blocking=True) for part in (x, y))
        return x.to(device), y.to(device)

    if not s["vocab_size"]:
        s["vocab_size"] = pickle.loads(Path(s["data"], "meta.pkl").read_bytes())["vocab_size"]
        print(f"found vocab_size = {s['vocab_size']} (inside {s['data']}/meta.pkl)")
    names = ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "dropout")
    raw = model = GPT(Shape(**{name: s[name] for name in names}))
    model.to(device)
    scaler = torch.amp.GradScaler(kind, enabled=dtype is torch.float16)
    optimizer = model.optimizer(s)
    if s["compile"]:
        print("compiling the model... (takes a ~minute)")
        model = torch.compile(model)

    @torch.no_grad()
    def estimate_loss():
        out = {}
        model.eval()
        for split in ("train", "val"):
            losses = torch.zeros(s["eval_iters"])
            for k in range(s["eval_iters"]):
                X, Y = get_batch(split)
                with ctx:
                    _, loss = model(X, Y)
                losses[k] = loss.item()
            out[split] = losses.mean()
        model.train()
        return out

    def learning_rate(it: int) -> float:
        if it < s["warmup_iters"]:
            return s["learning_rate"] * (it + 1) / (s["warmup_iters"] + 1)
        if it > s["max_iters"]:
            return s["min_lr"]
        share = (it - s["warmup_iters"]) / max(1, s["max_iters"] - s["warmup_iters"])
        return s["min_lr"] + 0.5 * (1.0 + math.cos(math.pi * share)) * (s["learning_rate"] - s["min_lr"])

    X, Y = get_batch("train")
    t0, i, mfu, steady = time.time(), 0, -1.0, 0.0
    while True:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i)
        if i % s["eval_interval"] == 0:
            losses = estimate_loss()
            print(f"step {i}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if i == s["steady_from"]:
            if kind == "cuda":
                torch.cuda.synchronize()
            steady = time.perf_counter()
        for _ in range(accum):
            with ctx:
                _, loss = model(X, Y)
                loss = loss / accum
            X, Y = get_batch("train")
            scaler.scale(loss).backward()
        if s["grad_clip"]:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), s["grad_clip"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        t1 = time.time()
        dt, t0 = t1 - t0, t1
        if i % s["log_interval"] == 0:
            lossf = loss.item() * accum
            if i >= 5 * s["log_interval"]:
                now = raw.mfu(B * accum, dt)
                mfu = now if mfu == -1.0 else 0.9 * mfu + 0.1 * now
            print(f"iter {i}: loss {lossf:.4f}, time {dt * 1000:.2f}ms, mfu {mfu * 100:.2f}%")
        i += 1
        if i > s["max_iters"]:
            break
    if steady:
        if kind == "cuda":
            torch.cuda.synchronize()
        n = i - s["steady_from"]
        print(f"steady: {(time.perf_counter() - steady) / n * 1000:.4f} ms an iteration over {n}")


if __name__ == "__main__":
    main(sys.argv[1:])
