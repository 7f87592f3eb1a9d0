"""What every map has in common: the estimator's contract, checks, exports, saving and display."""

from __future__ import annotations

import inspect
import math
import sys
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from congruence import persist
from congruence._utils.arrays import as_given, blocks, cast_like, is_plain, is_tensor, squared_norms, to_numpy, widen
from congruence._utils.columns import to_rows
from congruence._utils.display import as_html, as_markdown, as_text
from congruence._utils.optional import require
from congruence._utils.typing import Array, ArrowStream, Layer, RowsLike, TensorT
from congruence._utils.validation import (
    as_matrix,
    as_native,
    check_choice,
    check_same_rows,
    check_scale,
    check_width,
    refuse_overflow,
)
from congruence.embeddings import (
    MODALITIES,
    Embeddings,
    Space,
    as_embeddings,
    check_space,
    has_unit_rows,
    in_order,
    normalize_rows,
)
from congruence.errors import (
    CongruenceError,
    CorruptFileError,
    InputError,
    NormWarning,
    ParameterError,
    ShapeError,
    TooFewAnchorsError,
)
from congruence.linalg.distribution import Kinds
from congruence.maps.card import LOADING, picture, shown, write_card
from congruence.maps.readout import ROLES, Folded, Readout, RowMeans, to_sphere

if TYPE_CHECKING:
    import torch
    from sklearn.utils import Tags

    from congruence.maps.torch_module import TorchMap


#: Every map class, by the name used in ``config.json``; filled by ``congruence.maps``, which imports the classes.
MAPS: dict[str, type[Map]] = {}

#: Beginning of the names under which ``origins_`` is saved.
_ORIGINS = "origins."


class NotFittedMapError(CongruenceError, ValueError, AttributeError):
    """A map is used before it is fitted. Where scikit-learn is loaded, also its ``NotFittedError``."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        exceptions = sys.modules.get("sklearn.exceptions")
        made = cls if exceptions is None else _also_of_sklearn(exceptions.NotFittedError)
        return super().__new__(made, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return NotFittedMapError, (self.problem, self.fix)


@cache
def _also_of_sklearn(error: type) -> Any:
    return type("NotFittedMapError", (NotFittedMapError, error), {"__module__": __name__})


class Map(ABC):
    """Base of all maps: an estimator that scikit-learn's tools accept, and that never imports it. After a fit,
    ``source_space_`` and ``target_space_`` identify the spaces that the map connects, and ``scores_`` holds everything
    that was measured. A subclass sets ``kind``, implements ``fit``, ``_map``, ``state`` and ``_restore``, and is listed
    in ``congruence.maps.MAPS``.
    """

    kind: ClassVar[str]
    #: Advice for vectors that have the width of the target, for error messages.
    wrong_side: ClassVar[str] = "Apply the inverse"
    #: The sides that ``as_layers`` knows.
    sides: ClassVar[tuple[str, ...]] = ("source",)
    n_features_in_: int
    source_space_: Space
    target_space_: Space
    scores_: dict[str, Any]
    facts_: dict[str, Any]
    n_pairs_: int
    #: How the rows of both models, and mapped ones, were distributed at the fit; None if that was not kept.
    origins_: Kinds | None = None
    #: The role of rows that ``transform`` maps unless another is named: that of ``congruence.fit``'s maps is "store".
    role_: str = "plain"

    @abstractmethod
    def fit(self, X: RowsLike, Y: RowsLike) -> Self:
        """Fit the map on rows paired by position, shapes (n, d_source) and (n, d_target)."""

    @abstractmethod
    def _map(self, rows: Array) -> Array:
        """Map checked source rows, in their precision and array library, with bounded extra memory."""

    def _map_target(self, rows: Array) -> Array:
        """Map checked target rows; the identity, except for joint-space maps."""
        return rows

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays that, with the parameters and ``facts_``, rebuild the map."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Set the fitted attributes from ``state`` and ``facts_``, after checking them."""

    @property
    @abstractmethod
    def _n_features_out(self) -> int:
        """Width of the output of ``transform``."""

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._n_features_out

    @property
    def d_out(self) -> int:
        """Width of the output of ``transform``: ``d_target``, except for joint-space maps."""
        return self._n_features_out

    @overload
    def transform(self, X: TensorT, modality: str | None = None, role: str | None = None) -> TensorT: ...
    @overload
    def transform(
        self, X: ArrayLike | ArrowStream, modality: str | None = ..., role: str | None = ...
    ) -> np.ndarray: ...
    def transform(self, X: RowsLike, modality: str | None = None, role: str | None = None) -> Array:
        """Map source rows (m, d_source) into the target space, or into the joint space of a joint-space map.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)
            A tensor gives a tensor, on its device, with its dtype and in its autograd graph; float16 arrays give
            float32.
        modality : str, optional
            Modality whose means are used, by default that which ``Embeddings`` declare; needed (ModalityError) by a map
            with means of several.
        role : {"plain", "store", "query"}, optional
            What the rows are for: an index that the target's queries search, or queries of an index of the target's
            rows, both as unit rows if the target's were; or "plain", the fitted map itself, the only one of maps that
            are not affine. By default "store" for a map that ``congruence.fit`` returned, "plain" for others.
        """
        out = self._for_rows(X, modality, role)._apply(X)
        output = sys.modules.get("sklearn.utils._set_output")
        return out if output is None else output._wrap_data_with_container("transform", out, X, self)

    @overload
    def transform_target(self, Y: TensorT) -> TensorT: ...
    @overload
    def transform_target(self, Y: ArrayLike | ArrowStream) -> np.ndarray: ...
    def transform_target(self, Y: RowsLike) -> Array:
        """Map target rows (m, d_target) to where ``transform`` maps: the identity, except for joint-space maps."""
        return self._compute(self._map_target, self._check_target(Y), Y, "Y")

    predict = transform

    def score(self, X: RowsLike, y: RowsLike) -> float:
        """Return the share of source rows ``X`` whose nearest of the target's rows ``y`` is their own, by cosine, after
        the map; rows that tie for nearest share the hit. A map with means of several modalities needs ``Embeddings``
        that declare one.
        """
        X, y = in_order(X, y)
        mapped = self._for_rows(X, None, None)
        ours = normalize_rows(to_numpy(mapped._apply(X)))
        theirs = normalize_rows(to_numpy(mapped.transform_target(y)))
        check_same_rows(len(ours), len(theirs), "X", "y")
        hits = 0.0
        for part in blocks(len(ours), 8 * len(theirs)):
            own = np.einsum("ij,ij->i", ours[part], theirs[part])[:, None]
            near = ours[part] @ theirs.T
            near[np.arange(len(own)), np.arange(len(theirs))[part]] = own[:, 0]
            eps = 8 * np.finfo(near.dtype).eps  # equal rows may differ in the last digits of a product
            tied = np.count_nonzero(near >= own - eps, axis=1)
            hits += float(((near <= own + eps).all(axis=1) / tied).sum())
        return hits / len(ours)

    def fit_transform(self, X: RowsLike, y: RowsLike | None = None, **fit_params: Any) -> Array:
        """Fit the map on rows ``X`` and the target's rows ``y``, and return the mapped rows."""
        return self.fit(X, y, **fit_params).transform(X)  # type: ignore[arg-type]

    #: scikit-learn converts the results of these methods as ``set_output`` or its configuration asks.
    _sklearn_auto_wrap_output_keys: ClassVar[frozenset[str]] = frozenset({"transform"})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with ``deep`` also those of parameters that are estimators."""
        params = {name: getattr(self, name) for name in sorted(inspect.signature(type(self)).parameters)}
        if deep:
            for name, value in list(params.items()):
                if hasattr(value, "get_params") and not isinstance(value, type):
                    params |= {f"{name}__{inner}": setting for inner, setting in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and return the map itself."""
        known = inspect.signature(type(self)).parameters
        for name, value in params.items():
            own, _, inner = name.partition("__")
            check_choice(own, known, "parameter")
            if inner:
                getattr(self, own).set_params(**{inner: value})
            else:
                setattr(self, own, value)
        return self

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what ``transform`` returns, as in scikit-learn: "default" (arrays), "pandas" or "polars"."""
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Return the names of the output's columns: the class's name and a number."""
        self.check_fitted()
        return np.array([f"{type(self).__name__.lower()}{k}" for k in range(self._n_features_out)], dtype=object)

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import Tags, TargetTags, TransformerTags  # only scikit-learn calls this

        target = TargetTags(
            required=True, one_d_labels=False, two_d_labels=True, multi_output=True, single_output=False
        )
        return Tags(estimator_type=None, target_tags=target, transformer_tags=TransformerTags())

    def check_fitted(self) -> None:
        """Refuse a map that is not fitted. Raises NotFittedMapError."""
        if not hasattr(self, "n_features_in_"):
            raise NotFittedMapError(f"Got an unfitted {type(self).__name__}.", "Call fit(X, Y) first.")

    def _check_pairs(
        self,
        X: RowsLike,
        Y: RowsLike | None,
        sample_weight: ArrayLike | None = None,
        *,
        reset: bool = True,
        min_pairs: int = 2,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return paired rows and weights, checked; store (or compare) the number and names of the columns."""
        Y = self._require_target(Y)
        X, Y = in_order(X, Y)
        A = as_matrix(X, "X", numeric_objects=True)
        B = as_target(Y)
        check_same_rows(len(A), len(B), "X", "Y")
        check_scale(A, "X")
        check_scale(B, "Y")
        if not reset:
            check_width(A.shape[1], self.n_features_in_, type(self).__name__)
        self._check_columns(X, A, reset=reset)
        weights = None if sample_weight is None else _check_weights(sample_weight, len(A))
        used = len(A) if weights is None else int(np.count_nonzero(weights))
        if used < min_pairs:
            problem = f"Got {used} samples whose weight is not zero; expected at least {min_pairs}."
            raise TooFewAnchorsError(problem, "Pass more pairs.")
        return A, B, weights

    def _require_target(self, Y: RowsLike | None) -> RowsLike:
        if Y is None:  # in the words that scikit-learn's checks expect
            name = type(self).__name__
            problem = f"{name} requires y to be passed, but the target y is None; expected the target rows."
            raise InputError(problem, "Call fit(X, Y).")
        return Y

    def _check_source(self, X: RowsLike) -> Array:
        """Return rows to transform, checked; a tensor stays a tensor. Rows of zeros pass: nothing could name them."""
        self.check_fitted()
        A = check_native(X, "X")
        check_width(A.shape[1], self.n_features_in_, type(self).__name__, self.d_target, self.wrong_side)
        # congruence.fit passes arrays without names of columns, so a data frame with names must not cause a warning.
        if "feature_names_in_" in vars(self):
            self._check_columns(X, A, reset=False)
        return A

    def _check_target(self, Y: RowsLike) -> Array:
        self.check_fitted()
        B = check_native(Y, "Y")
        owner = f"{type(self).__name__}.transform_target"
        check_width(B.shape[1], self.d_target, owner, self.n_features_in_, "Use transform")
        return B

    def _check_columns(self, X: object, A: Array, *, reset: bool) -> None:
        """Store or compare the number of columns and, of a data frame, their names; in scikit-learn's words."""
        names = list(getattr(X, "columns", ())) if getattr(X, "shape", ())[1:] == A.shape[1:] else []
        names = names if all(isinstance(name, str) for name in names) else []
        fitted = [] if reset else list(vars(self).get("feature_names_in_", ()))
        if reset:
            self.n_features_in_ = A.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            if names:
                self.feature_names_in_ = np.array(names, dtype=object)
        elif fitted and not names:
            kind = type(self).__name__
            problem = f"X does not have valid feature names, but {kind} was fitted with feature names"
            warnings.warn(problem, UserWarning, stacklevel=4)
        elif fitted and names != fitted:
            lines = ["The feature names should match those that were passed during fit."]
            for title, odd in (
                ("Feature names unseen at fit time:", sorted({*names} - {*fitted})),
                ("Feature names seen at fit time, yet now missing:", sorted({*fitted} - {*names})),
            ):
                if odd:
                    lines += [title, *(f"- {name}" for name in odd[:5]), *["- ..."] * (len(odd) > 5)]
            if len(lines) == 1:
                lines.append("Feature names must be in the same order as they were in fit.")
            raise InputError("\n".join([*lines, ""]), "Pass the columns of the fit.")

    def _compute(self, function: Callable[[Array], Array], rows: Array, given: RowsLike, name: str) -> Array:
        """Apply a function to checked rows, and return finite results in the dtype of the rows as given."""
        with np.errstate(over="ignore", invalid="ignore"):
            out = as_given(function(rows), given)
        return refuse_overflow(out, given if is_tensor(given) else rows, name)

    def _remember(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Initialize the attributes that every fitted map has."""
        self.source_space_ = Space(dim=X.shape[1], normalized=has_unit_rows(X))
        self.target_space_ = Space(dim=Y.shape[1], normalized=has_unit_rows(Y))
        self.scores_ = {}
        for name in ("role_", "readout_", "_folded"):
            self.__dict__.pop(name, None)

    def for_modality(self, modality: str | None, *, ask: bool = False) -> Self:
        """Return the map to use for a modality: the map itself, unless the method keeps means for each modality. With
        ``ask``, None is refused by a map that has means of several and was not told which to use.
        """
        if modality is not None:
            check_choice(modality, MODALITIES, "modality")
        return self

    def _for_rows(self, rows: object, modality: str | None, role: str | None) -> Self:
        """Return the map for rows of a role and a modality: the one named, else the one they declare."""
        if modality is None and not is_plain(rows) and isinstance(rows, Embeddings):
            modality = rows.space.modality
        return self.in_use(modality, role)

    def in_use(self, modality: str | None, role: str | None) -> Self:
        """Return ``for_modality(modality, ask=True).for_role(role)``, which affine maps make once: do not change it."""
        return self.for_modality(modality, ask=True).for_role(role)

    def for_role(self, role: str | None) -> Self:
        """Return the map to use for rows of a role (see ``transform``); of None, for those of its default role. Its
        product has the role's read-out in it; ``finish`` follows.
        """
        if role is not None:
            check_choice(role, ROLES, "role")
        return self

    @property
    def read_as(self) -> str | None:
        """The role of the rows that a map from ``for_role`` gives; None for the map itself."""
        return None

    def _apply(self, X: RowsLike, unit: bool | None = None) -> Array:
        """Map rows after checking them; unless ``unit`` says so, unit rows are those of a role for such a target."""
        out = self._compute(self._map, self._check_source(X), X, "X")
        return self.finish(out, bool(self.read_as and self.target_space_.normalized) if unit is None else unit)

    def finish(self, rows: Array, unit: bool) -> Array:
        """Return rows that are mapped except for their norms, scaled to unit norm if ``unit``."""
        return normalize_rows(rows) if unit else rows

    def gives_unit_rows(self, normalize: bool | str = "auto") -> bool:
        """Return whether ``transform_embeddings``, ``transform_file`` and exports scale mapped rows to unit norm.
        "auto" does if the target's rows had unit norm at the fit; if that is unknown, a NormWarning says so.
        """
        self.check_fitted()
        if check_choice(normalize, ("auto", True, False), "normalize") != "auto":
            return bool(normalize)
        # No unmapped rows of either model are in a joint space, so norms there need not match theirs.
        if self.target_space_.normalized is None and self.sides == ("source",):
            warnings.warn(
                NormWarning(
                    "The map has no record of whether the target's rows had unit norm, so rows keep the norms it "
                    "gives them.",
                    "Pass `normalize=True` for unit rows.",
                ),
                stacklevel=3,
            )
        return bool(self.target_space_.normalized)

    def transform_embeddings(
        self,
        embeddings: RowsLike,
        *,
        modality: str | None = None,
        role: str | None = None,
        normalize: bool | str = "auto",
        side: str | None = None,
    ) -> Any:
        """Map embeddings, after checking that they come from this map's source space; a tensor gives a tensor.

        ``modality`` and ``role`` are those of ``transform``, ``normalize`` is that of ``gives_unit_rows``, ``side`` the
        head of a joint-space map, by default that of the embeddings' space. Raises SpaceMismatchError, DirectionError
        or ModalityError for embeddings of another space, or of a modality without known means.
        """
        self.check_fitted()
        if is_tensor(embeddings):
            given, space = None, Space(dim=embeddings.shape[-1] if embeddings.ndim else None, modality=modality)
            X: RowsLike = embeddings
        else:
            given = as_embeddings(embeddings, "embeddings", allow_zero_rows=True)
            modality = modality or given.space.modality
            X, space = given.vectors, given.space
        mapped = self.in_use(modality, role)
        side = self._pick_side(space, modality, side, tensor=given is None)
        unit = mapped.gives_unit_rows(normalize)
        if side == "target":
            out: Any = mapped.finish(mapped.transform_target(X), unit)
        else:
            out = mapped._apply(X, unit)
        if given is None:
            return out
        facts: dict[str, Any] = {"modality": modality, "normalized": True if unit else None}
        space = replace(mapped._space_of_output(), dim=out.shape[1], role=mapped.read_as, **facts)
        return Embeddings(to_numpy(out), ids=given.ids if given.has_ids else None, space=space, allow_zero_rows=True)

    def _pick_side(self, space: Space, modality: str | None, side: str | None, *, tensor: bool) -> str:
        """Return the side to use for vectors of a space; what is known of a tensor's space is its width."""
        self._check_side(side or "source")
        if not tensor:
            check_space(space, self.source_space_, self.target_space_, modality=False)
        return "source"

    def _check_side(self, side: str) -> None:
        if check_choice(side, ("source", "target"), "side") not in self.sides:
            raise ParameterError("`side='target'` has no meaning for a map of one side.", "Leave out `side=…`.")

    def _space_of_output(self) -> Space:
        return self.target_space_

    def describe(self) -> dict[str, object]:
        """Return what is known about the fitted map as plain data (what ``congruence inspect`` prints)."""
        self.check_fitted()
        return {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source": self.source_space_.to_dict(),
            "target": self.target_space_.to_dict(),
            **self.facts_,
            "scores": self.scores_,
        }

    def _layers_of(self, side: str) -> list[Layer]:
        """Return ``transform`` as layers; for a joint-space map, the head of one side."""
        raise ParameterError(f"{type(self).__name__} is not made of layers.", "Call transform instead.")

    def as_layers(
        self,
        modality: str | None = None,
        normalize: bool | str = "auto",
        *,
        side: str = "source",
        role: str | None = None,
    ) -> list[Layer]:
        """Return ``transform_embeddings`` as a list of layers with float64 arrays, from which every export is written.
        Layers are those listed in ``HeadsMap``, and ``{"kind": "sum", "branches": [layers, …]}``, whose branches are
        applied to the same rows and whose results are added. ``side`` is the head of a joint-space map.
        """
        self._check_side(side)
        chosen = self.for_modality(modality, ask=True)
        unit = chosen.gives_unit_rows(normalize)
        chosen = chosen.for_role(role)
        return fold_centers([*chosen._layers_of(side), *chosen._layers_to_finish(unit)])

    def _layers_to_finish(self, unit: bool) -> list[Layer]:
        """Return ``finish`` as layers."""
        return [{"kind": "normalize"}] if unit else []

    def to_torch(
        self,
        modality: str | None = None,
        normalize: bool | str = "auto",
        *,
        side: str = "source",
        role: str | None = None,
        trainable: bool = False,
        dtype: torch.dtype | None = None,
    ) -> TorchMap:
        """Return the map as a ``torch.nn.Module`` on the CPU, for one modality (extra ``train``). Arguments are those
        of ``as_layers``; ``role`` is that of ``transform``, also by default, while a bridge's module maps queries. With
        ``normalize=False`` the module computes ``transform`` (or ``transform_target``). Weights are of type ``dtype``,
        float32 by default, and require gradients if ``trainable``.
        """
        torch = require("torch", extra="train")
        from congruence.maps.torch_module import TorchMap

        layers = self.as_layers(modality, normalize, side=side, role=role)
        space, d_in = self.source_space_, self.n_features_in_
        if side == "target":
            space, d_in = self.target_space_, self.d_target
        unit = "unit rows" if layers[-1]["kind"] in ("normalize", "sphere") else None
        about = ", ".join(filter(None, (self.kind, f"{d_in} → {self.d_out}", modality or space.modality, unit)))
        return TorchMap(layers, d_in, self.d_out, trainable=trainable, dtype=dtype or torch.float32, about=about)

    def config(self) -> dict[str, Any]:
        """Return everything that is saved of the map besides the arrays of ``state``, as plain data."""
        self.check_fitted()
        return {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source_space": self.source_space_.to_dict(),
            "target_space": self.target_space_.to_dict(),
            "facts": self.facts_,
            "scores": self.scores_,
            "role": self.role_,
        }

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the map as a folder that ``congruence.load`` reads, and return its path. It holds
        ``model.safetensors``, ``config.json`` and ``README.md``. ``force`` replaces an existing map; without it, an
        existing path raises OutputExistsError.
        """
        saved = self._plain()
        kept = {} if self.origins_ is None else self.origins_.state()
        arrays = {**saved.state(), **{_ORIGINS + name: array for name, array in kept.items()}}
        return persist.write_folder(path, arrays, saved.config(), write_card(saved, *saved._card_text()), force=force)

    def _plain(self) -> Map:
        """Return the map that is saved in place of this one, without the parameters of a method that found it."""
        return self

    def _card_text(self) -> tuple[str, list[str]]:
        """Return the title of the card, and what the map does and how to call it, in Markdown with escaped names."""
        source, target = self.source_space_, self.target_space_
        title = as_markdown(f"{source.model or 'source'} → {target.model or 'target'}")
        unit = "  # unit rows, as the target's are" if target.normalized else ""
        known = self.facts_.get("modalities")
        names = [name for name in MODALITIES if isinstance(known, list) and name in known]
        calls = [f'mapping.transform_embeddings({name}_vectors, modality="{name}")' for name in names]
        if len(names) < 2:
            calls = ["mapping.transform_embeddings(vectors)"]
        text = [
            f"Maps vectors of *{as_markdown(str(source))}* into the space of *{as_markdown(str(target))}*.",
            *LOADING,
            *(f"mapped = {call}.vectors{unit if call == calls[0] else ''}" for call in calls),
            "```",
        ]
        return title, text

    @classmethod
    def _from_saved(cls, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Self:
        """Build the map from a folder's content, after checking it; raises what ``restore_map`` expects."""
        if not all(isinstance(config.get(key), dict) for key in ("parameters", "facts", "scores")):
            raise TypeError("parameters, facts or scores are not a mapping")
        persist.check_parameters(cls, config["parameters"])
        persist.count(config["facts"], "n_pairs", missing=0)
        if cls.kind != "orthogonal" and "is_isometry" in config["facts"]:
            raise ValueError("is_isometry is given for a map that is not orthogonal")
        scores = config["scores"]
        for key in scores:
            if key.startswith("held_out_") and scores[key] is not None:
                persist.number(scores, key)
        pairing = scores.get("pairing")
        if pairing is not None and not (isinstance(pairing["suspects"], list) and "looks_paired" in pairing):
            raise TypeError("scores of the pairing are not in the expected form")
        new = cls(**config["parameters"])
        kept = {name.removeprefix(_ORIGINS): array for name, array in arrays.items() if name.startswith(_ORIGINS)}
        new._restore({name: arrays[name] for name in arrays if not name.startswith(_ORIGINS)}, config["facts"])
        new.source_space_ = Space.from_dict(config["source_space"])
        new.target_space_ = Space.from_dict(config["target_space"])
        new.scores_ = dict(scores)
        new.role_ = check_choice(config.get("role", "plain"), ROLES, "role")
        if isinstance(new, AffineMap) and config.get("readout") is not None:
            new.readout_ = Readout.from_dict(config["readout"])
        new._check_restored()
        if kept:
            widths = {"old": new.n_features_in_, "new": new.d_target, "mapped": new.d_out}
            new.origins_ = Kinds.from_state(kept, widths)
        return new

    def _check_restored(self) -> None:
        """Check that the spaces have the widths of the arrays, and that ordinary rows stay finite."""
        rng = np.random.default_rng(0)
        for side, dim, width, transform in (
            ("source", self.source_space_.dim, self.n_features_in_, self._map),
            ("target", self.target_space_.dim, self.d_target, self.transform_target),
        ):
            if dim is not None and dim != width:
                raise ValueError(f"the {side} space has {dim} dimensions, but the arrays have {width}")
            # Finite arrays can still overflow, in products or when float64 values are multiplied with float32 rows.
            with np.errstate(all="ignore"):
                out = transform(rng.standard_normal((8, width)).astype(np.float32))
            if not np.isfinite(to_numpy(out)).all():
                raise ValueError(f"rows of the {side} become NaN or infinity")

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Load a map of this class, as ``congruence.from_pretrained`` loads one of any kind."""
        loaded = from_pretrained(name_or_path, revision=revision, token=token)
        if not isinstance(loaded, cls):
            problem = f"Got a map of kind {loaded.kind!r} in {str(name_or_path)!r}."
            raise ParameterError(problem, "Load it with congruence.from_pretrained.")
        return loaded

    def save_pretrained(
        self, save_directory: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **hub: Any
    ) -> Path:
        """Save the map as Hugging Face users expect, over an existing one, and with ``push_to_hub`` upload it."""
        path = self.save(save_directory, force=True)
        if push_to_hub:
            self.push_to_hub(repo_id or path.name, **hub)
        return path

    def push_to_hub(
        self,
        repo_id: str,
        *,
        token: str | None = None,
        private: bool = False,
        commit_message: str = "Upload a congruence map",
    ) -> str:
        """Upload the map to ``"owner/name"`` on the Hugging Face hub (extra ``hub``); return the address of the commit.
        The token is never written to disk or logged; ``private`` is for a repository that does not exist yet.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(Path(folder) / "map")
            return persist.upload_folder(path, repo_id, token=token, private=private, message=commit_message)

    def __repr__(self) -> str:
        default = {name: one.default for name, one in inspect.signature(type(self)).parameters.items()}
        own = self.get_params(deep=False).items()
        changed = [f"{name}={value!r}" for name, value in own if repr(value) != repr(default[name])]
        call = f"{type(self).__name__}({', '.join(changed)})"
        # vars() and not hasattr(): a display must not start the solve that follows partial_fit.
        return as_text(call, shown(self)) if "facts_" in vars(self) else call

    def _repr_html_(self) -> str:
        if "facts_" not in vars(self):
            return as_html(repr(self), {})
        return as_html(type(self).__name__, shown(self), picture(self))


_FEW = 64  # rows, of which the calls that check them take longer than the product
_SHORT = 1e-6  # squared norm of mapped rows that may be nothing but rounding


class AffineMap(Map):
    """A map of the form ``z ↦ (z − source mean) @ matrix + target mean``."""

    source_mean_: np.ndarray
    target_mean_: np.ndarray
    #: How rows are read as stored rows and as queries; None for the map itself, in every role.
    readout_: Readout | None = None

    #: Of a map from ``for_role``, the product of the role and what follows it; None for the map itself.
    _folded: Folded | None = None

    #: What ``once`` keeps: no part of the map, so neither compared, copied nor saved with it.
    __slots__ = ("_made",)
    _made: dict[Hashable, Any]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        new = super().__new__(cls)
        object.__setattr__(new, "_made", {})
        return new

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        # A new table, since another thread may be about to add what it made of the former value.
        object.__setattr__(self, "_made", {})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, made once and kept until an attribute of the map is set."""
        made = self._made
        if (found := made.get(key)) is None:
            found = make()
            if found is not self:  # a map that holds itself would outlive its last user
                made[key] = found
        return found

    def in_use(self, modality: str | None, role: str | None) -> Self:
        made: Self = self.once((modality, role), lambda: self.for_modality(modality, ask=True).for_role(role))
        return made

    def product_in(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return matrix and offset as arrays of a type, converted once, and whether all their numbers fit into it."""

        def convert() -> tuple[np.ndarray, np.ndarray, bool]:
            with np.errstate(over="ignore"):  # mapped rows are checked
                made = [np.ascontiguousarray(numbers, dtype) for numbers in (self.matrix, self.offset)]
            return made[0], made[1], all(bool(np.isfinite(numbers).all()) for numbers in made)

        made: tuple[np.ndarray, np.ndarray, bool] = self.once(dtype, convert)
        return made

    def quick(self, rows: np.ndarray, unit: bool) -> np.ndarray | None:
        """Map rows of the right width and type with as few calls as possible; None if mapped ones are not ordinary
        (``squared_norms``), as those of NaN, infinity, zeros or huge numbers.
        """
        matrix, offset, finite = self.product_in(rows.dtype)
        if not finite:
            return None
        with np.errstate(all="ignore"):  # such rows are told apart below
            # BLAS multiplies a vector twice as fast as a matrix of one row.
            product: np.ndarray = rows[0].dot(matrix)[None] if len(rows) == 1 else rows.dot(matrix)
            product += offset
            squares, low, _, ordinary = squared_norms(product)
        if not ordinary:
            return None
        folded = self._folded
        if folded is not None and (folded.base is not None or (unit and low < _SHORT)):
            return self.finish(product, unit)
        if unit:
            product /= math.sqrt(squares) if len(rows) == 1 else np.sqrt(squares)[:, None]
        return product

    def _apply(self, X: RowsLike, unit: bool | None = None) -> Array:
        own = self.__dict__
        if (
            is_plain(X)
            and 0 < len(X) <= _FEW
            and X.shape[1:] == (own.get("n_features_in_"),)
            and "feature_names_in_" not in own
        ):
            if unit is None:
                unit = self._folded is not None and bool(self.target_space_.normalized)
            if (quick := self.quick(X, unit)) is not None:
                return quick
        return super()._apply(X, unit)

    @property
    @abstractmethod
    def _coefficients(self) -> np.ndarray:
        """The fitted matrix, shape (d_source, d_target), float64."""

    @property
    def matrix(self) -> np.ndarray:
        """The matrix that multiplies rows from the right, shape (d_source, d_target), float64."""
        self.check_fitted()
        return self._coefficients if self._folded is None else self._folded.matrix

    @property
    def offset(self) -> np.ndarray:
        """The vector added after the product, float64: ``target_mean_ − source_mean_ @ matrix``, or that of a role."""
        return self.target_mean_ - self.source_mean_ @ self.matrix if self._folded is None else self._folded.offset

    @property
    def _n_features_out(self) -> int:
        return len(self.target_mean_)

    def _map(self, rows: Array) -> Array:
        # The means are folded into one offset, so a block is read once and never copied to be centered.
        if isinstance(rows, np.ndarray):
            matrix, offset, _ = self.product_in(rows.dtype)
        else:
            matrix, offset = cast_like(self.matrix, rows), cast_like(self.offset, rows)
        out = rows @ matrix
        out += offset
        return out

    def _layers_of(self, side: str) -> list[Layer]:
        return [{"kind": "linear", "weight": self.matrix, "bias": self.offset}]

    def for_role(self, role: str | None) -> Self:
        role = self.role_ if role is None else check_choice(role, ROLES, "role")
        if role == self.role_ and (self._folded is None) == (role == "plain"):
            return self
        self.check_fitted()
        chosen = copy(self)
        chosen.role_, chosen._folded = role, None
        if role != "plain":
            folded = plain = Folded(chosen.matrix, chosen.offset)
            if self.readout_ is not None:
                folded = self.readout_.fold(role, self.source_space_.modality or "", plain, self._means())
            if folded is not plain and self.target_mean_.any():
                folded = replace(folded, mean=self.target_mean_ / np.linalg.norm(self.target_mean_))
            chosen._folded = folded
        return chosen

    @property
    def read_as(self) -> str | None:
        return None if self._folded is None else self.role_

    def product(self) -> dict[str, np.ndarray]:
        """Return what a map from ``for_role`` does to rows, as arrays by which such maps are told apart."""
        parts = vars(self._folded or Folded(self.matrix, self.offset))
        return {
            name: np.asarray(parts[name])
            for name in ("matrix", "offset", "base", "axis", "height")
            if parts[name] is not None
        }

    def finish(self, rows: Array, unit: bool) -> Array:
        folded = self._folded
        if folded is not None and unit:
            return to_sphere(rows, folded)
        if folded is not None and folded.base is not None:
            return rows + cast_like(folded.base, rows)
        return super().finish(rows, unit)

    def _layers_to_finish(self, unit: bool) -> list[Layer]:
        if (folded := self._folded) is None or folded.base is None:
            return super()._layers_to_finish(unit)
        if not unit:
            return [{"kind": "center", "mean": -folded.base}]
        axis = np.zeros_like(folded.base) if folded.axis is None else folded.axis
        mean = {} if folded.mean is None else {"mean": folded.mean}
        numbers = {"height": float(folded.height), "offset": float(np.linalg.norm(folded.offset))}
        return [{"kind": "sphere", "base": folded.base, "axis": axis, **mean, **numbers}]

    def _means(self) -> RowMeans:
        """Return the means of this map's rows, and all known means, as read-outs use them."""
        name, both = self.source_space_.modality or "", (self.source_mean_, self.target_mean_)
        return RowMeans(*both, False, {name: both[0]}, {name: both[1]})

    def config(self) -> dict[str, Any]:
        """Return everything that is saved of the map besides the arrays of ``state``, as plain data."""
        kept = {} if self.readout_ is None else {"readout": self.readout_.to_dict()}
        return super().config() | kept


def load(path: str | Path) -> Map:
    """Load a map saved with ``Map.save``; nothing in the folder is executed. Raises FileError or its kinds."""
    arrays, config = persist.read_folder(path)
    return restore_map(arrays, config, path)


def restore_map(arrays: Mapping[str, np.ndarray], config: Mapping[str, object], path: str | Path) -> Map:
    """Build the map that ``congruence.persist.read_folder`` read from a folder, after checking its content."""
    kind = config.get("kind")
    if loader := {"bridge": "Bridge", "frame": "CanonicalFrame"}.get(str(kind)):
        fix = ("Pass a map.", f"Load it with `congruence.{loader}.load`.")
        raise ParameterError(f"Got a {kind} in {path}; expected a map.", fix)
    if not isinstance(kind, str) or kind not in MAPS:
        problem = f"Got a map of kind {kind!r} in {path}; expected one of {', '.join(MAPS)}."
        raise CorruptFileError(problem, "Upgrade congruence.")
    with refuse_damage("map", path):
        return MAPS[kind]._from_saved(arrays, config)


def from_pretrained(name_or_path: str | Path, *, revision: str | None = None, token: str | None = None) -> Map:
    """Load a map from a local folder or, as ``"owner/name"``, from the Hugging Face hub (extra ``hub``)."""
    if persist.find_map(name_or_path).is_dir():
        return load(name_or_path)
    return load(persist.download_folder(str(name_or_path), revision=revision, token=token))


@contextmanager
def refuse_damage(kind: str, path: str | Path) -> Iterator[None]:
    """Turn errors of a saved map's content into CorruptFileError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = f"Got a saved {kind} in {path} with parts missing or damaged ({error!r})."
        raise CorruptFileError(problem, "Fit it again.") from error


def fold_centers(layers: Iterable[Layer]) -> list[Layer]:
    """Merge each ``center`` layer into the bias of the ``linear`` layer that follows it; arrays become float64."""
    out: list[Layer] = []
    for layer in layers:
        layer = {name: value.astype(float) if isinstance(value, np.ndarray) else value for name, value in layer.items()}
        if layer["kind"] == "residual":
            layer["layers"] = fold_centers(layer["layers"])
        elif layer["kind"] == "sum":
            layer["branches"] = [fold_centers(branch) for branch in layer["branches"]]
        elif layer["kind"] == "linear" and out and out[-1]["kind"] == "center":
            layer["bias"] = layer.get("bias", 0.0) - out.pop()["mean"] @ layer["weight"]
        out.append(layer)
    return out


def check_native(X: RowsLike, name: str) -> Array:
    """Return rows to map as an array, float32 or float64; a tensor stays a tensor, on its device and in its graph."""
    if is_tensor(X):
        return widen(as_native(X, name))
    return as_matrix(X, name, allow_zero_rows=True, numeric_objects=True)


def as_target(Y: RowsLike, *, min_rows: int = 1) -> np.ndarray:
    """Return target rows as a matrix; 1-D integers, which scikit-learn's checks pass, become one column."""
    rows = to_rows(Y, "Y")
    if rows.ndim == 1 and rows.dtype.kind in "iub":
        rows = rows[:, None]
    return as_matrix(rows, "Y", min_rows=min_rows, numeric_objects=True)


def _check_weights(sample_weight: ArrayLike, n: int) -> np.ndarray:
    """Return sample weights in float64, shape (n,)."""
    try:
        weights = np.asarray(to_numpy(sample_weight), dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.empty(0)
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any():
        problem = f"Got sample_weight of shape {np.shape(sample_weight)}, negative or not finite."
        raise ShapeError(problem, f"Pass numbers ≥ 0 of shape ({n},); 0 leaves a row out.")
    return weights
