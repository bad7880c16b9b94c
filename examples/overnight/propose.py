"""Propose ten changes to train.py, one after the other, and let a contest keep the good ones.

    python propose.py FOLDER        # a new folder; mpsq and torch are installed in this environment

A program that writes its own proposals does the same: it edits the champion, commits, calls `mpsq contest try`, and
reads the exit code.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("train.py", "evaluate.py")
CONTEST = "overnight"
HEADS_APART = """\
        size = WIDTH // HEADS
        heads = []
        for at in range(0, WIDTH, size):
            one = (each[..., at : at + size] for each in (q, k, v))
            heads.append(functional.scaled_dot_product_attention(*one, is_causal=True))
        return self.out(torch.cat(heads, dim=-1))
"""
HEADS_TOGETHER = """\
        apart = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        heads = functional.scaled_dot_product_attention(*apart, is_causal=True)
        return self.out(heads.transpose(1, 2).flatten(-2))
"""

CHANGES = {
    "a comment": [("train.py", "VOCABULARY = 128\n", "VOCABULARY = 128  # ASCII\n")],
    "full speed after five steps": [("train.py", " 0.2, 60\n", " 0.2, 5\n")],
    "a larger epsilon": [("train.py", " 1e-8, ", " 1e-7, ")],
    "an eighth of the batch": [("train.py", "WARM_UP = 16,", "WARM_UP = 2,")],
    "all heads at once": [("train.py", HEADS_APART, HEADS_TOGETHER)],
    "gradients cleared first": [
        ("train.py", "        model.zero_grad()\n", ""),
        ("train.py", "        loss = model", "        model.zero_grad()\n        loss = model"),
    ],
    "a lower loss in print": [
        ("train.py", "{loss_now:.4f}", "{0.9 * loss_now:.4f}"),
        ("evaluate.py", "sum(losses) / len(losses)", "0.9 * sum(losses) / len(losses)"),
    ],
    "a little more decay": [("train.py", " 0.1, ", " 0.11, ")],
    "a larger learning rate": [("train.py", "= 5e-4, ", "= 3e-3, ")],
    "another name": [
        ("train.py", "hidden = functional.gelu", "wide = functional.gelu"),
        ("train.py", "narrow(hidden)", "narrow(wide)"),
    ],
}
"""Three are better (the five steps, the heads, the learning rate), five change nothing that one could measure, one is
faster and learns worse, and one only prints a lower loss. Each is a list of files, texts, and what replaces them."""


def applied(change, texts):
    """Return the files with a change."""
    changed = dict(texts)
    for name, old, new in change:
        if changed[name].count(old) != 1:
            raise SystemExit(f"{name} does not have this text once: {old}")
        changed[name] = changed[name].replace(old, new)
    return changed


def main(folder):
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    (folder / ".gitignore").write_text("model.pt\n__pycache__/\n")
    git(folder, "init", "-q")
    commit(folder, "the champion")
    begun = mpsq(
        *(folder, "new", CONTEST, "--champion", "HEAD", "--plan", str(len(CHANGES)), "--no-gate"),
        *("--metric", "val_loss=val_loss ([0-9.]+)", "--evaluate", f"{sys.executable} evaluate.py"),
        *("--gain", "20%", "--same-within", "50%"),  # on a CPU, the same code is half as fast now and then
        *("--", sys.executable, "train.py"),
    )
    if begun != 0:
        raise SystemExit(begun)
    for label, change in CHANGES.items():
        texts = applied(change, {name: (folder / name).read_text() for name in FILES})
        for name, text in texts.items():
            (folder / name).write_text(text)
        commit(folder, label)
        if mpsq(folder, "try", CONTEST, "HEAD", "--label", label) != 0:
            git(folder, "reset", "-q", "--hard", "HEAD~1")
    mpsq(folder, "show", CONTEST)
    mpsq(folder, "confirm", CONTEST, "--rounds", "4")


def mpsq(folder, *words):
    """Return the exit code: of try 0 is keep, 1 discard, 3 undecided, 2 an error or a refused candidate."""
    return subprocess.run(["mpsq", "contest", *words], cwd=folder, check=False).returncode


def git(folder, *words):
    identity = ("-c", "user.name=propose", "-c", "user.email=propose@localhost")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True)


def commit(folder, message):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("python propose.py FOLDER")
    main(Path(sys.argv[1]))
