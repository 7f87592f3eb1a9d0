"""``congruence lab anchors``: choose which items to encode with both models."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from congruence._utils.atomic import atomic_path, check_output
from congruence.cli._base import check_new, check_plot, number, print_facts, print_json, refuse_options, say
from congruence.cli._options import Force, Json, Seed, argument, option
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.upgrade.anchors import Anchors


def command(
    file: str | None = argument(None, "The store, in the old model: a file, file:key, or a folder of parts."),
    n: int = option(..., "Number of anchors.", "--count", "-n"),
    out: str = option(
        ..., "File to write. .txt: one id, row number or text per line; else ids and vectors.", "--out", "-o"
    ),
    method: str = option("variance", "variance, facility, volume, kmeans++, leverage, random or balanced."),
    labels: str | None = option(None, "file:key with one class per row (balanced)."),
    ids: str | None = option(None, "Key, column or file of the ids; none for row numbers."),
    max_rows: int = option(10000, "Choose among a random sample of this many rows."),
    seed: Seed = 0,
    plot: str | None = option(None, "Plot the variance covered: .svg, .png or .pdf."),
    texts: bool = option(False, "Write texts included in congruence, for an index of images.", "--texts"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Choose the items to encode with both models, the most informative first.

    Example: congruence lab anchors library/old-photos.parquet -n 200 -o chosen.parquet
    """
    if texts == (file is not None):
        raise ParameterError(
            f"Got {'--texts and ' + repr(file) if texts else 'no FILE'}; expected either a file of vectors or --texts. "
            + ("Leave out one of them." if texts else "Pass the store's file, or --texts.")
        )
    check_output(out, force=force)  # checked before the work starts
    if file is None:
        needs_file = {"--method": method != "variance", "--labels": labels, "--ids": ids, "--plot": plot}
        refuse_options(needs_file, "with --texts, whose order is fixed")
        _write_texts(n, out, force, as_json)
        return
    from congruence.io import open_source, read_column
    from congruence.upgrade.anchors import check_anchors_output, choose_anchors

    check_anchors_output(out)
    source = open_source(file, ids=False if ids == "none" else ids)
    check_new(out, source, force=force)
    if plot is not None:
        check_plot(plot, source, force=force)
    anchors = choose_anchors(
        source, n, method, labels=None if labels is None else read_column(labels), max_rows=max_rows, random_state=seed
    )
    anchors.save(out, force=force)
    if plot is not None:
        from congruence.report.pictures import write_figure

        write_figure(plot, anchors.plot(), f"Anchors of {file}", force=force)
    fit_command = _fit_command(file, ids, anchors, out)
    if as_json:
        print_json({"store": file, "output": out, "plot": plot, "next": fit_command, **anchors.to_dict()})
    else:
        _print(file, anchors, out, fit_command)


def _fit_command(file: str, ids: str | None, anchors: Anchors, out: str) -> str | None:
    """Return the command that fits a map on these anchors once the other model has encoded them; None if rows have no
    ids to pair by.
    """
    if not out.lower().endswith(".txt"):
        return f"congruence fit {shlex.quote(out)} NEW -o map"
    if not anchors.has_ids:
        return None
    id_options = "" if ids is None else f" --ids {shlex.quote(f'{ids},id')}"
    return f"congruence fit {shlex.quote(file)} NEW{id_options} -o map"


def _print(file: str, anchors: Anchors, out: str, fit_command: str | None) -> None:
    drawn = "" if anchors.n_candidates == anchors.n_rows else f", chosen among {anchors.n_candidates:,}"
    left_out = [
        f"{count:,} {reason}"
        for count, reason in ((anchors.n_identical, "equal to another"), (anchors.n_zero, "all zeros"))
        if count
    ]
    covered, by_random = anchors.covered[-1], anchors.covered_by_random[-1]
    rows = [
        ["store", f"{anchors.n_rows:,} rows of {file}{drawn}"],
        *([["left out", ", ".join(left_out)]] if left_out else []),
        ["method", anchors.method],
        ["anchors", f"{len(anchors):,}, the most informative first"],
        ["variance they cover", f"{number(covered)} (as many random rows {number(by_random)})"],
        ["written to", out],
    ]
    print_facts("Anchors", rows)
    if fit_command is None:
        say(
            "Encode these rows' items with the new model. For congruence fit, write the anchors with their "
            f"vectors: -o {out[:-4]}.parquet."
        )
    else:
        new_ids = "the same ids" if anchors.has_ids else "their row numbers as ids"
        say(
            f"Encode these items with the new model into a file NEW, with {new_ids} (e.g. by congruence "
            "embed). Then run:"
        )
        say(f"  {fit_command}")
    if anchors.method not in ("random", "balanced"):
        say(
            "These anchors are not a random sample: they are easier to tell apart than other items. To certify "
            "the map, also encode random items (--method random), and run congruence check with --anchors "
            f"{shlex.quote(out)}, which scores only the other items."
        )


def _write_texts(n: int, out: str, force: bool, as_json: bool) -> None:
    """Write the first ``n`` texts included in the package."""
    from congruence.datasets import anchor_texts

    if not out.lower().endswith(".txt"):
        raise ParameterError(
            f"Got --out {out} with --texts; expected a .txt file, with one text per line.", "Pass --out texts.txt."
        )
    lines = anchor_texts(n)
    with atomic_path(out, force=force) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path = shlex.quote(out)
    commands = [
        f"congruence embed OLD_MODEL {path} -o old.parquet",
        f"congruence embed NEW_MODEL {path} -o new.parquet",
        "congruence fit old.parquet new.parquet --modality text --means image=STORE -o map",
    ]
    if as_json:
        print_json({"texts": len(lines), "output": out, "next": commands})
        return
    say(f"{len(lines):,} texts written to {out}. Encode them with both models' text towers, and fit:")
    for line in commands:
        say(f"  {line}")
