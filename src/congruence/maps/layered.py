"""Joint-space maps whose heads are lists of layers, however trained; applied with NumPy, or with torch for tensors."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given
from congruence._utils.typing import Array, ArrowStream, Layer, RowsLike, TensorT
from congruence.errors import CorruptFileError, ParameterError, ShapeError
from congruence.maps import _layers
from congruence.maps._checks import NotFittedMapError
from congruence.maps._saved import count
from congruence.maps.history import History
from congruence.maps.two_sided import TwoSidedMap

__all__ = ["PARTS", "LayeredMap"]

#: Parts of a layered map; the names of arrays in a saved map begin with these.
PARTS = ("source", "target", "decode_source", "decode_target")


class LayeredMap(TwoSidedMap):
    """Base of maps with a list of layers for each model and, optionally, layers back from the joint space to each model.

    The layers are plain data; :class:`~congruence.HeadsMap` lists their kinds. Trainers and ``HeadsMap`` differ only in where the layers
    come from, and are saved in the same way.

    Attributes
    ----------
    source_layers_, target_layers_ : list of dict
    decode_source_layers_, decode_target_layers_ : list of dict or None
        Layers from the joint space back to each model's space.
    method_ : str
        Name of the method that trained the heads.
    history_ : History
        Losses and validation scores by step, drawn by its ``plot``; only for heads with a training record.
    """

    kind: ClassVar[str] = "heads"

    source_layers_: list[Layer]
    target_layers_: list[Layer]
    decode_source_layers_: list[Layer] | None
    decode_target_layers_: list[Layer] | None
    method_: str

    def _set(self, parts: Mapping[str, object], method: str, facts: Mapping[str, Any]) -> None:
        """Check the layers of each part, and set the fitted attributes."""
        checked = {name: _layers.check_layers(part, name) for name, part in parts.items()}
        ends = {name: _layers.widths(part, name) for name, part in checked.items()}
        for name in ("source", "target"):
            if None in ends[name]:
                raise ShapeError(
                    f"Got a {name} head whose layers do not determine its width; expected a layer with weights. Add a linear layer to it."
                )
        if ends["source"][1] != ends["target"][1]:
            raise ShapeError(
                f"Got heads that lead to {ends['source'][1]} and {ends['target'][1]} dimensions; expected one joint space. "
                "Give both the same width."
            )
        for side in ("source", "target"):
            expected = ends[side][::-1]
            if f"decode_{side}" in ends and ends[f"decode_{side}"] != expected:
                got = ends[f"decode_{side}"]
                raise ShapeError(
                    f"Got decode_{side} from {got[0]} to {got[1]} dimensions; expected {expected[0]} to {expected[1]}, back from the joint space. Pass a decoder with these widths."
                )
        self.source_layers_, self.target_layers_ = checked["source"], checked["target"]
        self.decode_source_layers_, self.decode_target_layers_ = (checked.get(name) for name in PARTS[2:])
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

    def check_fitted(self) -> None:
        """Refuse a map that is not fitted.

        Raises
        ------
        NotFittedMapError
            If :meth:`fit` was not called.
        """
        if not hasattr(self, "source_layers_"):
            raise NotFittedMapError(
                f"Got an unfitted {type(self).__name__}; expected a fitted one. Call fit(X, Y) first."
            )

    @property
    def history_(self) -> History:
        """Losses and validation scores of the training by step, read from ``facts_["history"]``.

        Raises
        ------
        AttributeError
            If the map is not fitted, or has no training record.
        CorruptFileError
            If the training record of a saved map is damaged.
        """
        self.check_fitted()
        if "history" not in self.facts_:
            raise AttributeError(f"{type(self).__name__} of method {self.method_!r} has no training record")
        try:
            return History.from_dict(self.facts_["history"])
        except (OverflowError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"Got a training record that cannot be read ({error}); expected losses and scores by step. Save the map again from where it was trained."
            ) from error

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._target_width

    @property
    def _n_features_out(self) -> int:
        return self._joint_width

    def _head(self, rows: Array, side: str) -> Array:
        if side == "source":
            return _layers.run(self.source_layers_, rows, self._joint_width)
        return _layers.run(self.target_layers_, rows, self._joint_width)

    def layers(self) -> tuple[list[Layer], list[Layer]]:
        """Return the layers of both heads.

        Returns
        -------
        tuple of two lists of dict

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """
        self.check_fitted()
        return copy.deepcopy(self.source_layers_), copy.deepcopy(self.target_layers_)

    @overload
    def reconstruct(self, X: TensorT) -> TensorT: ...
    @overload
    def reconstruct(self, X: ArrayLike | ArrowStream) -> np.ndarray: ...
    def reconstruct(self, X: RowsLike) -> Array:
        """Map source rows into the joint space and back.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)

        Returns
        -------
        ndarray or tensor, shape (m, d_source)

        Raises
        ------
        ParameterError
            If the map has no decoder for the source.
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        self.check_fitted()
        layers = self._decoder(self.decode_source_layers_, "source")
        joint = self._head(self._check_source(X), "source")
        return as_given(_layers.run(layers, joint, self.n_features_in_), X)

    @overload
    def reconstruct_target(self, Y: TensorT) -> TensorT: ...
    @overload
    def reconstruct_target(self, Y: ArrayLike | ArrowStream) -> np.ndarray: ...
    def reconstruct_target(self, Y: RowsLike) -> Array:
        """Map target rows into the joint space and back.

        Parameters
        ----------
        Y : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_target)

        Raises
        ------
        ParameterError
            If the map has no decoder for the target.
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        self.check_fitted()
        layers = self._decoder(self.decode_target_layers_, "target")
        joint = self._head(self._check_target(Y), "target")
        return as_given(_layers.run(layers, joint, self.d_target), Y)

    def _decoder(self, layers: list[Layer] | None, side: str) -> list[Layer]:
        if layers is None:
            raise ParameterError(
                f"Got heads without a decoder for the {side} ({self.method_}); expected one. Train with "
                f"reconstruction, or pass decode_{side} to from_layers."
            )
        return layers

    def _form(self) -> str:
        return json.dumps(self.facts_["layers"], sort_keys=True)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of all layers, named by their position, e.g. ``source.2.weight``."""
        self.check_fitted()
        out: dict[str, np.ndarray] = {}
        for name in PARTS:
            layers = getattr(self, f"{name}_layers_")
            if layers is not None:
                out |= _layers.flatten(layers, name)[1]
        return out

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> None:
        unused, other_facts = dict(arrays), dict(facts)
        structure, method = other_facts.pop("layers"), other_facts.pop("method")
        if not isinstance(structure, dict) or not {"source", "target"} <= set(structure) <= set(PARTS):
            raise ValueError("parts other than source, target and their decoders, or without one of the heads")
        count(other_facts, "n_pairs", missing=0)
        if not isinstance(method, str):
            raise ValueError("a method that is not a string")
        parts = {name: _layers.unflatten(part, unused, name) for name, part in structure.items()}
        if unused:
            raise ValueError(f"arrays of no layer: {', '.join(sorted(unused)[:3])}")
        self._set(parts, method, other_facts)

    def describe(self) -> dict[str, object]:
        """Return what is known about the map as plain data, with one line per head for its layers."""
        facts = super().describe()
        facts["layers"] = {
            name: " → ".join(_line(layer) for layer in getattr(self, f"{name}_layers_"))
            for name in self.facts_["layers"]
        }
        return facts


def _line(layer: Layer) -> str:
    if layer["kind"] == "residual":
        return f"residual({' → '.join(_line(inner) for inner in layer['layers'])})"
    shape = layer["weight"].shape if "weight" in layer else layer["mean"].shape if "mean" in layer else ()
    return f"{layer['kind']} {'×'.join(map(str, shape))}".strip()
