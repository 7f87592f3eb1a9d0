"""One map for images, texts and sounds: fit it on images, and change the model of a store of images and sounds.

python examples/three_modalities.py [FOLDER]: both models are functions of pictures, sounds and texts that are made
here, so that nothing has to be downloaded. A model of yours takes their place in `load_towers`, or `load_encoder`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
from PIL import Image

import congruence
from congruence.databases import open_database
from congruence.embed import Items, embed
from congruence.encoders import TowerEncoder, load_towers

ITEMS, FITTED, RATE = 900, 300, 8000
COLORS, PITCHES, WORDS = 12, np.linspace(300, 3000, 12), [f"word{k}" for k in range(12)]
MODALITIES = ("image", "text", "audio")


def make_items(rng: np.random.Generator) -> dict[str, list]:
    """Return pictures, sounds and texts of the same things: twelve amounts, shown, played and told, not quite alike."""
    amounts = rng.gamma(0.5, size=(ITEMS, COLORS))
    amounts /= amounts.max(1, keepdims=True)
    time = np.arange(RATE // 4) / RATE
    tones = np.sin(2 * np.pi * PITCHES[:, None] * time)

    def vary() -> np.ndarray:
        return amounts * rng.uniform(0.85, 1.15, amounts.shape)

    shown = (np.clip(vary(), 0, 1) * 255).astype(np.uint8).reshape(ITEMS, 3, 4)
    told = [" ".join(f"{word}:{amount:.2f}" for word, amount in zip(WORDS, row, strict=True)) for row in vary()]
    played = (vary() @ tones / COLORS).astype(np.float32)
    return {
        "image": [Image.fromarray(one).resize((16, 12), Image.Resampling.NEAREST) for one in shown],
        "text": told,
        "audio": [(one, RATE) for one in played],
    }


def towers(name: str, seed: int, width: int, steps: int) -> dict[str, TowerEncoder]:
    """Return a model: each tower measures the twelve amounts, and puts them into the model's own space. That of texts
    reads amounts in this many steps.
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0][:COLORS]
    offset = {modality: rng.normal(size=width) * 0.05 for modality in MODALITIES}
    time = np.arange(RATE // 4) / RATE
    tones = np.sin(2 * np.pi * PITCHES[:, None] * time)

    def place(amounts: np.ndarray, modality: str) -> np.ndarray:
        return (amounts - 0.25) @ turn + offset[modality]

    def of_images(images: list[Image.Image]) -> np.ndarray:
        pixels = np.array([np.asarray(one.resize((4, 3), Image.Resampling.BOX))[..., 0] for one in images])
        return place(pixels.reshape(len(images), COLORS) / 255, "image")

    def of_texts(texts: list[str]) -> np.ndarray:
        numbers = [dict(part.split(":") for part in text.split() if ":" in part) for text in texts]
        amounts = np.array([[float(found.get(word, 0)) for word in WORDS] for found in numbers])
        return place(np.round(amounts * steps) / steps, "text")

    def of_sounds(sounds: list[tuple[np.ndarray, int]]) -> np.ndarray:
        heard = np.array([samples[: len(time)] @ tones.T for samples, _ in sounds])
        return place(heard * COLORS * 2 / len(time), "audio")

    functions = {"image": of_images, "text": of_texts, "audio": of_sounds}
    return load_towers(functions, name=name, revision="1", normalize=True, rate=RATE)


def recall(queries: congruence.Embeddings, rows: congruence.Embeddings) -> float:
    """Return how often a query's nearest row is of the same thing."""
    found = rows.ids[np.argmax(queries.vectors @ rows.vectors.T, axis=1)]
    return float((found == queries.ids).mean())


def main(folder: Path) -> dict[str, object]:
    content = make_items(np.random.default_rng(0))
    names = [f"thing {k:03}" for k in range(ITEMS)]
    files: dict[tuple[str, str], str] = {}
    for which, encoders in (("old", towers("towers-old", 1, 32, 2)), ("new", towers("towers-new", 2, 48, 100))):
        for modality, encoder in encoders.items():
            given = content[modality]
            items = Items(modality, modality, np.array(names, dtype=object), given.__getitem__, str)
            files[which, modality] = embed(encoder, items, folder / f"{which}-{modality}.parquet").output
    old, new = ({m: congruence.read_embeddings(files[w, m]) for m in MODALITIES} for w in ("old", "new"))
    fitted, unseen = names[:FITTED], names[FITTED:]

    # The map: fitted on 300 images; of sounds and texts it needs the means alone.
    means = {m: (old[m].take(fitted), new[m].take(fitted)) for m in ("text", "audio")}
    mapping = congruence.fit(old["image"].take(fitted), new["image"].take(fitted), modality="image", means=means)
    report: dict[str, object] = {"spaces": [new[m].space.to_dict() for m in MODALITIES]}

    # Unseen rows: texts of the new model search mapped images and sounds.
    for stored in ("image", "audio"):
        mapped = congruence.transform_file(
            mapping, files["old", stored], folder / f"mapped-{stored}.parquet", modality=stored
        ).output
        rows, queries = congruence.read_embeddings(mapped).take(unseen), new["text"].take(unseen)
        native = new[stored].take(unseen)
        report[f"text to {stored}"] = {"mapped": recall(queries, rows), "new model": recall(queries, native)}
        report[f"space of mapped {stored}"] = rows.space.to_dict()
        sides = [{m: side[m].take(unseen) for m in (stored, "text")} for side in (old, new)]
        report[f"advice for {stored}"] = congruence.certify(*sides, random_state=0).verdict.action

    # One store of images and sounds, each row mapped by the means of its own modality; then back again.
    kinds = [m for m in ("image", "audio") for _ in unseen]
    ids = [f"{m}/{name}" for m in ("image", "audio") for name in unseen]
    rows_before = np.concatenate([old[m].take(unseen).vectors for m in ("image", "audio")])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows_before.ravel()), rows_before.shape[1])
    store = folder / "store.lance"
    lancedb.connect(folder).create_table("store", pa.table({"id": ids, "kind": kinds, "vector": vectors}))
    database = open_database(str(store), modality_column="kind")
    with congruence.Migration(database, mapping, journal=folder / "journal") as migration:
        migration.run()
        report["verified"] = migration.verify().passed
        migration.switch()
        switched = congruence.read_embeddings(f"{store}:vector")
        for m in ("image", "audio"):
            rows = switched.take([f"{m}/{name}" for name in unseen])
            rows = congruence.Embeddings(rows.vectors, ids=unseen, space=rows.space)
            report[f"text to {m} in the store"] = recall(new["text"].take(unseen), rows)
        migration.rollback()
    back = congruence.read_embeddings(f"{store}:vector").take(ids)
    report["rolled back to the bit"] = bool(np.array_equal(back.vectors, rows_before))
    return report


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(main(Path(sys.argv[1])), indent=1, default=str))
    else:
        with tempfile.TemporaryDirectory() as made:
            print(json.dumps(main(Path(made)), indent=1, default=str))
