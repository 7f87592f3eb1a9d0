"""``congruence anchors``: choose which items to encode with both models."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from congruence.upgrade.anchors import Anchors

__all__ = ["command"]


def command(
    file: Annotated[
        str | None, typer.Argument(help="The store in the source model: a file, file:key, or a folder of parts.")
    ] = None,
    n: Annotated[int, typer.Option("--count", "-n", help="Number of anchors.")] = ...,  # type: ignore[assignment]
    out: Annotated[
        str,
        typer.Option("--out", "-o", help=".txt: one id, row number or text per line. Other suffixes: ids and vectors."),
    ] = ...,  # type: ignore[assignment]
    method: Annotated[
        str, typer.Option(help="How to choose: variance, facility, volume, kmeans++, leverage, random or balanced.")
    ] = "variance",
    labels: Annotated[str | None, typer.Option(help="file:key with one class per row (balanced).")] = None,
    ids: Annotated[str | None, typer.Option(help="Key, column or file of the ids; none for row numbers.")] = None,
    max_rows: Annotated[
        int, typer.Option(help="If the store is larger, choose among a random sample of this many rows.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    plot: Annotated[str | None, typer.Option(help="Plot the variance covered: .svg, .png or .pdf.")] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Instead of FILE: texts that come with congruence, for an index of images.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Choose the items to encode with both models, the most informative first."""
    from congruence._utils.atomic import check_output
    from congruence.cli._base import print_json
    from congruence.errors import ParameterError

    if texts == (file is not None):
        raise ParameterError(
            f"Got {'--texts and ' + repr(file) if texts else 'no FILE'}; expected either a file of vectors or --texts. "
            + ("Leave out one of them." if texts else "Pass the store's file, or --texts.")
        )
    check_output(out, force=force)  # checked before the work starts
    if file is None:
        given = {"method": method != "variance", "labels": labels, "ids": ids, "plot": plot}
        foreign = next((name for name, value in given.items() if value), None)
        if foreign is not None:
            raise ParameterError(
                f"Got --{foreign} with --texts, whose order is fixed; expected only --count and --out. Leave out --{foreign}."
            )
        _write_texts(n, out, force, as_json)
        return
    from congruence.stores import check_output_place, open_source, read_column
    from congruence.upgrade.anchors import check_anchors_output, choose_anchors

    check_anchors_output(out)
    source = open_source(file, ids=False if ids == "none" else ids)
    check_output_place(source, out)
    if plot is not None:
        from congruence.report.pictures import check_suffix

        check_suffix(plot)
        check_output(plot, force=force)
        check_output_place(source, plot)
    found = choose_anchors(
        source,
        n,
        method,
        labels=None if labels is None else read_column(labels),
        max_rows=max_rows,
        random_state=seed,
    )
    found.save(out, force=force)
    if plot is not None:
        from congruence.report.pictures import write_figure

        write_figure(plot, found.plot().figure, f"Anchors of {file}", force=force)  # type: ignore[arg-type]
    following = _fit_command(file, ids, found, out)
    if as_json:
        print_json({"store": file, "output": out, "plot": plot, "next": following, **found.to_dict()})
    else:
        _print(file, found, out, following)


def _fit_command(file: str, ids: str | None, found: Anchors, out: str) -> str | None:
    """Return the command that fits a map on these anchors once the other model has encoded them, or None."""
    if not out.lower().endswith(".txt"):
        return f"congruence fit {shlex.quote(out)} NEW -o map"
    if not found.has_ids:
        return None  # nothing would identify the store's rows
    named = "" if ids is None else f" --ids {shlex.quote(ids)} --target-ids id"
    return f"congruence fit {shlex.quote(file)} NEW{named} -o map"


def _print(file: str, found: Anchors, out: str, following: str | None) -> None:
    from congruence.cli._base import number, print_table, say

    drawn = "" if found.n_candidates == found.n_rows else f", chosen among {found.n_candidates:,}"
    left_out = [
        f"{count:,} {what}"
        for count, what in ((found.n_identical, "equal to another"), (found.n_zero, "all zeros"))
        if count
    ]
    rows = [
        ["store", f"{found.n_rows:,} rows of {file}{drawn}"],
        *([["left out", ", ".join(left_out)]] if left_out else []),
        ["method", found.method],
        ["anchors", f"{len(found):,}, the most informative first"],
        ["variance they cover", f"{number(found.covered[-1])} (in random order {number(found.covered_by_random[-1])})"],
        ["written to", out],
    ]
    print_table("Anchors", ["", ""], rows)
    if following is None:
        say(
            f"Encode these rows' items with the new model. For congruence fit, write the anchors with their vectors: -o {out[:-4]}.parquet."
        )
    else:
        named = "the same ids" if found.has_ids else "their row numbers as ids"
        say(f"Encode these items with the new model, under {named}, into a file NEW (congruence embed can). Then run:")
        say(f"  {following}")
    if found.method not in ("random", "balanced"):
        say(
            "Chosen anchors are easier to tell apart than the other items. To certify the map, also encode some random items (--method random), and run "
            f"congruence certify with --anchors {shlex.quote(out)}, which scores only the others."
        )


def _write_texts(n: int, out: str, force: bool, as_json: bool) -> None:
    """Write the first of the texts that are included in the package."""
    from congruence._utils.atomic import atomic_path
    from congruence.cli._base import print_json, say
    from congruence.datasets import anchor_texts
    from congruence.errors import ParameterError

    if not out.lower().endswith(".txt"):
        raise ParameterError(
            f"Got --out {out} with --texts; expected a .txt file, with one text per line. Pass --out texts.txt."
        )
    lines = anchor_texts(n)
    with atomic_path(out, force=force) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    place = shlex.quote(out)
    following = [
        f"congruence embed OLD_MODEL {place} -o old.parquet",
        f"congruence embed NEW_MODEL {place} -o new.parquet",
        "congruence fit old.parquet new.parquet --modality text --means image=STORE -o map",
    ]
    if as_json:
        print_json({"texts": len(lines), "output": out, "next": following})
        return
    say(f"{len(lines):,} texts written to {out}. Encode them with both models' text towers, and fit:")
    for line in following:
        say(f"  {line}")
