"""Trained heads, one for each model, applied with NumPy, or with torch for tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, Self

from congruence._utils.typing import Layer
from congruence.embeddings import Space
from congruence.errors import ParameterError, ShapeError
from congruence.maps._checks import NotFittedMapError
from congruence.maps.layered import PARTS, LayeredMap

__all__ = ["HeadsMap"]

#: Names that ``facts`` may not use because a map stores something else under them.
_RESERVED = {"method", "layers", "kind", "parameters", "source", "target", "scores", "joint_dim"}


class HeadsMap(LayeredMap):
    """Two trained heads that map both spaces into a joint space. Created by :meth:`from_layers`; it cannot be fitted.

    Layers are plain data, so a map trained with any framework can be saved, loaded and applied without that framework:

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

    Biases and the weight of ``layernorm`` are optional.

    Attributes
    ----------
    source_layers_, target_layers_ : list of dict
    decode_source_layers_, decode_target_layers_ : list of dict or None
        Layers from the joint space back to each model's space.
    method_ : str
        Name of the method that trained the heads.
    history_ : History
        Losses and validation scores by step, drawn by its ``plot``; only for heads trained by :mod:`congruence.train`.

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
        """Build a map from trained layers, which are copied.

        Parameters
        ----------
        source, target : sequence of mapping
            Layers of each head, first to last, as arrays or tensors.
        decode_source, decode_target : sequence of mapping, optional
            Layers from the joint space back to each model's space, for :meth:`reconstruct`.
        facts : mapping, optional
            Plain data about the training to store with the map; ``n_pairs`` also sets ``n_pairs_``.
        method : str, default="custom"
            Name of the method that trained the heads.
        source_space, target_space : Space, optional
            The models' spaces; by default only their widths are known.

        Returns
        -------
        HeadsMap

        Raises
        ------
        ParameterError
            If a layer has an unknown kind or unknown entries, or ``facts`` uses a reserved name.
        ShapeError
            If layers do not fit each other, the heads end in different widths, or no layer of a head determines its width.
        NotFiniteError, InputError
            If the arrays of a layer contain NaN or infinity, or are not real numbers.
        """
        facts = dict(facts or {})
        if taken := sorted(_RESERVED & set(facts)):
            raise ParameterError(
                f"Got facts named {', '.join(taken)}; expected names that are not reserved. Rename these."
            )
        new = cls()
        parts = dict(zip(PARTS, (source, target, decode_source, decode_target), strict=True))
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

    def fit(self, X: object = None, Y: object = None, *, y: object = None) -> NoReturn:
        """Raise an error: heads are trained with :mod:`congruence.train`.

        Raises
        ------
        ParameterError
            Always.
        """
        raise ParameterError(
            "Got a fit of HeadsMap, which only applies trained heads; expected a trainer. Use congruence.train, or "
            "CCAMap or ProcrustesHeads, which have closed forms."
        )

    def __sklearn_clone__(self) -> Self:
        """Return the map itself: it has no parameters from which it could be fitted again."""
        return self

    def check_fitted(self) -> None:
        """Refuse a map that is not fitted.

        Raises
        ------
        NotFittedMapError
            If the map has no heads.
        """
        if not hasattr(self, "source_layers_"):
            raise NotFittedMapError(
                "Got a HeadsMap without heads; expected trained ones. Use congruence.train or HeadsMap.from_layers."
            )
