"""mode=sample of the nanogpt workloads of all frameworks: prompts, FLOP, and the batch that is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import sampling
from harness.command_line import Options
from harness.data.text import Text
from harness.errors import UsageError
from harness.models.nanogpt import Problem, Shape
from harness.sampling import Check, Tokens
from harness.user_paths import expanded


def sampling_flops(shape: Shape, sequences: int, prompt: int, new_tokens: int) -> float:
    """Return the FLOP of reading `prompt` tokens and generating new_tokens, by the forward of flops_per_iter.

    The output layer is computed for the prompt's last position, then for each new token. Scores within the prompt are
    counted in full, as in training; a new token attends to the keys that exist, not to masked ones.
    """
    T, Q = prompt + new_tokens, shape.width // shape.heads
    output = shape.vocab * shape.width
    weights = 2 * (shape.n_params(positions=False) - output) * T + 2 * output * (new_tokens + 1)
    pairs = prompt * prompt + sum(range(prompt + 1, T + 1))
    return float(sequences * (weights + 4 * shape.layers * shape.heads * Q * pairs))


def stays_fp32(name: str, dimensions: int) -> bool:
    """Return whether a tensor stays in fp32 when the model generates in another dtype.

    Matrices are converted once instead of in each product. The positions determine the dtype of the residual stream.
    """
    return dimensions < 2 or name == "positions.weight"


def arguments(options: Options, problem: Problem) -> dict[str, Any]:
    """Return the arguments of Sampling that are the same in every framework; `reference` is not among them."""
    s = options.settings
    start_tokens, n_prompt = tokens_of_start(options, problem.text), prompt_length(options, problem.text)

    def prompt(i: int) -> NDArray[np.int32]:
        if start_tokens is not None:
            return np.tile(start_tokens, (s.batch_size, 1))
        return problem.batches.of_iteration(i)[0][0, :, :n_prompt]

    return {
        "options": options,
        "data": problem.text.fields(),
        "flops_per_iter": sampling_flops(problem.shape, s.batch_size, n_prompt, s.new_tokens),
        "per_iter": s.batch_size * (n_prompt + s.new_tokens),
        "prompt": prompt,
        "read": partial(decoded, problem.text),
        "heads": problem.shape.heads,
        "layers": problem.shape.layers,
        "width": problem.shape.width,
    }


def tokens_of_start(options: Options, text: Text) -> NDArray[np.int32] | None:
    """Return the tokens of `start`, a text or FILE:PATH as in nanoGPT's sample.py; None if it is empty. Of a text
    longer than block_size - new_tokens the end is taken, since the model has no positions for more.

    Raises: UsageError for a file that cannot be read, or characters that the training text does not have.
    """
    s = options.settings
    if not s.start:
        return None
    prompt = s.start
    if prompt.startswith("FILE:"):
        path = expanded(prompt.removeprefix("FILE:"))
        try:
            prompt = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{path}: {error.strerror.lower()}" if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"start={s.start} cannot be read: {reason}", "FILE: is followed by a text file") from None
    tokens = encoded(text, prompt, "start")
    if not tokens:
        raise UsageError(f"start={s.start} is empty", "give a text, or omit start: then prompts come from the data")
    return np.array(tokens[-(s.block_size - s.new_tokens) :], np.int32)


def prompt_length(options: Options, text: Text) -> int:
    """Return the number of tokens of a prompt: those of `start`, else block_size - new_tokens."""
    start_tokens = tokens_of_start(options, text)
    return options.settings.block_size - options.settings.new_tokens if start_tokens is None else len(start_tokens)


def reference(options: Options, problem: Problem, logits: Callable[[Tokens], NDArray[Any]] | None) -> Check:
    """Return the check on as many tokens of the first batch as an iteration reads and writes, so that it runs the
    programs that are timed. `logits` is the training's model on the CPU, as in reference_check()."""
    new_tokens = options.settings.new_tokens
    length = prompt_length(options, problem.text) + new_tokens
    x, y = problem.first()
    return sampling.reference_check(x[:, :length], y[:, :length], new_tokens, logits)


def decoded(text: Text, tokens: Sequence[int]) -> str:
    """Return tokens as text. An incomplete character becomes U+FFFD, and so does a token beyond the vocabulary,
    which an untrained model with a padded vocabulary may generate."""
    if text.tokenizer == "char":
        return "".join(text.alphabet[token] if token < text.vocab_size else "\ufffd" for token in tokens)
    import tiktoken

    encoding = tiktoken.get_encoding("gpt2")
    known = (encoding.decode_single_token_bytes(token) if token < text.vocab_size else b"\xff" for token in tokens)
    return b"".join(known).decode(errors="replace")


def encoded(text: Text, words: str, key: str) -> list[int]:
    """Return a text as tokens. Raises: UsageError, naming `key`, for characters that are not in the alphabet."""
    if text.tokenizer == "char":
        if unknown := sorted({*words} - {*text.alphabet}):
            raise UsageError(
                f"{key} has characters that {text.name} does not have: {''.join(unknown[:20])!r}",
                "the model knows the characters of its training text only",
            )
        return [text.alphabet.index(character) for character in words]
    import tiktoken

    return list(tiktoken.get_encoding("gpt2").encode(words, allowed_special={"<|endoftext|>"}))
