"""Print the validation loss of the model in the folder that MPSQ_TRAINED names."""

import os
from pathlib import Path

import torch
from train import GPT, batch, text

path = Path(os.environ.get("MPSQ_TRAINED", "."), "model.pt")
torch.set_num_threads(1)
model = GPT()
model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
model.eval()
generator, data = torch.Generator().manual_seed(1), text("val")
with torch.no_grad():
    losses = [model.loss(*batch(data, generator)).item() for _ in range(20)]
print(f"val_loss {sum(losses) / len(losses):.4f}")
