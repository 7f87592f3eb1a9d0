"""``congruence train jam``: from images, captions and wrong captions to a pair of autoencoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congruence.embeddings import Space


def train_jam(
    pairs: str | None,
    negatives: str | None,
    groups: str | None,
    spaces: tuple[Space, Space],
    parameters: dict[str, Any],
    out: str,
    checkpoint: str | None,
    report: str | None,
    *,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Read the files, train on 70 % of the images, choose by 15 %, measure on the rest, save, and write a report if asked."""
    from dataclasses import replace

    from congruence.cli._base import checkpoint_folder, print_json, read
    from congruence.embeddings import Embeddings, Space
    from congruence.errors import ParameterError
    from congruence.stores import read_column
    from congruence.train import JAM, split_by_group
    from congruence.train.captions import read_captions

    files = (pairs or "").split(",")
    if len(files) != 2 or not all(files):
        raise ParameterError(
            f"Got --pairs {pairs!r}; expected two files, images and captions. Pass --pairs IMAGES,CAPTIONS."
        )
    known = JAM().get_params()
    for name in parameters:
        if name not in known:
            raise ParameterError(
                f"Got --set {name} for jam; expected one of {', '.join(known)}. Pass --set with one of these names."
            )
    X, Y = (read(file, None, space) for file, space in zip(files, spaces, strict=True))
    wrong = None if negatives is None else read(negatives, None, Space())
    if not (X.has_ids and Y.has_ids):  # then position says what belongs together
        X, Y = (Embeddings(side.vectors, space=side.space) for side in (X, Y))
    data = read_captions(X, Y, wrong, None if groups is None else read_column(groups))
    method = JAM(**parameters)
    with checkpoint_folder(out, checkpoint) as place:
        mapping = method.fit(
            data.source,
            data.target,
            data.negatives,
            groups=data.groups,
            checkpoint=place / "jam",
            progress=not quiet,
        )
        mapping.source_space_ = replace(X.space, dim=X.dim)
        mapping.target_space_ = replace(Y.space, dim=Y.dim)
        mapping.scores_ |= _measure(mapping, data.take(split_by_group(data.groups, seed=method.seed)[2]))
        mapping.save(out, force=force)
    if report is not None:
        from congruence.report import summarize_training, write_training

        page = summarize_training(mapping, data.source, data.target, data.negatives, groups=data.groups)
        write_training(report, page, force=force)
    if as_json:
        print_json({"output": out, **mapping.describe()})
    else:
        _print(mapping, out)


def _measure(mapping: Any, test: Any) -> dict[str, Any]:
    """Return retrieval among the captions of the test images, and how often an image is nearer its caption than the wrong ones."""
    import numpy as np

    from congruence.embeddings import normalize_rows
    from congruence.train.retrieval import once, recalls

    v, t = mapping.transform(test.source), mapping.transform_target(test.target)
    scores: dict[str, Any] = {"test_pairs": len(test)}
    images, texts = (once(rows, test.groups) for rows in (test.source, test.target))
    found = recalls(v[images], t[texts], test.groups[images], test.groups[texts])
    scores |= {f"test_{name}": score for name, score in found.items()}
    if test.negatives is not None:
        n, k, width = test.negatives.shape
        others = normalize_rows(mapping.transform_target(test.negatives.reshape(n * k, width))).reshape(n, k, -1)
        image = normalize_rows(v)
        right = np.einsum("nd,nd->n", image, normalize_rows(t))
        nearest = np.einsum("nd,nkd->nk", image, others).max(axis=1)
        scores["test_binary_recall"] = float(np.mean(right > nearest) + 0.5 * np.mean(right == nearest))
    return scores


def _print(mapping: Any, out: str) -> None:
    from congruence.cli._base import number, print_table

    facts, scores = mapping.facts_, mapping.scores_
    rows = [
        ["source", str(mapping.source_space_)],
        ["target", str(mapping.target_space_)],
        ["pairs to train on, choose by, test on", ", ".join(str(count) for count in facts["split"].values())],
        ["wrong captions a pair", str(facts["negatives_each"])],
        ["steps", f"{facts['steps']}, best after {facts['best_step']}"],
    ]
    for side in ("source", "target"):
        rows.append([f"{side} variance not reconstructed", number(facts["reconstruction_error"][side])])
    for k in (1, 5, 10):
        if f"test_mean@{k}" in scores:
            forth, back = (scores[f"test_{way}@{k}"] for way in ("source_to_target", "target_to_source"))
            rows.append([f"recall at {k}, source → target, and back", f"{number(forth)}, {number(back)}"])
    if "test_binary_recall" in scores:
        rows.append(["caption before its wrong ones", number(scores["test_binary_recall"])])
    rows.append(["written to", out])
    print_table("jam", ["", ""], rows)
