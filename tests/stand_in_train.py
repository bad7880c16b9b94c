"""A stand-in for nanoGPT's train.py: it trains nothing and prints what that prints, with the post's own times."""

import ast
import sys

MS = {("cpu", False): 1986.0, ("cpu", True): 1700.0, ("mps", False): 221.0, ("mps", True): 306.0}
settings = {
    "device": "cuda",
    "compile": True,
    "max_iters": 5000,
    "log_interval": 10,
    "eval_interval": 250,
    "eval_iters": 200,
}
print(f"Overriding config with {sys.argv[1]}:\nmax_iters = 5000")
for word in sys.argv[2:]:
    key, text = word.removeprefix("--").split("=")
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    assert type(value) is type(settings[key]), f"{key}: {value!r}"  # as its configurator.py: off is no bool
    print(f"Overriding: {key} = {value}")
    settings[key] = value
print("tokens per iteration will be: 16,384\nfound vocab_size = 65 (inside data/shakespeare_char/meta.pkl)")
print("number of parameters: 10.65M\nusing fused AdamW: False")
if settings["compile"]:
    print("compiling the model... (takes a ~minute)")
ms = MS[settings["device"], settings["compile"]]
for i in range(settings["max_iters"] + 1):
    if i % settings["eval_interval"] == 0:
        print(f"step {i}: train loss {4.28 - i / 50:.4f}, val loss {4.29 - i / 50:.4f}")
    if i % settings["log_interval"] == 0:
        took = 60 * ms if i == 0 else ms + (i * 7 % 5) / 10
        print(f"iter {i}: loss {4.28 - i / 50:.4f}, time {took:.2f}ms, mfu {-100 if i < 5 else 1.69:.2f}%")
