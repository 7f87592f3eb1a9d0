"""Draw the figures of ``docs/research/theory.md`` into ``docs/assets``: ``python docs/assets/theorem.py``.

They are kept in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "congruence", "font.size": 9}

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

SOURCE, TARGET, TEXT = "#b4541a", "#1f5fbf", "#8a6100"
ASSETS = Path(__file__).resolve().parent


def main(folder: Path = ASSETS) -> None:
    """Draw all figures."""
    rng = np.random.default_rng(3)
    for name, draw in (("angles", _angles), ("sphere", _sphere), ("means", _means)):
        figure = draw(rng)
        figure.savefig(folder / f"theorem-{name}.svg", facecolor="white", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _turn(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


def _circle(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def _angles(rng: np.random.Generator) -> Figure:
    """Draw the vectors of two models for the same items, and their inner products."""
    first = _circle(rng.normal(size=(40, 2)) + np.array([1.1, 0.4]))
    second = _circle(first @ _turn(2.0) + 0.04 * rng.normal(size=first.shape))
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
    for axis, points, color, title in ((axes[0], first, SOURCE, "old model"), (axes[1], second, TARGET, "new model")):
        axis.add_patch(plt.Circle((0, 0), 1, fill=False, color="#d5d9de"))
        axis.scatter(*points.T, s=10, color=color)
        for row, name in enumerate("abc"):
            axis.annotate(name, points[row], 1.17 * points[row], ha="center", va="center")
        axis.set(title=title, xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
        axis.axis("off")
    order = np.argsort(np.arctan2(*first.T))
    for axis, points, title in ((axes[2], first, "old: inner products"), (axes[3], second, "new: inner products")):
        axis.imshow(points[order] @ points[order].T, vmin=-1, vmax=1, cmap="PuOr")
        axis.set(title=title, xticks=[], yticks=[])
    return figure


def _sphere(rng: np.random.Generator) -> Figure:
    """Draw unit vectors, their images under a linear map, and their images under a rotation."""
    around = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(around), np.sin(around)], 1)
    points = _circle(rng.normal(size=(14, 2)))
    stretch = _turn(0.5) @ np.diag([1.45, 0.6]) @ _turn(-0.2)
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6), layout="constrained")
    for axis, matrix, color, title in (
        (axes[0], np.eye(2), SOURCE, "unit vectors"),
        (axes[1], stretch, "#57606a", "a linear map: no longer unit"),
        (axes[2], _turn(1.2), TARGET, "a rotation: still unit"),
    ):
        axis.plot(*circle.T, color="#d5d9de")
        axis.plot(*(circle @ matrix).T, color=color, linewidth=1)
        axis.scatter(*(points @ matrix).T, s=12, color=color)
        axis.set(title=title, xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
        axis.axis("off")
    return figure


def _means(rng: np.random.Generator) -> Figure:
    """Draw images and texts of both models, with their means and the rotation about each mean."""
    images, texts = rng.normal(size=(2, 40, 2)) * (0.5, 0.2)
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharex=True, sharey=True)
    places = {"old model": ((-1.2, 0.6), (1.2, -0.6), 0.0), "new model": ((-0.4, -1.0), (0.8, 1.1), 1.1)}
    for axis, (title, (image_mean, text_mean, angle)) in zip(axes, places.items(), strict=True):
        for rows, mean, color, name in ((images, image_mean, SOURCE, "images"), (texts, text_mean, TEXT, "texts")):
            moved = rows @ _turn(angle) + mean
            axis.scatter(*moved.T, s=9, color=color, alpha=0.7)
            axis.plot(*mean, "+", color="black", markersize=9)
            arrow = np.array([1.0, 0.0]) @ _turn(angle)
            axis.annotate("", np.add(mean, arrow), mean, arrowprops={"arrowstyle": "->"})
            axis.annotate(name, np.add(mean, (-1.15, -0.35)), color=color, ha="center")
        axis.set(title=title, xlim=(-2.6, 2.6), ylim=(-2.2, 2.2), aspect="equal")
        axis.axis("off")
    return figure


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
