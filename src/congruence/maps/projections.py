"""Joint-space maps with one matrix per model, in closed form: Procrustes heads and canonical correlations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from congruence._utils.arrays import blocks
from congruence._utils.typing import Layer, RowsLike
from congruence._utils.validation import check_positive
from congruence.embeddings import normalize_rows
from congruence.errors import InputError, ParameterError
from congruence.linalg.canonical import canonical_directions, whiten
from congruence.linalg.procrustes import CrossSVD, cross_svd
from congruence.maps.heads import HeadsMap
from congruence.persist import check_orthonormal


class ClosedFormHeads(HeadsMap):
    """Base of heads with one matrix per model, in closed form.

    Parameters
    ----------
    n_components : int, optional
        Width of the joint space. By default as many directions as the pairs allow: min(d_source, d_target, n − 1) (n
        without centering), or fewer if the rows span fewer.
    center : bool, default=True
        Subtract the mean of the rows of the fit, after scaling them to unit norm if ``normalize``.
    normalize : bool, default=True
        Scale rows to unit norm before the mean is computed, and rows to be mapped.

    Attributes
    ----------
    source_weights_, target_weights_ : ndarray of float64, shapes (d_source, n_components) and (d_target, n_components)
    source_mean_, target_mean_ : ndarray of float64, shape (d_source,) and (d_target,)
        Subtracted from the rows; zeros without centering.
    singular_values_ : ndarray
        Singular values, or canonical correlations, descending.
    """

    n_components: int | None
    center: bool
    normalize: bool

    def fit(self, X: RowsLike, Y: RowsLike) -> Self:
        """Fit both heads on rows paired by position, shapes (n, d_source) and (n, d_target)."""
        self._check_parameters()
        return self._fit(*self._check_pairs(X, Y)[:2])

    @abstractmethod
    def _fit(self, source: np.ndarray, target: np.ndarray) -> Self:
        """Fit both heads on checked rows."""

    def _check_parameters(self) -> None:
        if self.n_components is not None:
            check_positive(self.n_components, "n_components", integer=True)

    def _sides(self, *sides: np.ndarray) -> list[SideRows]:
        return [SideRows.of(raw, normalize=self.normalize, center=self.center) for raw in sides]

    @property
    def source_weights_(self) -> np.ndarray:
        """Matrix that multiplies source rows from the right."""
        return self.source_layers_[-1]["weight"]

    @property
    def target_weights_(self) -> np.ndarray:
        """Matrix that multiplies target rows from the right."""
        return self.target_layers_[-1]["weight"]

    @property
    def source_mean_(self) -> np.ndarray:
        """Mean that is subtracted from source rows."""
        return self.source_layers_[-2]["mean"] if self.center else np.zeros(len(self.source_weights_))

    @property
    def target_mean_(self) -> np.ndarray:
        """Mean that is subtracted from target rows."""
        return self.target_layers_[-2]["mean"] if self.center else np.zeros(len(self.target_weights_))

    def _set_directions(
        self, A: SideRows, B: SideRows, solution: tuple[np.ndarray, np.ndarray, np.ndarray, int], power: float = 0.0
    ) -> Self:
        """Set the attributes from all directions (columns of both sides), their singular values and their rank."""
        U, V, singular, rank = solution
        # Constant rows carry no information, but a map must have a width: use one constant direction.
        most = max(1, min(rank, A.width, B.width, len(A) - bool(self.center)))
        if self.n_components is not None and self.n_components > most:
            problem = f"Got `n_components={self.n_components}`; expected at most {most} for {len(A)} such pairs."
            raise ParameterError(problem, f"Pass `n_components={most}`.")
        k = self.n_components or most
        signs = _signs(U[:, :k], A.average)
        if power:
            signs = signs * singular[:k] ** power
        self._remember(A.raw, B.raw)
        parts: dict[str, list[Layer]] = {}
        for side, rows, W in (("source", A, U), ("target", B, V)):
            parts[side] = [{"kind": "normalize"}] if self.normalize else []
            if self.center:
                parts[side].append({"kind": "center", "mean": rows.shift})
            parts[side].append({"kind": "linear", "weight": W[:, :k] * signs})
        self.set_layers(parts, self.kind, {"n_pairs": len(A), "rank": rank, "directions": min(A.width, B.width)})
        self.singular_values_ = singular[:most]
        return self

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        super()._restore(arrays, facts)
        kinds = ["normalize"] * self.normalize + ["center"] * self.center + ["linear"]
        singular = self.singular_values_
        if singular.ndim != 1 or len(singular) < self.d_out or not (singular >= 0).all():
            raise ValueError("negative singular values, or fewer singular values than directions")
        for layers in (self.source_layers_, self.target_layers_):
            if [layer["kind"] for layer in layers] != kinds or "bias" in layers[-1]:
                raise ValueError("layers that do not match the map's parameters")
        if self.n_components not in (None, self.d_out) or self.decode_source_layers_ or self.decode_target_layers_:
            raise ValueError("heads that do not match the map's parameters")


@dataclass(eq=False, repr=False)
class ProcrustesHeads(ClosedFormHeads):
    """Orthonormal projections of both spaces into a joint space that maximize the sum of paired inner products.

    Maximizes ⟨A Wx, B Wy⟩ over matrices with orthonormal columns: the leading singular vectors of AᵀB. Unlike in
    ``OrthogonalMap``, neither model is the reference. Source: SOTAlign, equation 6 and proposition C.1. Parameters and
    attributes are those of ``ClosedFormHeads``.
    """

    kind: ClassVar[str] = "procrustes"

    n_components: int | None = None
    center: bool = True
    normalize: bool = True

    def _fit(self, source: np.ndarray, target: np.ndarray) -> Self:
        A, B = self._sides(source, target)
        spans = _span(A), _span(B)
        widths = [rows.width if basis is None else basis.shape[1] for rows, basis in zip((A, B), spans, strict=True)]
        cross = np.zeros(widths)
        # Computed before centering, which determines the size of the rounding error.
        scatter = np.array([A.size, B.size]) ** 2
        for part in blocks(len(A), 8 * (A.width + B.width)):
            a, b = A[part], B[part]
            scatter += np.vdot(a, a), np.vdot(b, b)
            cross += (a if spans[0] is None else a @ spans[0]).T @ (b if spans[1] is None else b @ spans[1])
        svd = cross_svd(cross, scale=float(np.sqrt(scatter.prod())))
        U = svd.U if spans[0] is None else spans[0] @ svd.U
        V = svd.Vt.T if spans[1] is None else spans[1] @ svd.Vt.T
        return self._set_directions(A, B, (U, V, svd.s, svd.rank))

    def _restore(self, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        super()._restore(arrays, facts)
        check_orthonormal(self.source_weights_, "source_weights")
        check_orthonormal(self.target_weights_, "target_weights")


@dataclass(eq=False, repr=False)
class CCAMap(ClosedFormHeads):
    """Projections of both spaces into a joint space whose coordinates are whitened and maximally correlated.

    Maximizes ⟨A Wx, B Wy⟩ subject to Wxᵀ(AᵀA + λI)Wx = I and Wyᵀ(BᵀB + λI)Wy = I (SOTAlign, equation 7 and proposition
    C.2; Vinod 1976). Parameters and attributes are those of ``ClosedFormHeads``, and

    Parameters
    ----------
    ridge : float, default=0.1
        λ, added to the Gram matrices, which are sums over rows, not means: λ has less effect with more pairs.
    power : float, default=0.0
        Multiply direction i by (its canonical correlation)^power on both sides; 0, as in the paper, weights all the
        same.
    """

    kind: ClassVar[str] = "cca"

    n_components: int | None = None
    ridge: float = 0.1
    center: bool = True
    normalize: bool = True
    power: float = 0.0

    def fit_ridges(self, X: RowsLike, Y: RowsLike, ridges: Sequence[float]) -> list[Self]:
        """Return the maps that ``fit`` returns for each λ, from a single decomposition of each side."""
        maps = [type(self)(**{**self.get_params(), "ridge": ridge}) for ridge in ridges]
        for mapping in maps:
            mapping._check_parameters()
        decomposed = self._decompose(*self._check_pairs(X, Y)[:2])
        return [mapping._solve(*decomposed) for mapping in maps]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive(self.ridge, "ridge", zero=True)
        check_positive(self.power, "power", zero=True)

    def _fit(self, source: np.ndarray, target: np.ndarray) -> Self:
        return self._solve(*self._decompose(source, target))

    def _decompose(self, source: np.ndarray, target: np.ndarray) -> tuple[SideRows, SideRows, CrossSVD, CrossSVD]:
        A, B = self._sides(source, target)
        a, b = _compress(A, B)
        return A, B, cross_svd(a, scale=A.size), cross_svd(b, scale=B.size)

    def _solve(self, A: SideRows, B: SideRows, x: CrossSVD, y: CrossSVD) -> Self:
        if not (x.rank and y.rank) and not self.ridge:
            problem = "Got rows that are all equal once preprocessed, and `ridge=0`."
            raise InputError(problem, "Add other rows, or pass `ridge=1.0`.")
        kept = (svd.rank or 1 for svd in (x, y))
        whitened = [
            whiten(svd.U[:, :k], svd.s[:k], svd.Vt[:k], self.ridge) for svd, k in zip((x, y), kept, strict=True)
        ]
        return self._set_directions(A, B, canonical_directions(*whitened), self.power)


@dataclass(frozen=True)
class SideRows:
    """Rows of one side, one float64 block at a time: ``raw`` (n, d), scaled to unit norm if ``normalize``, minus
    ``shift`` (d,): their ``average`` (d,), or zeros.
    """

    raw: np.ndarray
    normalize: bool
    shift: np.ndarray
    average: np.ndarray

    @classmethod
    def of(cls, raw: np.ndarray, *, normalize: bool, center: bool) -> SideRows:
        """Build from raw rows, computing their mean."""
        rows = cls(raw, normalize, np.zeros(raw.shape[1]), np.zeros(raw.shape[1]))
        average = sum((rows[part].sum(axis=0) for part in rows.parts()), np.zeros(raw.shape[1])) / len(raw)
        return cls(raw, normalize, average if center else rows.shift, average)

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.raw.shape[1]

    @property
    def size(self) -> float:
        """√n · ‖mean row‖: rounding error after centering is about this times machine precision."""
        return float(np.sqrt(len(self.raw)) * np.linalg.norm(self.average))

    def __getitem__(self, part: slice) -> np.ndarray:
        block = self.raw[part].astype(np.float64)
        return (normalize_rows(block) if self.normalize else block) - self.shift

    def parts(self) -> Iterator[slice]:
        """Yield slices that divide the rows into blocks of bounded memory."""
        return blocks(len(self.raw), 8 * self.width)


def _signs(U: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Choose the sign of each direction such that the mean row has a positive component (which no rotation of the
    inputs changes) or, if it has none, the direction's largest entry is positive.
    """
    component = average @ U
    size = np.linalg.norm(average) * np.linalg.norm(U, axis=0)
    largest = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    return np.where(np.where(np.abs(component) > 1e-9 * size, component, largest) < 0, -1.0, 1.0)


def _compress(A: SideRows, B: SideRows) -> tuple[np.ndarray, np.ndarray]:
    """Return at most d_source + d_target rows with the same Gram matrices and cross-product: the factor R of a QR
    decomposition of both sides, block by block. This is exact, and avoids squaring the data.
    """
    import scipy.linalg

    width = A.width + B.width
    triangle = np.empty((0, width))
    step = max(2 * width, 1)
    for start in range(0, len(A), step):
        part = slice(start, start + step)
        stacked = np.vstack([triangle, np.hstack([A[part], B[part]])])
        if len(stacked) > width:
            stacked = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:width]
        triangle = stacked
    return triangle[:, : A.width], triangle[:, A.width :]


def _span(rows: SideRows) -> np.ndarray | None:
    """Return an orthonormal basis of the rows, shape (d, n), if there are fewer rows than columns; otherwise None."""
    if len(rows) >= rows.width:
        return None
    import scipy.linalg

    return scipy.linalg.qr(rows[slice(None)].T, mode="economic", check_finite=False)[0]
