"""``congruence frame``: fit many models into one frame, add models, and extract maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings
    from congruence.maps.frame import CanonicalFrame

__all__ = ["add", "fit", "take"]

_MODELS = "NAME=FILE[:KEY] or NAME:MODALITY=FILE[:KEY]; without NAME, the name is taken from the key or file."


def fit(
    models: Annotated[list[str], typer.Argument(help=f"Anchors of two or more models: {_MODELS}")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the frame to.")],
    modality: Annotated[
        str | None, typer.Option(help="Modality of anchors without a stated modality: image, text, etc.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            help="Key or column of the ids in every file. By default id, ids or names, if all files have one; none "
            "matches rows by position."
        ),
    ] = None,
    center: Annotated[bool, typer.Option(help="Map means to means.")] = True,
    shrinkage: Annotated[
        str,
        typer.Option(help="How to shrink directions that the anchors determine poorly: auto, wiener, covered or full."),
    ] = "auto",
    allow_zero_rows: Annotated[
        bool, typer.Option("--allow-zero-rows", help="Leave out rows of zeros, which are otherwise refused.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing frame.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Fit one coordinate frame for many models, whose anchors may overlap only partly."""
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    frame = CanonicalFrame(center=center, shrinkage=shrinkage).fit(_read(models, ids, modality, allow_zero_rows))
    frame.save(out, force=force)
    _report(frame, out, as_json)


def add(
    frame_path: Annotated[str, typer.Argument(metavar="FRAME", help="Folder of a saved frame.")],
    models: Annotated[list[str], typer.Argument(help=f"Anchors of one or more models: {_MODELS}")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the larger frame to.")],
    modality: Annotated[
        str | None, typer.Option(help="Modality of anchors without a stated modality: image, text, etc.")
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Key or column of the ids in every file, as for fit.")] = None,
    allow_zero_rows: Annotated[
        bool, typer.Option("--allow-zero-rows", help="Leave out rows of zeros, which are otherwise refused.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing frame.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Add models to a frame; maps between models already in it do not change."""
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    frame = CanonicalFrame.load(frame_path)
    for name, rows in _read(models, ids, modality, allow_zero_rows).items():
        frame.add(name, rows)
    frame.save(out, force=force)
    _report(frame, out, as_json)


def take(
    frame_path: Annotated[str, typer.Argument(metavar="FRAME", help="Folder of a saved frame.")],
    source: Annotated[str, typer.Argument(help="Name of the model to map from.")],
    target: Annotated[str, typer.Argument(help="Name of the model to map to.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the map to.")],
    modality: Annotated[str | None, typer.Option(help="Modality whose means the map uses by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing map.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON.")] = False,
) -> None:
    """Write the map from one model of a frame to another."""
    from congruence.cli._base import print_json, print_table
    from congruence.maps import CanonicalFrame
    from congruence.persist import check_map_output

    check_map_output(out, force=force)
    mapping = CanonicalFrame.load(frame_path).map(source, target, modality=modality)
    mapping.save(out, force=force)
    if as_json:
        print_json({"output": out, **mapping.describe()})
        return
    facts = mapping.facts_
    rows = [
        ["source", str(mapping.source_space_)],
        ["target", str(mapping.target_space_)],
        ["modalities", ", ".join(facts["modalities"]) or "not specified"],
        ["directions that the anchors cover", f"{facts['rank']} of {facts['directions']}"],
        ["written to", out],
    ]
    print_table("Map through a frame", ["", ""], rows)


def _read(specs: list[str], ids: str | None, modality: str | None, allow_zero_rows: bool) -> dict[str, Any]:
    """Read the anchors of each model, by modality if one is stated."""
    from congruence._utils.validation import check_choice
    from congruence.cli._anchors import find_ids
    from congruence.cli._base import read
    from congruence.embeddings import MODALITIES, Space
    from congruence.errors import ParameterError

    if modality is not None:
        check_choice(modality, MODALITIES, "modality")
    parsed = [_parse(spec) for spec in specs]
    column: str | bool | None = False if ids == "none" else ids
    id_columns = [find_ids(spec) for _, _, _, spec in parsed] if ids is None else []
    by_id = all(has_ids for has_ids, _ in id_columns)
    models: dict[str, dict[str | None, Embeddings]] = {}
    for k, (name, own_modality, is_named, spec) in enumerate(parsed):
        if ids is None:
            column = id_columns[k][1] if by_id else False
        rows_modality = own_modality or modality
        by_modality = models.setdefault(name, {})
        if rows_modality in by_modality:
            raise ParameterError(
                f"Got two files of {f'{rows_modality} ' if rows_modality else ''}vectors for {name!r}; expected "
                f"one for each modality. Write {name}:image=FILE and {name}:text=FILE, or give each model a name."
            )
        space = Space(model=name if is_named else None, modality=rows_modality)
        by_modality[rows_modality] = read(spec, column, space, allow_zero_rows)
    out: dict[str, Any] = {}
    for name, by_modality in models.items():
        if None in by_modality and len(by_modality) > 1:
            raise ParameterError(
                f"Got files of {name!r} both with and without a modality; expected a modality for all of them. "
                f"Write {name}:text=FILE, for example."
            )
        out[name] = by_modality.get(None, by_modality)
    return out


def _parse(entry: str) -> tuple[str, str | None, bool, str]:
    """Return name, modality, whether the argument states the name, and the file of one argument."""
    from pathlib import Path

    from congruence.embeddings import MODALITIES
    from congruence.errors import ParameterError
    from congruence.stores import parse_spec

    name, equals, spec = entry.partition("=")
    if not equals or Path(entry).exists():
        path, key = parse_spec(entry)
        return key or Path(path).stem, None, False, entry
    head, colon, last = name.rpartition(":")
    modality = last if colon and last in MODALITIES else None
    name = head if modality else name
    if not name or not spec:
        raise ParameterError(
            f"Got {entry!r}; expected NAME=FILE or NAME:MODALITY=FILE. Write clip=texts.npz, for example."
        )
    return name, modality, True, spec


def _report(frame: CanonicalFrame, out: str, as_json: bool) -> None:
    from congruence.cli._base import number, print_json, print_table

    facts = frame.describe()
    if as_json:
        print_json({"output": out, **facts})
        return
    rows = []
    for name, model in frame.models_.items():
        means = ", ".join(f"{modality or 'all'} from {origin}" for modality, origin in model.means_from.items())
        rows.append([name, str(model.space), str(model.n_anchors), str(model.rank), means])
    title = f"Frame of {len(rows)} models, alignment {number(facts['alignment'])}, written to {out}"
    print_table(title, ["model", "space", "anchors", "directions covered", "means"], rows)
