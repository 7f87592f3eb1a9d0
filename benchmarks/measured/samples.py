"""Tables about the photo sample in README and docs/sample.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, command, shown, table
from measured.jobs import JOBS


def _cell(values: list[float]) -> str:
    array = np.array(values)
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else 0
    return f"{array.mean():.3f} ± {error:.3f}" if error else shown(float(array.mean()))


def _rows(runs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return all lines by key: description, number of photos that the new model encodes, and accuracy over all draws of all runs."""

    def flat(key: str) -> str:
        return _cell([run[key] for run in runs])

    rows = {
        "old": ["old model, old texts", "", flat("old")],
        "unmapped": ["new texts, unmapped photos", "0", flat("unmapped")],
        "names": ["map fitted on the 100 class names", "0", flat("names")],
    }
    for n in runs[0]["pairs"]:
        values = [one for run in runs for one in run["pairs"][n]]
        rows[f"pairs {n}"] = [f"map fitted on {int(n):,} photo pairs", f"{int(n):,}", _cell(values)]
    for share in runs[0]["progressive"]:
        part = float(share)
        words = (
            f"mapped, least certain {100 * part:g} % re-embedded"
            if part
            else "map from names and the old model's scores"
        )
        values = [one for run in runs for one in run["progressive"][share]]
        rows[f"share {share}"] = [words, f"{round(1500 * part)}", _cell(values)]
    rows["new"] = ["new model, all photos re-embedded", "1,500", flat("new")]
    return rows


def _both(results: list[Any]) -> dict[str, list[str]]:
    """Return all lines with the accuracy on the sample and that of newly trained pairs of models."""
    sample, fresh = (_rows(one["results"]) for one in results)
    return {key: [*cells, fresh[key][-1]] for key, cells in sample.items()}


def photo_sample(results: list[Any]) -> str:
    header = ["method", "photos to encode", "accuracy, sample", "accuracy, three other pairs of models"]
    return table(header, list(_both(results).values()))


def photo_recall(results: list[Any]) -> str:
    rows = _both(results)
    keys = ("old", "unmapped", "names", "share 0.1", "new")
    header = ["method", "photos to encode", "accuracy", "accuracy, three other pairs of models"]
    return table(header, [rows[key] for key in keys])


def photo_certificate() -> str:
    verdict = "\n".join(command("certify", "photos", "--anchors", "200").splitlines()[:2])
    return f"```\n$ congruence certify photos --anchors 200\n{verdict}\n```\n"


BLOCKS = {
    "photo-sample": Block(photo_sample, JOBS["photo-sample"]),
    "photo-recall": Block(photo_recall, JOBS["photo-sample"]),
    "certificate": Block(photo_certificate),
}
