"""Export a fitted map as layers, which are plain data, or as a PyTorch module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from congruence._utils.optional import require
from congruence._utils.typing import Layer
from congruence._utils.validation import check_choice
from congruence.embeddings import Space
from congruence.errors import ParameterError

if TYPE_CHECKING:
    import torch

    from congruence.maps.torch_module import TorchMap


class Exported(ABC):
    """Exports of a fitted map for other frameworks."""

    kind: ClassVar[str]
    #: The sides that :meth:`as_layers` knows.
    sides: ClassVar[tuple[str, ...]] = ("source",)
    n_features_in_: int
    source_space_: Space
    target_space_: Space

    @property
    @abstractmethod
    def d_target(self) -> int:
        """Width of the target model's vectors."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Width of mapped rows."""

    @abstractmethod
    def for_modality(self, modality: str | None) -> Self:
        """Return the map to use for a modality."""

    @abstractmethod
    def gives_unit_rows(self, normalize: bool | str = "auto") -> bool:
        """Return whether mapped rows are to be scaled to unit norm."""

    def _layers_of(self, side: str) -> list[Layer]:
        """Return ``transform`` as layers; for a joint-space map, the head of one side."""
        raise ParameterError(
            f"Got {type(self).__name__}, which is not made of layers; expected a map of the table MAPS. Call transform instead."
        )

    def as_layers(
        self, modality: str | None = None, normalize: bool | str = "auto", *, side: str = "source"
    ) -> list[Layer]:
        """Return :meth:`~congruence.maps.Map.transform_embeddings` as a list of layers, from which every export is written.

        Parameters
        ----------
        modality : str, optional
            Modality whose means are used; by default the map's own (``source_space_.modality``), as for ``transform``.
        normalize : {"auto", True, False}, default="auto"
            Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
        side : {"source", "target"}, default="source"
            Which head to use; for joint-space maps only.

        Returns
        -------
        list of dict
            Layers as listed in :class:`~congruence.HeadsMap`, with float64 arrays, and ``{"kind": "sum", "branches": [layers, …]}``, whose
            branches are applied to the same rows and whose results are added. A ``center`` before a ``linear`` layer is merged into its bias.

        Raises
        ------
        ModalityError
            If the map has no means for the modality.
        ParameterError
            If ``side="target"`` for a map with one side, ``normalize`` or ``side`` has an invalid value, or the map does not consist of layers.
        NotFittedMapError
            If the map is not fitted.

        Warns
        -----
        NormWarning
            If ``normalize="auto"`` and the map does not know whether its target's rows had unit norm.
        """
        check_choice(side, ("source", "target"), "side")
        if side not in self.sides:
            raise ParameterError(
                f"Got side='target' for {type(self).__name__}, which leaves target rows as they are; expected 'source'. Leave out side=…."
            )
        chosen = self.for_modality(modality)
        unit = chosen.gives_unit_rows(normalize)
        layers = _fold_centers(chosen._layers_of(side))
        return [*layers, {"kind": "normalize"}] if unit else layers

    def to_torch(
        self,
        modality: str | None = None,
        normalize: bool | str = "auto",
        *,
        side: str = "source",
        trainable: bool = False,
        dtype: torch.dtype | None = None,
    ) -> TorchMap:
        """Return the map as a ``torch.nn.Module``, for one modality (extra ``train``).

        Parameters
        ----------
        modality : str, optional
            Modality whose means are used; by default the map's own (``source_space_.modality``), as for :meth:`transform`.
        normalize : {"auto", True, False}, default="auto"
            Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit, as in :meth:`transform_embeddings`. With False,
            the module computes :meth:`transform`.
        side : {"source", "target"}, default="source"
            Which head of a joint-space map to use: "source" for :meth:`transform`, "target" for :meth:`transform_target`.
        trainable : bool, default=False
            Whether the weights require gradients. Gradients with respect to the rows are always computed.
        dtype : torch.dtype, default=torch.float32
            Type of the weights, which the map stores in float64.

        Returns
        -------
        TorchMap
            A ``torch.nn.Module`` on the CPU, made of ``torch.nn`` layers where possible. Later changes of the map do not affect it.

        Raises
        ------
        MissingExtraError
            If PyTorch is not installed.
        ModalityError, ParameterError, NotFittedMapError
            As for :meth:`as_layers`.

        Warns
        -----
        NormWarning
            If ``normalize="auto"`` and the map does not know whether its target's rows had unit norm.

        Examples
        --------
        >>> import torch
        >>> from congruence import OrthogonalMap
        >>> from congruence.synthetic import rigid_problem
        >>> problem = rigid_problem(n=200, d_source=16, random_state=0)
        >>> mapping = OrthogonalMap().fit(problem.X, problem.Y)
        >>> module = mapping.to_torch(dtype=torch.float64)
        >>> bool(torch.allclose(module(torch.as_tensor(problem.X)), torch.as_tensor(mapping.transform(problem.X))))
        True
        """
        torch = require("torch", extra="train")
        from congruence.maps.torch_module import TorchMap

        layers = self.as_layers(modality, normalize, side=side)
        d_in = self.d_target if side == "target" else self.n_features_in_
        shown_modality = modality or (self.target_space_ if side == "target" else self.source_space_).modality
        about = [self.kind, f"{d_in} → {self.d_out}", *([shown_modality] if shown_modality else [])]
        if layers[-1]["kind"] == "normalize":
            about.append("unit rows")
        return TorchMap(
            layers, d_in, self.d_out, trainable=trainable, dtype=dtype or torch.float32, about=", ".join(about)
        )


def _fold_centers(layers: Iterable[Layer]) -> list[Layer]:
    """Merge each ``center`` layer into the bias of the ``linear`` layer that follows it, as ``transform`` does; arrays become float64."""
    out: list[Layer] = []
    for layer in layers:
        layer = {
            key: [_fold_centers(branch) for branch in value]
            if key == "branches"
            else _fold_centers(value)
            if key == "layers"
            else np.asarray(value, dtype=np.float64)
            if isinstance(value, np.ndarray)
            else value
            for key, value in layer.items()
        }
        if layer["kind"] == "linear" and out and out[-1]["kind"] == "center":
            layer["bias"] = layer.get("bias", 0.0) - out.pop()["mean"] @ layer["weight"]
        out.append(layer)
    return out
