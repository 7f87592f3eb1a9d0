"""``congruence lab frame``: many models in one coordinate frame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from congruence.cli._input import read
from congruence.cli._options import Force, Ids, Json, argument, option, settable
from congruence.cli._output import by_side, check_out, number, print_json, print_table, report_as
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings
    from congruence.maps.frame import CanonicalFrame

ACTIONS = dict.fromkeys(("fit", "add", "map"), "lab.frame")

MODELS = "NAME=FILE[:KEY] or NAME:MODALITY=FILE[:KEY]; without NAME, the name is taken from the key or file."


def command() -> None:
    """Fit one coordinate frame for many models, add models, and extract maps.

    Example: congruence lab frame fit old=library/old-texts.parquet new=library/new-texts.parquet -o models.frame
    """


#: Modality of the anchors of models.
Modality: TypeAlias = Annotated[
    str | None, typer.Option(help="Modality of anchors without a stated modality: image, text, etc.")
]


def fit(
    models: list[str] = argument(..., f"Anchors of two or more models: {MODELS}"),
    *,
    out: str = option(..., "Folder to write the frame to.", "--out", "-o"),
    modality: Modality = None,
    ids: Ids = None,
    settings: dict[str, Any] = settable(center=True, shrinkage="auto", allow_zero_rows=False),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit one coordinate frame for many models, whose anchors may overlap only partly.

    Example: congruence lab frame fit old=library/old-texts.parquet new=library/new-texts.parquet -o models.frame
    """
    from congruence.maps import CanonicalFrame

    check_out(out, force=force, kind="map")
    rows = _read_models(models, modality, ids, settings.pop("allow_zero_rows", False))
    frame = CanonicalFrame(**settings).fit(rows)
    frame.save(out, force=force)
    _report(frame, out, as_json)


def add(
    frame_path: str = argument(..., "Folder of a saved frame.", metavar="FRAME"),
    models: list[str] = argument(..., f"Anchors of one or more models: {MODELS}"),
    *,
    out: str = option(..., "Folder to write the larger frame to.", "--out", "-o"),
    modality: Modality = None,
    ids: Ids = None,
    settings: dict[str, Any] = settable(allow_zero_rows=False),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Add models to a frame; maps between models already in it do not change.

    Example: congruence lab frame add models.frame next=library/new-texts.parquet -o larger.frame
    """
    from congruence.maps import CanonicalFrame

    check_out(out, force=force, kind="map")
    frame = CanonicalFrame.load(frame_path)
    for name, rows in _read_models(models, modality, ids, settings.get("allow_zero_rows", False)).items():
        frame.add(name, rows)
    frame.save(out, force=force)
    _report(frame, out, as_json)


def map(
    frame_path: str = argument(..., "Folder of a saved frame.", metavar="FRAME"),
    old: str = argument(..., "Name of the model to map from."),
    new: str = argument(..., "Name of the model to map to."),
    out: str = option(..., "Folder to write the map to.", "--out", "-o"),
    modality: str | None = option(None, "Modality whose means the map uses by default."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the map from one model of a frame to another.

    Example: congruence lab frame map models.frame old new -o old-to-new
    """
    from congruence.maps import CanonicalFrame

    check_out(out, force=force, kind="map")
    mapping = CanonicalFrame.load(frame_path).map(old, new, modality=modality)
    mapping.save(out, force=force)
    shown = {
        "old model": mapping.source_space_,
        "new model": mapping.target_space_,
        "modalities": ", ".join(mapping.facts_["modalities"]) or "not specified",
        "directions that the pairs span": f"{mapping.facts_['rank']} of {mapping.facts_['directions']}",
        "written to": out,
    }
    report_as(as_json, {"output": out, **by_side(mapping.describe())}, "Map through a frame", shown)


def _read_models(specs: list[str], common: str | None, ids: str | None, allow_zero_rows: bool) -> dict[str, Any]:
    """Read the anchors of each model, by modality if one is stated."""
    from congruence._utils.validation import check_choice
    from congruence.cli._sides import find_ids
    from congruence.embeddings import MODALITIES

    if common is not None:
        check_choice(common, MODALITIES, "modality")
    parsed = [_parse(spec) for spec in specs]
    columns: list[str | None] = [ids] * len(parsed)
    if ids is None:  # ids are used if all files have some
        found = [find_ids(spec) for *_, spec in parsed]
        columns = [name if all(has_ids for has_ids, _ in found) else "none" for _, name in found]
    models: dict[str, dict[str | None, Embeddings]] = {}
    for (name, own_modality, is_named, spec), column in zip(parsed, columns, strict=True):
        modality = own_modality or common
        rows = models.setdefault(name, {})
        if modality in rows:
            raise ParameterError(
                f"Got two files of {f'{modality} ' if modality else ''}vectors for {name!r}; expected one for each "
                "modality.",
                f"Write {name}:image=FILE and {name}:text=FILE, or give each model a name.",
            )
        if rows and None in {modality, *rows}:
            problem = f"Got files of {name!r} both with and without a modality; expected a modality for all of them."
            raise ParameterError(problem, f"Write {name}:text=FILE, for example.")
        rows[modality] = read(spec, column, allow_zero_rows, model=name if is_named else None, modality=modality)
    return {name: rows.get(None, rows) for name, rows in models.items()}


def _parse(entry: str) -> tuple[str, str | None, bool, str]:
    """Return name, modality, whether the argument states the name, and the file of one argument."""
    from congruence.embeddings import MODALITIES
    from congruence.io import parse_spec

    name, equals, spec = entry.partition("=")
    if not equals or Path(entry).exists():
        path, key = parse_spec(entry)
        return key or Path(path).stem, None, False, entry
    head, colon, last = name.rpartition(":")
    modality = last if colon and last in MODALITIES else None
    name = head if modality else name
    if not name or not spec:
        raise ParameterError(
            f"Got {entry!r}; expected NAME=FILE or NAME:MODALITY=FILE.", "Write clip=texts.npz, for example."
        )
    return name, modality, True, spec


def _report(frame: CanonicalFrame, out: str, as_json: bool) -> None:
    facts = frame.describe()
    if as_json:
        print_json({"output": out, **facts})
        return
    rows = []
    for name, model in frame.models_.items():
        means = ", ".join(f"{modality or 'all'} from {origin}" for modality, origin in model.means_from.items())
        rows.append([name, str(model.space), str(model.n_anchors), str(model.rank), means])
    title = f"Frame of {len(rows)} models, alignment {number(facts['alignment'])}, written to {out}"
    print_table(title, ["model", "space", "anchors", "directions spanned", "means"], rows)
