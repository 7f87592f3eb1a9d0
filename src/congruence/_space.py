"""Identity of an embedding space: its model and version, and its vectors' modality, width and normalization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from congruence._utils.display import visible
from congruence._utils.validation import check_choice
from congruence.errors import DirectionError, ModalityError, SpaceMismatchError

#: Modalities a space may have. ``None`` means "not stated".
MODALITIES = ("image", "text", "audio", "video", "other")


@dataclass(frozen=True)
class Space:
    """Identity of an embedding space: the model that made the vectors, its version, and the vectors' modality, width
    and normalization.

    Parameters
    ----------
    model : str, optional
        Name of the model, e.g. ``"open_clip:ViT-B-32/openai"``. ``None`` if unknown.
    revision : str, optional
        Version of the weights.
    modality : str, optional
        One of :data:`MODALITIES`.
    dim : int, optional
        Width of the vectors.
    normalized : bool, optional
        Whether all rows have unit norm.
    """

    model: str | None = None
    revision: str | None = None
    modality: str | None = None
    dim: int | None = None
    normalized: bool | None = None

    def __post_init__(self) -> None:
        if self.modality is not None:
            check_choice(self.modality, MODALITIES, "modality")

    def to_dict(self) -> dict[str, Any]:
        """Return the known facts as a plain dictionary (unknown facts are left out)."""
        return {key: value for key, value in self.__dict__.items() if value is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any] | None) -> Space:
        """Build a space from the output of :meth:`to_dict`; keys added by later versions are ignored.

        Raises TypeError.
        """
        known = {f: facts[f] for f in cls.__dataclass_fields__ if f in facts} if facts else {}
        kinds = {"dim": int, "normalized": bool}
        wrong = [f for f, value in known.items() if value is not None and type(value) is not kinds.get(f, str)]
        if wrong:
            raise TypeError(f"{wrong[0]} of type {type(known[wrong[0]]).__name__}")
        return cls(**known)

    def __str__(self) -> str:
        parts = [self.model or "unnamed model"]
        if self.revision:
            parts[0] += f"@{self.revision}"
        if self.modality:
            parts.append(self.modality)
        if self.dim:
            parts.append(f"{self.dim}-d")
        if self.normalized is not None:
            parts.append("unit rows" if self.normalized else "raw rows")
        return visible(", ".join(parts))


def check_space(data: Space, expected: Space, other: Space, *, modality: bool = True) -> None:
    """Raise an error if vectors belong to a different space than the one a map was fitted on.

    Only facts known for both spaces are compared. Revisions are compared only when the model names are equal.

    ``data``: space of the vectors to be mapped; ``expected``, ``other``: the space the vectors should belong to, and
    the space at the other end of the map.
    """
    if data.model and expected.model and data.model != expected.model:
        if data.model == other.model:
            raise DirectionError(
                f"Got vectors of {data.model!r}, which is this map's target; expected vectors of {expected.model!r}.",
                "Use the inverse map.",
            )
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r}; expected vectors of {expected.model!r}.", "Use a map fitted on this model."
        )
    if data.model and data.revision and expected.revision and data.revision != expected.revision:
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r} at revision {data.revision!r}; expected revision {expected.revision!r}.",
            "Fit a map for this revision.",
        )
    if data.dim and expected.dim and data.dim != expected.dim:
        if data.dim == other.dim:
            raise DirectionError(
                f"Got {data.dim}-d vectors, the width of this map's output; expected {expected.dim}-d.",
                "Use the inverse map.",
            )
        raise SpaceMismatchError(
            f"Got {data.dim}-d vectors; expected {expected.dim}-d.", "Use a map fitted on this model."
        )
    if None not in (data.normalized, expected.normalized) and data.normalized != expected.normalized:
        got, want = ("unit", "raw") if data.normalized else ("raw", "unit")
        raise SpaceMismatchError(
            f"Got {got} rows; expected {want} rows, as the map was fitted on. "
            + ("Normalize them first." if want == "unit" else "Pass the vectors as they were before normalization.")
        )
    if modality and data.modality and expected.modality and data.modality != expected.modality:
        raise ModalityError(
            f"Got {data.modality} vectors; expected {expected.modality}.",
            f"Pass `modality={data.modality!r}` to use the map's {data.modality} means, or add them with recenter.",
        )
