"""SOTAlign, SAIL and the best validated linear map, by the share of unpaired items that occur on both sides: the tables
in docs/research/sotalign.md.

Two encoders of the same photos, or of the same texts, of Caltech-101, projected to 96 principal directions. The task is
to find each of 1,000 test rows among these. There are 50 training pairs, 300 validation pairs, and unpaired rows, a
given share of which have their partner on the other side. Parameters are chosen on separate splits, with pools that
have no items in common.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from common import arguments, write_json
from congruence.embeddings import normalize_rows
from congruence.maps import HeadsMap
from congruence.splits import unpaired_pools
from congruence.train import CCA, SAIL, Procrustes, SOTAlign, WeightedCCA
from congruence.train.retrieval import recalls
from congruence.transport import distribution_shift
from klot import PLAIN, plain

WIDTH, PAIRS, VALIDATION, TEST, BATCH = 96, 50, 300, 1000, 512
ENCODERS = {"photos": ("image_effnet_lite0", "image_mobilenet_v2"), "texts": ("text_mpnet", "text_minilm_l6")}
TRAINING: dict[str, Any] = {
    "n_components": WIDTH,
    "validate_every": 10,
    "batch_size": PAIRS + BATCH,
    "device": "cpu",
    "max_steps": 120,
    "patience": None,
}
#: Starting from the teacher needs fewer and smaller steps: rate × steps / 2 bounds how far Lion can move a weight.
STARTS: dict[str, dict[str, Any]] = {
    "random": {"init": "random", "learning_rate": 2e-3},
    "teacher": {"init": "teacher", "learning_rate": 1e-3, "max_steps": 60},
}
PLANS: dict[str, Any] = {"max_iter": 500, "tolerance": 1e-3}
#: The one with the best mean recall at 1 on the validation pairs is the linear map, and SOTAlign's teacher.
LINEAR = [
    *(Procrustes(n_components=d) for d in (None, 40, 32, 24, 16)),
    *(CCA(ridge=ridge, n_components=d) for ridge in (0.1, 1, 10, 100) for d in (None, 32, 16)),
    *(WeightedCCA(ridge=ridge, power=power) for ridge in (0.1, 1, 10, 100) for power in (0.5, 1.0)),
]
SAIL_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
ALPHAS = (1, 10, 100, 1000)
CHOOSING = (1000, 1001)
#: Share of common items, and number of unpaired rows on each side; None: all available rows.
POOLS = [(1.0, 500), (0.5, 500), (0.0, 500), (1.0, None), (0.0, None)]


@dataclass(frozen=True)
class Split:
    """Rows of both sides, split into pairs, validation, test, and the rest."""

    X: np.ndarray
    Y: np.ndarray
    pairs: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    rest: np.ndarray
    seed: int

    def unpaired(self, overlap: float, size: int | None) -> tuple[np.ndarray, np.ndarray]:
        mine, theirs = unpaired_pools(self.rest, self.rest, overlap, size, random_state=self.seed)
        return self.X[self.rest[mine]], self.Y[self.rest[theirs]]

    def fit(self, method: Any, **rows: Any) -> Any:
        X, Y, held = self.X, self.Y, self.validation
        return method.fit(X[self.pairs], Y[self.pairs], validation=(X[held], Y[held]), verbose=False, **rows)

    def measure(self, heads: HeadsMap) -> list[float]:
        found = recalls(heads.transform(self.X[self.test]), heads.transform_target(self.Y[self.test]))
        return [100 * found[f"mean@{k}"] for k in (1, 5, 10)]


def divide(X: np.ndarray, Y: np.ndarray, seed: int) -> Split:
    """Split the items, and project each side to the principal directions of the rows that are not tested."""
    order = np.random.default_rng([seed, 9]).permutation(len(X))
    test, validation, pairs, rest = np.split(order, [TEST, TEST + VALIDATION, TEST + VALIDATION + PAIRS])
    known = order[TEST + VALIDATION :]
    return Split(*(_principal(side, known) for side in (X, Y)), pairs, validation, test, rest, seed)


def _principal(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    rows = normalize_rows(rows)
    mean = rows[known].mean(0)
    C = (rows[known] - mean).T @ (rows[known] - mean)
    return ((rows - mean) @ np.linalg.eigh(C)[1][:, : -WIDTH - 1 : -1]).astype(np.float32)


def best_linear(split: Split) -> tuple[Any, float]:
    """Return the linear map with the best recall on the validation pairs, and its recall."""
    fitted = [split.fit(type(m)(**m.get_params())) for m in LINEAR]
    scores = [m.scores_["validation_mean_recall_at_1"] for m in fitted]
    best = int(np.argmax(scores))
    return fitted[best], scores[best]


def sotalign(split: Split, teacher: Any, start: str, alpha: float, overlap: float, size: int | None) -> Any:
    given = {**TRAINING, **PLANS, **STARTS[start]}
    if TRAINING["max_steps"] < given["max_steps"]:
        given["max_steps"] = TRAINING["max_steps"]
    method = SOTAlign(teacher=teacher, divergence_weight=alpha / PAIRS, random_state=split.seed, **given)
    return split.fit(method, unpaired=split.unpaired(overlap, size))


def far(split: Split, overlap: float, size: int | None) -> dict[str, float]:
    """Return the distance (equation 14) between the unpaired rows and the pairs, and its floor, on the vectors that the
    methods use.
    """
    X, Y = split.unpaired(overlap, size)
    found = distribution_shift(
        X, split.X[split.pairs], Y, split.Y[split.pairs], normalize=True, repeats=1, random_state=split.seed
    )
    return {"shift": round(found.total.value, 5), "floor": round(found.total.floor, 5)}


def choose(splits: list[Split]) -> dict[str, Any]:
    """Choose SAIL's rate, and SOTAlign's α for each start, by recall at 1 on the test rows of splits that are not
    reported.
    """
    chosen: dict[str, float] = {}
    trials = []
    for name in ("sail", *STARTS):
        scores: dict[float, float] = {}
        for value in SAIL_RATES if name == "sail" else ALPHAS:
            each = []
            for split in splits:
                if name == "sail":
                    heads = split.fit(SAIL(learning_rate=value, random_state=split.seed, **TRAINING))
                else:
                    heads = sotalign(split, best_linear(split)[0], name, value, 0.0, None)
                each.append(split.measure(heads)[0])
            scores[value] = float(np.mean(each))
            trials.append({"method": name, "value": value, "mean_r1": scores[value]})
            print(f"choosing: {name} {value}: {scores[value]:.1f}", flush=True)
        chosen[name] = max(scores, key=lambda value: scores[value])
    return {"chosen": chosen, "trials": trials}


@contextmanager
def plain_gradients() -> Iterator[None]:
    """Let SOTAlign use the gradient after 100 plain iterations for each plan, as in the paper."""
    from congruence.train import sotalign as module

    def klot_features(X: Any, Y: Any, TX: Any, TY: Any, *_: Any, **options: Any) -> tuple[Any, Any]:
        A = X @ Y.T
        unknown = SimpleNamespace(marginal_error=0.0, v=A.new_zeros(len(Y)))
        slope = plain(A.detach(), TX @ TY.T)
        return (slope * A).sum(), SimpleNamespace(student=unknown, teacher=unknown, gradient_error=0.0)

    with mock.patch.multiple(module, klot_features=klot_features, solve_teacher=lambda *_, **options: None):
        yield


def gradients(sides: dict[str, list[np.ndarray]], seeds: range) -> list[dict[str, Any]]:
    """Compare SOTAlign with the accurate gradient and with that after 100 plain iterations: the same splits, rows,
    weights and α, 100/n; two of the pools, the rest as in the table.
    """
    found = []
    for encoders, (X, Y) in sides.items():
        for seed in seeds:
            split = divide(X, Y, seed)
            teacher, _ = best_linear(split)
            for overlap, size in (POOLS[0], POOLS[-1]):
                for start in STARTS:
                    line: dict[str, Any] = {"encoders": encoders, "seed": seed, "overlap": overlap, "all": size is None}
                    line["start"] = start
                    heads = sotalign(split, teacher, start, 100, overlap, size)
                    line["accurate"], errors = split.measure(heads)[0], heads.history_.losses["gradient_error"]
                    line["promised_error"] = [float(np.median(errors)), max(errors)]
                    with plain_gradients():
                        line["plain"] = split.measure(sotalign(split, teacher, start, 100, overlap, size))[0]
                    found.append(line)
                    print(line, flush=True)
        for start in STARTS:
            for overlap, size in (POOLS[0], POOLS[-1]):
                here = {"encoders": encoders, "start": start, "overlap": overlap, "all": size is None}
                both = np.array([
                    (one["accurate"], one["plain"]) for one in found if all(one[key] == here[key] for key in here)
                ])  # fmt: skip
                lead = both[:, 0] - both[:, 1]
                spread = lead.std(ddof=1) if len(lead) > 1 else 0.0
                print(f"{here}: {both[:, 0].mean():.1f}, {PLAIN} plain {both[:, 1].mean():.1f}, ", end="")
                print(f"difference {lead.mean():+.2f} ± {spread:.2f}", flush=True)
    return found


def read_sides(file: str, names: list[str]) -> dict[str, list[np.ndarray]]:
    """Return the rows of both encoders of a named pair."""
    with np.load(file, allow_pickle=False) as data:
        return {
            name: [data[key].astype(np.float32).reshape(-1, data[key].shape[-1]) for key in ENCODERS[name]]
            for name in names
        }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("file", help="caltech101_unimodal.npz")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--encoders", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--shift", action="store_true", help="measure only the distance of each pool from the pairs")
    parser.add_argument("--gradients", action="store_true", help="compare only accurate gradients with usual ones")
    parser.add_argument("--quick", action="store_true", help="one split and two steps, as a smoke test")
    options = parser.parse_args()
    if options.quick:
        TRAINING.update(max_steps=2)
    results: dict[str, Any] = {"settings": {}, "scores": []}
    sides = read_sides(options.file, options.encoders)
    if options.gradients:
        write_json(options, gradients(sides, range(1 if options.quick else options.splits)))
        return
    if options.shift:
        results = {"shifts": []}
        for encoders, (X, Y) in sides.items():
            for seed in range(1 if options.quick else options.splits):
                split = divide(X, Y, seed)
                for overlap, size in POOLS:
                    rows = len(split.unpaired(overlap, size)[0])
                    what = {"encoders": encoders, "seed": seed, "overlap": overlap, "rows": rows, "all": size is None}
                    results["shifts"].append({**what, **far(split, overlap, size)})
                    print(results["shifts"][-1], flush=True)
        write_json(options, results)
        return
    for encoders, (X, Y) in sides.items():
        settings = choose([divide(X, Y, seed) for seed in CHOOSING[: 1 if options.quick else None]])
        results["settings"][encoders] = settings
        chosen = settings["chosen"]
        for seed in range(1 if options.quick else options.splits):
            split = divide(X, Y, seed)
            teacher, _ = best_linear(split)
            sail = SAIL(learning_rate=chosen["sail"], random_state=seed, **TRAINING)
            line: dict[str, Any] = {"encoders": encoders, "seed": seed, "left": len(split.rest)}
            results["scores"] += [
                {**line, "method": "sail", "recall": split.measure(split.fit(sail))},
                {**line, "method": "linear", "which": repr(teacher).split("\n")[0], "recall": split.measure(teacher)},
            ]
            for overlap, size in POOLS:
                for start in STARTS:
                    began = time.process_time()
                    heads = sotalign(split, teacher, start, chosen[start], overlap, size)
                    results["scores"].append({
                        **line,
                        "method": start,
                        "overlap": overlap,
                        "rows": len(split.unpaired(overlap, size)[0]),
                        "all": size is None,
                        "recall": split.measure(heads),
                        "best_step": heads.history_.best_step,
                        "cpu_seconds": round(time.process_time() - began, 1),
                    })  # fmt: skip
            for one in results["scores"]:
                if one["seed"] == seed and one["encoders"] == encoders:
                    print(one, flush=True)
    write_json(options, results)


if __name__ == "__main__":
    main()
