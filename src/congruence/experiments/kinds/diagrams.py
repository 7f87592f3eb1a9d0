"""Two ways from an image to the target's images, and captions in which only the class was changed (figures 53–56)."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.errors import InputError
from congruence.experiments.data import Collection, unit_rows
from congruence.experiments.kinds._base import (
    Job,
    anchor_rows,
    both_rows,
    draw,
    fit_modality,
    fit_on,
    pair_name,
    test_part,
)

RESAMPLED_COMMUTING = "the anchors: each draw takes {share:.0%} of the training rows"
RESAMPLED_EDITS = "the anchors, {share:.0%} of the training rows each time, and the captions edited"


def run_commuting(job: Job) -> None:
    """Compare the direct path with the one through texts: the share of five images found by both."""
    examples: list[dict[str, Any]] = []
    for collection, held, pair in _usable(job):
        test = ~held.train
        own, pictures = (side[test] for side in both_rows(held, pair, "image"))
        ours, theirs = both_rows(held, pair, "text")
        ids, labels = held.ids[test], held.labels[test]
        modality = fit_modality(job, collection, pair)
        what = {"data": held.name, "pair": pair_name(held, pair)}
        for seed in job.seeds:
            anchors = draw(job, anchor_rows(collection, modality), job["share"], np.random.default_rng([seed, 29]))
            carry, _ = fit_on(job, collection, pair, modality, anchors, seed=seed)
            direct = _nearest(unit_rows(carry("image", own)), pictures, 5)
            read = _nearest(own, ours, 1)[:, 0]
            used, at = np.unique(read, return_inverse=True)
            moved = _nearest(unit_rows(carry("text", ours[used])), theirs, 1)[:, 0][at]
            mediated = _nearest(theirs[moved], pictures, 5)
            shared = [len({*x} & {*y}) / len(x) for x, y in zip(direct.tolist(), mediated.tolist(), strict=True)]
            chance = float(np.mean(labels[:, None] == labels[None]))
            for metric, series, value in (
                ("overlap_at_5", "both paths", float(np.mean(shared))),
                ("right_class_at_5", "direct", float(np.mean(labels[direct] == labels[:, None]))),
                ("right_class_at_5", "through texts", float(np.mean(labels[mediated] == labels[:, None]))),
                ("same_text", "through texts", float(np.mean(held.prompt_labels[moved] == held.prompt_labels[read]))),
            ):
                job.ledger.note({**what, "series": series, "metric": metric, "quantity": "after"}, value)
            for metric, value in (("overlap_at_5", direct.shape[1] / len(pictures)), ("right_class_at_5", chance)):
                if seed == job.seeds[0]:
                    job.ledger.note({**what, "metric": metric, "quantity": "chance"}, value)
            job.tick()
        for q in np.random.default_rng(job.seeds[0]).permutation(len(ids))[: job["examples"]].tolist():
            examples.append(
                {
                    "query": _item(held, str(ids[q])),
                    "read": held.texts[read[q]] if held.texts else "",
                    "carried_to": held.texts[moved[q]] if held.texts else "",
                    "rows": {
                        "direct": [_item(held, str(ids[k])) for k in direct[q]],
                        "through texts": [_item(held, str(ids[k])) for k in mediated[q]],
                    },
                }
            )
    job.extra["examples"] = examples


def run_edits(job: Job) -> None:
    """Change only the class of a caption, carry it, and look at the nearest text and image of the target.

    The image's nearest prompt is found in the source; the edited caption is the same template with another class.
    """
    examples: list[dict[str, Any]] = []
    for collection, held, pair in _usable(job):
        test = ~held.train
        own, pictures = (side[test] for side in both_rows(held, pair, "image"))
        ours, theirs = both_rows(held, pair, "text")
        ids, labels = held.ids[test], held.labels[test]
        modality = fit_modality(job, collection, pair)
        what = {"data": held.name, "pair": pair_name(held, pair)}
        for seed in job.seeds:
            rng = np.random.default_rng([seed, 31])
            anchors = draw(job, anchor_rows(collection, modality), job["share"], rng)
            carry, _ = fit_on(job, collection, pair, modality, anchors, seed=seed)
            count = min(job["swaps"], 100) if job.quick else job["swaps"]
            queries = rng.choice(len(ids), min(count, len(ids)), replace=False)
            read = _nearest(own[queries], ours, 1)[:, 0]
            edited, wanted = _edit(held, read, rng)
            text = _nearest(unit_rows(carry("text", ours[edited])), theirs, 1)[:, 0]
            found = _nearest(theirs[text], pictures, 5)
            oracle = _nearest(theirs[edited], pictures, 5)
            alone = _nearest(ours[edited], own, 5)
            for metric, series, value in (
                ("edited_class_text", "carried", np.mean(held.prompt_labels[text] == wanted)),
                ("edited_class_image", "carried", np.mean(labels[found[:, 0]] == wanted)),
                ("edited_class_image_at_5", "carried", np.mean((labels[found] == wanted[:, None]).any(axis=1))),
                ("same_template", "carried", np.mean(held.prompt_templates[text] == held.prompt_templates[edited])),
                ("edited_class_image", "target alone", np.mean(labels[oracle[:, 0]] == wanted)),
                ("edited_class_image_at_5", "target alone", np.mean((labels[oracle] == wanted[:, None]).any(axis=1))),
                ("edited_class_image_at_5", "source alone", np.mean((labels[alone] == wanted[:, None]).any(axis=1))),
            ):
                job.ledger.note({**what, "series": series, "metric": metric, "quantity": "after"}, float(value))
            job.tick()
        for q in range(min(job["examples"], len(queries))):
            examples.append(
                {
                    "query": _item(held, str(ids[queries[q]])),
                    "read": held.texts[read[q]] if held.texts else "",
                    "carried_to": held.texts[edited[q]] if held.texts else "",
                    "rows": {"found": [_item(held, str(ids[k])) for k in found[q]]},
                }
            )
    job.extra["examples"] = examples


def _usable(job: Job) -> list[tuple[Collection, Collection, tuple[int, int]]]:
    out = []
    for collection in job.collections:
        held = test_part(collection)
        for pair in collection.pairs:
            if any(held.models[k].images is None or held.models[k].prompts is None for k in pair):
                job.remark(f"{pair_name(held, pair)}: left out, it needs images and texts of both models.")
            else:
                out.append((collection, held, pair))
    if not out:
        raise InputError(
            "Got no pair with images and texts of both models; expected at least one. Pass a collection with such a pair."
        )
    return out


def _edit(held: Collection, read: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return for each prompt one of the same template and another class, and that class."""
    edited = np.empty(len(read), dtype=int)
    for q, row in enumerate(read.tolist()):
        same = held.prompt_templates == held.prompt_templates[row]
        other = np.flatnonzero(same & (held.prompt_labels != held.prompt_labels[row]))
        edited[q] = rng.choice(other) if len(other) else row
    return edited, held.prompt_labels[edited]


def _nearest(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Return row numbers of the k largest cosines of unit rows, best first."""
    k = min(k, len(gallery))
    out = np.empty((len(queries), k), dtype=np.intp)
    step = max(1, 2**24 // len(gallery))
    for start in range(0, len(queries), step):
        similarity = queries[start : start + step] @ gallery.T
        out[start : start + step] = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return out


def _item(held: Collection, i: str) -> dict[str, str]:
    return {"id": i, "text": held.captions.get(i, "")}
