"""A trained head for each side, served with NumPy, and with torch for tensors."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from congruence._utils.arrays import as_given
from congruence.embeddings import Space
from congruence.errors import ParameterError, ShapeError
from congruence.maps import _layers
from congruence.maps._checks import NotFittedMapError
from congruence.maps._saved import count
from congruence.maps.two_sided import TwoSidedMap

__all__ = ["HeadsMap"]

#: The parts of a map of heads, by the names arrays of a saved map begin with.
_PARTS = ("source", "target", "decode_source", "decode_target")

#: Names that ``facts`` may not use, because a map tells something else under them.
_RESERVED = {"method", "layers", "kind", "parameters", "source", "target", "scores", "joint_dim"}


class HeadsMap(TwoSidedMap):
    """Two trained heads that carry both spaces into a joint one; made by :meth:`from_layers`, never fitted itself.

    Layers are plain data, so that a map trained with any framework is saved, loaded and served without it:

    ============== ================================================================ ==========================================
    ``kind``       entries                                                          rows become
    ============== ================================================================ ==========================================
    ``normalize``                                                                   x / ‖x‖; zero rows stay zero
    ``center``     ``mean`` (d,)                                                    x − mean
    ``linear``     ``weight`` (d_in, d_out), ``bias`` (d_out,)                      x @ weight + bias
    ``gelu``                                                                        x Φ(x), exactly
    ``relu``                                                                        max(x, 0)
    ``silu``                                                                        x σ(x)
    ``layernorm``  ``weight`` (d,), ``bias`` (d,), ``eps`` = 1e-5                   (x − mean) / √(variance + eps) · weight + bias
    ``swiglu``     ``weight``, ``gate_weight`` (d_in, d_out), ``bias``,             silu(x @ gate_weight + gate_bias) ·
                   ``gate_bias`` (d_out,)                                           (x @ weight + bias)
    ``residual``   ``layers``                                                       x + layers(x)
    ============== ================================================================ ==========================================

    Biases, and the weight of ``layernorm``, may be absent.

    Attributes
    ----------
    source_layers_, target_layers_ : list of dict
    decode_source_layers_, decode_target_layers_ : list of dict or None
        From the joint space back to either model's.
    method_ : str
        What trained the heads.

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

    source_layers_: list[dict[str, Any]]
    target_layers_: list[dict[str, Any]]
    decode_source_layers_: list[dict[str, Any]] | None
    decode_target_layers_: list[dict[str, Any]] | None
    method_: str

    @classmethod
    def from_layers(
        cls,
        source: Sequence[Mapping[str, Any]],
        target: Sequence[Mapping[str, Any]],
        *,
        decode_source: Sequence[Mapping[str, Any]] | None = None,
        decode_target: Sequence[Mapping[str, Any]] | None = None,
        facts: Mapping[str, Any] | None = None,
        method: str = "custom",
        source_space: Space | None = None,
        target_space: Space | None = None,
    ) -> HeadsMap:
        """Make a map of trained layers, which are copied.

        Parameters
        ----------
        source, target : sequence of mapping
            Layers of each head, first to last; arrays or tensors.
        decode_source, decode_target : sequence of mapping, optional
            Layers from the joint space back to each model's, for :meth:`reconstruct`.
        facts : mapping, optional
            What to remember of the training, plain data; ``n_pairs`` is also ``n_pairs_``.
        method : str, default="custom"
            What trained the heads.
        source_space, target_space : Space, optional
            The models' spaces; their widths only by default.

        Returns
        -------
        HeadsMap

        Raises
        ------
        ParameterError
            Layers of unknown kinds or with unknown entries, or facts of a reserved name.
        ShapeError
            Layers that do not fit each other, heads that end in different widths, or a head without a layer that says its width.
        NotFiniteError, InputError
        """
        facts = dict(facts or {})
        if taken := sorted(_RESERVED & set(facts)):
            raise ParameterError(f"Got facts named {', '.join(taken)}; expected names that are free. Rename these.")
        new = cls()
        parts = dict(zip(_PARTS, (source, target, decode_source, decode_target), strict=True))
        new._set({name: part for name, part in parts.items() if part is not None}, str(method), facts)
        new.source_space_ = source_space or Space(dim=new.n_features_in_)
        new.target_space_ = target_space or Space(dim=new.d_target)
        for space, width in ((new.source_space_, new.n_features_in_), (new.target_space_, new.d_target)):
            if space.dim not in (None, width):
                raise ShapeError(
                    f"Got a head for {width}-d vectors of {space}; expected vectors of that width. Pass a head for {space.dim}-d vectors, or another space."
                )
        new.scores_ = {}
        return new

    def _set(self, parts: Mapping[str, Any], method: str, facts: Mapping[str, Any]) -> None:
        """Check layers and take them in."""
        checked = {name: _layers.check_layers(part, name) for name, part in parts.items()}
        ends = {name: _layers.widths(part, name) for name, part in checked.items()}
        for name in ("source", "target"):
            if None in ends[name]:
                raise ShapeError(
                    f"Got a {name} head without a layer that says its width; expected one with weights. Add a linear layer to it."
                )
        if ends["source"][1] != ends["target"][1]:
            raise ShapeError(
                f"Got heads that lead to {ends['source'][1]} and {ends['target'][1]} dimensions; expected one joint space. "
                "Give both the same width."
            )
        for side in ("source", "target"):
            wanted = ends[side][::-1]
            if f"decode_{side}" in ends and ends[f"decode_{side}"] != wanted:
                got = ends[f"decode_{side}"]
                raise ShapeError(
                    f"Got decode_{side} from {got[0]} to {got[1]} dimensions; expected {wanted[0]} to {wanted[1]}, back from the joint space. Pass a decoder with these widths."
                )
        self.source_layers_, self.target_layers_ = checked["source"], checked["target"]
        self.decode_source_layers_, self.decode_target_layers_ = (checked.get(name) for name in _PARTS[2:])
        source_width, joint = ends["source"]
        target_width = ends["target"][0]
        assert source_width is not None
        assert target_width is not None
        assert joint is not None
        self.n_features_in_, self._target_width, self._joint_width = source_width, target_width, joint
        self.method_ = method
        self.n_pairs_ = int(facts.get("n_pairs") or 0)
        structure = {name: _layers.flatten(part, name)[0] for name, part in checked.items()}
        self.facts_ = {**facts, "method": method, "layers": structure}

    def fit(self, X: Any = None, Y: Any = None, *, y: Any = None) -> NoReturn:
        """Refuse: heads are trained, by :mod:`congruence.train`.

        Raises
        ------
        ParameterError
            Always.
        """
        raise ParameterError(
            "Got a fit of HeadsMap, which only serves heads trained elsewhere; expected a trainer. Use congruence.train, or "
            "CCAMap or ProcrustesHeads, which have closed forms."
        )

    def __sklearn_clone__(self) -> Self:
        """Return itself: what was trained is all there is to a map of heads."""
        return self

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            raise NotFittedMapError(
                "Got a HeadsMap without heads; expected trained ones. Use congruence.train or HeadsMap.from_layers."
            )

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._target_width

    @property
    def _n_features_out(self) -> int:
        return self._joint_width

    def _head(self, rows: Any, side: str) -> Any:
        if side == "source":
            return _layers.run(self.source_layers_, rows, self._joint_width)
        return _layers.run(self.target_layers_, rows, self._joint_width)

    def layers(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the layers of both heads.

        Returns
        -------
        tuple of two lists of dict

        Raises
        ------
        NotFittedMapError
        """
        self._check_fitted()
        return copy.deepcopy(self.source_layers_), copy.deepcopy(self.target_layers_)

    def reconstruct(self, X: Any) -> Any:
        """Carry source rows into the joint space and back.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)

        Returns
        -------
        ndarray or tensor, shape (m, d_source)

        Raises
        ------
        ParameterError
            The map has no decoder for the source.
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
        """
        self._check_fitted()
        layers = self._decoder(self.decode_source_layers_, "source")
        joint = self._head(self._check_source(X), "source")
        return as_given(_layers.run(layers, joint, self.n_features_in_), X)

    def reconstruct_target(self, Y: Any) -> Any:
        """Carry target rows into the joint space and back.

        Parameters
        ----------
        Y : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_target)

        Raises
        ------
        ParameterError
            The map has no decoder for the target.
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
        """
        self._check_fitted()
        layers = self._decoder(self.decode_target_layers_, "target")
        joint = self._head(self._check_target(Y), "target")
        return as_given(_layers.run(layers, joint, self.d_target), Y)

    def _decoder(self, layers: list[dict[str, Any]] | None, side: str) -> list[dict[str, Any]]:
        if layers is None:
            raise ParameterError(
                f"Got a map of heads without a decoder for the {side} ({self.method_}); expected one. Train with "
                f"reconstruction, or pass decode_{side} to from_layers."
            )
        return layers

    def _form(self) -> str:
        return json.dumps(self.facts_["layers"], sort_keys=True)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of all layers, named by their place, for example ``source.2.weight``."""
        self._check_fitted()
        out: dict[str, np.ndarray] = {}
        for name in _PARTS:
            layers = getattr(self, f"{name}_layers_")
            if layers is not None:
                out |= _layers.flatten(layers, name)[1]
        return out

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        rest, known = dict(arrays), dict(facts)
        structure, method = known.pop("layers"), known.pop("method")
        if not isinstance(structure, dict) or not {"source", "target"} <= set(structure) <= set(_PARTS):
            raise ValueError("heads that are not named source and target, and decoders after them")
        count(known, "n_pairs", missing=0)
        if not isinstance(method, str):
            raise ValueError("a method that is no text")
        parts = {name: _layers.unflatten(part, rest, name) for name, part in structure.items()}
        if rest:
            raise ValueError(f"arrays of no layer: {', '.join(sorted(rest)[:3])}")
        self._set(parts, method, known)

    def describe(self) -> dict[str, Any]:
        """Return what is known about the map as plain data; layers as one line a head."""
        facts = super().describe()
        facts["layers"] = {
            name: " → ".join(_line(layer) for layer in getattr(self, f"{name}_layers_")) for name in facts["layers"]
        }
        return facts


def _line(layer: Mapping[str, Any]) -> str:
    if layer["kind"] == "residual":
        return f"residual({' → '.join(_line(inner) for inner in layer['layers'])})"
    shape = layer["weight"].shape if "weight" in layer else layer["mean"].shape if "mean" in layer else ()
    return f"{layer['kind']} {'×'.join(map(str, shape))}".strip()
