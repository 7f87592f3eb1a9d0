"""The example of docs/research/canonical.md: a figure drawn from arrays of one's own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.long

PAGE = Path(__file__).resolve().parents[2] / "docs" / "research" / "canonical.md"


def test_a_figure_of_ones_own_embeddings_is_drawn_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    k, each, templates, d = 12, 8, 2, 16
    centers = rng.standard_normal((k, d))
    labels, prompt_labels = np.repeat(np.arange(k), each), np.repeat(np.arange(k), templates)
    rows = [centers[own] + 0.1 * rng.standard_normal((len(own), d)) for own in (labels, prompt_labels)]
    images, prompts = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in rows)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    names = {"old_images": images, "old_prompts": prompts, "new_images": images @ Q, "new_prompts": prompts @ Q}
    names |= {"classes": tuple(f"class {c}" for c in range(k)), "labels": labels, "prompt_labels": prompt_labels}
    names |= {"ids": np.array([f"{i}.jpg" for i in range(len(labels))]), "train": np.arange(len(labels)) % 2 == 0}
    names["prompt_templates"] = np.arange(len(prompt_labels)) % templates
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    exec(compile(code, PAGE.name, "exec"), names)
    results = json.loads((tmp_path / "fig5-mine" / "results.json").read_text())
    assert results["title"] == "Few classes, on my photos"
    assert results["stand_in"] is None
    assert (tmp_path / "fig5-mine" / "figure.png").stat().st_size > 10_000
    what = ("text_cosine", "unseen", "after")
    rows = (row for row in results["rows"] if (row["metric"], row["part"], row["quantity"]) == what)
    found = {(row["series"], row["x"]): row["mean"] for row in rows}
    assert found["orthogonal", 10] > 0.95  # the models differ by a rotation, and ten classes of four images span it
    assert abs(found["random", 10]) < 0.5
