"""Weights of a GPT-2 trained by another program: nanoGPT's ckpt.pt, Hugging Face's GPT-2, torch checkpoints of ours.

| theirs | ours |
|---|---|
| wte, wpe | tokens, positions |
| h.3.ln_1, h.3.ln_2, ln_f | blocks.3.norm1, blocks.3.norm2, norm |
| h.3.attn.c_attn, h.3.attn.c_proj | blocks.3.attention.qkv, .out |
| h.3.mlp.c_fc, h.3.mlp.c_proj | blocks.3.feed_forward.widen, .out |

Both stack queries, keys and values in c_attn, with the rows of a head together. nanoGPT stores matrices as (out, in),
Hugging Face's Conv1D as (in, out): the shape of c_attn tells which.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.checkpoints import safetensors_file, weights_file
from harness.errors import UsageError

Arrays = dict[str, NDArray[Any]]
Weights = dict[str, NDArray[np.float32]]

PICKLED = (".pt", ".pth", ".bin")
IN_FOLDERS = ("model.safetensors", "ckpt.pt", "pytorch_model.bin", "checkpoint.pt", "weights.npz")
"""Files to look for in a folder; the first that exists is read."""
GPT2_VOCAB, GPT2_PADDED = 50257, 50304
"""nanoGPT pads GPT-2's vocabulary to a multiple of 64: the rows beyond it belong to no token."""
_PARTS = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "mlp.c_fc": "feed_forward.widen",
    "mlp.c_proj": "feed_forward.out",
}
_OUTER = {"wte": "tokens", "wpe": "positions", "ln_f": "norm"}
_LAYER = re.compile(r"h\.(\d{1,4})\.([a-z_0-9.]+)\.(weight|bias)")
_NO_WEIGHT = re.compile(r"h\.\d{1,4}\.attn\.(masked_)?bias")
"""The causal mask, which older versions of both programs save."""


@dataclass(frozen=True)
class ModelShape:
    """The hyperparameters that the tensors of a GPT-2 show; `heads` only if a configuration gives it."""

    vocab: int
    positions: int
    layers: int
    width: int
    bias: bool
    heads: int | None

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], heads: int | None) -> ModelShape:
        vocab, width = shapes["tokens.weight"]
        blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
        return cls(vocab, shapes["positions.weight"][0], len(blocks), width, "norm.bias" in shapes, heads)

    def settings(self) -> str:
        """Return the shape as options of the workload."""
        heads = "" if self.heads is None else f" --set n_head={self.heads}"
        return f"--set n_layer={self.layers} --set n_embd={self.width}{heads} --set bias={str(self.bias).lower()}"


def read_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], heads: int) -> Weights:
    """Return the weights of init_from under our names, in fp32, for a model of these `shapes` and `heads`.

    The file is a .npz written by any of the four frameworks (--out), or a checkpoint of ours, nanoGPT or Hugging Face.

    Positions beyond block_size are cropped, as by nanoGPT's crop_block_size, and so are the rows by which nanoGPT pads
    GPT-2's vocabulary; a line on stdout says so.

    Raises: UsageError if the file cannot be read, is not a GPT-2, or has another shape.
    """
    if path.is_dir():
        path = _file_in(path)
    if path.suffix not in (*PICKLED, ".safetensors"):
        return weights_file.fitting(weights_file.read(path, "init_from"), shapes, path)
    if path.suffix == ".safetensors":
        tensors, arguments, remark = safetensors_file.read(path), _configuration(path), ""
    else:
        tensors, arguments, remark = _pickled(path)
    try:
        weights = _renamed(tensors)
        n_head = arguments.get("n_head")
        shape_by_name = {name: value.shape for name, value in weights.items()}
        stored = ModelShape.of(shape_by_name, n_head if isinstance(n_head, int) else None)
    except (KeyError, ValueError, IndexError):
        raise UsageError(
            f"{path} is not a GPT-2: its tensors are {_some(tensors)}",
            "init_from takes the weights.npz of a training's --out, nanoGPT's ckpt.pt, or Hugging Face's gpt2 "
            "(model.safetensors or its folder)",
        ) from None
    _refuse(path, stored, ModelShape.of(shapes, heads))
    cut = []
    for name, unit in (("tokens.weight", "rows of the vocabulary"), ("positions.weight", "positions")):
        rows = shapes[name][0]
        if len(weights[name]) > rows:
            cut.append(f"the first {rows} of {len(weights[name])} {unit}")
            weights[name] = weights[name][:rows]
    print(f"weights of {path.name}" + "".join(f", {part}" for part in (remark, *cut) if part))
    return weights_file.fitting(weights, shapes, path)


def _file_in(folder: Path) -> Path:
    for name in IN_FOLDERS:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"there are no weights in {folder}", f"looked for {', '.join(IN_FOLDERS)}")


def _configuration(path: Path) -> Mapping[str, Any]:
    """Return config.json beside Hugging Face's weights, the only source of the number of heads; empty without one."""
    try:
        configuration = json.loads((path.parent / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return configuration if isinstance(configuration, dict) else {}


def _pickled(path: Path) -> tuple[Arrays, Mapping[str, Any], str]:
    """Return the tensors, the model's arguments, and a remark on a file written by torch.save.

    torch.load with weights_only reads tensors and plain values, and runs no code from the file.
    """
    try:
        import torch
    except ImportError:
        raise UsageError(
            f"{path} is torch's own format, and torch is not installed here",
            "nanogpt in torch makes a weights.npz of it, which every framework reads: --device cpu --set max_iters=1 "
            "--set lr=0 --set min_lr=0 --out DIR",
        ) from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnpicklingError:
        raise UsageError(
            f"{path} holds more than tensors and plain values, and reading it could run code",
            "save the weights alone: torch.save({'model': model.state_dict()}, PATH)",
        ) from None
    except (RuntimeError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        raise UsageError(f"{path} is not a complete file of torch.save") from None
    if not isinstance(state, dict):
        raise UsageError(f"{path} does not hold a model, but a {type(state).__name__}")
    tensors = state.get("model", state)
    arguments = state.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else _configuration(path)
    done = state.get("iter_num", state.get("done"))
    if not isinstance(tensors, dict):
        raise UsageError(f'{path} does not hold a model: its entry "model" is a {type(tensors).__name__}')
    arrays = {
        str(name): value.detach().float().numpy() for name, value in tensors.items() if isinstance(value, torch.Tensor)
    }
    return arrays, arguments, f"trained for {done} iterations" if isinstance(done, int) else ""


def _renamed(tensors: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the tensors under our names, matrices as (out, in). torch.compile prefixes names by _orig_mod.

    Raises: ValueError for a tensor that a GPT-2 with tied embeddings does not have; KeyError for a missing one.
    """
    plain = {re.sub(r"^(_orig_mod\.|module\.)*(transformer\.)?", "", name): value for name, value in tensors.items()}
    if "tokens.weight" in plain:  # our own
        return plain
    width = plain["wte.weight"].shape[1]
    columns = plain["h.0.attn.c_attn.weight"].shape == (width, 3 * width)
    ours: Arrays = {}
    for name, value in plain.items():
        if _NO_WEIGHT.fullmatch(name):
            continue
        if name == "lm_head.weight":
            if not np.array_equal(value, plain["wte.weight"]):
                raise ValueError("its output layer is not its embedding")
            continue
        outer, _, kind = name.rpartition(".")
        if outer in _OUTER and kind in ("weight", "bias"):
            ours[f"{_OUTER[outer]}.{kind}"] = value
            continue
        layer = _LAYER.fullmatch(name)
        if layer is None or layer[2] not in _PARTS:
            raise ValueError(f"it has a tensor {name}")
        ours[f"blocks.{layer[1]}.{_PARTS[layer[2]]}.{layer[3]}"] = value.T if columns and value.ndim == 2 else value
    return ours


def _refuse(path: Path, stored: ModelShape, model: ModelShape) -> None:
    """Raise UsageError if the model of the file is not the one that is set."""
    same_heads = stored.heads is None or stored.heads == model.heads
    if (stored.layers, stored.width, stored.bias) != (model.layers, model.width, model.bias) or not same_heads:
        raise UsageError(f"{path} is a model of another shape", f"to train that one: {stored.settings()}")
    if stored.positions < model.positions:
        raise UsageError(
            f"{path} has {stored.positions} positions, block_size is {model.positions}",
            f"--set block_size={stored.positions}, or less",
        )
    if stored.vocab != model.vocab and (stored.vocab, model.vocab) != (GPT2_PADDED, GPT2_VOCAB):
        hint = "--set data=PATH of the text that it was trained on"
        if stored.vocab in (GPT2_VOCAB, GPT2_PADDED):
            hint = f"--set tokens=bpe --set pad_vocab={1 if stored.vocab == GPT2_VOCAB else 64}"
        raise UsageError(f"{path} has {stored.vocab} different tokens, the data have {model.vocab}", hint)


def _some(tensors: Mapping[str, Any]) -> str:
    names = list(tensors)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"
