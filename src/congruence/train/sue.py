"""SUE: spectral embeddings of both sides, joined by canonical correlations on the pairs and by a residual network on
all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.linalg

from congruence._utils.typing import Layer
from congruence.errors import ParameterError
from congruence.maps import CCAMap
from congruence.train._base import MEAN_ROWS, Batch, HeadsObjective, HeadTrainer, new_head
from congruence.train.loop import Schedule, run
from congruence.train.rows import ArrayRows, Rows, Sources, sample

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class _Objective(HeadsObjective):
    """The objective of stage 3; creating it runs stages 1 and 2."""

    trainer: SUE

    def prepare(self) -> None:
        import torch

        from congruence.train import _layers

        trainer, data = self.trainer, self.data
        self.need_unpaired("spectral embeddings are learned from them")
        self.unpaired: tuple[Any, Any] = data.unpaired_source, data.unpaired_target
        stage = _Spectral(self, trainer)
        spectral = Schedule(
            max_steps=trainer.spectral_steps,
            optimizer="adamw",
            learning_rate=trainer.spectral_learning_rate,
            device=trainer.device,
            random_state=trainer.random_state,
        )
        run(stage, spectral, verbose=False)
        projections = self._project(stage)
        mapped: dict[str, Any] = {}
        for i, (side, projection) in enumerate(zip(("source", "target"), projections, strict=True)):
            fixed = _layers.Head([*stage.module.heads[i].plain(), projection]).requires_grad_(False).to(self.device)
            with torch.no_grad():
                setattr(self, side, fixed(getattr(self, side)))
            rows = getattr(data, f"unpaired_{side}")
            through = _HeadRows(self, fixed, rows)
            # If every row is drawn at least once, it takes less time to pass all through the fixed layers in advance.
            if isinstance(rows, ArrayRows) and len(rows) <= trainer.max_steps * self.unpaired_batch[i]:
                mapped[f"unpaired_{side}"] = ArrayRows(np.concatenate([through.map(part) for _, part in rows.scan()]))
            else:
                mapped[f"unpaired_{side}"] = through
            if side == "source":
                residual = _residual(
                    trainer.n_components, trainer.residual_width, np.random.default_rng([trainer.random_state, 3])
                )
                fixed.layers.append(_layers.Head([residual]).layers[0].to(self.device))
            setattr(self.module, side, fixed)
        self.data = replace(data, **mapped)

    def training_step(self, batch: Batch) -> Mapping[str, Tensor]:
        import torch

        # Rows arrive as outputs of the fixed layers.
        X = self.module.source.layers[-1](torch.cat([batch.source, batch.unpaired_source]))
        return {"loss": mmd(X, torch.cat([batch.target, batch.unpaired_target]), self.trainer.scales)}

    def _project(self, stage: _Spectral) -> list[Layer]:
        """Return the linear layer from each network's outputs to the joint space (stage 2)."""
        import torch

        trainer, data, whitened, maps = self.trainer, self.data, [], []
        sides = zip((data.source, data.target), self.unpaired, strict=True)
        for head, (paired, unpaired) in zip(stage.module.heads, sides, strict=True):
            head.eval()
            with torch.no_grad():
                Z = [head(self.tensor(rows)).double().cpu().numpy() for rows in (paired, sample(unpaired, MEAN_ROWS))]
            all_rows = np.concatenate(Z)
            mean = all_rows.mean(axis=0)
            values, vectors = scipy.linalg.eigh(np.atleast_2d(np.cov(all_rows.T, bias=True)))
            # Regularized as in the loss, so that directions with almost no variance stay small.
            whiten = vectors / np.sqrt(np.maximum(values, 0) + 1e-6 * values.mean())
            whitened.append((Z[0] - mean) @ whiten)
            maps.append((mean, whiten))
        cca = CCAMap(n_components=trainer.n_components, ridge=trainer.ridge, normalize=False).fit(*whitened)
        layers = []
        for (mean, whiten), weights in zip(maps, (cca.source_weights_, cca.target_weights_), strict=True):
            # Scaled to unit variance, and centered at the mean of all rows, since the pairs are a small sample.
            weight = whiten @ weights * np.sqrt(len(data.source))
            layers.append({"kind": "linear", "weight": weight, "bias": -mean @ weight})
        return layers


@dataclass(eq=False, repr=False)
class SUE(HeadTrainer):
    """Learn spectral embeddings without pairs, and join them with a few pairs.

    1. For each side, a network is trained on paired and unpaired rows alike to span the smoothest eigenvectors of the
       Laplacian of a batch's neighbor graph.
    2. Canonical correlation analysis of the pairs' spectral embeddings defines the joint space.
    3. A residual network moves the source rows so that the distributions of both sides agree (maximum mean
       discrepancy); this uses no pairs.

    Parameters
    ----------
    n_components, n_spectral_components : int, default=8 and 30
        Numbers of canonical directions kept, and of spectral embeddings, not counting the constant.
    n_neighbors, scale_n_neighbors : int, default=30 and 15
        Number of neighbors in the graph, and the neighbor whose median distance is the kernel's width.
    spectral_steps, spectral_learning_rate, spectral_batch_size : int, float, int, default=1000, 1e-4 and 2048
        Of stage 1, with AdamW and graphs of this many rows; ``max_steps`` is that of stage 3.
    ridge : float, default=0.1
        λ of ``CCAMap``, relative to pairs whose spectral embeddings have unit variance.
    scales : int, default=3
        Number of kernels in the discrepancy.
    residual_width : int, default=32
        Width of the two hidden layers of the residual network.
    **parameters
        Parameters of ``HeadTrainer``, the last six with other defaults; those of supervised losses and ``precision``
        have no effect.

    Notes
    -----
    The widths, neighbors, kernels and rates are those of the public code for Flickr30k. There, the spectral networks
    have three hidden layers with leaky ReLU and tanh, here one with GELU; outputs are made orthonormal by a second
    batch, here in each batch; and batches have 5162 and 32 rows, here 2048 and 1024. Graphs and kernels of a batch are
    dense in both: memory grows with the square of the batch sizes.

    A resumed run repeats stages 1 and 2, with the same result.

    Source: Yacobi et al. (2025), "Learning shared representations from unpaired data" (SUE). Shaham et al. (2018),
    "SpectralNet: spectral clustering using deep neural networks". SOTAlign, appendix A.2 and table 11.
    """

    method: ClassVar[str] = "sue"
    objective = _Objective
    counts = (
        *("n_spectral_components", "n_neighbors", "scale_n_neighbors", "spectral_steps", "spectral_batch_size"),
        *("scales", "residual_width"),
    )
    positive = ("spectral_learning_rate",)
    not_negative = ("ridge",)

    # The joint space is narrow and the last network small, so the shared parameters have other defaults here.
    n_components: int = 8
    n_spectral_components: int = 30
    n_neighbors: int = 30
    scale_n_neighbors: int = 15
    spectral_steps: int = 1000
    spectral_learning_rate: float = 1e-4
    spectral_batch_size: int = 2048
    ridge: float = 0.1
    scales: int = 3
    residual_width: int = 32
    _: KW_ONLY
    head: str = "mlp"
    max_steps: int = 1000
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    batch_size: int = 1024
    pair_batch_size: int = 128

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_components > self.n_spectral_components:
            raise ParameterError(
                f"Got `n_components={self.n_components}` and `n_spectral_components={self.n_spectral_components}`.",
                f"Pass `n_components={self.n_spectral_components}` or less.",
            )


class _HeadRows:
    """Rows mapped by the fixed layers."""

    def __init__(self, objective: HeadsObjective, head: Module, rows: Rows):
        self.objective, self.layers, self.rows = objective, list(head.layers), rows
        self.dim = rows.dim

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, step: int, size: int, random_state: int) -> np.ndarray:
        """Return the rows of a step."""
        return self.map(self.rows.batch(step, size, random_state))

    def map(self, rows: np.ndarray) -> np.ndarray:
        """Return rows after the fixed layers."""
        import torch

        X = self.objective.tensor(rows)
        with torch.no_grad():
            # The list is a copy: the trained layer, which is appended to the head later, is not in it.
            for layer in self.layers:
                X = layer(X)
        return X.cpu().numpy()


class _Spectral:
    """Stage 1 as an objective for the training loop: the spectral networks of both sides at once."""

    def __init__(self, objective: _Objective, trainer: SUE):
        import torch

        self.trainer, self.objective = trainer, objective
        self.module: Module = torch.nn.Module()
        data, rng = objective.data, np.random.default_rng([trainer.random_state, 2])
        self.rows: list[Rows] = []
        heads = []
        sides = zip((data.source, data.target), objective.unpaired, strict=True)
        for name, (paired, unpaired) in zip(("source", "target"), sides, strict=True):
            rows = Sources([ArrayRows(paired), unpaired])
            size = min(len(rows), trainer.spectral_batch_size)
            if size <= trainer.n_spectral_components + 1:
                raise ParameterError(
                    f"Got `n_spectral_components={trainer.n_spectral_components}` and graphs of {size} {name} "
                    f"rows; expected at least {trainer.n_spectral_components + 2} rows.",
                    "Pass a smaller `n_spectral_components=…`, or a larger `spectral_batch_size=…`.",
                )
            heads.append(new_head(trainer, paired, unpaired, trainer.n_spectral_components, rng))
            self.rows.append(rows)
        self.module.heads = torch.nn.ModuleList(heads).to(objective.device)

    def batch(self, step: int) -> list[Tensor]:
        """Return the rows of one graph for each side."""
        seed, size = self.trainer.random_state, self.trainer.spectral_batch_size
        return [
            self.objective.tensor(rows.batch(step, min(len(rows), size), seed + 611_953 * (i + 1)))
            for i, rows in enumerate(self.rows)
        ]

    def training_step(self, batch: list[Tensor]) -> Mapping[str, Tensor]:
        """Return the mean of both sides' spectral losses."""
        import torch

        trainer, terms = self.trainer, []
        for head, X in zip(self.module.heads, batch, strict=True):
            with torch.no_grad():
                W = affinities(X, trainer.n_neighbors, trainer.scale_n_neighbors)
            terms.append(spectral_loss(head(X), W))
        return {"loss": (terms[0] + terms[1]) / 2}

    def validate(self) -> None:
        """Return no score: the last weights are kept."""


def _residual(width: int, hidden: int, rng: np.random.Generator) -> Layer:
    """Return a residual block that is the identity before training."""
    from congruence.train import _layers

    last = _layers.linear(hidden, width, rng)
    last = {**last, "weight": np.zeros_like(last["weight"]), "bias": np.zeros_like(last["bias"])}
    relu = {"kind": "relu"}
    inner = [_layers.linear(width, hidden, rng), relu, _layers.linear(hidden, hidden, rng), relu, last]
    return {"kind": "residual", "layers": inner}


def affinities(X: Tensor, k: int, scale_k: int) -> Tensor:
    """Return the symmetric k-nearest-neighbor graph (n, n) of the rows, weighted by exp(−‖x − y‖²/s), where s is the
    median squared distance of a row to its ``scale_k``-th neighbor, at most the k-th.
    """
    import torch

    D = squared_distances(X, X)
    D.fill_diagonal_(torch.inf)
    k = min(k, len(X) - 1)
    near, index = D.topk(k, dim=1, largest=False)
    scale = near[:, min(scale_k, k) - 1].median().clamp_min(torch.finfo(X.dtype).tiny)
    W = torch.zeros_like(D).scatter_(1, index, torch.exp(-near / scale))
    return (W + W.T) / 2


def spectral_loss(Z: Tensor, W: Tensor) -> Tensor:
    """Return the mean Rayleigh quotient of the graph's Laplacian over the span of the centered columns of Z (n, r).

    The minimum, the mean of the r smallest eigenvalues of (D − W)/(mean degree) but that of the constant vector, is
    reached where the columns span their eigenvectors: up to a factor Σ W_ij ‖y_i − y_j‖² of orthonormal y = Z R⁻¹.
    """
    import torch

    Z = Z - Z.mean(0)
    degrees = W.sum(1)
    smooth = (Z.T @ (degrees[:, None] * Z - W @ Z)).double()
    inner = (Z.T @ Z).double()
    width = len(inner)
    # Regularize directions with almost no variance; otherwise they would be divided by rounding error.
    inner = inner + 1e-6 * inner.trace() / width * torch.eye(width, dtype=inner.dtype, device=inner.device)
    return (torch.linalg.solve(inner, smooth).trace() / (width * degrees.mean())).to(Z.dtype)


def squared_distances(X: Tensor, Y: Tensor) -> Tensor:
    """Return all squared Euclidean distances, with gradients that are finite at zero distance."""
    return (X.square().sum(1)[:, None] + Y.square().sum(1) - 2 * X @ Y.T).clamp_min(0)


def mmd(X: Tensor, Y: Tensor, scales: int) -> Tensor:
    """Return the biased squared maximum mean discrepancy of two batches (n, d), for a sum of Gaussian kernels exp(−‖x −
    y‖²/(s·2ᵉ)): s is the mean squared distance of different rows, e runs over ``scales`` integers from −⌊scales/2⌋.
    """
    import torch

    both = torch.cat([X, Y])
    D = squared_distances(both, both)
    scale = (D.detach().sum() / (len(both) * (len(both) - 1))).clamp_min(torch.finfo(D.dtype).tiny)
    K = sum(torch.exp(-D / (scale * 2.0 ** (e - scales // 2))) for e in range(scales))
    n = len(X)
    return K[:n, :n].mean() + K[n:, n:].mean() - 2 * K[:n, n:].mean()
