"""Joint-space maps: both models are mapped into a third space."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence._utils.arrays import as_given, is_tensor
from congruence._utils.display import as_markdown
from congruence._utils.typing import Array, ArrowStream, Layer, RowsLike, Tensor, TensorT
from congruence._utils.validation import check_choice, check_width, refuse_overflow
from congruence.embeddings import Embeddings, Space, as_embeddings, check_space, normalize_rows
from congruence.errors import DirectionError, ParameterError, SpaceMismatchError
from congruence.maps._base import Map
from congruence.maps._checks import check_native

__all__ = ["TwoSidedMap"]

#: The two sides of a map, as ``side=`` names them.
SIDES = ("source", "target")


class TwoSidedMap(Map):
    """Base of joint-space maps, which have a head for each model: ``transform`` for the source, ``transform_target`` for the target.

    Mapped rows of both models are compared with each other, never with unmapped rows. ``d_target`` is the width of
    the target *model*, ``d_out`` the width of the joint space.

    A subclass implements ``_head``, ``_form``, ``layers``, ``d_target`` and what :class:`Map` requires besides ``transform``.
    """

    wrong_side: ClassVar[str] = "Use transform_target"
    sides: ClassVar[tuple[str, ...]] = SIDES

    @property
    @abstractmethod
    def d_target(self) -> int:
        """Width of the target model's vectors."""

    @abstractmethod
    def _head(self, rows: Array, side: str) -> Array:
        """Map checked rows of one side into the joint space, keeping precision and array library, with bounded extra memory."""

    @abstractmethod
    def layers(self) -> tuple[list[Layer], list[Layer]]:
        """Return both heads as lists of layers, plain data that :meth:`HeadsMap.from_layers` accepts.

        Returns
        -------
        tuple of two lists of dict
            Layers of the source head and of the target head. The arrays are copies.

        Raises
        ------
        NotFittedMapError
            If the map is not fitted.
        """

    @overload
    def transform(self, X: TensorT) -> TensorT: ...
    @overload
    def transform(self, X: ArrayLike | ArrowStream) -> np.ndarray: ...
    def transform(self, X: RowsLike) -> Array:
        """Map source rows into the joint space.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)
            float64 input gives float64 output; float16 and float32 arrays give float32.

        Returns
        -------
        ndarray or tensor, shape (m, d_out)
            A tensor for tensor input, on the same device, with the same dtype and in its autograd graph; half precision is computed in float32.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        return self._mapped(self._check_source(X), X, "source")

    @overload
    def transform_target(self, Y: TensorT) -> TensorT: ...
    @overload
    def transform_target(self, Y: ArrayLike | ArrowStream) -> np.ndarray: ...
    def transform_target(self, Y: RowsLike) -> Array:
        """Map target rows into the joint space.

        Parameters
        ----------
        Y : array_like or tensor, shape (m, d_target)
            float64 input gives float64 output; float16 and float32 arrays give float32.

        Returns
        -------
        ndarray or tensor, shape (m, d_out)
            A tensor for tensor input, on the same device, with the same dtype and in its autograd graph; half precision is computed in float32.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
            If arrays have the wrong shape, are not real numbers or contain NaN or infinity, or the map is not fitted.
        """
        return self._mapped(self._check_target(Y), Y, "target")

    def _layers_of(self, side: str) -> list[Layer]:
        return self.layers()[SIDES.index(side)]

    def _mapped(self, rows: Array, original: RowsLike, side: str) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            out = as_given(self._head(rows, side), original)
        return refuse_overflow(out, rows, "X" if side == "source" else "Y")

    def _check_target(self, Y: RowsLike) -> Array:
        self.check_fitted()
        B = check_native(Y, "Y")
        owner = f"{type(self).__name__}.transform_target"
        check_width(B.shape[1], self.d_target, owner, self.n_features_in_, "Use transform")
        return B

    @abstractmethod
    def _form(self) -> str:
        """Return what, besides the arrays of :meth:`state`, determines how rows are mapped; unchanged by saving and loading."""

    # ------------------------------------------------------------------ use on embeddings

    def joint_space(self, modality: str | None = None, *, normalized: bool | None = None) -> Space:
        """Return the space of the mapped vectors.

        Its name contains both models, and its revision is a digest of the fitted map, because coordinates of two fits on the same two
        models are not comparable.

        Parameters
        ----------
        modality : str, optional
            Modality of the mapped vectors.
        normalized : bool, optional
            Whether the mapped vectors have unit norm.

        Returns
        -------
        Space
        """
        self.check_fitted()
        names = [
            space.model or name for space, name in ((self.source_space_, "source"), (self.target_space_, "target"))
        ]
        digest = hashlib.sha256(self._form().encode())
        for name, array in sorted(self.state().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return Space(
            f"joint ({self.kind}) of {names[0]} and {names[1]}",
            digest.hexdigest()[:12],
            modality,
            self.d_out,
            normalized,
        )

    def side_of(self, space: Space, side: str | None = None) -> str:
        """Return which head to use for vectors of a space.

        Parameters
        ----------
        space : Space
            The space the vectors declare.
        side : {"source", "target"}, optional
            The expected head. If omitted, what is known about the space must fit exactly one side.

        Returns
        -------
        {"source", "target"}

        Raises
        ------
        SpaceMismatchError
            If the vectors fit neither side.
        DirectionError
            If they belong to the side that was not named.
        ParameterError
            If they fit both sides as far as is known, and ``side`` was not given.
        """
        self.check_fitted()
        spaces = {"source": self.source_space_, "target": self.target_space_}
        refused = {}
        for name, expected in spaces.items():
            # In a cross-modal map (e.g. images as source, texts as target) the modality tells the two sides apart.
            cross_modal = self.source_space_.modality != self.target_space_.modality
            try:
                check_space(space, expected, Space(), modality=cross_modal)
            except SpaceMismatchError as error:
                refused[name] = error
        if side is not None:
            check_choice(side, SIDES, "side")
            if side in refused:
                other = SIDES[side == "source"]
                if other not in refused:
                    raise DirectionError(
                        f"Got vectors of the map's {other} ({space}); expected vectors of its {side} ({spaces[side]}). "
                        f'Pass side="{other}", or call transform{"_target" if other == "target" else ""}.'
                    )
                raise refused[side]
            return side
        fitting = [name for name in SIDES if name not in refused]
        if not fitting:
            raise SpaceMismatchError(
                f"Got vectors of {space}; expected those of the map's source ({spaces['source']}) or target "
                f"({spaces['target']}). Use a map fitted on this model."
            )
        if len(fitting) == 2:
            named = [name for name in SIDES if space.model and space.model == spaces[name].model]
            if len(named) != 1:
                raise ParameterError(
                    f"Got vectors that fit both sides of the map as far as is known ({space}); expected to be told which "
                    'head to use. Pass side="source" or side="target".'
                )
            return named[0]
        return fitting[0]

    def _norm_unknown(self) -> None:
        """Do not warn: no unmapped rows of either model are in the joint space, so norms need not match theirs."""

    @overload
    def transform_embeddings(
        self,
        embeddings: TensorT,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        side: str | None = None,
    ) -> TensorT: ...
    @overload
    def transform_embeddings(
        self,
        embeddings: ArrayLike | ArrowStream,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        side: str | None = None,
    ) -> Embeddings: ...
    def transform_embeddings(
        self,
        embeddings: RowsLike,
        *,
        modality: str | None = None,
        normalize: bool | str = "auto",
        side: str | None = None,
    ) -> Embeddings | Tensor:
        """Map embeddings of either side into the joint space.

        Parameters
        ----------
        embeddings : Embeddings or array_like, shape (m, d_source) or (m, d_target)
        modality : str, optional
            Modality of the vectors; by default the modality the embeddings declare.
        normalize : {"auto", True, False}, default="auto"
            Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit.
        side : {"source", "target"}, optional
            Which head to use. By default it is determined from the space the embeddings declare (:meth:`side_of`).

        Returns
        -------
        Embeddings
            Same ids, in the joint space. For tensor input a tensor, so that its device and autograd graph are kept.

        Raises
        ------
        SpaceMismatchError, DirectionError, ParameterError
            As for :meth:`side_of`, or if ``normalize`` has another value.
        ShapeError, DtypeError, NotFiniteError
            If vectors have the wrong width, are not real numbers or contain NaN or infinity.
        NotFittedMapError
            If the map is not fitted.
        """
        if is_tensor(embeddings):
            space = Space(dim=embeddings.shape[-1] if embeddings.ndim else None, modality=modality)
            source = self.side_of(space, side) == "source"
            out = (self.transform if source else self.transform_target)(embeddings)
            return normalize_rows(out) if self.gives_unit_rows(normalize) else out
        embeddings = as_embeddings(embeddings, "embeddings", allow_zero_rows=True)
        modality = modality or embeddings.space.modality
        chosen = self.side_of(replace(embeddings.space, modality=modality), side)
        vectors = (self.transform if chosen == "source" else self.transform_target)(embeddings.vectors)
        unit = self.gives_unit_rows(normalize)
        if unit:
            vectors = normalize_rows(vectors)
        space = self.joint_space(modality, normalized=True if unit else None)
        return Embeddings(
            vectors, ids=embeddings.ids if embeddings.has_ids else None, space=space, allow_zero_rows=True
        )

    # ------------------------------------------------------------------ description

    def describe(self) -> dict[str, object]:
        """Return what is known about the fitted map as plain data, including the width of the joint space."""
        return {**super().describe(), "joint_dim": self.d_out}

    def _card_text(self) -> tuple[str, list[str]]:
        source, target = self.source_space_, self.target_space_
        title = as_markdown(f"{source.model or 'source'} + {target.model or 'target'}")
        text = [
            f"Maps vectors of *{as_markdown(str(source))}* and of *{as_markdown(str(target))}* into one joint space of {self.d_out} "
            "dimensions.",
            "",
            "```python",
            "import congruence",
            "",
            'mapping = congruence.load("path/to/this/folder")',
            "a = mapping.transform(source_vectors)",
            "b = mapping.transform_target(target_vectors)  # compare rows of a with rows of b by cosine",
            "```",
        ]
        return title, text
