# /// script
# requires-python = ">=3.11"
# dependencies = ["jax>=0.10", "numpy", "tiktoken>=0.9"]
# ///
"""GPT-2 trained on text, in JAX: `python jobs/nanogpt_jax.py --device cpu --compile on --set max_iters=20`.

The twin of nanogpt_torch.py: same model, weights, batches, optimizer and schedule (harness/models/nanogpt.py).

Top to bottom: settings, the model, build(), step(), evaluate(), sample().
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of jax: signals may arrive during it
    from harness import start

    start.quietly("jax")

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.array_device import Device, refuse_fp16
from harness.command_line import Options
from harness.jax_backend.main import main
from harness.jax_backend.sampling import Cache, Sampling, logits_of
from harness.jax_backend.training import DTYPES, Params, Reference, adamw, adamw_state, clip
from harness.jax_backend.training import Training as JaxTraining
from harness.models import nanogpt, nanogpt_sampling
from harness.models.nanogpt import Problem, Shape

WORKLOAD = {"like": "nanogpt_torch", "framework": "jax", "without": ["adamw", "threads"]}
RANDOM = "rbg"
"""Dropout's random numbers: XLA's own generator. JAX's usual one takes several times as long to compile and to run."""


@dataclass(frozen=True)
class Model:
    """The functions of a model: its shape, and the dtype of products. Sums, norms and the loss are fp32."""

    shape: Shape
    dtype: Any
    attention: str | None = None
    """implementation of jax.nn.dot_product_attention; None: XLA compiles the formula"""

    def loss(self, params: Params, x: jax.Array, y: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return the mean cross entropy in nats. Without a key there is no dropout."""
        logits = self.logits(params, x, key).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, y[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    def logits(
        self, params: Params, tokens: jax.Array, key: jax.Array | None = None, cache: Cache | None = None
    ) -> jax.Array:
        """Return the logits (batch, time, vocab) of tokens (batch, time). With a cache the tokens continue those that
        it holds, and only the last one's logits are computed."""
        drop, n = self._dropout(key), tokens.shape[1]
        places = params["positions.weight"]
        x = drop(params["tokens.weight"][tokens] + (places[:n] if cache is None else places[cache.positions(n)]))
        for layer in range(self.shape.layers):
            block = f"blocks.{layer}"
            attend = None if cache is None else partial(cache.attend, layer)
            x = x + self._attention(params, f"{block}.attention", self._norm(params, f"{block}.norm1", x), drop, attend)
            x = x + self._feed_forward(params, f"{block}.feed_forward", self._norm(params, f"{block}.norm2", x), drop)
        x = self._norm(params, "norm", x if cache is None else x[:, -1:])
        return x.astype(self.dtype) @ params["tokens.weight"].astype(self.dtype).T  # tied: also the output layer

    def _attention(
        self,
        params: Params,
        name: str,
        x: jax.Array,
        drop: Callable[[jax.Array], jax.Array],
        attend: Callable[..., jax.Array] | None,
    ) -> jax.Array:
        B, T, C = x.shape
        heads = (B, T, self.shape.heads, C // self.shape.heads)
        q, k, v = (part.reshape(heads) for part in jnp.split(self._linear(params, f"{name}.qkv", x), 3, axis=-1))
        if attend is not None:
            y = attend(q, k, v)
        elif drop is _keep:
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.attention)
        else:  # dot_product_attention has no dropout of its weights
            scores = jnp.einsum("bthq,bshq->bhts", q, k).astype(jnp.float32) / heads[-1] ** 0.5
            scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, -jnp.inf)
            y = jnp.einsum("bhts,bshq->bthq", drop(jax.nn.softmax(scores).astype(v.dtype)), v)
        return drop(self._linear(params, f"{name}.out", y.reshape(B, T, C)))

    def _feed_forward(
        self, params: Params, name: str, x: jax.Array, drop: Callable[[jax.Array], jax.Array]
    ) -> jax.Array:
        wide = jax.nn.gelu(self._linear(params, f"{name}.widen", x), approximate=False)
        return drop(self._linear(params, f"{name}.out", wide))

    def _linear(self, params: Params, name: str, x: jax.Array) -> jax.Array:
        y = x.astype(self.dtype) @ params[f"{name}.weight"].astype(self.dtype).T
        return y + params[f"{name}.bias"].astype(self.dtype) if self.shape.bias else y

    def _norm(self, params: Params, name: str, x: jax.Array) -> jax.Array:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + nanogpt.NORM_EPS) * params[f"{name}.weight"]
        return x + params[f"{name}.bias"] if self.shape.bias else x

    def _dropout(self, key: jax.Array | None) -> Callable[[jax.Array], jax.Array]:
        """Return a function that drops a share of an array's numbers, different ones at each call."""
        rate = self.shape.dropout
        if key is None or not rate:
            return _keep
        calls = iter(range(1 << 30))

        def drop(x: jax.Array) -> jax.Array:
            mask = jax.random.bernoulli(jax.random.fold_in(key, next(calls)), 1 - rate, x.shape)
            return jnp.where(mask, x / (1 - rate), jnp.zeros((), x.dtype))

        return drop


def _keep(x: jax.Array) -> jax.Array:
    return x


@dataclass(kw_only=True)
class Training(JaxTraining):
    """The harness's Training, with the problem and the update."""

    problem: Problem
    update: Callable[..., Any]
    """(params, state, x, y, lr, i) to loss, params and state: the iteration but for its batches"""


def attention_on(device: Device, shape: Shape, dtype: str) -> str | None:
    """Return cudnn, whose fused attention JAX does not choose by itself, as torch does, if it applies: on CUDA, in 16
    bits, for heads of up to 128 features, a multiple of 8. Else None."""
    features = shape.width // shape.heads
    fits = dtype != "fp32" and features % 8 == 0 and features <= 128
    return "cudnn" if device.kind == "cuda" and fits else None


def build(options: Options, device: Device) -> Training:
    """Build text, model, reference loss and optimizer."""
    refuse_fp16(options, "jax")
    problem = nanogpt.problem(options)
    weights = nanogpt.weights(options, problem.shape)
    reference = Reference(Model(problem.shape, jnp.float32).loss, weights, problem.first())
    model = Model(problem.shape, DTYPES[options.dtype], attention_on(device, problem.shape, options.dtype))
    params = jax.device_put(weights, device.handle)
    update, forward = partial(_update, model, options), model.loss
    if options.compile:  # the memory of the old weights and state is reused for the new ones
        update, forward = jax.jit(update, donate_argnums=(0, 1)), jax.jit(forward)
    return Training(
        options=options,
        device=device,
        params=params,
        state=adamw_state(params),
        optimizer_name="AdamW(jax)",
        forward=forward,
        reference=reference,
        data=problem.text.fields(),
        flops_per_iter=problem.flops_per_iter,
        per_iter=problem.tokens_per_iter,
        problem=problem,
        update=update,
    )


def _update(
    model: Model, options: Options, params: Params, state: Any, x: jax.Array, y: jax.Array, lr: jax.Array, i: jax.Array
) -> tuple[jax.Array, Params, Any]:
    """Do forward, backward, clipping and update. `x` and `y` are (grad_accum, batch, time)."""
    s = options.settings
    key = jax.random.fold_in(jax.random.key(options.seed, impl=RANDOM), i)

    def part(total: Any, batch: Any) -> tuple[Any, None]:
        n, *tokens = batch
        loss_and_grads = jax.value_and_grad(model.loss)(params, *tokens, jax.random.fold_in(key, n))
        return jax.tree.map(lambda a, b: a + b / s.grad_accum, total, loss_and_grads), None

    total: Any = (jnp.zeros(()), {name: jnp.zeros_like(value) for name, value in params.items()})
    if options.compile and s.grad_accum > 1:
        total, _ = jax.lax.scan(part, total, (jnp.arange(s.grad_accum), x, y))
    else:
        for n in range(s.grad_accum):
            total, _ = part(total, (n, x[n], y[n]))
    loss, grads = total
    if s.grad_clip:
        grads = clip(grads, s.grad_clip, nanogpt.CLIP_EPS)
    decay = {name: s.weight_decay if value.ndim >= 2 else 0.0 for name, value in params.items()}
    params, state = adamw(params, grads, state, lr, (s.beta1, s.beta2), nanogpt.ADAM_EPS, decay)
    return loss, params, state


def step(training: Training, i: int) -> jax.Array:
    """Do one iteration: batches, forward, backward, clipping, update. Return the mean loss, not waited for."""
    s = training.options.settings
    x, y = jax.device_put(training.problem.batches.of_iteration(i, s.grad_accum), training.device.handle)
    lr = np.float32(nanogpt.learning_rate(i, s))
    loss, training.params, training.state = training.update(training.params, training.state, x, y, lr, np.uint32(i))
    return loss


def evaluate(training: Training, split: str) -> dict[str, float]:
    """Return the mean loss over eval_iters batches, dropout off: the same batches at every evaluation of a seed."""
    s = training.options.settings
    x, y = jax.device_put(training.problem.batches.of_evaluation(split, s.eval_iters), training.device.handle)
    losses = [training.forward(training.params, x[n], y[n]) for n in range(s.eval_iters)]
    return {"loss": float(jnp.stack(losses).mean())}


def sample(options: Options, device: Device) -> Sampling:
    """Build text, model and reference logits for mode=sample."""
    problem = nanogpt.problem(options)
    shape, weights = problem.shape, nanogpt.weights(options, problem.shape)
    right = logits_of(Model(shape, jnp.float32).logits, weights)
    dtype = DTYPES[options.dtype]
    params = {
        name: value if nanogpt_sampling.stays_fp32(name, value.ndim) else value.astype(dtype)
        for name, value in jax.device_put(weights, device.handle).items()
    }
    return Sampling(
        device=device,
        reference=nanogpt_sampling.reference(options, problem, right),
        params=params,
        logits=Model(shape, dtype).logits,
        **nanogpt_sampling.arguments(options, problem),
    )


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, step, evaluate, sample=sample))
