"""``congruence fit``: fit a map from two files of anchors and save it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from congruence.cli._engines import ADDRESS_HELP, ENGINE_HELP, WORKERS_HELP, runs_by_fragments

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings
    from congruence.maps import Map

__all__ = ["command"]


def command(
    source: Annotated[str, typer.Argument(help="Anchors in the source model: a file, or file:key.")],
    target: Annotated[str, typer.Argument(help="The same items in the target model.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the map to.")],
    method: Annotated[
        str,
        typer.Option(
            help="Kind of map: auto (chosen by cross-validation), orthogonal, linear, mlp, procrustes or cca."
        ),
    ] = "auto",
    center: Annotated[
        bool,
        typer.Option(
            help="Map the source mean to the target mean (orthogonal, linear), or subtract both means (procrustes, "
            "cca)."
        ),
    ] = True,
    shrinkage: Annotated[
        str | None,
        typer.Option(
            help="How to shrink directions that the anchors determine poorly: auto, full (as in the paper), "
            "covered, wiener, soft or cv (orthogonal)."
        ),
    ] = None,
    shrinkage_strength: Annotated[
        float | None, typer.Option(help="Strength of the wiener and soft shrinkage (orthogonal).")
    ] = None,
    allow_reflection: Annotated[
        bool,
        typer.Option(
            "--allow-reflection/--no-reflection",
            help="Allow reflections, or require a rotation of determinant 1 (orthogonal).",
        ),
    ] = True,
    ridge: Annotated[
        str | None,
        typer.Option(
            help="Ridge penalty, added to the sums of squares (linear, cca); or cv, to choose it by "
            "cross-validation (linear)."
        ),
    ] = None,
    n_components: Annotated[int | None, typer.Option(help="Width of the joint space (procrustes, cca).")] = None,
    single_modality: Annotated[
        bool,
        typer.Option(
            "--single-modality",
            help="Only rows of the anchors' modality will be mapped, so that linear maps may be chosen (auto).",
        ),
    ] = False,
    modality: Annotated[str | None, typer.Option(help="Modality of the anchors: image, text, etc.")] = None,
    target_modality: Annotated[
        str | None, typer.Option(help="Modality of the target's rows, if it differs (procrustes, cca).")
    ] = None,
    means: Annotated[
        list[str] | None,
        typer.Option(
            help="MODALITY=SOURCE[,TARGET]: rows of another modality, of which only the means are used. Without "
            "TARGET, the gap between the modalities is taken from the source. May be repeated."
        ),
    ] = None,
    unpaired_source: Annotated[
        str | None,
        typer.Option(
            help="Unpaired rows of the source, of the anchors' modality. Their matches in --unpaired-target are "
            "used to refine the map."
        ),
    ] = None,
    unpaired_target: Annotated[
        str | None, typer.Option(help="Unpaired rows of the target, in any order; they may be other items.")
    ] = None,
    no_pairs: Annotated[
        bool,
        typer.Option(
            "--no-pairs", help="The files are not paired: search for pairs, and report whether the search succeeded."
        ),
    ] = False,
    ids: Annotated[
        str | None,
        typer.Option(
            help="Key, column or file of the ids, in both files. By default id, ids or names, if both files have "
            "one; none pairs rows by position."
        ),
    ] = None,
    target_ids: Annotated[
        str | None, typer.Option(help="Key, column or file of the target's ids, if different.")
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Pairs to hold out of the fit for evaluation: a share below 1, or a number of pairs.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Random seed that determines the held-out pairs.")] = 0,
    groups: Annotated[
        str | None,
        typer.Option(
            help="Pairs to hold out together: file:key with one label per source row, or none. By default, rows "
            "with identical vectors."
        ),
    ] = None,
    source_model: Annotated[str | None, typer.Option(help="Name of the source model.")] = None,
    target_model: Annotated[str | None, typer.Option(help="Name of the target model.")] = None,
    source_revision: Annotated[str | None, typer.Option(help="Revision of the source model.")] = None,
    target_revision: Annotated[str | None, typer.Option(help="Revision of the target model.")] = None,
    check: Annotated[bool, typer.Option(help="Check that the anchors look paired.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 2 if the pairing check fails.")] = False,
    missing: Annotated[str, typer.Option(help="What to do with ids found in only one file: drop or error.")] = "drop",
    allow_zero_rows: Annotated[bool, typer.Option("--allow-zero-rows", help="Accept rows of zeros.")] = False,
    engine: Annotated[str, typer.Option(help=ENGINE_HELP)] = "local",
    address: Annotated[str | None, typer.Option(help=ADDRESS_HELP)] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing map.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Fit a map between two embedding spaces on paired anchors."""
    import congruence
    from congruence.cli._anchors import find_ids, read_anchors
    from congruence.cli._base import read, read_groups
    from congruence.embeddings import Space
    from congruence.persist import check_map_output

    check_map_output(out, force=force)  # checked before the work starts
    spaces = (
        Space(source_model, source_revision, modality),
        Space(target_model, target_revision, target_modality or modality),
    )
    if no_pairs:
        needs_pairs = {
            "--method": method not in ("auto", "orthogonal"),
            "--holdout": holdout,
            "--means": means,
            "--ids": ids,
            "--unpaired-source": unpaired_source,
            "--unpaired-target": unpaired_target,
        }
        _refuse_with_no_pairs([flag for flag, value in needs_pairs.items() if value])
        options = _parameters("orthogonal", center, ridge, shrinkage=shrinkage, shrinkage_strength=shrinkage_strength)
        if not allow_reflection:
            options["allow_reflection"] = False
        files = [
            read(spec, False, space, allow_zero_rows) for spec, space in zip((source, target), spaces, strict=True)
        ]
        _fit_unpaired(
            files, modality, {**options, "random_state": seed}, out, strict=strict, force=force, as_json=as_json
        )
        return
    parameters = _parameters(
        method,
        center,
        ridge,
        shrinkage=shrinkage,
        shrinkage_strength=shrinkage_strength,
        allow_reflection=None if allow_reflection else False,
        n_components=n_components,
    )
    if runs_by_fragments(engine, f"{source} {target}", "", {"--address": address, "--workers": workers}):
        from congruence.cli._engines import fit_by_fragments, make_engine

        needs_rows = {
            "--holdout": holdout,
            "--means": means,
            "--unpaired-source": unpaired_source,
            "--unpaired-target": unpaired_target,
            "--groups": groups,
            "--target-modality": target_modality,
            "--single-modality": single_modality,
        }
        mapping = fit_by_fragments(
            (source, target),
            (ids, target_ids),
            spaces,
            method,
            engine=make_engine(engine, address, workers, 0),
            needs_rows=[flag for flag, value in needs_rows.items() if value],
            modality=modality,
            check=check,
            strict=strict,
            allow_zero_rows=allow_zero_rows,
            parameters=parameters,
        )
        mapping.save(out, force=force)
        _report(mapping, out, "fragments", as_json)
        return
    anchors, paired_by = read_anchors((source, target), (ids, target_ids or ids), spaces, allow_zero_rows)
    others = {}
    for entry in means or []:
        name, sides = _parse_means(entry)
        # Held-out items are left out of the means too, so their rows need the same ids as the anchors.
        columns = [find_ids(spec)[1] if ids is None and paired_by != "position" else ids for spec in sides]
        rows = [
            read(spec, False if column == "none" else column, Space(modality=name), allow_zero_rows)
            for spec, column in zip(sides, columns, strict=True)
        ]
        others[name] = (rows[0], rows[1] if len(rows) > 1 else None)
    mapping = congruence.fit(
        *anchors,
        method,
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


def _parameters(method: str, center: bool, ridge: str | None, **options: object) -> dict[str, Any]:
    """Collect the given options of the chosen method; refuse options of other methods."""
    from congruence._utils.validation import check_choice
    from congruence.errors import ParameterError
    from congruence.maps import METHODS

    check_choice(method, ("auto", *METHODS), "method")
    parameters = {name: value for name, value in options.items() if value is not None}
    if not center:
        parameters["center"] = False
    if ridge is not None:
        try:
            parameters["ridge"] = ridge if ridge == "cv" else float(ridge)
        except ValueError:
            raise ParameterError(
                f"Got --ridge {ridge!r}; expected a number or cv. Pass --ridge 1.0, for example, or --ridge cv."
            ) from None
    if method == "mlp":
        parameters["verbose"] = True
    defaults = METHODS["orthogonal" if method == "auto" else method]().get_params()
    unknown = [name for name in parameters if name not in defaults]
    if unknown:
        off = {"center": "--no-center", "allow_reflection": "--no-reflection"}  # passed only when switched off
        flag = off.get(unknown[0], f"--{unknown[0].replace('_', '-')}")
        raise ParameterError(
            f"Got {flag} for method {method!r}, which has no such option; "
            "expected options of that method. Leave it out, or pass another --method."
        )
    return parameters


def _parse_means(entry: str) -> tuple[str, list[str]]:
    """Return the modality and the one or two files of an argument of ``--means``."""
    from congruence.errors import ParameterError

    name, equals, files = entry.partition("=")
    sides = files.split(",")
    if not equals or not all(sides) or len(sides) > 2:
        raise ParameterError(
            f"Got --means {entry!r}; expected MODALITY=SOURCE or MODALITY=SOURCE,TARGET. Pass --means "
            "text=texts.npz:key, for example."
        )
    return name, sides


def _read_pools(
    source: str | None, target: str | None, ids: str | None, modality: str | None
) -> tuple[Embeddings, Embeddings] | None:
    """Read both pools, with ids so that held-out items can be left out of them; None if there are no pools."""
    from congruence.cli._anchors import find_ids
    from congruence.cli._base import read
    from congruence.embeddings import Space
    from congruence.errors import ParameterError

    if source is None and target is None:
        return None
    if source is None or target is None:
        flag, missing = ("--unpaired-source", "--unpaired-target")[:: 1 if target is None else -1]
        raise ParameterError(f"Got {flag} without {missing}; expected rows of both models. Pass {missing} FILE too.")

    def pool(spec: str) -> Embeddings:
        column = find_ids(spec)[1] if ids is None else False if ids == "none" else ids
        return read(spec, column, Space(modality=modality))

    return pool(source), pool(target)


def _refuse_with_no_pairs(flags: list[str]) -> None:
    from congruence.errors import ParameterError

    if flags:
        raise ParameterError(
            f"Got {flags[0]} together with --no-pairs; expected only options of an orthogonal map, since there are "
            f"no pairs to hold out or to match by id. Leave out {flags[0]}, or --no-pairs."
        )


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
    from dataclasses import replace

    from congruence import UnpairedMap
    from congruence.cli._base import print_json, print_table
    from congruence.errors import UnpairedError
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
    print_table("UnpairedMap", ["", ""], rows)


def _report(mapping: Map, out: str, paired_by: str, as_json: bool) -> None:
    from congruence.cli._base import number, print_json, print_table
    from congruence.cli._scores import held_out_rows
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
    print_table(f"{type(mapping).__name__}", ["", ""], rows)
