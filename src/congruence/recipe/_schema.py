"""The schema of a recipe, with strict types: YAML distinguishes yes, 1, 1.0 and "1", and each entry accepts only one of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from congruence._utils.schema import Where, validate
from congruence.train import METHODS, make_method

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

_Text = Annotated[str, Field(min_length=1)]
_Pair = Annotated[list[_Text], Field(min_length=2, max_length=2)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[float, Field(gt=-(2**63), lt=2**63)]
# A share is below 1; from 1 on, only whole numbers are valid, as numbers of pairs.
_HeldOut = Annotated[float, Field(ge=0, lt=1)] | _Count | _Pair | None
_HELD_OUT = "a share below 1, a number of pairs, or two files, source and target"


class _Recipe(BaseModel):
    """Names and types of the entries; their meaning is documented in :class:`congruence.recipe.Recipe`."""

    model_config = _STRICT

    method: Literal[tuple(METHODS)]  # type: ignore[valid-type]
    pairs: _Pair = Field(description="two files, source and target", examples=[["images.npz", "texts.npz"]])
    unpaired_source: list[_Text] = Field([], description="a list of files", examples=[["images.npz"]])
    unpaired_target: list[_Text] = Field([], description="a list of files", examples=[["texts.npz"]])
    validation: _HeldOut = Field(None, description=_HELD_OUT, examples=[0.1])
    test: _HeldOut = Field(None, description=_HELD_OUT, examples=[0.1])
    keep_pairs: Annotated[int, Field(ge=1, lt=2**63)] | None = Field(
        None, description="a whole number > 0", examples=[100]
    )
    overlap: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="a share from 0 to 1", examples=[0.0])
    parameters: dict[str, Any] = Field({}, description="a mapping of names to values", examples=[{"n_components": 256}])
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="a mapping of names to lists of values", examples=[{"divergence_weight": [0.1, 1.0]}]
    )
    seed: _Count | None = Field(None, description="a whole number from 0 to 2^63 − 1", examples=[0])
    groups: _Text = Field("identical", description="'identical', 'none' or a file", examples=["identical"])
    negatives: _Text | None = Field(None, description="a file", examples=["negatives.npz"])
    tasks: _Text | None = Field(None, description="a file", examples=["tasks.csv"])


def check_entries(entries: Mapping[str, Any], where: Where) -> None:
    """Refuse entries of a recipe that are unknown, missing, or of the wrong type.

    ``where``: location of the entries, for error messages.
    """
    validate(_Recipe, entries, where)
    schema, group = _parameters(entries["method"]), f"parameters of {entries['method']}"
    validate(schema, entries.get("parameters", {}), where.below("parameters", group=group))
    for name, values in entries.get("grid", {}).items():
        for value in values:
            validate(schema, {name: value}, where.below("grid", group=group))


@cache
def _parameters(method: str) -> type[BaseModel]:
    """Return the schema of a method's parameters, with the types of their defaults."""
    entries: dict[str, Any] = {name: _field(value) for name, value in make_method(method).get_params().items()}
    return create_model(method, __config__=_STRICT, **entries)


def _field(default: Any) -> Any:
    """Return the type and the field of a parameter.

    If the default is a string, numbers are accepted too (``divergence_weight: 0.1`` instead of ``auto``).
    """
    kind: Any
    if isinstance(default, bool):
        kind, words = bool, "true or false"
    elif isinstance(default, int):
        kind, words = _Count | None, "a whole number ≥ 0"
    elif isinstance(default, float) or default is None:
        kind, words = _Number | list[_Number] | None, "a number"
    elif isinstance(default, tuple):
        kind, words = list[_Number], "a list of numbers"
    else:
        kind, words = str | int | float | None, "a name"
    return kind, Field(default, description=words, examples=[default])
