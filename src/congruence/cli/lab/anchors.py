"""``congruence lab anchors``: choose which items to encode with both models."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from congruence._utils.atomic import atomic_path
from congruence.cli._input import column, refuse_options
from congruence.cli._options import Force, Json, Seed, argument, option
from congruence.cli._output import check_out, number, print_facts, print_json, say
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.upgrade.anchors import Anchors


def anchors(
    file: str | None = argument(None, "The store, in the old model: a file, file:key, or a folder of parts."),
    n: int = option(..., "Number of items.", "--count", "-n"),
    out: str = option(..., "File to write: ids, row numbers or texts (.txt), or ids and vectors.", "--out", "-o"),
    method: str = option("variance", "variance, facility, volume, kmeans++, leverage, random or balanced."),
    labels: str | None = option(None, "file:key with one class per row (balanced)."),
    ids: str | None = option(None, "Key, column or file of the ids; none for row numbers."),
    max_rows: int = option(10000, "Choose among a random sample of this many rows."),
    seed: Seed = 0,
    plot: str | None = option(None, "Plot the variance that they span: .svg, .png or .pdf."),
    texts: bool = option(False, "Write texts included in congruence, for an index of images.", "--texts"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Choose the items to encode with both models, the most informative first.

    Example: congruence lab anchors library/old-photos.parquet -n 200 -o chosen.parquet
    """
    if texts == (file is not None):
        got, fix = ("no FILE", "Pass the store's file, or --texts.")
        if texts:
            got, fix = f"--texts and {file!r}", "Leave out one of them."
        raise ParameterError(f"Got {got}; expected either a file of vectors or --texts.", fix)
    if file is None:
        needs_file = {"--method": method != "variance", "--labels": labels, "--ids": ids, "--plot": plot}
        refuse_options(needs_file, "with --texts, whose order is fixed")
        _write_texts(n, out, force, as_json)
        return
    from congruence.io import open_source
    from congruence.upgrade.anchors import check_anchors_output, choose_anchors

    check_anchors_output(out)
    source = open_source(file, ids=False if ids == "none" else ids)
    check_out(out, source, force=force)
    check_out(plot, source, force=force, kind="plot")
    classes = None if labels is None else column(labels, "--labels")
    chosen = choose_anchors(source, n, method, labels=classes, max_rows=max_rows, random_state=seed)
    chosen.save(out, force=force)
    if plot is not None:
        from congruence.report.pictures import write_figure

        write_figure(plot, chosen.plot(), f"Anchors of {file}", force=force)
    following = None  # without ids, a list of row numbers cannot be paired
    if not out.lower().endswith(".txt"):
        following = f"congruence fit {shlex.quote(out)} NEW -o map"
    elif chosen.has_ids:
        id_options = "" if ids is None else f" --ids {shlex.quote(f'{ids},id')}"
        following = f"congruence fit {shlex.quote(file)} NEW{id_options} -o map"
    if as_json:
        print_json({"store": file, "output": out, "plot": plot, "next": following, **chosen.to_dict()})
    else:
        _print(file, chosen, out, following)


def _print(file: str, chosen: Anchors, out: str, following: str | None) -> None:
    drawn = "" if chosen.n_candidates == chosen.n_rows else f", chosen among {chosen.n_candidates:,}"
    left_out = {"equal to another": chosen.n_identical, "all zeros": chosen.n_zero}
    covered = f"{number(chosen.covered[-1])} (as many random rows {number(chosen.covered_by_random[-1])})"
    order = "in random order" if chosen.method == "random" else "the most informative first"
    facts = {
        "store": f"{chosen.n_rows:,} rows of {file}{drawn}",
        "left out": ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count) or None,
        "method": chosen.method,
        "items": f"{len(chosen):,}, {order}",
        "variance they span": covered,
        "written to": out,
    }
    print_facts("Items to encode", facts)
    if following is None:
        vectors = f"For congruence fit, write the items with their vectors: -o {out[:-4]}.parquet."
        say(f"Encode these rows' items with the new model. {vectors}")
    else:
        ids = "the same ids" if chosen.has_ids else "their row numbers as ids"
        say(f"Encode these items with the new model into a file NEW, with {ids} (e.g. by congruence embed). Then run:")
        say(f"  {following}")
    if chosen.method not in ("random", "balanced"):
        say(
            "These items are not a random sample: they are easier to tell apart than other items. To certify "
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
    embed = [
        f"congruence embed {model}_MODEL {shlex.quote(out)} -o {model.lower()}.parquet" for model in ("OLD", "NEW")
    ]
    following = [*embed, "congruence fit old.parquet new.parquet --modality text --means image=STORE -o map"]
    if as_json:
        print_json({"texts": len(lines), "output": out, "next": following})
        return
    say(f"{len(lines):,} texts written to {out}. Encode them with both models' text towers, and fit:")
    say(*(f"  {line}" for line in following))
