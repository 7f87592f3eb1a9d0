"""From pictures on disk and saved models to a figure: encoders, data sets and experiments, nothing pretended."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.long

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "encoders"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tiny_models import VISION, make, make_tokenizer, text_config

    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        words = text_config(eos_token_id=3, bos_token_id=2)
        config = transformers.CLIPConfig(text_config=words, vision_config=VISION, projection_dim=12 + 4 * seed)
        folder = tmp_path_factory.mktemp("clip") / f"clip{seed}"
        processor = transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
        folders.append(make(folder, transformers.CLIPModel(config), processor, make_tokenizer()))
    return folders


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("animals")
    for split, count in (("train", 8), ("test", 4)):
        for k, name in enumerate(("cat", "dog", "bird", "sky")):
            (root / split / name).mkdir(parents=True)
            for j in range(count):
                pixels = rng.integers(0, 120, (20, 20, 3)) + 30 * np.array([k, 3 - k, k % 2])
                image.fromarray(pixels.astype(np.uint8)).save(root / split / name / f"{j}.png")
    return root


@pytest.mark.heavy
def test_a_figure_from_models_and_pictures(here, models, pictures, tmp_path):
    names = ",".join(f"hf:{folder}" for folder in models)
    where = ["--models", names, "--data", "folder", "--root", pictures, "--device", "cpu", "--cache", "cache"]
    assert here("lab reproduce", "fig11", *where, "-o", "one", "--quick").code == 0
    first = json.loads((tmp_path / "one" / "results.json").read_text())
    assert (tmp_path / "one" / "figure.svg").read_text().startswith("<svg")
    assert (tmp_path / "one" / "results.csv").read_text().count("\n") > 5
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept
    # A second figure takes the embeddings of the first from the cache.
    assert here("lab reproduce", "fig11", *where, "-o", "two", "--quick").code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*") if path.is_file()} == kept
    second = json.loads((tmp_path / "two" / "results.json").read_text())
    assert first["rows"] == second["rows"]
