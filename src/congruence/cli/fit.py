"""``congruence fit``: fit a map from two files of anchors and save it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from congruence._utils.display import visible
from congruence.cli._base import check_both, number, print_facts, print_json, read, read_groups, refuse_options
from congruence.cli._engines import EngineOptions
from congruence.cli._options import AllowZeroRows, Force, Json, Seed, argument, option, with_groups
from congruence.cli._scores import held_out_rows
from congruence.errors import IdError, InputError, ParameterError, UnpairedError

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings, Space
    from congruence.maps import Map


@dataclass(frozen=True)
class MethodOptions:
    """The method, and its parameters."""

    method: str = option("auto", "auto (chosen by cross-validation), orthogonal, linear, mlp, procrustes or cca.")
    center: bool = option(True, "Map the source mean to the target mean, or subtract both (procrustes, cca).")
    shrinkage: str | None = option(None, "auto, full (as in the paper), covered, wiener, soft or cv (orthogonal).")
    shrinkage_strength: float | None = option(None, "Strength of the wiener and soft shrinkage (orthogonal).")
    allow_reflection: bool = option(
        True, "Allow reflections, or only determinant 1 (orthogonal).", "--allow-reflection/--no-reflection"
    )
    ridge: str | None = option(None, "Ridge penalty (linear, cca), or cv, to choose it by cross-validation (linear).")
    n_components: int | None = option(None, "Width of the joint space (procrustes, cca).")

    def parameters(self, method: str) -> dict[str, Any]:
        """Return the parameters that were given; refuse those that the method does not have."""
        from congruence._utils.validation import check_choice
        from congruence.maps import METHODS

        check_choice(method, ("auto", *METHODS), "method")
        given = {name: value for name, value in vars(self).items() if name != "method" and value is not None}
        given = {name: value for name, value in given.items() if value is not True}  # both switches are on by default
        if self.ridge is not None and self.ridge != "cv":
            try:
                given["ridge"] = float(self.ridge)
            except ValueError:
                raise ParameterError(
                    f"Got --ridge {self.ridge!r}; expected a number or cv.",
                    "Pass --ridge 1.0, for example, or --ridge cv.",
                ) from None
        if method == "mlp":
            given["verbose"] = True
        defaults = METHODS["orthogonal" if method == "auto" else method]().get_params()
        if unknown := [name for name in given if name not in defaults]:
            off = {"center": "--no-center", "allow_reflection": "--no-reflection"}
            flag = off.get(unknown[0], f"--{unknown[0].replace('_', '-')}")
            raise ParameterError(
                f"Got {flag} for method {method!r}, which has no such option; expected options of that method.",
                "Leave it out, or pass another --method.",
            )
        return given


@with_groups
def command(
    source: str = argument(..., "Anchors in the source model: a file, or file:key."),
    target: str = argument(..., "The same items in the target model."),
    *,
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    how: MethodOptions,
    single_modality: bool = option(False, "Only the anchors' modality will be mapped (auto).", "--single-modality"),
    modality: str | None = option(None, "Modality of the anchors: image, text, etc."),
    target_modality: str | None = option(None, "Modality of the target's rows, if it differs (procrustes, cca)."),
    means: list[str] | None = option(
        None, "MODALITY=SOURCE[,TARGET]: rows of which only the means are used. May be repeated."
    ),
    unpaired_source: str | None = option(
        None, "Unpaired rows of the source; matches in --unpaired-target refine the map."
    ),
    unpaired_target: str | None = option(None, "Unpaired rows of the target, in any order; they may be other items."),
    no_pairs: bool = option(False, "The files are not paired: search for pairs, and report the outcome.", "--no-pairs"),
    ids: str | None = option(
        None, "Key, column or file of the ids in both files, by default id, ids or names; none: by position."
    ),
    target_ids: str | None = option(None, "Key, column or file of the target's ids, if different."),
    holdout: float = option(0, "Pairs to hold out for evaluation: a share below 1, or a number of pairs."),
    seed: Seed = 0,
    groups: str | None = option(
        None, "Pairs to hold out together: file:key, or none. By default, identical source rows."
    ),
    source_model: str | None = option(None, "Name of the source model."),
    target_model: str | None = option(None, "Name of the target model."),
    source_revision: str | None = option(None, "Revision of the source model."),
    target_revision: str | None = option(None, "Revision of the target model."),
    check: bool = option(True, "Check that the anchors look paired."),
    strict: bool = option(False, "Exit with code 2 if the pairing check fails.", "--strict"),
    missing: str = option("drop", "What to do with ids found in only one file: drop or error."),
    allow_zero_rows: AllowZeroRows = False,
    runner: EngineOptions,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a map between two embedding spaces on paired anchors."""
    import congruence
    from congruence.embeddings import Space
    from congruence.persist import check_map_output

    check_map_output(out, force=force)  # checked before the work starts
    spaces = (
        Space(source_model, source_revision, modality),
        Space(target_model, target_revision, target_modality or modality),
    )
    if no_pairs:
        needs_pairs = {
            "--method": how.method not in ("auto", "orthogonal"),
            "--holdout": holdout,
            "--means": means,
            "--ids": ids,
            "--unpaired-source": unpaired_source,
            "--unpaired-target": unpaired_target,
        }
        refuse_options(needs_pairs, "together with --no-pairs, which only takes options of an orthogonal map")
        options = {**how.parameters("orthogonal"), "random_state": seed}
        files = [read(*given, allow_zero_rows) for given in ((source, False, spaces[0]), (target, False, spaces[1]))]
        _fit_unpaired(files, modality, options, out, strict=strict, force=force, as_json=as_json)
        return
    parameters = how.parameters(how.method)
    if runner.by_fragments(source, target):
        from congruence.engines import fit_dataset, open_pairs

        needs_rows = {
            "--holdout": holdout,
            "--means": means,
            "--unpaired-source": unpaired_source,
            "--unpaired-target": unpaired_target,
            "--groups": groups,
            "--target-modality": target_modality,
            "--single-modality": single_modality,
        }
        refuse_options(
            needs_rows, "for data sets that are read once, by fragments", "Leave it out, or fit on local files."
        )
        columns: list[str | bool | None] = [False if column == "none" else column for column in (ids, target_ids)]
        pairs = open_pairs(
            source, target, ids=columns[0], target_ids=columns[1], spaces=spaces, allow_zero_rows=allow_zero_rows
        )
        parameters |= {"engine": runner.open(), "modality": modality, "check": check, "strict": strict}
        mapping = fit_dataset(pairs, how.method, **parameters)
        mapping.save(out, force=force)
        _report(mapping, out, "fragments", as_json)
        return
    anchors, paired_by = read_anchors((source, target), (ids, target_ids or ids), spaces, allow_zero_rows)
    others = {}
    for entry in means or []:
        name, sides = _parse_means(entry)
        # Held-out items are left out of the means too, so their rows need the same ids as the anchors.
        id_columns = [find_ids(spec)[1] if ids is None and paired_by != "position" else ids for spec in sides]
        rows = [
            read(spec, False if column == "none" else column, Space(modality=name), allow_zero_rows)
            for spec, column in zip(sides, id_columns, strict=True)
        ]
        others[name] = (rows[0], rows[1] if len(rows) > 1 else None)
    mapping = congruence.fit(
        *anchors,
        how.method,
        modality=None if target_modality else modality,
        means=others or None,
        unpaired=_read_pools(unpaired_source, unpaired_target, None if paired_by == "position" else ids, modality),
        holdout=holdout,
        random_state=seed,
        groups=read_groups(groups),
        check=check,
        strict=strict,
        missing=missing,
        single_modality=single_modality,
        **parameters,
    )
    mapping.save(out, force=force)
    _report(mapping, out, paired_by, as_json)


def _parse_means(entry: str) -> tuple[str, list[str]]:
    """Return the modality and the one or two files of an argument of ``--means``."""
    name, equals, files = entry.partition("=")
    sides = files.split(",")
    if not equals or not all(sides) or len(sides) > 2:
        raise ParameterError(
            f"Got --means {entry!r}; expected MODALITY=SOURCE or MODALITY=SOURCE,TARGET.",
            "Pass --means text=texts.npz:key, for example.",
        )
    return name, sides


def _read_pools(
    source: str | None, target: str | None, ids: str | None, modality: str | None
) -> tuple[Embeddings, Embeddings] | None:
    """Read both pools, with ids so that held-out items can be left out of them; None if there are no pools."""
    from congruence.embeddings import Space

    check_both("--unpaired-source", "--unpaired-target", source, target)
    if source is None or target is None:
        return None

    def pool(spec: str) -> Embeddings:
        column = find_ids(spec)[1] if ids is None else False if ids == "none" else ids
        return read(spec, column, Space(modality=modality))

    return pool(source), pool(target)


def _fit_unpaired(
    sides: list[Embeddings],
    modality: str | None,
    options: dict[str, Any],
    out: str,
    *,
    strict: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Fit a map without pairs, save it, and print the result; with ``strict``, raise UnpairedError if the search
    failed.
    """
    from congruence import UnpairedMap
    from congruence.maps.evidence import alignment_rows

    mapping = UnpairedMap(**options).fit(sides[0].vectors, sides[1].vectors, modality)
    alignment = mapping.alignment_
    if strict and not alignment.found:
        raise UnpairedError(
            "Got files that could not be aligned without pairs; expected restarts of the search to agree. "
            f"{alignment.sentence} Pass paired files, and leave out --no-pairs."
        )
    mapping.source_space_, mapping.target_space_ = (replace(side.space, modality=modality) for side in sides)
    mapping.save(out, force=force)
    if as_json:
        print_json({"output": out, "paired_by": "search", **mapping.describe()})
        return
    rows = [
        ["source", str(mapping.source_space_)],
        ["target", str(mapping.target_space_)],
        *alignment_rows(alignment.to_dict()),
        ["written to", out],
    ]
    print_facts("UnpairedMap", rows)


def _report(mapping: Map, out: str, paired_by: str, as_json: bool) -> None:
    from congruence.maps import HeadsMap

    if as_json:
        print_json({"output": out, "paired_by": paired_by, **mapping.describe()})
        return
    facts, scores = mapping.facts_, mapping.scores_
    rows = [
        ["source", str(mapping.source_space_)],
        ["target", str(mapping.target_space_)],
        ["pairs", str(facts["n_pairs"])],
        ["paired by", paired_by],
    ]
    if "choice" in scores:
        from congruence.maps.evidence import choice_rows

        rows += choice_rows(scores["choice"])
    if isinstance(mapping, HeadsMap):
        rows.append(["width of the joint space", str(mapping.d_out)])
    if "unpaired_source" in scores:
        counts = f"{scores['unpaired_source']} only in the source, {scores['unpaired_target']} only in the target"
        rows.append(["left out", counts])
    if "refinement" in scores:
        from congruence.maps.evidence import refinement_rows

        rows += refinement_rows(scores["refinement"])
    if "rank" in facts and "directions" in facts:
        rows.append(["directions that the anchors cover", f"{facts['rank']} of {facts['directions']}"])
    if "alignment" in facts:
        rows.append(["alignment of the anchors", number(facts["alignment"])])
    rows += held_out_rows(scores)
    if "pairing" in scores:
        state = scores["pairing"]["state"]
        answers = {"paired": "yes", "not paired": "NO", "too few": "too few pairs to tell"}
        rows.append(["anchors look paired", answers.get(state, state)])
    rows.append(["written to", out])
    print_facts(type(mapping).__name__, rows)


def read_anchors(
    specs: tuple[str, str], ids: tuple[str | None, str | None], spaces: tuple[Space, Space], allow_zero_rows: bool
) -> tuple[tuple[Embeddings, Embeddings], str]:
    """Read both files, with ids if they were named or if both files have a column with a usual name.

    ``specs``: source and target, as ``file`` or ``file:key``; ``ids``: where the ids are; ``none`` for pairing by
    position, None to look for ``id``, ``ids`` or ``names``. ``paired_by``: for the report: ``id``, with the names of
    the columns if known, or ``position``.
    """
    automatic = ids == (None, None)
    columns = _default_columns(specs) if automatic else tuple(False if "none" in ids else name for name in ids)
    source, target = (
        read(spec, column, space, allow_zero_rows) for spec, column, space in zip(specs, columns, spaces, strict=True)
    )
    if not (source.has_ids and target.has_ids):
        if len(source) != len(target):
            raise InputError(_no_ids_message(specs, (len(source), len(target))))
        return (source, target), "position"
    if automatic:
        _compare_ids(specs, source, target)
    names = list(dict.fromkeys(name for name in columns if isinstance(name, str)))
    return (source, target), f"id ({', '.join(names)})" if names else "id"


def find_ids(spec: str) -> tuple[bool, str | None]:
    """Return whether a file has ids, and the column they are in unless it is read by default."""
    from congruence.io import open_source, parse_spec
    from congruence.io.id_columns import usual_id_column

    source = open_source(spec)
    name = None if source.has_ids else usual_id_column(*parse_spec(spec), source.n)
    return source.has_ids or name is not None, name


def _default_columns(specs: tuple[str, str]) -> tuple[str | None, str | None]:
    """Return the columns to read ids from; None for the default, or for both files if one of them has no ids."""
    from congruence.io import parse_spec
    from congruence.io.id_columns import id_fault

    columns: list[str | None] = []
    for spec in specs:
        has_ids, name = find_ids(spec)
        if not has_ids:
            return None, None
        columns.append(name)
    for spec, name in zip(specs, columns, strict=True):
        fault = None if name is None else id_fault(parse_spec(spec)[0], name)
        if fault is not None:
            print(
                f"warning: column {visible(str(name))} of {visible(spec)} is not used to pair by id: {fault}. "
                "Pass --ids COLUMN for another one.",
                file=sys.stderr,
            )
            return None, None
    return columns[0], columns[1]


def _no_ids_message(specs: tuple[str, str], rows: tuple[int, int]) -> str:
    """Return the message for files of different lengths without ids; it lists the columns that could hold ids."""
    from congruence.io import parse_spec
    from congruence.io.id_columns import id_columns

    candidates = [id_columns(*parse_spec(spec), n) for spec, n in zip(specs, rows, strict=True)]
    got = (
        f"Got {rows[0]} rows in {specs[0]} and {rows[1]} in {specs[1]}, and no ids on both sides; expected the "
        "same number of rows, or ids to pair them by. "
    )
    listed = "; ".join(f"{spec}: {', '.join(names) or 'none'}" for spec, names in zip(specs, candidates, strict=True))
    if not all(candidates):
        return (
            f"{got}Pass --ids FILE and --target-ids FILE, files with one id per row, or --ids COLUMN if the ids "
            f"are in a column (columns that could hold ids in {listed})."
        )
    target = "" if set(candidates[0]) & set(candidates[1]) else " and --target-ids COLUMN"
    return f"{got}Pass --ids COLUMN{target} (columns that could hold ids in {listed})."


def _compare_ids(specs: tuple[str, str], source: Embeddings, target: Embeddings) -> None:
    """Print a warning if the ids of files of equal length differ in some rows.

    Raises IdError if they have none in common.
    """
    from congruence._utils.ids import is_in
    from congruence._utils.validation import shorten

    common = int(is_in(source.ids, target.ids).sum())
    most = max(len(source), len(target))
    if common == 0:
        raise IdError(
            f"Got ids in {specs[0]} ({shorten(str(source.ids[0]))}, …) and {specs[1]} "
            f"({shorten(str(target.ids[0]))}, …) that differ in {most} of {most} rows; expected the same items "
            "on both sides.",
            "Pass --ids COLUMN for others, or --ids none to pair by position.",
        )
    # If the lengths differ, the report says how many rows were left out.
    if common < most and len(source) == len(target):
        print(
            f"warning: ids of {visible(specs[0])} and {visible(specs[1])} differ in {most - common} of {most} "
            f"rows; the other {common} are paired by id. Pass --missing error to refuse such files, or --ids none "
            "to pair by position.",
            file=sys.stderr,
        )
