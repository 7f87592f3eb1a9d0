"""``congruence fit``: fit a map from two files of anchors and save it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from congruence.cli._engines import RAY, Engine, EngineOptions
from congruence.cli._input import ids_of, read, read_groups, refuse_options, split_named, two_sides
from congruence.cli._options import Force, Ids, Json, Links, Seed, argument, option, settable
from congruence.cli._output import by_side, check_out, print_facts, print_json, say_error, sides_of
from congruence.cli._scores import map_facts
from congruence.cli._sides import check_sides, find_ids, placed, prefix_of, read_anchors, refuse_same
from congruence.errors import ParameterError, UnpairedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from congruence.embeddings import Embeddings
    from congruence.maps import Map

#: Parameters of the methods, and further ones of ``congruence.fit``, for ``--set``.
METHOD = {"center": True, "shrinkage": str, "shrinkage_strength": float, "allow_reflection": True, "ridge": str}
METHOD["n_components"] = int
FIT = {"check": True, "strict": False, "missing": "drop", "groups": str, "realign": str}
FIT["prefix"] = str

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
            problem = f"Got --set ridge={given['ridge']}; expected a number or cv."
            raise ParameterError(problem, "Pass --set ridge=1.0, for example.") from None
    known = METHODS["orthogonal" if method == "auto" else method]().get_params()
    foreign = {f"--set {name}": True for name in given if name not in known}
    why = f"for method {method!r}, which has no such option; expected options of that method"
    refuse_options(foreign, why, "Leave it out, or pass another --method.")
    return {**given, "verbose": True} if method == "mlp" else given


def fit(
    old: str = argument(..., "Items in the old model: a file, or file:key."),
    new: str = argument(..., "The same items in the new model."),
    *,
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    method: str = option(
        "auto", "auto (chosen by cross-validation), orthogonal, linear, kernel, mlp, procrustes or cca."
    ),
    modality: str | None = option(None, "Modality of the items: image, text, etc."),
    single_modality: bool = option(False, "Only this modality will be mapped (auto).", "--single-modality"),
    means: list[str] | None = option(None, "MODALITY=OLD[,NEW]: rows of which only the means are used; repeatable."),
    queries: list[str] | None = option(None, "Modality of queries that will search; repeatable."),
    unpaired: str | None = option(None, "OLD,NEW: unpaired rows in any order, whose matches refine the map."),
    no_pairs: bool = option(False, "The files are not paired: search for pairs, and report the outcome.", "--no-pairs"),
    ids: Ids = None,
    links: Links = None,
    holdout: float = option(0, "Pairs to hold out for evaluation: a share below 1, or a number of pairs."),
    engine: Engine = "local",
    settings: dict[str, Any] = settable(**METHOD, **FIT, **SPACES, allow_zero_rows=False, **RAY),
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a map from an old model's vectors to a new model's, on items that both have encoded.

    Example: congruence fit library/old-texts.parquet library/new-texts.parquet --means
    image=library/old-photos.parquet -o map
    """
    import congruence
    from congruence._utils.validation import check_choice
    from congruence.embeddings import MODALITIES

    refuse_same(old, new)
    runner = EngineOptions.of(engine, settings)
    named = {name: settings.pop(name, None) for name in SPACES}
    if named["new_modality"] is not None:
        check_choice(named["new_modality"], MODALITIES, "new_modality")
    zero_rows, theirs = settings.pop("allow_zero_rows", False), named["new_modality"] or modality
    spaces = [
        {"model": named[f"{side}_model"], "revision": named[f"{side}_revision"], "modality": kind}
        for side, kind in (("old", modality), ("new", theirs))
    ]
    of_pairs = {"--holdout": holdout, "--means": means, "--unpaired": unpaired, "--links": links}
    by_fragments = not no_pairs and runner.by_fragments(old, new)
    if no_pairs:
        of_pairs |= {"--queries": queries, "--method": method not in ("auto", "orthogonal"), "--ids": ids}
        refuse_options(of_pairs, "together with --no-pairs, which only takes options of an orthogonal map")
    elif by_fragments:
        of_pairs |= {f"--set {name}": settings.get(name) for name in ("groups", "realign", "prefix")}
        of_pairs |= {"--set new_modality": named["new_modality"], "--single-modality": single_modality}
        why = "for data sets that are read once, by fragments"
        refuse_options(of_pairs, why, "Leave it out, or fit on local files.")
    parameters = check_parameters("orthogonal" if no_pairs else method, settings)
    if "prefix" in settings:
        settings["prefix"] = prefix_of(settings["prefix"])
    of_means = [_means_of(entry) for entry in means or []]
    pool_files = two_sides(unpaired, "--unpaired")
    check_out(out, force=force, kind="map")  # once the arguments are right, and before the work starts
    if no_pairs:
        options = {**parameters, "random_state": seed}
        files = [read(spec, "none", zero_rows, **space) for spec, space in zip((old, new), spaces, strict=True)]
        placed((old, new), files)
        mapping, how = _fit_unpaired(files, modality, options, strict=settings.get("strict", False)), "search"
    elif by_fragments:
        parameters |= {name: settings[name] for name in ("check", "strict") if name in settings}
        parameters |= {"queries": queries} if queries else {}
        mapping, how = _fit_fragments((old, new), ids, spaces, zero_rows, runner, method, parameters), "fragments"
    else:
        anchors, how = read_anchors((old, new), ids, spaces, zero_rows, links)
        given = [placed((old, new), anchors)]
        others, pools = {}, None
        for name, files_of in of_means:
            # Held-out items are left out of the means too, so their rows need the same ids as the anchors.
            rows = _read_with_ids(files_of, ids, how, name, zero_rows)
            others[name] = (rows[0], (*rows, None)[1])
            given.append(placed(files_of, rows))
        if pool_files is not None:
            first, second = _read_with_ids(pool_files, ids if how != "position" else None, "id", modality, False)
            pools = first, second
            given.append(placed(pool_files, pools))
        check_sides(*given)
        if realign := settings.pop("realign", None):
            _realign(anchors, (old, new), realign, force=force)
        mapping = congruence.fit(
            anchors[0],
            anchors[1],
            method,
            modality=None if named["new_modality"] else modality,
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
    _report(mapping, old, new, out, how, as_json)


def _means_of(entry: str) -> tuple[str, tuple[str, ...]]:
    name, files = split_named(entry, "--means", "MODALITY=OLD or MODALITY=OLD,NEW", "text=texts.npz:key")
    return name, (files,) if "," not in files else two_sides(files, "--means", f"{name}=OLD,NEW") or ()


def _fit_fragments(
    files: tuple[str, str],
    ids: str | None,
    spaces: list[dict[str, str | None]],
    allow_zero_rows: bool,
    runner: EngineOptions,
    method: str,
    parameters: dict[str, Any],
) -> Map:
    """Return a map fitted on data sets, fragment by fragment."""
    from congruence.embeddings import Space
    from congruence.engines import fit_dataset, open_pairs

    columns: list[Any] = [False if column == "none" else column for column in ids_of(ids)]
    both = Space(**spaces[0]), Space(**spaces[1])  # type: ignore[arg-type]
    pairs = open_pairs(*files, ids=columns[0], target_ids=columns[1], spaces=both, allow_zero_rows=allow_zero_rows)
    return fit_dataset(pairs, method, engine=runner.open(), modality=spaces[0]["modality"], **parameters)


def _realign(anchors: tuple[Embeddings, Embeddings], files: tuple[str, str], path: str, *, force: bool) -> None:
    """If the anchors are out of step, write ids by which they would be paired, and raise UnpairedError."""
    from congruence._utils.atomic import atomic_path
    from congruence.compare.pairing import check_pairing

    if len(anchors[0]) != len(anchors[1]):
        return
    report = check_pairing(*(side.vectors for side in anchors))
    if not report.steps and not report.moved:
        say_error("The pairs are in step: nothing is realigned.")
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
        f"Got rows that are out of step; expected pairs of the same item. {report.sentence} The pairing that would "
        f"be right is in {written[0]} and {written[1]}. Look at it, then run: congruence fit {' '.join(files)} --ids "
        f"{','.join(written)} -o MAP"
    )


def _read_with_ids(
    files: Sequence[str], ids: str | None, paired_by: str, modality: str | None, allow_zero_rows: bool
) -> list[Embeddings]:
    """Read one or two files with the named ids, or those that are found unless pairs are by position."""
    look = ids is None and paired_by != "position"
    return [
        read(spec, find_ids(spec)[1] if look else column, allow_zero_rows, modality=modality)
        for spec, column in zip(files, ids_of(ids), strict=False)
    ]


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
    if as_json:
        given = {"output": out, "old": old, "new": new, "paired_by": paired_by}
        print_json({**given, **by_side(mapping.describe(), sides_of(mapping))})
        return
    models = {"old model": f"{old}: {mapping.source_space_}", "new model": f"{new}: {mapping.target_space_}"}
    told = {**models, **map_facts(mapping), "paired by": paired_by, "written to": out}
    print_facts(type(mapping).__name__, told)
