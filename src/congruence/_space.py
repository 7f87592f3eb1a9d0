"""Identity of an embedding space, and the refusal of vectors of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from congruence._utils.display import visible
from congruence._utils.validation import check_choice
from congruence.errors import DirectionError, ModalityError, SpaceMismatchError

#: Modalities a space may have. ``None`` means "not said".
MODALITIES = ("image", "text", "audio", "video", "other")


@dataclass(frozen=True)
class Space:
    """Identity of an embedding space: which model made the vectors, and how.

    Parameters
    ----------
    model : str, optional
        Name of the model, for example ``"open_clip:ViT-B-32/openai"``. ``None`` when unknown.
    revision : str, optional
        Version of the weights.
    modality : str, optional
        One of :data:`MODALITIES`.
    dim : int, optional
        Width of the vectors.
    normalized : bool, optional
        Whether rows have unit norm.

    Raises
    ------
    ParameterError
        If the modality is unknown.
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
        """Return the known facts as a plain dictionary (unknown ones are left out)."""
        return {key: value for key, value in self.__dict__.items() if value is not None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any] | None) -> Space:
        """Build a space from :meth:`to_dict`'s output; keys of later versions are ignored. Raises TypeError."""
        known = {f: facts[f] for f in cls.__dataclass_fields__ if f in facts} if facts else {}
        kinds = {"dim": int, "normalized": bool}
        odd = [f for f, value in known.items() if value is not None and type(value) is not kinds.get(f, str)]
        if odd:
            raise TypeError(f"{odd[0]} of type {type(known[odd[0]]).__name__}")
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
    """Refuse vectors of another space than the one a map was fitted on.

    Only facts known on both sides are compared. Revisions count only when the model names agree.

    Parameters
    ----------
    data : Space
        Space of the vectors at hand.
    expected, other : Space
        The side of the map the vectors should come from, and its far side.
    modality : bool, default=True
        Compare modalities as well.

    Raises
    ------
    DirectionError
        The vectors come from the far side: the map is applied in the wrong direction.
    SpaceMismatchError
        Another model, revision, width or normalization.
    ModalityError
        Another modality.
    """
    if data.model and expected.model and data.model != expected.model:
        if data.model == other.model:
            raise DirectionError(
                f"Got vectors of {data.model!r}, which is where this map leads; expected vectors of "
                f"{expected.model!r}. Use the inverse map."
            )
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r}; expected vectors of {expected.model!r}. Use a map fitted on this model."
        )
    if data.model and data.revision and expected.revision and data.revision != expected.revision:
        raise SpaceMismatchError(
            f"Got vectors of {data.model!r} at revision {data.revision!r}; expected revision "
            f"{expected.revision!r}. Fit a map for this revision."
        )
    if data.dim and expected.dim and data.dim != expected.dim:
        if data.dim == other.dim:
            raise DirectionError(
                f"Got {data.dim}-d vectors, the width this map leads to; expected {expected.dim}-d. "
                "Use the inverse map."
            )
        raise SpaceMismatchError(
            f"Got {data.dim}-d vectors; expected {expected.dim}-d. Use a map fitted on this model."
        )
    if None not in (data.normalized, expected.normalized) and data.normalized != expected.normalized:
        got, want = ("unit", "raw") if data.normalized else ("raw", "unit")
        raise SpaceMismatchError(
            f"Got {got} rows; expected {want} rows, as the map was fitted on. "
            + ("Normalize them first." if want == "unit" else "Pass the vectors as they were before normalization.")
        )
    if modality and data.modality and expected.modality and data.modality != expected.modality:
        raise ModalityError(
            f"Got {data.modality} vectors; expected {expected.modality}. "
            f"Pass modality={data.modality!r} to use the map's {data.modality} means, or add them with recenter."
        )
