"""Maps of other packages on published models: the pairs, splits and unseen queries of ``expect.py``, in one run.

    python benchmarks/peers_expect.py ../shared/data --python .venv-peers/bin/python --record peers-expect

``lists`` and ``item`` are those of ``expect.py`` (``measure``): the share of the new model's ten first rows that 100
unseen queries find, and how often a query's own row is first. Each package is called as its quickstart does, with its
defaults: isotrieve maps the stored rows, drift-spark and rebasis map the new model's queries to the old index.
``peers.py`` says how to install them; ridge is ``LinearMap``, schift's published method. The splits are others than
those of ``expect.py``'s page.
"""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, write_json
from congruence import LinearMap, fit
from congruence.errors import CongruenceWarning
from expect import KINDS, MODALITY, QUERIES, Cell, K, load, table, unit32
from peers import BACKWARD, run_peers

PAIRS = (50, 200)
CHOSEN = ("RN50→B/32", "CLIP→FashionSigLIP", "LVIS B/32→EVA", "names MiniLM→MPNet")
CHOSEN += ("passages BGE small→BGE base", "passages BGE base→MPNet")


def split(rows: int, name: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the rows of queries, pairs and index; None if too few are left."""
    order = np.random.default_rng([seed, zlib.crc32(name.encode())]).permutation(rows)
    asked, known, index = order[:QUERIES], order[QUERIES : QUERIES + n], order[QUERIES + n :][:2000]
    return None if len(known) < n or len(index) < 5 * K else (asked, known, index)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/data"))
    parser.add_argument("--python", type=Path, required=True, help="interpreter with the packages")
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CongruenceWarning)
    results: dict[str, Any] = {}
    for world, _ in load(options.folder):
        if world.name not in CHOSEN:
            continue
        kind = "photo" if "photo" in world.modalities else "text"
        old, new = world.old[kind], world.new[kind]
        jobs = {
            f"{n} {seed}": parts
            for n in PAIRS
            for seed in range(700, 700 + options.splits)
            if (parts := split(len(old), world.name, n, seed))
        }
        stored = {key: (known, old[np.r_[index, asked]]) for key, (asked, known, index) in jobs.items()}
        queries = {key: (known, new[asked]) for key, (asked, known, _) in jobs.items()}
        forward = run_peers(options.python, old, new, stored)
        backward = run_peers(options.python, new, old, queries)
        for n in PAIRS:
            runs = []
            for key, (asked, known, index) in jobs.items():
                if not key.startswith(f"{n} "):
                    continue
                cell = Cell(old[index], new[index], old[asked], new[asked], None)

                def judge(asking: np.ndarray, rows: np.ndarray, own: np.ndarray, cell: Cell = cell) -> dict[str, float]:
                    return cell.judge(asking @ rows.T, np.einsum("ij,ij->i", asking, own))

                found = {"old model, kept": cell.judge(cell.asked_old @ cell.old.T)}
                if old.shape[1] == new.shape[1]:
                    found["unmapped"] = judge(cell.asked_new, cell.old, cell.asked_old)
                ours = {"congruence.fit": fit(old[known], new[known], modality=MODALITY[kind])}
                ours["ridge (LinearMap)"] = LinearMap().fit(old[known], new[known])
                for name, mapping in ours.items():
                    mapped = unit32(mapping.transform(stored[key][1]))
                    found[name] = judge(cell.asked_new, mapped[: len(index)], mapped[len(index) :])
                for name, rows in forward.items():
                    if name.startswith(BACKWARD):
                        rows = backward[name]
                    if isinstance(rows, str):
                        continue
                    mapped = unit32(rows[key])
                    if name.startswith(BACKWARD):
                        found[name] = judge(mapped, cell.old, cell.asked_old)
                    else:
                        found[name] = judge(cell.asked_new, mapped[: len(index)], mapped[len(index) :])
                runs.append(found)
            if not runs:
                continue
            title = f"{world.name}, {n} {kind}s"
            results[title] = table(runs)
            results[title]["failed"] = {k: v for k, v in (forward | backward).items() if isinstance(v, str)}
            print(f"{title} ({KINDS[world.name]}; {len(runs)} splits)", flush=True)
            for row, columns in results[title].items():
                if row != "failed":
                    print(f"  {row:40s}", "  ".join(f"{c} {v[0]:.3f} ± {v[1]:.3f}" for c, v in columns.items()))
            print("  failed:", results[title]["failed"])
    write_json(options, results)


if __name__ == "__main__":
    main()
