"""Commuting diagrams: two paths from a source image to target images (figures 53, 54)."""

from __future__ import annotations

import numpy as np

from congruence_papers.canonical.anchors import (
    both_rows,
    draw_anchors,
    fit_modality,
    fit_on,
    pair_name,
)
from congruence_papers.canonical.data import Collection, unit_rows
from congruence_papers.canonical.neighbors import item, nearest, usable
from congruence_papers.job import Job
from congruence_papers.plain import Example

__all__ = ["run_commuting"]

RESAMPLED = "the anchors: each draw takes {share:.0%} of the training rows"


def run_commuting(job: Job[Collection]) -> None:
    """Compare the direct path, mapping the image, with the path through the nearest text, by the overlap of their top five images."""
    examples: list[Example] = []
    for collection, heldout, pair in usable(job):
        test = ~heldout.train
        source_images, target_images = (side[test] for side in both_rows(heldout, pair, "image"))
        source_texts, target_texts = both_rows(heldout, pair, "text")
        ids, labels = heldout.ids[test], heldout.labels[test]
        modality = fit_modality(job, collection, pair)
        what = {"data": heldout.name, "pair": pair_name(heldout, pair)}
        for seed in job.seeds:
            anchors = draw_anchors(job, collection, modality, job["share"], np.random.default_rng([seed, 29]))
            read = nearest(source_images, source_texts, 1)[:, 0]
            used, position = np.unique(read, return_inverse=True)
            for method in ("random", "orthogonal"):
                mapping, _ = fit_on(job, collection, pair, modality, anchors, method, seed=seed)
                direct = nearest(unit_rows(mapping("image", source_images)), target_images, 5)
                mapped = nearest(unit_rows(mapping("text", source_texts[used])), target_texts, 1)[:, 0][position]
                mediated = nearest(target_texts[mapped], target_images, 5)
                shared = [len({*x} & {*y}) / len(x) for x, y in zip(direct.tolist(), mediated.tolist(), strict=True)]
                values = (
                    ("overlap_at_5", "both paths", np.mean(shared)),
                    ("right_class_at_5", "direct", np.mean(labels[direct] == labels[:, None])),
                    ("right_class_at_5", "through texts", np.mean(labels[mediated] == labels[:, None])),
                    (
                        "same_text",
                        "through texts",
                        np.mean(heldout.prompt_labels[mapped] == heldout.prompt_labels[read]),
                    ),
                )
                for metric, series, value in values:
                    if method == "orthogonal":
                        line = {**what, "series": series, "metric": metric, "quantity": "after"}
                    elif (metric, series) != ("right_class_at_5", "through texts"):  # one control per metric
                        line = {**what, "metric": metric, "quantity": "random_rotation"}
                    else:
                        continue
                    job.results.add(line, float(value))
            if seed == job.seeds[0]:
                chance = {
                    "overlap_at_5": direct.shape[1] / len(target_images),
                    "right_class_at_5": float(np.mean(labels[:, None] == labels[None])),
                }
                job.results.add_all(what, chance, "chance")
            job.tick()
        for q in np.random.default_rng(job.seeds[0]).permutation(len(ids))[: job["examples"]].tolist():
            examples.append(
                {
                    "query": item(heldout, str(ids[q])),
                    "read": heldout.texts[read[q]] if heldout.texts else "",
                    "mapped_to": heldout.texts[mapped[q]] if heldout.texts else "",
                    "rows": {
                        "direct": [item(heldout, str(ids[k])) for k in direct[q]],
                        "through texts": [item(heldout, str(ids[k])) for k in mediated[q]],
                    },
                }
            )
    job.extra["examples"] = examples
