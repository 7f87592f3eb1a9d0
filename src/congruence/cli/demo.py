"""``congruence demo``: the paper's claim on real CLIP embeddings, in a few seconds."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def command(
    data: Annotated[
        str, typer.Argument(help="lvis1203_clip.npz: embeddings of 1,203 LVIS classes by three CLIP models.")
    ],
    splits: Annotated[int, typer.Option(help="Random class splits.")] = 5,
    holdout: Annotated[int, typer.Option(help="Unseen classes in each.")] = 303,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Fit on text alone, carry images, classify unseen classes; repeat over random splits."""
    import numpy as np

    from congruence.cli._base import print_json, print_table, progress

    records: dict[str, list[dict[str, float | None]]] = {"EVA-02 CLIP B/16": [], "OpenAI CLIP ViT-B/16": []}
    keys = {"EVA-02 CLIP B/16": "text_eva02_b16", "OpenAI CLIP ViT-B/16": "text_openai_vitb16"}
    with progress("fitting", splits * len(records), as_json) as advance:
        for name, key in keys.items():
            for seed in range(splits):
                records[name].append(_one(data, key, holdout, seed))
                if advance:
                    advance(1)
    rows: list[list[str]] = []
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for name, results in records.items():
        summary[name] = {}
        for measure in results[0]:
            values = np.array([result[measure] for result in results], dtype=float)
            mean, sd = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")
            summary[name][measure] = {"mean": mean, "sd": sd}
            rows.append([name, measure, f"{mean:.3f} ± {sd:.3f}"])
    if as_json:
        print_json({"splits": splits, "held_out_classes": holdout, "targets": summary})
        return
    title = f"OpenAI CLIP ViT-B/32, fitted on text alone: {holdout} unseen classes, {splits} splits"
    print_table(title, ["target", "measure", "mean ± sd"], rows)


def _one(data: str, key: str, holdout: int, seed: int) -> dict[str, float | None]:
    import congruence
    from congruence.embeddings import Embeddings, Space
    from congruence.evaluate import evaluate
    from congruence.splits import Split

    def read(column: str, modality: str) -> Embeddings:
        return congruence.read_embeddings(f"{data}:{column}", ids="names", space=Space(modality=modality))

    text, image, other = (
        read("text_openai_vitb32", "text"),
        read("image_openai_vitb32_avg5", "image"),
        read(key, "text"),
    )
    mapping = congruence.fit(text, other, holdout=holdout, seed=seed, means={"image": (image, None)}, check=False)
    unseen = Split.from_dict(mapping.scores_["holdout"]).held_out(text.ids)
    scores = evaluate(mapping, {"text": text.take(unseen), "image": image.take(unseen)}, {"text": other.take(unseen)})
    images: Any = scores.get("zero_shot_centred", "aligned image", "target text")
    texts = scores.get("cosine", "aligned text", "target text")
    retrieval = scores.get("retrieval", "aligned text", "target text")
    return {
        "images classified by the target's text": images.after,
        "  … without the map": images.before,
        "  … in the source model itself": images.source,
        "text–text cosine": texts.after,
        "  … cosine without the map": texts.before,
        "text → text retrieval at 1": retrieval.after,
    }
