"""Train one of the two dual encoders.

Heads first, on features of the frozen image tower; then the upper blocks of the tower with them (Kumar et al. 2022:
fine-tuning from random heads distorts features).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from captions import SHARES
from towers import RESOLUTION, DualEncoder, premultiply

#: The two models share no picture, caption, augmentation, objective or seed.
RECIPES = {
    "a": {"vendors": ("noto", "noto-v1"), "loss": "siglip", "augment": "geometric", "seed": 11, "epochs": 20},
    "b": {
        "vendors": ("twemoji", "emojione", "openmoji"),
        "loss": "infonce",
        "augment": "photometric",
        "seed": 23,
        "epochs": 20,
    },
}
#: Inverse temperature, fixed: if it grows, the models spend their dimensions on telling single emoji apart, and the
#: coarse similarities, on which they agree, fade.
SCALE = 8.0
BATCH = 192
WARM_VIEWS, WARM_STEPS = 3, 1500


def augment(pictures: torch.Tensor, kind: str, u) -> torch.Tensor:
    """Augment pictures: rotated, scaled and with holes for model A; with other light, colors and noise for model B."""
    n, geometric = len(pictures), kind == "geometric"
    angle = (u(n) - 0.5) * (0.6 if geometric else 0.25)
    scale = torch.exp((u(n) - 0.5) * (0.6 if geometric else 0.3) + 0.1)
    stretch = torch.exp((u(n) - 0.5) * 0.25)
    shift = (u(n, 2) - 0.5) * 0.25
    first = torch.stack([scale * stretch * angle.cos(), -scale * angle.sin(), shift[:, 0]], 1)
    second = torch.stack([scale * stretch * angle.sin(), scale * angle.cos(), shift[:, 1]], 1)
    grid = F.affine_grid(torch.stack([first, second], 1), [n, 4, RESOLUTION, RESOLUTION], align_corners=False)
    x = F.grid_sample(premultiply(pictures), grid, align_corners=False)
    plain = torch.ones(n, 3, device=x.device)
    background = torch.where(u(n, 1) < 0.5, plain, u(n, 3))[:, :, None, None]
    x = x[:, :3] + background * (1 - x[:, 3:])
    strength = 0.3 if geometric else 0.6
    x = x * (1 + (u(n, 1, 1, 1) - 0.5) * strength) + (u(n, 1, 1, 1) - 0.5) * strength * 0.4
    x = x * (1 + (u(n, 3, 1, 1) - 0.5) * strength * 0.5)
    gray = x.mean(1, keepdim=True)
    x = gray + (x - gray) * (1 + (u(n, 1, 1, 1) - 0.5) * 2 * strength)
    if geometric:
        half, center = u(n, 2) * 0.175 * RESOLUTION, u(n, 2) * RESOLUTION
        place = torch.arange(RESOLUTION, device=x.device)
        rows = ((place[None] - center[:, :1]).abs() < half[:, :1])[:, None, :, None]
        columns = ((place[None] - center[:, 1:]).abs() < half[:, 1:])[:, None, None, :]
        x = torch.where(rows & columns, background, x)
    else:
        x = x + u(n, 1, 1, 1) * 0.1 * (u(*x.shape) - 0.5)
    return x.clamp(0, 1)


def loss_of(kind: str, image, text, bias, emoji, caption) -> torch.Tensor:
    """SigLIP (Zhai et al. 2023) or softmax InfoNCE (Radford et al. 2021); equal emoji or captions are not negatives."""
    logits = image @ text.T * SCALE
    same = (emoji[:, None] == emoji[None]) | (caption[:, None] == caption[None])
    if kind == "siglip":
        return -F.logsigmoid(torch.where(same, 1.0, -1.0) * (logits + bias)).sum() / len(image)
    diagonal = torch.arange(len(image), device=image.device)
    others = same & ~torch.eye(len(image), dtype=torch.bool, device=image.device)
    logits = logits.masked_fill(others, -1e4)
    return (F.cross_entropy(logits, diagonal) + F.cross_entropy(logits.T, diagonal)) / 2


class Captions:
    """Draws a caption of a random kind for each emoji."""

    def __init__(self, groups: list[dict[str, list[int]]], rng: np.random.Generator) -> None:
        self.groups, self.rng = groups, rng

    def draw(self, emoji: np.ndarray) -> np.ndarray:
        kinds = self.rng.choice(list(SHARES), len(emoji), p=list(SHARES.values()))
        return np.array([self.rng.choice(self.groups[e][kind]) for e, kind in zip(emoji, kinds, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=tuple(RECIPES))
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=None)
    options = parser.parse_args()
    recipe, device = RECIPES[options.model], options.device
    torch.set_num_threads(options.threads)
    torch.manual_seed(recipe["seed"])
    rng = np.random.default_rng(recipe["seed"])
    generator = torch.Generator(device).manual_seed(recipe["seed"])

    def u(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    files = [np.load(options.build / f"{vendor}.npz") for vendor in recipe["vendors"]]
    pictures = torch.from_numpy(np.concatenate([file["pictures"] for file in files])).to(device)
    emoji = np.concatenate([file["rows"] for file in files])
    index = json.loads((options.build / f"captions_{options.model}.json").read_text())
    features = torch.from_numpy(np.load(options.build / f"text_{options.model}.npz")["features"]).float().to(device)
    captions = Captions(index["captions"], rng)
    model = DualEncoder(options.model, features).to(device)
    heads = [*model.image.head.parameters(), *model.text.parameters()]
    started = time.time()

    def step(images: torch.Tensor, chosen: np.ndarray) -> torch.Tensor:
        drawn = captions.draw(emoji[chosen])
        return loss_of(
            recipe["loss"],
            images,
            model.text(features[drawn]),
            model.bias,
            torch.from_numpy(emoji[chosen]).to(device),
            torch.from_numpy(drawn).to(device),
        )

    def train(groups: list[dict], steps: int, batch_loss, name: str) -> None:
        optimizer = torch.optim.AdamW(groups)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in groups], steps, pct_start=0.15)
        running = 0.0
        for k in range(steps):
            loss = batch_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            running = loss.item() if k == 0 else 0.98 * running + 0.02 * loss.item()
            if (k + 1) % max(1, steps // 10) == 0:
                print(
                    f"{options.model} {name} {k + 1}/{steps}: loss {running:.3f}, {time.time() - started:.0f} s",
                    flush=True,
                )

    model.train()
    with torch.no_grad():
        views = []
        for _ in range(WARM_VIEWS):
            parts = [model.image.features(augment(part, recipe["augment"], u)) for part in pictures.split(BATCH)]
            views.append(torch.cat(parts))
        views = torch.stack(views)
    print(f"{options.model} features: {time.time() - started:.0f} s", flush=True)

    def warm() -> torch.Tensor:
        chosen = rng.integers(len(emoji), size=2 * BATCH)
        return step(model.image.head(views[rng.integers(len(views), size=2 * BATCH), chosen]), chosen)

    bias = {"params": [model.bias], "lr": 2e-2, "weight_decay": 0.0}
    train([{"params": heads, "lr": 1.5e-3, "weight_decay": 0.05}, bias], WARM_STEPS, warm, "heads")

    waiting: list[int] = []

    def tune() -> torch.Tensor:
        if len(waiting) < BATCH:
            waiting.extend(rng.permutation(len(emoji)).tolist())
        chosen = np.array([waiting.pop() for _ in range(BATCH)])
        return step(model.image(augment(pictures[torch.from_numpy(chosen)], recipe["augment"], u)), chosen)

    groups = [
        {"params": [*model.image.upper.parameters()], "lr": 4e-4, "weight_decay": 0.02},
        {"params": heads, "lr": 6e-4, "weight_decay": 0.05},
        bias,
    ]
    train(groups, (options.epochs or recipe["epochs"]) * len(emoji) // BATCH, tune, "tower")
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(state, options.build / f"model_{options.model}.safetensors")
    print(f"{options.model}: {time.time() - started:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
