"""Tables of docs/refine.md: few pairs with unpaired pools, and no pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import beta, t

from measured.blocks import Block, table
from measured.jobs import JOBS

_COLUMNS = {"texts": 0, "images": 1}


def interval(values: list[float]) -> str:
    """Return the mean over splits and half the width of its 95 % t-interval."""
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def _pool(pool: str) -> str:
    """Return the size of the pools and how many of their items are in both: ``420 rows, half shared``."""
    share, rows = pool.split(" of ")
    return f"{rows} rows, {share} shared"


def refined(column: str) -> Any:
    """Return retrieval on unseen classes by pool and number of pairs, and in how many splits refinement was accepted."""

    def write(results: list[Any]) -> str:
        lines = [one for result in results for one in result["results"]]
        k = _COLUMNS[column]
        pairs = sorted({one["pairs"] for one in lines if "found" in one})
        pools = list(dict.fromkeys(one["pool"] for one in lines if "found" in one))

        def of(pool: str, n: int, key: str) -> list[float]:
            return [one[key][k] for one in lines if one["pool"] == pool and one["pairs"] == n]

        rows = [["none", *(interval(of(pools[0], n, "before")) for n in pairs)]]
        for pool in pools:
            cells = []
            for n in pairs:
                taken = [one["found"]["improves"] for one in lines if one["pool"] == pool and one["pairs"] == n]
                cells.append(f"{interval(of(pool, n, 'returned'))}, {sum(taken)} of {len(taken)}")
            rows.append([_pool(pool), *cells])
        full = [one["before"][k] for one in lines if "found" not in one]
        rows.append(["none (900 pairs)", interval(full), *[""] * (len(pairs) - 1)])
        return table(["unpaired pools", *(f"{n} pairs" for n in pairs)], rows)

    return write


def others(results: list[Any]) -> str:
    """Return the same for two other pairs of models: texts, and images if the source has them."""
    rows = []
    names = ("ViT-B/32 to OpenAI B/16, texts", "ViT-B/32 to OpenAI B/16, images"), ("MiniLM to MPNet, texts",)
    for result, measures in zip(results, names, strict=True):
        lines = [one for one in result["results"] if "found" in one]
        pairs = sorted({one["pairs"] for one in lines})
        full = [one for one in result["results"] if "found" not in one]
        for k, words in enumerate(measures):
            at = {(pool, n): [one for one in lines if (one["pool"], one["pairs"]) == (pool, n)] for pool in {one["pool"] for one in lines} for n in pairs}  # fmt: skip
            pools = list(dict.fromkeys(one["pool"] for one in lines))
            rows.append([words, "none", *(interval([one["before"][k] for one in at[pools[0], n]]) for n in pairs)])
            for pool in pools:
                cells = []
                for n in pairs:
                    taken = sum(one["found"]["improves"] for one in at[pool, n])
                    cells.append(
                        f"{interval([one['returned'][k] for one in at[pool, n]])}, {taken} of {len(at[pool, n])}"
                    )
                rows.append(["", _pool(pool), *cells])
            rows.append(["", f"none ({full[0]['pool']})", interval([one["before"][k] for one in full]), "", ""])
    return table(["models; evaluated on", "unpaired pools", *(f"{n} pairs" for n in pairs)], rows)


def declined(results: list[Any]) -> str:
    """Return the gains of refinement in image retrieval, for fits in which it was taken and for those in which it was declined."""
    lines = [one for result in results for one in result["results"] if "found" in one]
    rows = []
    for words, taken in (("applied", True), ("not applied", False)):
        those = [one for one in lines if one["found"]["improves"] is taken]
        gains = [one["forced"][1] - one["before"][1] for one in those]
        better = sum(gain > 0 for gain in gains)
        worse = sum(gain < -0.01 for gain in gains)
        rows.append(
            [
                words,
                str(len(those)),
                str(better),
                str(worse),
                f"{min(gains):+.3f}".replace("-", "−"),
                f"{max(gains):+.3f}".replace("-", "−"),
            ]
            if those
            else [words, "0", "", "", "", ""]
        )
    return table(["refinement", "fits", "gain above 0", "loss above 0.01", "smallest gain", "largest gain"], rows)


NAMES = {
    "dual encoders of two worlds": "dual encoders of unrelated data",
    "mirrored": "each item with its mirror image",
    "corners of a cube": "clusters at the corners of a cube",
}


def worlds(results: list[Any]) -> str:
    """Return the score and the true quality of maps fitted without pairs, by world."""
    lines = [one for result in results for one in result["results"]]
    rows = []
    for key in dict.fromkeys((one["world"], one["share"]) for one in lines):
        those = [one for one in lines if (one["world"], one["share"]) == key]
        right, agreement, matched = (
            f"{min(one[name] for one in those):.2f} to {max(one[name] for one in those):.2f}"
            for name in ("right", "agreement", "matched")
        )
        found = sum(one["found"] for one in those)
        rows.append(
            [NAMES.get(key[0], key[0]), f"{100 * key[1]:.0f} %", right, agreement, f"{found} of {len(those)}", matched]
        )
    return table(["data set", "shared items", "accuracy", "agreement", "reported as found", "mutual matches"], rows)


def errors(results: list[Any]) -> str:
    """Return the errors of the score over all worlds, with exact 95 % bounds; worlds with two solutions are counted separately."""
    lines = [one for result in results for one in result["results"]]
    plain, mirrored = ([one for one in lines if (one["world"] == "mirrored") is apart] for apart in (False, True))
    rows = []
    for words, worlds, right in (
        ("incorrect maps", plain, False),
        ("incorrect maps of mirrored data", mirrored, False),
        ("correct maps", plain, True),
    ):
        those = [one for one in worlds if (one["right"] >= 0.5) is right]
        wrong = sum(one["found"] is not right for one in those)
        bound = beta.ppf(0.95, wrong + 1, len(those) - wrong) if wrong < len(those) else 1.0
        verdict = "reported as failed" if right else "reported as found"
        rows.append([words, str(len(those)), f"{wrong} {verdict}", f"{bound:.3f}", _range(those)])
    return table(["maps", "fits", "errors of the score", "error rate, 95 % upper bound", "agreement"], rows)


def _range(lines: list[dict[str, Any]]) -> str:
    values = [one["agreement"] for one in lines]
    return f"{min(values):.2f} to {max(values):.2f}"


BLOCKS = {
    "refine-images": Block(refined("images"), JOBS["refine"]),
    "refine-texts": Block(refined("texts"), JOBS["refine"]),
    "refine-declined": Block(declined, JOBS["refine"]),
    "refine-others": Block(others, JOBS["refine-others"]),
    "unpaired-worlds": Block(worlds, JOBS["unpaired"]),
    "unpaired-errors": Block(errors, JOBS["unpaired"]),
}
