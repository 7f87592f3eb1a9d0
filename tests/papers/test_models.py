"""The way from encoders and data sets to an experiment, with pretended ones of the same interface; and the command."""

import hashlib
import io
import json
import re
from dataclasses import dataclass

import numpy as np
import pytest

from congruence import Space
from congruence.encoders import Encoder
from congruence.errors import CorruptFileError, ParameterError, ShapeError
from congruence_papers import run
from congruence_papers.canonical import open_models, resolve_models

pytestmark = pytest.mark.long

CLASSES = ("cat", "dog", "owl", "fox", "bee", "cow")


@dataclass
class Picture:
    label: int
    seed: int

    def convert(self, mode):
        return self

    def thumbnail(self, size):
        pass

    def save(self, buffer: io.BytesIO, kind: str) -> None:
        buffer.write(b"\x89PNG pretended")


class PretendedData:
    name, classes, templates = "pets", CLASSES, ("a photo of a {}.", "a {}.")

    def __init__(self, split: str, n: int) -> None:
        self.split = split
        self.ids = np.array([f"{split}-{k}" for k in range(n)])
        self.labels = np.arange(n) % len(CLASSES)
        self.opened = 0

    def __len__(self):
        return len(self.ids)

    def image(self, i):
        assert 0 <= i < len(self)
        self.opened += 1
        return Picture(int(self.labels[i]), i)

    def prompts(self):
        return [(c, t, w.format(name)) for c, name in enumerate(CLASSES) for t, w in enumerate(self.templates)]


class PretendedEncoder(Encoder):
    """Maps items to a common signal turned by the model's own rotation, with a gap between modalities."""

    calls: int = 0
    break_after: int | None = None

    def __init__(self, name: str, modality: str) -> None:
        self.space, self.fingerprint = Space(name, "1", modality, 8, True), f"{name.replace('/', '-')} {modality}"
        rng = np.random.default_rng(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        self.turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        self.classes = np.random.default_rng(0).normal(size=(len(CLASSES), 8))

    def _signal(self, item) -> np.ndarray:
        if self.space.modality == "text":
            label, seed, gap = next(k for k, c in enumerate(CLASSES) if c in item), len(item), -1.0
        else:
            label, seed, gap = item.label, item.seed, 1.0
        row = self.classes[label] + 0.2 * np.random.default_rng(seed).normal(size=8) + gap
        return row / np.linalg.norm(row)

    def read(self, item):
        return item

    def _embed(self, items):
        type(self).calls += 1
        if self.break_after is not None and type(self).calls > self.break_after:
            raise KeyboardInterrupt
        return np.stack([self._signal(item) @ self.turn for item in items])


@pytest.fixture
def world(tmp_path, monkeypatch):
    parts = {"train": PretendedData("train", 300), "test": PretendedData("test", 60)}
    monkeypatch.setattr(PretendedEncoder, "calls", 0)
    where = {"root": tmp_path, "cache": tmp_path / "cache", "parts": parts}
    where["load_encoder"] = lambda name, modality, device, dtype: PretendedEncoder(name, modality)
    return where | {"open_dataset": lambda name, root, split: parts[split]}


def options(world):
    return {key: item for key, item in world.items() if key != "parts"}


def test_models_by_name_go_all_the_way(world):
    outcome = run("fig11", models="openai-b32/laion400m-b32", data=["pets"], **options(world))
    rows = outcome.results["rows"]
    after = {row["metric"]: row["mean"] for row in rows if row["quantity"] == "after"}
    assert after["image_cosine"] == pytest.approx(1, abs=1e-5)
    assert after["text_cosine"] == pytest.approx(1, abs=1e-5)
    assert rows[0]["pair"] == "openai-b32 → laion400m-b32"
    (facts,) = outcome.results["data"]
    assert (facts["train_images"], facts["test_images"], facts["templates"]) == (300, 60, 2)


def test_the_papers_own_pairs_run(world):
    rows = run("fig4", models="paper", quick=True, **options(world)).results["rows"]
    assert {row["pair"] for row in rows} == {"openai-b32 → laion400m-b32", "openai-l14 → siglip", "openai-l14 → flava"}


def test_chains_of_three_models_run(world):
    chain = "openai-b32/laion400m-b32/openai-b16"
    rows = run("fig40", models=chain, quick=True, **options(world)).results["rows"]
    composed = [r["mean"] for r in rows if r["series"] == "composed" and r["metric"] == "text_cosine"]
    assert composed == [pytest.approx(1, abs=1e-5)]


def test_what_is_cached_is_not_embedded_again(world):
    first = open_models("openai-b32/flava", "pets", **options(world))
    calls, opened = PretendedEncoder.calls, world["parts"]["train"].opened
    assert calls == 2 * (5 + 1 + 1)  # batches of 64: 300 and 60 images, 12 texts
    again = open_models("openai-b32/flava", "pets", **options(world))
    assert PretendedEncoder.calls == calls
    assert world["parts"]["train"].opened == opened
    np.testing.assert_array_equal(first.models[1].images, again.models[1].images)


def test_a_run_that_was_stopped_goes_on(world, monkeypatch):
    monkeypatch.setattr(PretendedEncoder, "break_after", 1)
    with pytest.raises(KeyboardInterrupt):
        open_models("openai-b32/flava", "pets", **options(world))
    monkeypatch.setattr(PretendedEncoder, "break_after", None)
    opened = world["parts"]["train"].opened
    open_models("openai-b32/flava", "pets", **options(world))
    # The first model's first batch is there; only its remainder and the second model's images are opened.
    assert world["parts"]["train"].opened - opened == 300 - 64 + 300


def test_other_weights_are_another_entry(world):
    open_models("openai-b32/flava", "pets", **options(world))
    folders = len(list(world["cache"].iterdir()))
    open_models("openai-b32/siglip", "pets", **options(world))
    assert len(list(world["cache"].iterdir())) == folders + 2  # of images and of texts


def test_a_damaged_cache_is_named(world):
    open_models("openai-b32/flava", "pets", **options(world))
    path = sorted(world["cache"].iterdir())[0]
    path.write_bytes(b"nothing" * 100)
    with pytest.raises(CorruptFileError, match=re.escape(path.name)):
        open_models("openai-b32/flava", "pets", **options(world))


def test_an_encoder_that_loses_rows_is_refused(world):
    class Lossy(PretendedEncoder):
        def _embed(self, items):
            return super()._embed(items)[:-1]

    broken = {**options(world), "load_encoder": lambda name, modality, device, dtype: Lossy(name, modality)}
    with pytest.raises(ShapeError, match="for 64 items"):
        open_models("openai-b32/flava", "pets", **broken)


def test_pictures_come_from_the_data_set(world):
    outcome = run("fig53", models="openai-b32/flava", data=["pets"], quick=True, **options(world))
    assert set(outcome.pictures.values()) == {b"\x89PNG pretended"}


def test_names_of_models_are_resolved():
    assert [short for short, _ in resolve_models("openai-b32/flava/siglip")] == ["openai-b32", "flava", "siglip"]
    full = resolve_models("open_clip:ViT-B-32/openai, hf:facebook/flava-full")
    assert full == [("ViT-B-32/openai", "open_clip:ViT-B-32/openai"), ("facebook/flava-full", "hf:facebook/flava-full")]
    for spec in ("openai-b32", "openai-b32/none", "hf:one", "", "hf:a,b"):
        with pytest.raises(ParameterError, match="Got models"):
            resolve_models(spec)


def test_the_command_writes_a_figure(here, tmp_path):
    result = here("lab reproduce", "fig5", "--quick", "-o", "out").ends(0)
    assert "Resampled: the N classes fitted on" in result.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "results.csv", "figure.svg"}
    here("lab reproduce", "fig5", "--quick", "-o", "out").refused("--force")
    assert here("lab reproduce", "table2", "--quick", "-o", "out", "--force").code == 0
    assert json.loads((tmp_path / "out/results.json").read_text())["experiment"] == "table2"


def test_the_command_writes_png_and_pdf_as_well(here, tmp_path):
    image = pytest.importorskip("PIL.Image")
    result = here("lab reproduce", "fig5", "--quick", "--png", "--pdf", "-o", "out").ends(0)
    assert "figure.svg, figure.png, figure.pdf" in result.out
    with image.open(tmp_path / "out/figure.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    size = re.search(r'width="(\d+)" height="(\d+)"', (tmp_path / "out/figure.svg").read_text())
    assert pixels.shape[:2] == (2 * int(size[2]), 2 * int(size[1]))
    assert (pixels[0, 0] == 255).all()
    blue = (pixels == (0, 0x72, 0xB2)).all(axis=2)  # the first line's color
    assert blue.sum() > 500
    pdf = (tmp_path / "out/figure.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert not re.search(rb"CreationDate|Matplotlib", pdf)


def test_the_command_lists_and_speaks_json(here):
    listed = here("lab reproduce").ends(0)
    assert "fig56" in listed.out
    assert "jam-table2" in listed.out
    assert "runs here on synthetic, sugarcrepe, imagenet1000, caltech101" in listed.out
    assert "CLIP RN50 and ViT-B/32 were run" in listed.out
    assert "fig32, fig33, fig34: Fitted on text prompts\n    runs here on sample, lvis, caltech101, clip" in listed.out
    assert "§7.3    the paper's version needs weights openai-l14, flava; data pets" in listed.out
    rows = json.loads(here("lab reproduce", "--json").out)
    assert len(rows) == 58 + 17 + 29
    by_name = {row["name"]: row for row in rows}
    assert by_name["fig9"]["same_experiment_here"] == ["fig2", "fig9"]
    assert by_name["fig5"]["needs_files"] == ["openai-l14/pets", "flava/pets"]
    assert by_name["fig5"]["published_at"]["flava"] == "hf:facebook/flava-full"
    assert all({*row["published_at"]} == {*row["needs_weights"], *row["needs_data"]} for row in rows)
    results = json.loads(here("lab reproduce", "table1", "-o", "t", "--json").out)
    assert results["rows"][0]["quantity"] == "count"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig99", "-o", "out"], "expected one of 'fig1', 'fig2'"),
        (["fig5", "--png"], "no folder for the figure"),
        (["fig5", "-o", "none/out"], "folder none"),
        (["fig5", "-o", "out", "--models", "lvis"], "Got no file for lvis"),
        (["fig5", "-o", "out", "--models", "paper"], "--root"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, tmp_path, arguments, words):
    result = here("lab reproduce", *arguments).refused(words)
    assert len(result.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
