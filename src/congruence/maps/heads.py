"""Joint-space maps: a head for each model, made of layers and applied with NumPy, or with torch for tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from congruence._utils.arrays import as_given
from congruence._utils.display import as_markdown
from congruence._utils.records import digest_of
from congruence._utils.typing import Array, Layer, RowsLike
from congruence._utils.validation import check_choice
from congruence.embeddings import Space, check_space
from congruence.errors import CorruptFileError, DirectionError, ParameterError, ShapeError, SpaceMismatchError
from congruence.maps import _layers
from congruence.maps._base import Map, NotFittedMapError
from congruence.maps.card import LOADING
from congruence.maps.history import History

#: The two sides of a map, as ``side=`` names them.
SIDES = ("source", "target")

#: The lists of layers of a map; the names of arrays in a saved map begin with these.
PARTS = ("source", "target", "decode_source", "decode_target")

#: Names that ``facts`` may not use because a map stores something else under them.
_RESERVED = {"method", "layers", "kind", "parameters", "source", "target", "scores", "joint_dim"}


class HeadsMap(Map):
    """A joint-space map: a head for each model, ``transform`` for the source and ``transform_target`` for the target.

    Mapped rows of both models are compared with each other, never with unmapped rows. ``d_target`` is the width of the
    target *model*, ``d_out`` that of the joint space. Created by ``from_layers``; only subclasses can be fitted.

    Each head is a list of layers, and there may be layers back from the joint space to each model. Layers are plain
    data, so that a map trained with any framework can be saved, loaded and applied without it:

    - ``normalize``: x / ‖x‖, and zero rows stay zero
    - ``center``, with ``mean`` (d,): x − mean
    - ``linear``, with ``weight`` (d_in, d_out), ``bias`` (d_out,): x @ weight + bias
    - ``complete``, with ``column`` (d,): x + √(1 − ‖x‖²) · column, which makes short rows unit rows
    - ``gelu``: x Φ(x), exactly; ``relu``: max(x, 0); ``silu``: x σ(x)
    - ``layernorm``, with ``weight`` (d,), ``bias`` (d,), ``eps`` = 1e-5: (x − mean) / √(variance + eps) · weight + bias
    - ``swiglu``, with ``weight`` and ``gate_weight`` (d_in, d_out), ``bias`` and ``gate_bias`` (d_out,):
      silu(x @ gate_weight + gate_bias) · (x @ weight + bias)
    - ``residual``, with ``layers``: x + layers(x)

    Biases and the weight of ``layernorm`` are optional. ``method_`` names the method that trained the heads.

    Examples
    --------
    >>> import numpy as np
    >>> from congruence import HeadsMap
    >>> rng = np.random.default_rng(0)
    >>> head = [{"kind": "normalize"}, {"kind": "linear", "weight": rng.standard_normal((4, 2))}]
    >>> heads = HeadsMap.from_layers(source=head, target=[{"kind": "linear", "weight": np.eye(3)[:, :2]}])
    >>> heads.transform(np.ones((5, 4))).shape, heads.transform_target(np.ones((5, 3))).shape
    ((5, 2), (5, 2))
    """

    kind: ClassVar[str] = "heads"
    wrong_side: ClassVar[str] = "Use transform_target"
    sides: ClassVar[tuple[str, ...]] = SIDES

    source_layers_: list[Layer]
    target_layers_: list[Layer]
    decode_source_layers_: list[Layer] | None
    decode_target_layers_: list[Layer] | None
    method_: str
    #: Mapped rows of both models, from which a search computes the densities that CSLS subtracts; saved with the map.
    banks_: tuple[np.ndarray, np.ndarray] | None = None
    #: Of closed forms: singular values or canonical correlations, descending.
    singular_values_: Any = None
    if TYPE_CHECKING:  # what the methods of congruence.train add
        method: ClassVar[str]
        criterion: ClassVar[str]
        score: Callable[..., float]
    _joint_width: Any
    _target_width: Any

    @classmethod
    def from_layers(
        cls,
        source: Sequence[Layer],
        target: Sequence[Layer],
        *,
        decode_source: Sequence[Layer] | None = None,
        decode_target: Sequence[Layer] | None = None,
        facts: Mapping[str, object] | None = None,
        method: str = "custom",
        source_space: Space | None = None,
        target_space: Space | None = None,
    ) -> HeadsMap:
        """Build a map from trained layers, first to last, whose arrays or tensors are copied; the decoders lead back
        from the joint space. ``facts`` are plain data to store with the map; ``n_pairs`` also sets ``n_pairs_``.
        """
        facts = dict(facts or {})
        if taken := sorted(_RESERVED & set(facts)):
            raise ParameterError(f"The map stores something else as {', '.join(taken)}.", "Rename these facts.")
        new = HeadsMap()
        parts = dict(zip(PARTS, (source, target, decode_source, decode_target), strict=True))
        new.set_layers({name: part for name, part in parts.items() if part is not None}, str(method), facts)
        new.source_space_ = source_space or Space(dim=new.n_features_in_)
        new.target_space_ = target_space or Space(dim=new.d_target)
        for space, width in ((new.source_space_, new.n_features_in_), (new.target_space_, new.d_target)):
            if space.dim not in (None, width):
                raise ShapeError(f"Got a head for {width}-d vectors of {space}.", f"Pass one for {space.dim}-d ones.")
        new.scores_ = {}
        return new

    def fit(self, *args: Any, **kwargs: Any) -> Self:
        """Refuse: heads are trained with ``congruence.train``, or solved in closed form by a subclass."""
        fix = "Use `congruence.train`, `congruence.CCAMap` or `congruence.ProcrustesHeads`."
        raise ParameterError("This map only applies trained heads.", fix)

    def set_layers(self, parts: Mapping[str, object], method: str, facts: Mapping[str, Any]) -> None:
        """Check the layers of each part, and set the fitted attributes."""
        checked = {name: _layers.check_layers(part, name) for name, part in parts.items()}
        ends = {name: _layers.widths(part, name) for name, part in checked.items()}
        for side in SIDES:
            if None in ends[side]:
                raise ShapeError(f"The layers of the {side} head do not determine its width.", "Add a linear layer.")
            joint, width = ends["source"][1], ends[side][0]
            for name, expected in ((side, (width, joint)), (f"decode_{side}", (joint, width))):
                if (got := ends.get(name, expected)) != expected:
                    ours, wanted = (f"{a} to {b}" for a, b in (got, expected))
                    problem = f"The {name} layers lead from {ours} dimensions; expected {wanted}."
                    raise ShapeError(problem, "Let both heads lead to one joint space, and decoders back.")
        for name in PARTS:
            setattr(self, f"{name}_layers_", checked.get(name))
        self.n_features_in_, self._joint_width = ends["source"]  # type: ignore[assignment]
        self._target_width = ends["target"][0]
        self.method_ = method
        self.n_pairs_ = int(facts.get("n_pairs") or 0)
        structure = {name: _layers.flatten(part, name)[0] for name, part in checked.items()}
        self.facts_ = {**facts, "method": method, "layers": structure}

    def check_fitted(self) -> None:
        """Refuse a map that is not fitted. Raises NotFittedMapError."""
        if not hasattr(self, "source_layers_"):
            if type(self) is not HeadsMap:
                super().check_fitted()
            raise NotFittedMapError("Got a HeadsMap without heads.", "Use congruence.train or HeadsMap.from_layers.")

    def __sklearn_clone__(self) -> Self:
        if type(self) is HeadsMap:  # it has no parameters from which it could be fitted again
            return self
        from sklearn.base import _clone_parametrized  # only scikit-learn calls this

        return _clone_parametrized(self)

    @property
    def history_(self) -> History:
        """Losses and validation scores of the training by step; an AttributeError if the map has no such record."""
        self.check_fitted()
        if "history" not in self.facts_:
            raise AttributeError(f"{type(self).__name__} of method {self.method_!r} has no training record")
        try:
            return History.from_dict(self.facts_["history"])
        except (OverflowError, TypeError, ValueError) as error:
            problem = f"The training record cannot be read ({error})."
            raise CorruptFileError(problem, "Save the map again from where it was trained.") from error

    @property
    def search_banks(self) -> tuple[np.ndarray, np.ndarray] | None:
        """``banks_`` if searches correct for hubs, as the map chose when it was fitted, else None."""
        return self.banks_ if self.facts_.get("hubness") == "csls" else None

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._target_width

    @property
    def _n_features_out(self) -> int:
        return self._joint_width

    def _map(self, rows: Array) -> Array:
        return _layers.run(self.source_layers_, rows, self._joint_width)

    def _map_target(self, rows: Array) -> Array:
        return _layers.run(self.target_layers_, rows, self._joint_width)

    def reconstruct(self, X: RowsLike) -> Array:
        """Map source rows (m, d_source) into the joint space and back; refused without a decoder for the source."""
        self.check_fitted()
        return self._decode("source", self.decode_source_layers_, self._map(self._check_source(X)), X)

    def reconstruct_target(self, Y: RowsLike) -> Array:
        """Map target rows (m, d_target) into the joint space and back; refused without a decoder for the target."""
        self.check_fitted()
        return self._decode("target", self.decode_target_layers_, self._map_target(self._check_target(Y)), Y)

    def _decode(self, side: str, layers: list[Layer] | None, joint: Array, given: RowsLike) -> Array:
        if layers is None:
            problem = f"Got heads without a decoder for the {side} ({self.method_})."
            raise ParameterError(problem, f"Pass `decode_{side}=…` to from_layers.")
        return as_given(_layers.run(layers, joint, self.n_features_in_ if side == "source" else self.d_target), given)

    def layers(self) -> tuple[list[Layer], list[Layer]]:
        """Return copies of the layers of both heads, as plain data that ``from_layers`` accepts."""
        self.check_fitted()
        return copy.deepcopy(self.source_layers_), copy.deepcopy(self.target_layers_)

    def _layers_of(self, side: str) -> list[Layer]:
        return self.layers()[SIDES.index(side)]

    def joint_space(self, modality: str | None = None, *, normalized: bool | None = None) -> Space:
        """Return the space of mapped vectors; its revision is a digest, since two fits' coordinates differ."""
        self.check_fitted()
        models = self.source_space_.model or "source", self.target_space_.model or "target"
        model = f"joint ({self.kind}) of {models[0]} and {models[1]}"
        return Space(model, digest_of(self.facts_["layers"], self.state())[:12], modality, self.d_out, normalized)

    def side_of(self, space: Space, side: str | None = None) -> str:
        """Return which head, "source" or "target", vectors of a space need; without ``side``, one must fit."""
        self.check_fitted()
        spaces = {"source": self.source_space_, "target": self.target_space_}
        # In a cross-modal map (e.g. images as source, texts as target) the modality tells the two sides apart.
        cross_modal = self.source_space_.modality != self.target_space_.modality
        refused = {}
        for name, expected in spaces.items():
            try:
                check_space(space, expected, Space(), modality=cross_modal)
            except SpaceMismatchError as error:
                refused[name] = error
        if side is not None:
            check_choice(side, SIDES, "side")
            if side not in refused:
                return side
            other = SIDES[side == "source"]
            if other in refused:
                raise refused[side]
            problem = f"Got vectors of the map's {other} ({space}), not its {side}."
            raise DirectionError(problem, f'Pass `side="{other}"`.')
        fitting = [name for name in SIDES if name not in refused]
        if not fitting:
            problem = f"Got vectors of {space}, neither of {spaces['source']} nor {spaces['target']}."
            raise SpaceMismatchError(problem, "Use a map of this model.")
        if len(fitting) == 2:
            fitting = [name for name in SIDES if space.model and space.model == spaces[name].model]
        if len(fitting) != 1:
            problem = f"Got vectors that fit both sides of the map ({space})."
            raise ParameterError(problem, 'Pass `side="source"` or `side="target"`.')
        return fitting[0]

    def _pick_side(self, space: Space, modality: str | None, side: str | None, *, tensor: bool) -> str:
        return self.side_of(replace(space, modality=modality), side)

    def _space_of_output(self) -> Space:
        return self.joint_space()

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of all layers, named by their position, e.g. ``source.2.weight``."""
        self.check_fitted()
        out: dict[str, np.ndarray] = {}
        for name in PARTS:
            out |= _layers.flatten(getattr(self, f"{name}_layers_") or [], name)[1]
        out |= {f"bank.{side}": bank for side, bank in zip(SIDES, self.banks_ or (), strict=False)}
        return out if self.singular_values_ is None else {**out, "singular_values": self.singular_values_}

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        unused, other_facts = dict(arrays), dict(facts)
        structure, method = other_facts.pop("layers"), other_facts.pop("method")
        if not isinstance(structure, dict) or not {"source", "target"} <= set(structure) <= set(PARTS):
            raise ValueError("parts other than source, target and their decoders, or without one of the heads")
        if not isinstance(method, str):
            raise ValueError("a method that is not a string")
        if self.kind != HeadsMap.kind:
            self.singular_values_ = unused.pop("singular_values", None)
        parts = {name: _layers.unflatten(part, unused, name) for name, part in structure.items()}
        if banks := [unused.pop(name) for side in SIDES if (name := f"bank.{side}") in unused]:
            if len(banks) < 2 or any(
                bank.ndim != 2 or not len(bank) or bank.dtype != np.float32 or not np.isfinite(bank).all()
                for bank in banks
            ):
                raise ValueError("banks that are not finite float32 matrices of both sides")
            self.banks_ = banks[0], banks[1]
        if unused:
            raise ValueError(f"arrays of no layer: {', '.join(sorted(unused)[:3])}")
        self.set_layers(parts, method, other_facts)
        if banks and any(bank.shape[1] != self.d_out for bank in banks):
            raise ValueError("banks that are not in the joint space")

    def _plain(self) -> HeadsMap:
        """Return the map that is saved and described in place of this one: trained heads without their trainer."""
        if type(self) is HeadsMap or self.kind != HeadsMap.kind:
            return self
        self.check_fitted()
        heads = HeadsMap.from_layers(
            self.source_layers_,
            self.target_layers_,
            decode_source=self.decode_source_layers_,
            decode_target=self.decode_target_layers_,
            facts={name: value for name, value in self.facts_.items() if name not in ("method", "layers")},
            method=self.method_,
            source_space=self.source_space_,
            target_space=self.target_space_,
        )
        heads.scores_, heads.banks_ = self.scores_, self.banks_
        return heads

    def describe(self) -> dict[str, object]:
        """Return what is known about the map as plain data, with one line per head for its layers."""
        plain = self._plain()
        layers = {
            name: " → ".join(_line(layer) for layer in getattr(plain, f"{name}_layers_"))
            for name in plain.facts_["layers"]
        }
        return {**super(HeadsMap, plain).describe(), "joint_dim": self.d_out, "layers": layers}

    def _card_text(self) -> tuple[str, list[str]]:
        source, target = self.source_space_, self.target_space_
        title = as_markdown(f"{source.model or 'source'} + {target.model or 'target'}")
        text = [
            f"Maps vectors of *{as_markdown(str(source))}* and of *{as_markdown(str(target))}* into one joint space of "
            f"{self.d_out} dimensions.",
            *LOADING,
            "a = mapping.transform(source_vectors)",
            "b = mapping.transform_target(target_vectors)  # compare rows of a with rows of b by cosine",
            "```",
        ]
        return title, text


def _line(layer: Layer) -> str:
    if layer["kind"] == "residual":
        return f"residual({' → '.join(_line(inner) for inner in layer['layers'])})"
    shape = layer["weight"].shape if "weight" in layer else layer["mean"].shape if "mean" in layer else ()
    return f"{layer['kind']} {'×'.join(map(str, shape))}".strip()
