"""What every map is: a scikit-learn transformer on paired rows that knows its two spaces and can be saved."""

from __future__ import annotations

import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from congruence import persist
from congruence._inputs import as_embeddings, check_order
from congruence._utils.arrays import as_given, beside, is_tensor, widen
from congruence._utils.columns import to_rows
from congruence._utils.display import as_markdown
from congruence._utils.validation import (
    as_matrix,
    as_native,
    check_same_rows,
    check_scale,
    check_width,
    refuse_overflow,
)
from congruence.embeddings import Embeddings, Space, check_space, has_unit_rows, normalize_rows
from congruence.errors import (
    CongruenceError,
    InputError,
    NormWarning,
    ParameterError,
    ShapeError,
    TooFewAnchorsError,
)
from congruence.maps._estimator import (
    ClassNamePrefixFeaturesOutMixin,
    NotFittedError,
    TransformerMixin,
    _check_sample_weight,
    validate_data,
)
from congruence.maps._shown import Shown

if TYPE_CHECKING:
    from sklearn.utils import Tags


class NotFittedMapError(CongruenceError, NotFittedError):
    """A map is used before it was fitted (part of the error tree; scikit-learn's own type as well)."""


class Map(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Shown, ABC):
    """Base of all maps between two embedding spaces.

    A subclass sets ``kind``, implements ``fit``, ``transform``, ``state`` and ``_restore``, and is written into
    ``congruence.maps.MAPS``. After a fit, ``source_space_`` and ``target_space_`` say which spaces the map joins
    and ``scores_`` holds whatever was measured on it; both travel with the saved map.
    """

    kind: ClassVar[str]
    #: What to do with vectors of the far side's width, for messages.
    wrong_side: ClassVar[str] = "Apply the inverse"
    n_features_in_: int
    source_space_: Space
    target_space_: Space
    scores_: dict[str, Any]
    facts_: dict[str, Any]
    n_pairs_: int

    # ------------------------------------------------------------------ contract

    @abstractmethod
    def fit(self, X: Any, Y: Any = None, *, y: Any = None) -> Self:
        """Fit the map on rows paired by position.

        Parameters
        ----------
        X : array_like, shape (n, d_source)
        Y : array_like, shape (n, d_target)
        y : array_like, optional
            Another name for ``Y``, as scikit-learn's tools pass it.

        Returns
        -------
        Self
        """

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Carry source rows into the target space.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)

        Returns
        -------
        ndarray or tensor, shape (m, d_out)
            For a tensor a tensor, on its device, in its dtype and with its graph.
        """

    def transform_target(self, Y: Any) -> Any:
        """Carry target rows into the space :meth:`transform` leads to: the identity for one-sided maps.

        Parameters
        ----------
        Y : array_like or tensor, shape (m, d_target)

        Returns
        -------
        ndarray or tensor, shape (m, d_out)
        """
        self._check_fitted()
        B = check_native(Y, "Y")
        check_width(B.shape[1], self.d_target, type(self).__name__ + ".transform_target", self.n_features_in_)
        return as_given(B, Y)

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the fitted arrays that, with the parameters, rebuild the map."""

    @abstractmethod
    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Set the fitted attributes from :meth:`state` and :attr:`facts_`."""

    # ------------------------------------------------------------------ checks shared by subclasses

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.one_d_labels = False
        tags.target_tags.two_d_labels = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    @property
    def d_target(self) -> int:
        """Width of the target model's vectors."""
        return self._n_features_out

    @property
    def d_out(self) -> int:
        """Width of what :meth:`transform` returns: ``d_target``, or the joint space's of a two-sided map."""
        return self._n_features_out

    @property
    @abstractmethod
    def _n_features_out(self) -> int:
        """Width of what :meth:`transform` returns; scikit-learn names output features by it."""

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):
            raise NotFittedMapError(
                f"Got an unfitted {type(self).__name__}; expected a fitted one. Call fit(X, Y) first."
            )

    def _check_pairs(
        self, X: Any, Y: Any, sample_weight: Any = None, *, reset: bool = True, min_pairs: int = 2
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Validate paired rows and weights; set (or compare) the names and number of input features."""
        if Y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; expected the "
                "target rows. Call fit(X, Y)."
            )
        check_order(X, Y)
        A = as_matrix(X, "X", numeric_objects=True)
        labels = to_rows(Y, "Y")
        if labels.ndim == 1 and labels.dtype.kind in "iub":
            # scikit-learn's contract: a transformer may be handed 1-D integer targets. They are one column.
            labels = labels[:, None]
        B = as_matrix(labels, "Y", numeric_objects=True)
        check_same_rows(len(A), len(B), "X", "Y")
        check_scale(A, "X")
        check_scale(B, "Y")
        if not reset:
            check_width(A.shape[1], self.n_features_in_, type(self).__name__)
        validate_data(self, _with_names(X, A), reset=reset, skip_check_array=True)
        weights = None
        if sample_weight is not None:
            weights = self._check_weights(sample_weight, A)
        used = len(A) if weights is None else int(np.count_nonzero(weights))
        if used < min_pairs:
            raise TooFewAnchorsError(
                f"Got n_samples = {used} pairs with positive weight; expected at least {min_pairs}. Pass more anchors."
            )
        return A, B, weights

    @staticmethod
    def _check_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
        try:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        except ValueError as error:
            raise ShapeError(
                f"Got sample_weight that does not fit ({error}); expected one finite number a row. Pass an array of shape ({len(X)},)."
            ) from error
        if (weights < 0).any():
            raise InputError(
                "Got negative sample_weight; expected numbers ≥ 0. Set a weight to 0 to leave its row out."
            )
        return weights

    def _check_source(self, X: Any) -> Any:
        """Validate rows to transform; a tensor stays one (:func:`check_native`).

        Zero rows pass: the estimator has no ids to name them by.
        """
        self._check_fitted()
        A = check_native(X, "X")
        check_width(A.shape[1], self.n_features_in_, type(self).__name__, self.d_target, self.wrong_side)
        # A map of congruence.fit never saw column names: those of a frame are then no news to warn of.
        known = _with_names(X, A) if hasattr(self, "feature_names_in_") else A
        validate_data(self, known, reset=False, skip_check_array=True)
        return A

    def _remember(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Start the records every fitted map carries."""
        self.source_space_ = Space(dim=X.shape[1], normalized=has_unit_rows(X))
        self.target_space_ = Space(dim=Y.shape[1], normalized=has_unit_rows(Y))
        self.scores_ = {}

    # ------------------------------------------------------------------ use on embeddings

    def for_modality(self, modality: str | None) -> Map:
        """Return the map to use for a modality: itself, unless the method keeps means for each."""
        return self

    def gives_unit_rows(self, normalize: bool | str = "auto") -> bool:
        """Say whether mapped rows are to be scaled to unit norm, as :meth:`apply`, ``transform_file`` and exports do.

        :meth:`transform` never scales: it is the map itself, which can be inverted and composed.

        Parameters
        ----------
        normalize : {"auto", True, False}, default="auto"
            "auto": if the target's rows had unit norm at the fit (``target_space_.normalized``).

        Returns
        -------
        bool

        Raises
        ------
        ParameterError
            Another value.

        Warns
        -----
        NormWarning
            "auto", and the map does not know of its target's rows. They are then left as they are.
        """
        self._check_fitted()
        if isinstance(normalize, (bool, np.bool_)):
            return bool(normalize)
        if not isinstance(normalize, str) or normalize != "auto":
            raise ParameterError(f"Got normalize={normalize!r}; expected 'auto', True or False. Choose one of these.")
        if self.target_space_.normalized is None:
            self._norm_unknown()
        return bool(self.target_space_.normalized)

    def _norm_unknown(self) -> None:
        warnings.warn(
            "Got a map that does not say whether the target's rows had unit norm, as maps of earlier versions; expected to "
            "know. Rows keep the norms the map gives them. Pass normalize=True for unit rows.",
            NormWarning,
            stacklevel=4,
        )

    def apply(self, embeddings: Any, *, modality: str | None = None, normalize: bool | str = "auto") -> Any:
        """Carry embeddings across, after checking that they come from this map's source space.

        Parameters
        ----------
        embeddings : Embeddings or array_like, shape (m, d_source)
        modality : str, optional
            Which means to use; the embeddings' own modality by default.
        normalize : {"auto", True, False}, default="auto"
            Scale the mapped rows to unit norm; "auto" does so if the target's rows had unit norm at the fit, so that mapped
            rows and the target model's own can stand in one inner-product index. False gives what :meth:`transform` gives.

        Returns
        -------
        Embeddings
            Same ids, in the target space. For a tensor a tensor, as from :meth:`transform`: it has a device and a graph to keep.

        Raises
        ------
        SpaceMismatchError, DirectionError, ModalityError
        ShapeError, DtypeError, NotFiniteError
            Of what is not :class:`~congruence.Embeddings`.
        ParameterError
            Another value of ``normalize``.

        Warns
        -----
        NormWarning
            "auto", and the map does not know of its target's rows; they are then left as they are.
        """
        self._check_fitted()
        if is_tensor(embeddings):
            mapped = self.for_modality(modality)
            unit = mapped.gives_unit_rows(normalize)
            out = mapped.transform(embeddings)
            return normalize_rows(out) if unit else out
        embeddings = as_embeddings(embeddings, "embeddings", allow_zero_rows=True)
        wanted = modality or embeddings.space.modality
        mapped = self.for_modality(wanted)
        check_space(embeddings.space, mapped.source_space_, mapped.target_space_, modality=False)
        unit = mapped.gives_unit_rows(normalize)
        vectors = mapped.transform(embeddings.vectors)
        if unit:
            vectors = normalize_rows(vectors)
        space = replace(mapped.target_space_, dim=vectors.shape[1], modality=wanted, normalized=True if unit else None)
        return Embeddings(
            vectors, ids=embeddings.ids if embeddings.has_ids else None, space=space, allow_zero_rows=True
        )

    # ------------------------------------------------------------------ saving

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *, revision: str | None = None, token: str | None = None) -> Any:
        """Load a map of this kind from a local folder or from the Hugging Face hub (extra ``hub``).

        Parameters
        ----------
        name_or_path : str or path-like
            A folder, or ``"owner/name"`` on the hub.
        revision, token : str, optional
            On the hub.

        Returns
        -------
        Map
            Of this class; ``Map.from_pretrained`` and :func:`congruence.from_pretrained` take any kind.

        Raises
        ------
        ParameterError
            The folder holds a map of another kind.
        FileError, CorruptFileError, VersionError, MissingExtraError
        """
        from congruence.maps import from_pretrained  # the table of kinds stands above its members

        found = from_pretrained(name_or_path, revision=revision, token=token)
        if not isinstance(found, cls):
            raise ParameterError(
                f"Got a map of kind {found.kind!r} in {str(name_or_path)!r}; expected {cls.__name__}. Load it with "
                f"{type(found).__name__}.from_pretrained, or with congruence.from_pretrained, which takes every kind."
            )
        return found

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the map as a folder: ``model.safetensors``, ``config.json``, ``README.md``.

        Parameters
        ----------
        path : path-like
            The folder to make.
        force : bool, default=False
            Replace an existing folder.

        Returns
        -------
        Path

        Raises
        ------
        NotFittedMapError, OutputExistsError, StorageError
        """
        self._check_fitted()
        config = {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source_space": self.source_space_.to_dict(),
            "target_space": self.target_space_.to_dict(),
            "facts": self.facts_,
            "scores": self.scores_,
        }
        return persist.write_folder(path, self.state(), config, self._card(), force=force)

    @classmethod
    def _from_saved(cls, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Self:
        new = cls(**config["parameters"])
        new._restore(arrays, config["facts"])
        new.source_space_ = Space.from_dict(config["source_space"])
        new.target_space_ = Space.from_dict(config["target_space"])
        new.scores_ = dict(config["scores"])
        return new

    def save_pretrained(
        self, save_directory: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **hub: Any
    ) -> Path:
        """Save under the name Hugging Face users expect; overwrites, as they expect.

        Parameters
        ----------
        save_directory : path-like
        push_to_hub : bool, default=False
            Upload as well.
        repo_id : str, optional
            Where to; the folder's name by default.
        **hub
            Passed to :meth:`push_to_hub`.

        Returns
        -------
        Path
        """
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
        """Upload the map to the Hugging Face hub (extra ``hub``).

        Parameters
        ----------
        repo_id : str
        token : str, optional
            Never written to disk or logged.
        private : bool, default=False
        commit_message : str

        Returns
        -------
        str
            Address of the commit.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(Path(folder) / "map")
            return persist.upload_folder(path, repo_id, token=token, private=private, message=commit_message)

    def describe(self) -> dict[str, Any]:
        """Return what is known about the fitted map as plain data (what ``congruence inspect`` prints)."""
        self._check_fitted()
        return {
            "kind": self.kind,
            "parameters": self.get_params(deep=False),
            "source": self.source_space_.to_dict(),
            "target": self.target_space_.to_dict(),
            **self.facts_,
            "scores": self.scores_,
        }

    def _card_text(self) -> tuple[str, list[str]]:
        """Title of the model card, and what the map does and how to call it; in Markdown, names escaped."""
        source, target = self.source_space_, self.target_space_
        title = as_markdown(f"{source.model or 'source'} → {target.model or 'target'}")
        text = [
            f"Maps vectors of *{as_markdown(str(source))}* into the space of *{as_markdown(str(target))}*.",
            "",
            "```python",
            "import congruence",
            "",
            'mapping = congruence.load("path/to/this/folder")',
            "mapped = mapping.transform(vectors)",
            "```",
        ]
        return title, text

    def _card(self) -> str:
        """Write the model card."""
        title, text = self._card_text()
        lines = [
            "---",
            "library_name: congruence",
            "tags: [embeddings, alignment, procrustes]",
            "---",
            f"# {type(self).__name__}: {title}",
            "",
            *text,
            "",
            "| fact | value |",
            "| --- | --- |",
        ]
        for key, value in {**self.facts_, **self.get_params(deep=False)}.items():
            if isinstance(value, (bool, int, str)) or value is None:
                lines.append(f"| {key} | {as_markdown(str(value))} |")
            elif isinstance(value, float):
                lines.append(f"| {key} | {value:.4g} |")
        flat = {k: v for k, v in self.scores_.items() if isinstance(v, (int, float))}
        if flat:
            lines += ["", "| score at fit | value |", "| --- | --- |"]
            lines += [f"| {key} | {value:.4g} |" for key, value in flat.items()]
        if "held_out_cosine_constant" in flat:
            lines += [
                "",
                "Read the cosine beside its controls: `constant` puts every mapped row at the target's mean, `random_rotation` is a "
                "random rotation about the right means. Only what is above both is the map's doing.",
            ]
        return "\n".join(lines) + "\n"


class AffineMap(Map):
    """A map of the form ``z ↦ (z − source mean) @ matrix + target mean``."""

    source_mean_: np.ndarray
    target_mean_: np.ndarray

    @property
    @abstractmethod
    def matrix(self) -> np.ndarray:
        """The matrix that acts on rows, shape (d_source, d_target), float64."""

    @property
    def offset(self) -> np.ndarray:
        """What is added after the product: ``target_mean_ − source_mean_ @ matrix``, float64."""
        return self.target_mean_ - self.source_mean_ @ self.matrix

    @property
    def _n_features_out(self) -> int:
        return len(self.target_mean_)

    def transform(self, X: Any) -> Any:
        """Carry source rows into the target space.

        Parameters
        ----------
        X : array_like or tensor, shape (m, d_source)
            float64 input gives float64 output; float16 and float32 arrays give float32.

        Returns
        -------
        ndarray or tensor, shape (m, d_target)
            For a tensor a tensor, on its device, in its dtype and with its graph; half precision is computed in float32.

        Raises
        ------
        ShapeError, DtypeError, NotFiniteError, NotFittedMapError
        """
        A = self._check_source(X)
        # The means are folded into one offset, so a block is read once and never copied to be centered.
        with np.errstate(over="ignore", invalid="ignore"):
            out = A @ beside(self.matrix, A)
            out += beside(self.offset, A)
        return refuse_overflow(as_given(out, X), X if is_tensor(X) else A, "X")


def check_native(X: Any, name: str) -> Any:
    """Return rows to map as an array, float32 or float64; a tensor stays one, on its device and with its graph.

    Raises
    ------
    ShapeError, DtypeError, NotFiniteError
    """
    if is_tensor(X):
        return widen(as_native(X, name))
    return as_matrix(X, name, allow_zero_rows=True, numeric_objects=True)


def _with_names(X: Any, A: Any) -> Any:
    """Return the frame whose column names scikit-learn remembers and compares, or the matrix where columns are not features."""
    return X if hasattr(X, "columns") and getattr(X, "shape", ())[1:] == A.shape[1:] else A


def check_mean(mean: Any, width: int, name: str) -> np.ndarray:
    """Return a mean vector in float64, taken from a vector, a matrix of rows or embeddings.

    Raises
    ------
    ShapeError, NotFiniteError
    """
    if isinstance(mean, Embeddings):
        mean = mean.mean
    array = to_rows(mean, name)
    if array.ndim == 1:
        array = array[None, :]
    array = as_matrix(array, name, allow_zero_rows=True)
    if array.shape[1] != width:
        raise ShapeError(
            f"Got {name} of width {array.shape[1]}; expected {width}. Pass vectors of the model that the map was fitted on."
        )
    return array.mean(axis=0, dtype=np.float64)


def check_same_kind(one: Map, other: Map, verb: str) -> None:
    """Refuse to combine maps of different kinds.

    Raises
    ------
    ParameterError
    """
    if type(one) is not type(other):
        raise ParameterError(
            f"Got {type(other).__name__} to {verb} with {type(one).__name__}; expected the same kind. "
            "Transform in two steps instead."
        )
