"""Tables of the pages that compare spaces and collections: similarity, match, shift, quantized, spanning, maps, files, negatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from measured.blocks import Block, minus, table
from measured.jobs import JOBS


def fixed(value: float | None, digits: int = 3) -> str:
    """Format a number as the commands do: exactly 1 with decimals, a missing one as an empty string."""
    return "" if value is None else minus(f"{value:.{digits}f}").replace("−0.000", "0.000")


def matching(which: int) -> Any:
    whose = {"jam": "paper", "congruence": "ours", "both": "both"}

    def write(results: list[Any]) -> str:
        rows: list[list[str]] = []
        metric = ""
        for line in results[which]:
            name = f"`{line['metric']}`, {line['formula']} ({whose[line['definition']]})"
            match, other = ("{} ± {}".format(*map(fixed, line[key])) for key in ("match_drawn", "other_drawn"))
            if name != metric:  # the scores of the matches are the same in all comparisons
                rows.append([name, "match", fixed(line["match"]), match, "", "", ""])
            tests = [f"{line['effect_size']:.1f}", fixed(line["auc"]), fixed(line["p_value"])]
            rows.append(["", line["against"], fixed(line["other"]), other, *tests])
            metric = name
        return table(["metric", "condition", "score, all rows", "score, random halves", "effect", "AUC", "p"], rows)

    return write


def similarity(which: int) -> Any:
    def write(results: list[Any]) -> str:
        rows = [
            [
                f"`{s['metric']}`",
                fixed(s["value"]),
                f"{fixed(s['low'])} … {fixed(s['high'])}",
                f"{fixed(s['null_mean'])} ± {fixed(s['null_sd'])}",
                *(fixed(s[key]) for key in ("p_value", "adjusted_p_value", "held_out")),
            ]
            for s in results[which]["scores"]
        ]
        return table(["metric", "score", "95 %", "by chance", "p", "p, best of all", "held out"], rows)

    return write


NAMES = {
    "image_effnet_lite0": "EfficientNet",
    "image_mobilenet_v2": "MobileNet",
    "text_mpnet": "MPNet",
    "text_minilm_l6": "MiniLM",
}


def layers(results: list[Any]) -> str:
    rows = []
    for result in results:
        found = result["layers"]
        best = ", ".join(NAMES[name] for name in found["best"])
        chance = f"{fixed(found['best_null_mean'])} ± {fixed(found['best_null_sd'])}"
        scores = [best, fixed(found["best_value"]), chance, fixed(found["best_adjusted_p_value"])]
        rows.append([f"`{found['metric']}`, {found['n']:,}", *scores])
    return table(["metric, rows", "best pair", "score", "best score by chance", "p, corrected"], rows)


def joint_maps(results: list[Any]) -> str:
    rows = [[one["map"], str(one["width"]), *(fixed(v) for v in one["mean"])] for one in results[0]]
    return table(
        ["method", "joint dimensions", "image → text recall@1", "text → image recall@1", "image → text recall@10"], rows
    )


def shift(prefix: str, first: str, columns: list[str]) -> Any:
    def write(results: list[Any]) -> str:
        lines = [line for line in results[0] if line["model"].startswith(prefix)]
        models = list(dict.fromkeys(line["model"] for line in lines))
        by = {(line["line"], line["model"]): line for line in lines}
        rows = [
            [name.replace("turned by a random rotation", "rotated at random"), *(fixed(by[name, m][key], 4) for m in models for key in ("value", "floor"))]
            for name in dict.fromkeys(line["line"] for line in lines)
        ]  # fmt: skip
        return table([f"{first} (distances in turns)", *(c for name in columns for c in (name, f"{name}, floor"))], rows)  # fmt: skip

    return write


def quantized(results: list[Any]) -> str:
    rows = []
    for one in results[0]:
        cells = [f"{m:.3f} ({sd:.3f})" for m, sd in zip(one["mean"], one["sd"], strict=True)]
        rows.append([one["old"], one["new"], *cells])
    header = [f"{modality}: {score}" for modality, k in (("texts", 1), ("images", 10)) for score in ("recall kept", f"recall@{k}")]  # fmt: skip
    return table(["old type", "new type", *header], rows)


def rounded(value: float) -> str:
    """Three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def anchors(results: list[Any]) -> str:
    rows = []
    for a in results[0]["anchors"]:
        kappa = " … ".join(map(rounded, a["kappa"])) if a["kappa"] else "∞"
        counts = [str(a["d"]), *(f"{a[key]:,}" for key in ("n", "needed", "rank"))]
        rows.append(
            [
                a["anchors"].replace("… in their 55 strongest", "sample, images, in their 55 strongest directions"),
                *counts,
                "yes" if a["spans"] else "no",
                kappa,
            ]
        )
    return table(["anchors", "d", "n", "n needed", "rank", "spans Sym(d)", "κ (bounds)"], rows)


def shares(results: list[Any]) -> str:
    rows = [
        [str(s["r"]), *("1" if s["r"] == 512 else fixed(s[side]) for side in ("text", "image"))]
        for s in results[0]["shares"]
    ]
    return table(["r", "share of a text, median", "share of an image, median"], rows)


def margins(results: list[Any]) -> str:
    """Return the margins of each case, and the number of classes that meet each condition."""
    values, counts, case = [], [], ""
    for m in results[0]["margins"]:
        case = {"…": case, "… centered by modality": "LVIS → EVA-02, unseen, centered"}.get(m["case"], m["case"])
        gamma = fixed(m["gamma"], 4 if abs(m["gamma"]) < 5e-4 else 3)
        eta = "0" if m["eta"] < 1e-9 else fixed(m["eta"])
        values.append([case, f"{m['K']:,}", str(m["r"]), gamma, eta, f"{m['rho']:.2f}"])
        meets = f"{m['promised']:,}" + f" ({m['wrong']:,})" * bool(m["promised"])
        certified = (f"{m[key]:,}" for key in ("within", "certified", "by_difference", "found"))
        counts.append([case, str(m["r"]), meets, *certified])
    header = ["case", "r", "γ_c > 2η_c (wrong)", "within ρ", "certified", "by difference", "retrieved"]
    return table(["case", "classes K", "r", "γ", "η", "ρ"], values) + "\n" + table(header, counts)


def mixed_store(results: list[Any]) -> str:
    words = {
        "as the map gives them": "not rescaled",
        "unit rows": "unit rows (default)",
        "unit rows, all centered": "unit rows, all centered",
        "control: native, shuffled": "control: native rows, shuffled",
    }
    rows = []
    for name, shown_ in words.items():
        values = np.array([run[name] for run in results[0]["results"]])
        cells = [f"{m:.3f} ({s:.3f})" for m, s in zip(values[:, :4].mean(0), values[:, :4].std(0, ddof=1), strict=True)]
        low, high = f"{values[:, 4].min():.2f}", f"{values[:, 5].max():.2f}"
        rows.append([shown_, *cells, "1" if low == high == "1.00" else f"{low} … {high}"])
    return table(
        [
            "mapped half of the store",
            "recall@10: mapped items",
            "native items",
            "all items",
            "mapped share of results",
            "norms of mapped rows",
        ],
        rows,
    )


def mixed_store_others(results: list[Any]) -> str:
    rows = []
    for words, result in zip(("100 anchors", "600 anchors", "300 anchors, to ViT-B/16"), results[1:], strict=True):
        means = {name: np.mean([run[name] for run in result["results"]], axis=0) for name in result["results"][0]}
        cells = [f"{means['as the map gives them'][k]:.3f} / {means['unit rows'][k]:.3f}" for k in (0, 1, 2)]
        rows.append([words, *cells])
    return table(["not rescaled / unit rows", "recall@10: mapped items", "native items", "all items"], rows)


def negatives(results: list[Any]) -> str:
    found = results[0]["results"]
    rows = [
        [f"`{kind}`", *cells[:4], " / ".join(cells[4:6]), " / ".join(cells[6:])]
        for kind, cells in found["lines"].items()
    ]
    header = ["coverage, all", "coverage, own kind", "edit, SugarCrepe", "edit, rules"]
    return table(["kind", *header, "kept, SugarCrepe / rules", "text-only, SugarCrepe / rules"], rows)


_TEXTS = shift("text", "texts", ["MiniLM", "MPNet"])
BLOCKS = {
    "match-coco": Block(matching(0), JOBS["match"]),
    "match-imagenet": Block(matching(1), JOBS["match"]),
    "similarity-imagenet": Block(similarity(0), JOBS["similarity"]),
    "similarity-lvis": Block(similarity(1), JOBS["similarity"]),
    "layers": Block(layers, JOBS["layers"]),
    "joint-maps": Block(joint_maps, JOBS["joint-maps"]),
    "shift-images": Block(shift("image", "photos", ["EfficientNet-Lite0", "MobileNet-v2"]), JOBS["shift"]),
    "shift-texts": Block(_TEXTS, JOBS["shift"]),
    "quantized": Block(quantized, JOBS["quantized"]),
    "spanning-anchors": Block(anchors, JOBS["spanning"]),
    "spanning-shares": Block(shares, JOBS["spanning"]),
    "spanning-margins": Block(margins, JOBS["spanning"]),
    "mixed-store": Block(mixed_store, JOBS["mixed-store"]),
    "mixed-store-others": Block(mixed_store_others, JOBS["mixed-store"]),
    "negatives": Block(negatives, JOBS["negatives"]),
}
