"""``congruence demo --sample emoji``: test the paper's claim on emoji; offline, in a few seconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from congruence.cli._output import number, print_table
from congruence.cli._scores import CONTROLS
from congruence.errors import DuplicateWarning, ParameterError

if TYPE_CHECKING:
    from congruence.datasets import Bundle
    from congruence.maps import OrthogonalMap
    from congruence.splits import Split

#: Scores of the table: metric, queries, and what they are compared with.
_SCORES = {
    "image → its image, at 1": ("retrieval", "aligned image", "target image"),
    "text → its text, at 1": ("retrieval", "aligned text", "target text"),
    "mapped image → new text, at 1": ("zero_shot", "aligned image", "target text"),
    "new image → mapped text, at 1": ("zero_shot", "target image", "aligned text"),
    "image–image cosine": ("cosine", "aligned image", "target image"),
    "text–text cosine": ("cosine", "aligned text", "target text"),
}


#: Number of classes to fit on by default; what is shown meanwhile, and in how many steps; the page, and its name in
#: the JSON.
SIZE = 800
LABEL, STEPS, RENDER, PAGE = "fitting and measuring", 2, "render", "report"


def run(
    sample: Bundle, classes: int | None, seed: int, callback: Callable[[int], object]
) -> tuple[OrthogonalMap, dict[str, Any], dict[str, Any]]:
    """Fit a map on the images of some classes, map texts by the same rotation, and score it on the other classes.

    Returns the map, the summary of its report, and the scores.
    """
    from congruence.report import summarize
    from congruence.splits import Split

    mapping = fit_on_images(sample, SIZE if classes is None else classes, seed)
    table = seen_and_unseen(sample, mapping, Split.from_dict(mapping.scores_["holdout"]))
    callback(1)
    summary = summarize(mapping, sample, random_state=seed)
    return (
        mapping,
        summary,
        {
            "fitted_on_images_of": mapping.scores_["n_pairs"],
            "models_alone": sample.info["each_model_alone"],
            "table": table,
            "few_anchors": summary["few_anchors"],
            "commuting_overlap": summary["commuting"]["overlap"],
        },
    )


def fit_on_images(sample: Bundle, classes: int, seed: int) -> OrthogonalMap:
    """Fit a map on the images of some classes; of their texts, only the means are used."""
    import congruence

    source, target = sample.source, sample.target
    n = len(source["image"])
    if not 2 <= classes < n:
        raise ParameterError(
            f"Got {classes} classes; expected 2 to {n - 1} of the sample's {n}.", "Pass --classes with such a number."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DuplicateWarning)  # three pairs of emoji look alike, which does not matter here
        mapping = congruence.fit(
            source["image"],
            target["image"],
            "orthogonal",  # the method that the page explains
            holdout=n - classes,
            random_state=seed,
            means={"text": (source["text"], target["text"])},
            check=False,  # the pairs are correct by construction, and the check takes longer than the fit
        )
    assert isinstance(mapping, congruence.OrthogonalMap)
    return mapping


def seen_and_unseen(sample: Bundle, mapping: OrthogonalMap, split: Split) -> list[dict[str, Any]]:
    """Return scores before and after mapping, and of each model alone, on the classes the map was fitted on and on the
    others: those of ``_SCORES``, and how often the nearest other item is of an item's subgroup.
    """
    import numpy as np

    from congruence.evaluation import evaluate
    from congruence.evaluation.controls import chance_at_k
    from congruence.metrics import class_retrieval

    table: dict[str, dict[str, Any]] = {}
    for part in ("seen", "unseen"):
        source, target = (
            {m: rows.take(split.held_out(rows.ids) == (part == "unseen")) for m, rows in sample.side(side).items()}
            for side in ("source", "target")
        )
        scores = evaluate(mapping, source, target)
        for measure, key in _SCORES.items():
            row = scores.get(*key)
            line = {"before": row.before, "after": row.after, "oracle": row.target, "classes": row.n}
            line |= {name: getattr(row, name) for name in ("chance", "control_constant", "control_random_rotation")}
            table.setdefault(measure, {"measure": measure})[part] = line
        for modality in ("image", "text"):
            old, new = source[modality], target[modality].vectors
            labels = np.array([sample.labels[i] for i in old.ids.tolist()])
            _, group, sizes = np.unique(labels, return_inverse=True, return_counts=True)
            mapped = mapping.for_modality(modality).transform(old.vectors)
            queries = {"before": old.vectors, "after": mapped, "oracle": new}
            line = {name: class_retrieval(X, new, labels, exclude_self=True) for name, X in queries.items()}
            line |= {"classes": len(labels), "chance": chance_at_k((sizes - 1)[group], len(labels) - 1)}
            measure = f"{modality} → another {modality} of its subgroup, at 1"
            table.setdefault(measure, {"measure": measure})[part] = line
    return list(table.values())


def tell(sample: Bundle, summary: dict[str, Any], result: dict[str, Any]) -> None:
    """Print the models, the scores, those of unseen classes by the number of anchors, and the verdict."""
    for name, towers in sample.info["models"].items():
        alone = sample.info["each_model_alone"][name]
        recalls = ", ".join(f"{alone[f'recall_at_{k}']:.3f} at {k}" for k in (1, 5, 10))
        print(f"{name}: {towers}; its own retrieval of {len(sample.source['image'])} captions from pictures: {recalls}")
    print(f"Pictures: {sample.info['images_of']}.\n")

    def lines(cosines: bool, columns: tuple[str, ...], controls: tuple[str, ...]) -> list[list[str]]:
        keys = [(part, column) for part in ("seen", "unseen") for column in columns]
        keys += [("unseen", control) for control in controls]
        shown = [line for line in result["table"] if ("cosine" in line["measure"]) == cosines]
        return [[line["measure"], *(number(line[part][key]) for part, key in keys)] for line in shown]

    print_table(
        f"fitted on the images of {result['fitted_on_images_of']} classes; texts mapped by the same rotation",
        ["", "seen: before", "after", "oracle", "unseen: before", "after", "oracle", "chance"],
        lines(False, ("before", "after", "oracle"), ("chance",)),
    )
    print_table(
        "mapped vectors and the new model's own",
        ["", "seen: before", "after", "unseen: before", "after", "constant", "random rotation"],
        lines(True, ("before", "after"), ("control_constant", "control_random_rotation")),
    )
    print(f"{CONTROLS}\n")
    curve = result["few_anchors"]
    rows = [[line["name"], *map(number, line["mean"])] for line in curve["curves"]]
    print_table("unseen classes by number of paired images", ["", *map(str, curve["n"])], rows)
    print(summary["verdict"]["sentence"], summary["verdict"]["action"])
