"""``congruence fit``: fit a map from two files of anchors and save it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from congruence._utils.display import visible
from congruence.cli._base import ids_of, number, print_facts, print_json, read, read_groups, refuse_options, two_sides
from congruence.cli._engines import RAY, Engine, EngineOptions
from congruence.cli._options import Force, Ids, Json, Seed, argument, option, settable, with_groups
from congruence.cli._scores import held_out_rows
from congruence.cli._sides import check_sides, placed
from congruence.errors import IdError, InputError, ParameterError, UnpairedError

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings, Space
    from congruence.maps import Map


#: Parameters of the methods, and further ones of ``congruence.fit``, for ``--set``.
METHOD = {
    **{"center": True, "shrinkage": str, "shrinkage_strength": float, "allow_reflection": True},
    **{"ridge": str, "n_components": int},
}
FIT = {"check": True, "strict": False, "missing": "drop", "groups": str}
REALIGN = {"realign": str}

#: What the files say less often than the user.
SPACES = {"old_model": str, "new_model": str, "old_revision": str, "new_revision": str, "new_modality": str}


def check_parameters(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method, taken out of the settings; refuse those that it does not have."""
    from congruence._utils.validation import check_choice
    from congruence.maps import METHODS

    check_choice(method, ("auto", *METHODS), "method")
    given = {name: settings.pop(name) for name in METHOD if name in settings}
    if given.get("ridge", "cv") != "cv":
        try:
            given["ridge"] = float(given["ridge"])
        except ValueError:
            raise ParameterError(
                f"Got --set ridge={given['ridge']}; expected a number or cv.", "Pass --set ridge=1.0, for example."
            ) from None
    known = METHODS["orthogonal" if method == "auto" else method]().get_params()
    if unknown := [name for name in given if name not in known]:
        raise ParameterError(
            f"Got --set {unknown[0]} for method {method!r}, which has no such option; expected options of that method.",
            "Leave it out, or pass another --method.",
        )
    return {**given, "verbose": True} if method == "mlp" else given


@with_groups
def command(
    old: str = argument(..., "Items in the old model: a file, or file:key."),
    new: str = argument(..., "The same items in the new model."),
    *,
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    method: str = option("auto", "auto (chosen by cross-validation), orthogonal, linear, mlp, procrustes or cca."),
    modality: str | None = option(None, "Modality of the items: image, text, etc."),
    single_modality: bool = option(False, "Only this modality will be mapped (auto).", "--single-modality"),
    means: list[str] | None = option(
        None, "MODALITY=OLD[,NEW]: rows of which only the means are used. May be repeated."
    ),
    queries: list[str] | None = option(None, "Modality of queries that will search. May be repeated."),
    unpaired: str | None = option(None, "OLD,NEW: unpaired rows in any order, whose matches refine the map."),
    no_pairs: bool = option(False, "The files are not paired: search for pairs, and report the outcome.", "--no-pairs"),
    ids: Ids = None,
    holdout: float = option(0, "Pairs to hold out for evaluation: a share below 1, or a number of pairs."),
    engine: Engine = "local",
    settings: dict[str, Any] = settable(**METHOD, **FIT, **REALIGN, **SPACES, allow_zero_rows=False, **RAY),
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a map from an old model's vectors to a new model's, on items that both have encoded.

    Example: congruence fit library/old-texts.parquet library/new-texts.parquet --means
    image=library/old-photos.parquet -o map
    """
    import congruence
    from congruence.embeddings import Space
    from congruence.persist import check_map_output

    check_map_output(out, force=force)  # checked before the work starts
    runner = EngineOptions.of(engine, settings)
    named = {name: settings.pop(name) for name in SPACES if name in settings}
    new_modality, allow_zero_rows = named.get("new_modality"), settings.pop("allow_zero_rows", False)
    spaces = (
        Space(named.get("old_model"), named.get("old_revision"), modality),
        Space(named.get("new_model"), named.get("new_revision"), new_modality or modality),
    )
    if no_pairs:
        needs_pairs = {
            "--method": method not in ("auto", "orthogonal"),
            "--holdout": holdout,
            "--means": means,
            "--queries": queries,
            "--ids": ids,
            "--unpaired": unpaired,
        }
        refuse_options(needs_pairs, "together with --no-pairs, which only takes options of an orthogonal map")
        options = {**check_parameters("orthogonal", settings), "random_state": seed}
        files = [read(*given, allow_zero_rows) for given in ((old, False, spaces[0]), (new, False, spaces[1]))]
        mapping = _fit_unpaired(files, modality, options, strict=settings.get("strict", False))
        mapping.save(out, force=force)
        _report(mapping, old, new, out, "search", as_json)
        return
    parameters = check_parameters(method, settings)
    if runner.by_fragments(old, new):
        from congruence.engines import fit_dataset, open_pairs

        needs_rows = {
            "--holdout": holdout,
            "--means": means,
            "--unpaired": unpaired,
            "--set groups": settings.get("groups"),
            "--set realign": settings.get("realign"),
            "--set new_modality": new_modality,
            "--single-modality": single_modality,
        }
        refuse_options(
            needs_rows, "for data sets that are read once, by fragments", "Leave it out, or fit on local files."
        )
        columns: list[str | bool | None] = [False if column == "none" else column for column in ids_of(ids)]
        pairs = open_pairs(
            old, new, ids=columns[0], target_ids=columns[1], spaces=spaces, allow_zero_rows=allow_zero_rows
        )
        parameters |= {name: settings[name] for name in ("check", "strict") if name in settings}
        mapping = fit_dataset(
            pairs, method, engine=runner.open(), modality=modality, queries=queries or None, **parameters
        )
        mapping.save(out, force=force)
        _report(mapping, old, new, out, "fragments", as_json)
        return
    anchors, paired_by = read_anchors((old, new), ids, spaces, allow_zero_rows)
    others, given = {}, [placed((old, new), anchors)]
    for entry in means or []:
        name, sides = _parse_means(entry)
        # Held-out items are left out of the means too, so their rows need the same ids as the anchors.
        id_columns = [
            find_ids(spec)[1] if ids is None and paired_by != "position" else column
            for spec, column in zip(sides, ids_of(ids), strict=False)
        ]
        rows = [
            read(spec, False if column == "none" else column, Space(modality=name), allow_zero_rows)
            for spec, column in zip(sides, id_columns, strict=True)
        ]
        others[name] = (rows[0], rows[1] if len(rows) > 1 else None)
        given.append(placed(sides, others[name]))
    pools = _read_pools(unpaired, None if paired_by == "position" else ids, modality)
    if pools is not None:
        given.append(placed(two_sides(unpaired, "--unpaired") or (), pools))
    check_sides(*given)
    realign = settings.pop("realign", None)
    if realign is not None:
        _realign(anchors, (old, new), realign, force=force)
    mapping = congruence.fit(
        anchors[0],
        anchors[1],
        method,
        modality=None if new_modality else modality,
        means=others or None,
        queries=queries or None,
        unpaired=pools,
        holdout=holdout,
        random_state=seed,
        groups=read_groups(settings.pop("groups", None)),
        single_modality=single_modality,
        **settings,
        **parameters,
    )
    mapping.save(out, force=force)
    _report(mapping, old, new, out, paired_by, as_json)


def _realign(anchors: tuple[Embeddings, Embeddings], files: tuple[str, str], path: str, *, force: bool) -> None:
    """If the anchors are out of step, write ids by which they would be paired, and raise UnpairedError."""
    from congruence._utils.atomic import atomic_path
    from congruence.compare.pairing import check_pairing

    if len(anchors[0]) != len(anchors[1]):
        return
    report = check_pairing(*(side.vectors for side in anchors))
    if not report.lags:
        print("The anchors are in step: nothing is realigned.", file=sys.stderr)
        return
    written = []
    for side, rows in zip(("old", "new"), report.realigned().T, strict=True):
        ids = [f"only in the {side} file {row}" for row in range(report.n_pairs)]
        for pair, row in enumerate(rows.tolist()):
            ids[row] = f"pair {pair}"
        written.append(f"{path}-{side}.txt")
        with atomic_path(written[-1], force=force) as temporary:
            temporary.write_text("\n".join(ids) + "\n", encoding="utf-8")
    raise UnpairedError(
        f"Got anchors that are out of step; expected pairs of the same item. {report.sentence} The pairing that would "
        f"be right is in {written[0]} and {written[1]}. Look at it, then run: congruence fit {' '.join(files)} --ids "
        f"{','.join(written)} -o MAP"
    )


def _parse_means(entry: str) -> tuple[str, list[str]]:
    """Return the modality and the one or two files of an argument of ``--means``."""
    name, equals, files = entry.partition("=")
    sides = files.split(",")
    if not equals or not all(sides) or len(sides) > 2:
        raise ParameterError(
            f"Got --means {entry!r}; expected MODALITY=OLD or MODALITY=OLD,NEW.",
            "Pass --means text=texts.npz:key, for example.",
        )
    return name, sides


def _read_pools(files: str | None, ids: str | None, modality: str | None) -> tuple[Embeddings, Embeddings] | None:
    """Read both pools, with ids so that held-out items can be left out of them; None if there are no pools."""
    from congruence.embeddings import Space

    if files is None:
        return None

    def pool(spec: str, given: str | None) -> Embeddings:
        column = find_ids(spec)[1] if given is None else False if given == "none" else given
        return read(spec, column, Space(modality=modality))

    (old, new), columns = two_sides(files, "--unpaired") or ("", ""), ids_of(ids)
    return pool(old, columns[0]), pool(new, columns[1])


def _fit_unpaired(sides: list[Embeddings], modality: str | None, options: dict[str, Any], *, strict: bool) -> Map:
    """Return a map fitted without pairs; with ``strict``, raise UnpairedError if the search failed."""
    from congruence import UnpairedMap

    mapping = UnpairedMap(**options).fit(sides[0].vectors, sides[1].vectors, modality)
    if strict and not mapping.alignment_.found:
        raise UnpairedError(
            "Got files that could not be aligned without pairs; expected restarts of the search to agree. "
            f"{mapping.alignment_.sentence} Pass paired files, and leave out --no-pairs."
        )
    mapping.source_space_, mapping.target_space_ = (replace(side.space, modality=modality) for side in sides)
    return mapping


def _report(mapping: Map, old: str, new: str, out: str, paired_by: str, as_json: bool) -> None:
    from congruence.maps import AffineMap, HeadsMap, UnpairedMap
    from congruence.maps.evidence import alignment_rows, choice_rows, refinement_rows

    if as_json:
        print_json({"output": out, "old": old, "new": new, "paired_by": paired_by, **mapping.describe()})
        return
    rows = [["old model", f"{old}: {mapping.source_space_}"], ["new model", f"{new}: {mapping.target_space_}"]]
    if isinstance(mapping, UnpairedMap):
        rows += [*alignment_rows(mapping.alignment_.to_dict()), ["written to", out]]
        print_facts("UnpairedMap", rows)
        return
    facts, scores = mapping.facts_, mapping.scores_
    rows += [["pairs", str(facts["n_pairs"])], ["paired by", paired_by]]
    if "distinct" in scores:
        rows.append(["distinct things that they show", f"about {scores['distinct']:.0f}"])
    if isinstance(mapping, AffineMap) and mapping.readout_ is not None:
        rows += mapping.readout_.rows()
    if "choice" in scores:
        rows += choice_rows(scores["choice"])
    if isinstance(mapping, HeadsMap):
        rows.append(["width of the joint space", str(mapping.d_out)])
    if "unpaired_source" in scores:
        counts = f"{scores['unpaired_source']} only in the old model, {scores['unpaired_target']} only in the new one"
        rows.append(["left out", counts])
    if "refinement" in scores:
        rows += refinement_rows(scores["refinement"])
    if "rank" in facts and "directions" in facts:
        rows.append(["directions that the anchors cover", f"{facts['rank']} of {facts['directions']}"])
    if "alignment" in facts:
        rows.append(["alignment of the anchors", number(facts["alignment"])])
    rows += held_out_rows(scores)
    if "pairing" in scores:
        state = scores["pairing"]["state"]
        answers = {
            "paired": "yes",
            "not paired": "NO",
            "shifted": "NO, one side is shifted",
            "too few": "too few pairs to tell",
        }
        rows.append(["anchors look paired", answers.get(state, state)])
    rows.append(["written to", out])
    print_facts(type(mapping).__name__, rows)


def read_anchors(
    specs: tuple[str, str], ids: str | None, spaces: tuple[Space, Space], allow_zero_rows: bool = False
) -> tuple[tuple[Embeddings, Embeddings], str]:
    """Read both files, with ids if they were named or if both files have a column with a usual name.

    ``specs``: old and new, as ``file`` or ``file:key``; ``ids``: as of ``--ids``, None to look for ``id``, ``ids`` or
    ``names``. The text, for the report: ``id``, with the names of the columns if known, or ``position``.
    """
    from congruence.io import open_source

    automatic, given = ids is None, ids_of(ids)
    columns = _default_columns(specs) if automatic else tuple(False if "none" in given else name for name in given)
    source, target = (
        read(spec, column, space, allow_zero_rows) for spec, column, space in zip(specs, columns, spaces, strict=True)
    )
    recorded = [(spec, open_source(spec).space) for spec in specs]
    if {space.model for space in spaces} & {space.model for _, space in recorded} - {None}:
        check_sides((("--set old_model", spaces[0]), ("--set new_model", spaces[1])), (recorded[0], recorded[1]))
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
            f"{got}Pass --ids OLD,NEW, files with one id per row, or --ids COLUMN if the ids "
            f"are in a column (columns that could hold ids in {listed})."
        )
    columns = "COLUMN" if set(candidates[0]) & set(candidates[1]) else "OLD,NEW"
    return f"{got}Pass --ids {columns} (columns that could hold ids in {listed})."


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
            f"rows; the other {common} are paired by id. Pass --set missing=error to refuse such files, or --ids none "
            "to pair by position.",
            file=sys.stderr,
        )
