"""``congruence demo``: the paper's claim on the bundled sample, offline, in a few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from congruence.datasets import Bundle
    from congruence.embeddings import Embeddings
    from congruence.maps import OrthogonalMap


def command(
    out: Annotated[str, typer.Option("--out", "-o", help="Where to write the report.")] = "report.html",
    classes: Annotated[int, typer.Option(help="Classes whose images the map is fitted on.")] = 800,
    seed: Annotated[int, typer.Option(help="Chooses these classes.")] = 0,
    save_map: Annotated[str | None, typer.Option(help="Folder to save the map in.")] = None,
    report: Annotated[bool, typer.Option(help="Write the report.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Fit on images of some classes, carry texts, and measure on classes the map has never seen."""
    from congruence.cli._base import number, print_json, print_table, progress
    from congruence.datasets import load_sample
    from congruence.report import summarize, write_report
    from congruence.splits import Split

    sample = load_sample()
    with progress("fitting and measuring", 3, as_json) as advance:
        mapping = fit_on_images(sample, classes, seed)
        table = seen_and_unseen(sample, mapping)
        if advance:
            advance(1)
        closing = there_and_back(sample, mapping, Split.from_dict(mapping.scores_["holdout"]))
        if advance:
            advance(1)
        summary = summarize(mapping, sample, seed=seed)
        if save_map is not None:
            mapping.save(save_map)
        if report:
            write_report(out, summary, force=True)
        if advance:
            advance(1)
    if as_json:
        print_json(
            {
                "fitted_on_images_of": mapping.scores_["n_pairs"],
                "models_alone": sample.info["each_model_alone"],
                "table": table,
                "few_anchors": summary["few_anchors"],
                "there_and_back": closing,
                "commuting_overlap": summary["commuting"]["overlap"],
                "report": out if report else None,
            }
        )
        return
    for name, towers in sample.info["models"].items():
        alone = sample.info["each_model_alone"][name]
        print(
            f"{name}: {towers}; its own retrieval of {len(sample.source['image'])} captions from pictures: "
            + ", ".join(f"{alone[f'recall_at_{k}']:.3f} at {k}" for k in (1, 5, 10))
        )
    print(f"Pictures: {sample.info['images_of']}.\n")
    rows = [
        [
            line["measure"],
            *(number(line[part][k]) for part in ("seen", "unseen") for k in ("before", "after", "oracle")),
        ]
        for line in table
    ]
    print_table(
        f"fitted on the images of {mapping.scores_['n_pairs']} classes; texts carried by the same map",
        ["", "seen: before", "after", "oracle", "unseen: before", "after", "oracle"],
        rows,
    )
    curve = summary["few_anchors"]
    print_table(
        "unseen classes by number of anchor images",
        ["", *map(str, curve["n"])],
        [[line["name"], *map(number, line["mean"])] for line in curve["curves"]],
    )
    print_table(
        "there and back on unseen classes: cosine with the start",
        ["", "images", "texts"],
        [[line["path"], number(line["image"]), number(line["text"])] for line in closing],
    )
    print(summary["verdict"]["sentence"])
    if report:
        print(f"Report: {out}")


def fit_on_images(sample: Bundle, classes: int, seed: int) -> OrthogonalMap:
    """Fit on the images of some classes; of texts only means are used, those of the same classes."""
    import congruence
    from congruence.errors import ParameterError

    source, target = sample.source, sample.target
    n = len(source["image"])
    if not 2 <= classes < n:
        raise ParameterError(
            f"Got {classes} classes; expected 2 to {n - 1} of the sample's {n}. Pass --classes with such a number."
        )
    mapping: OrthogonalMap = congruence.fit(
        source["image"],
        target["image"],
        holdout=n - classes,
        seed=seed,
        means={"text": (source["text"], target["text"])},
        check=False,  # right by construction, and the check takes longer than the fit
    )
    return mapping


def seen_and_unseen(sample: Bundle, mapping: OrthogonalMap) -> list[dict[str, Any]]:
    """Measure before, after and oracle on classes the map was fitted on and on the others."""
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    split = Split.from_dict(mapping.scores_["holdout"])
    measures = {
        "image–image cosine": ("cosine", "aligned image", "target image"),
        "text–text cosine": ("cosine", "aligned text", "target text"),
        "text → its text, at 1": ("retrieval", "aligned text", "target text"),
        "carried image → target's text, at 1": ("zero_shot", "aligned image", "target text"),
        "target's image → carried text, at 1": ("zero_shot", "target image", "aligned text"),
    }
    parts, groups = {}, {}
    for name in ("seen", "unseen"):

        def cut(rows: Embeddings, unseen: bool = name == "unseen") -> Embeddings:
            return rows.take(split.held_out(rows.ids) == unseen)

        sides = [{kind: cut(rows) for kind, rows in sample.side(side).items()} for side in ("source", "target")]
        parts[name] = evaluate(mapping, *sides)
        groups[name] = {modality: _own_group(sample, mapping, modality, *sides) for modality in ("image", "text")}
    table = []
    for measure, key in measures.items():
        line: dict[str, Any] = {"measure": measure}
        for name, scores in parts.items():
            row = scores.get(*key)
            line[name] = {"before": row.before, "after": row.after, "oracle": row.target, "classes": row.n}
        table.append(line)
    for modality in ("image", "text"):
        measure = f"{modality} → another {modality} of its subgroup, at 1"
        table.append({"measure": measure, **{name: found[modality] for name, found in groups.items()}})
    return table


def _own_group(
    sample: Bundle,
    mapping: OrthogonalMap,
    modality: str,
    source: dict[str, Embeddings],
    target: dict[str, Embeddings],
) -> dict[str, Any]:
    """Share of items whose nearest other item in the target model belongs to their subgroup."""
    import numpy as np

    from congruence.metrics import class_retrieval

    X, Y = source[modality].vectors, target[modality].vectors
    labels = np.array([sample.labels[i] for i in source[modality].ids.tolist()])

    def found(queries: np.ndarray) -> float:
        return class_retrieval(queries, Y, labels, exclude_self=True)

    moved = mapping.for_modality(modality).transform(X)
    return {"before": found(X), "after": found(moved), "oracle": found(Y), "classes": len(X)}


def there_and_back(sample: Bundle, mapping: OrthogonalMap, split: Any) -> list[dict[str, Any]]:
    """Compare ways back: the inverse, a map fitted the other way, and one fitted on other anchors.

    The last is composition: two maps that share no anchor, one after the other, should be the identity.
    """
    import numpy as np

    from congruence.maps import OrthogonalMap
    from congruence.metrics import paired_cosine

    source, target = sample.source, sample.target
    seen = ~split.held_out(source["image"].ids)
    halves = np.flatnonzero(seen)[::2], np.flatnonzero(seen)[1::2]

    def fit(rows: np.ndarray, back: bool) -> OrthogonalMap:
        ours, theirs = (target, source) if back else (source, target)
        fitted = OrthogonalMap().fit(ours["image"].vectors[rows], theirs["image"].vectors[rows], modality="image")
        return fitted.recenter(
            ours["text"].vectors[rows].mean(0), theirs["text"].vectors[rows].mean(0), modality="text"
        )

    ways = {
        "its inverse": (mapping, mapping.inverse()),
        "a map fitted backwards on the same anchors": (mapping, fit(np.flatnonzero(seen), back=True)),
        "two maps that share no anchor": (fit(halves[0], back=False), fit(halves[1], back=True)),
    }
    lines = []
    for path, (there, back) in ways.items():
        line: dict[str, Any] = {"path": path}
        for modality in ("image", "text"):
            X = source[modality].vectors[~seen]
            moved = back.for_modality(modality).transform(there.for_modality(modality).transform(X))
            line[modality] = paired_cosine(X, moved)
        lines.append(line)
    return lines
