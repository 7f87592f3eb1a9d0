"""How models' anchors are read, and how a frame is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from congruence.cli._base import number, print_json, print_table, read
from congruence.cli._options import Ids, option
from congruence.errors import ParameterError

if TYPE_CHECKING:
    from congruence.embeddings import Embeddings
    from congruence.maps.frame import CanonicalFrame


MODELS = "NAME=FILE[:KEY] or NAME:MODALITY=FILE[:KEY]; without NAME, the name is taken from the key or file."


@dataclass(frozen=True)
class AnchorOptions:
    """How the anchors of models are read."""

    modality: str | None = option(None, "Modality of anchors without a stated modality: image, text, etc.")
    ids: Ids = None


def read_anchors(specs: list[str], options: AnchorOptions, allow_zero_rows: bool) -> dict[str, Any]:
    """Read the anchors of each model, by modality if one is stated."""
    from congruence._utils.validation import check_choice
    from congruence.cli.fit import find_ids
    from congruence.embeddings import MODALITIES, Space

    ids = options.ids
    if options.modality is not None:
        check_choice(options.modality, MODALITIES, "modality")
    parsed = [_parse(spec) for spec in specs]
    column: str | bool | None = False if ids == "none" else ids
    id_columns = [find_ids(spec) for _, _, _, spec in parsed] if ids is None else []
    by_id = all(has_ids for has_ids, _ in id_columns)
    models: dict[str, dict[str | None, Embeddings]] = {}
    for k, (name, own_modality, is_named, spec) in enumerate(parsed):
        if ids is None:
            column = id_columns[k][1] if by_id else False
        rows_modality = own_modality or options.modality
        by_modality = models.setdefault(name, {})
        if rows_modality in by_modality:
            raise ParameterError(
                f"Got two files of {f'{rows_modality} ' if rows_modality else ''}vectors for {name!r}; "
                "expected one for each modality.",
                f"Write {name}:image=FILE and {name}:text=FILE, or give each model a name.",
            )
        space = Space(model=name if is_named else None, modality=rows_modality)
        by_modality[rows_modality] = read(spec, column, space, allow_zero_rows)
    out: dict[str, Any] = {}
    for name, by_modality in models.items():
        if None in by_modality and len(by_modality) > 1:
            raise ParameterError(
                f"Got files of {name!r} both with and without a modality; expected a modality for all of them.",
                f"Write {name}:text=FILE, for example.",
            )
        out[name] = by_modality.get(None, by_modality)
    return out


def _parse(entry: str) -> tuple[str, str | None, bool, str]:
    """Return name, modality, whether the argument states the name, and the file of one argument."""
    from pathlib import Path

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


def report(frame: CanonicalFrame, out: str, as_json: bool) -> None:
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
