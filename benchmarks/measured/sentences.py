"""Numbers in sentences: each is compared with the record, or the measurement, of the corresponding table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from measured import quick
from measured.blocks import ROOT, Job, same
from measured.canonical import EVA, figures
from measured.certificates import holds
from measured.jobs import JOBS
from measured.means import SHOWN, losses
from measured.progressive import pooled

_FIELD = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, with fields of :meth:`str.format` in place of the numbers.

    ``values`` takes the results of the job, or nothing if the numbers are measured each time, and returns the values of the fields.
    """

    page: str
    words: str
    values: Callable[..., dict[str, Any]]
    job: Job | None = None

    def printed(self) -> str | None:
        """Return the sentence as it is on the page, with line breaks as spaces; None if it is missing."""
        text = " ".join((ROOT / self.page).read_text(encoding="utf-8").split())
        pattern = r"[-−]?\w+(?:[.,]\w+)*".join(map(re.escape, _FIELD.split(self.words)))
        found = re.search(pattern, text)
        return found[0] if found else None

    def written(self, results: list[Any] | None) -> str:
        """Return the sentence with the current numbers."""
        return _minus(self.words.format(**(self.values(results) if self.job else self.values())))

    def agrees(self, results: list[Any] | None) -> bool:
        printed, written = self.printed(), self.written(results)
        return printed is not None and (_minus(printed) == written if self.job else same(_minus(printed), written))


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


def _matching(results: list[Any]) -> dict[str, Any]:
    coco, photos, whole = results
    by = {(r["metric"], r["definition"], r["against"]): r for r in coco}
    photo = {(r["metric"], r["definition"], r["against"]): r for r in photos}
    first, cka = by["cca", "jam", "hard"], by["linear_cka", "jam", "hard"]
    ours = photo["cknna", "congruence", "shuffled"]
    other = next(r for r in whole if r["against"] == "shuffled")
    return {
        "first": by["cca", "jam", "shuffled"],
        "hard": first,
        "cka": cka,
        "drawn": by["cca", "jam", "shuffled"]["other_drawn"][0],
        "low": photo["cca", "congruence", "noise"]["other"],
        "high": by["cca", "congruence", "noise"]["other_drawn"][0],
        "photos": photo["cca", "congruence", "noise"]["match"],
        "ours": ours,
        "whole": other,
    }


def _theory(results: list[Any]) -> dict[str, Any]:
    found = results[0]["results"]
    linear = next(b for b in found["bounds"] if b["rows"] == "as they are")
    texts = next(t for t in found["text_half"] if t["rows"] == "as they are")
    low, high = texts["sigma"]
    c = linear["conditions"]
    return {
        "b": linear,
        "epsilon": c["epsilon"],
        "sigma": c["sigma_min"],
        "low": low,
        "high": high,
        "texts": texts["median"],
    }


def _canonical(results: list[Any]) -> dict[str, Any]:
    found = figures(results)
    few, kinds, trip = found["fig5", "sample"], found["fig44", "lvis"], found["fig39", "lvis"]

    def mean(figure: Any, *row: str, **given: Any) -> float:
        return figure.row(*row, **given)["mean"]

    unseen = {"part": "unseen", "x": 10}
    return {
        "fitted": mean(few, "aligned_image_text_centered", series="orthogonal", **unseen),
        "random": mean(few, "aligned_image_text_centered", series="random", **unseen),
        "turned": mean(kinds, "text_cosine", series="random", pair=EVA),
        "constant": mean(kinds, "text_cosine", "constant", pair=EVA),
        "image": mean(trip, "image_cosine", series="round trip", pair=EVA[: EVA.index("B/16")]),
        "image_constant": mean(trip, "image_cosine", "constant", pair=EVA[: EVA.index("B/16")]),
        "text": mean(trip, "text_cosine", series="round trip", pair=EVA[: EVA.index("B/16")]),
        "class": mean(trip, "aligned_image_text", series="round trip", pair=EVA[: EVA.index("B/16")]),
        "alone": mean(trip, "aligned_image_text", "model_a", pair=EVA[: EVA.index("B/16")]),
        "by_texts": mean(found["fig34", "caltech101"], "image_cosine", series="orthogonal"),
        "by_images": mean(found["fig11", "caltech101"], "image_cosine"),
    } | {
        f"{name}_{models}": found[name, models].held
        for name in ("fig4", "fig5", "fig34", "fig53")
        for models in ("sample", "caltech101")
    }


def _convergence(results: list[Any]) -> dict[str, Any]:
    off = [one["off"] / one["gradient_error"] for one in results[0]["results"] if one["gradient_error"] > 1e-4]
    return {"low": min(off), "high": max(off)}


def _layers(results: list[Any]) -> dict[str, Any]:
    few, svcca = results[2]["layers"], results[5]["layers"]
    standing = sorted(value for row in svcca["standing"] for value in row)
    return {"best": few["best_null_mean"], "least": standing[0], "next": standing[1], "most": standing[-1]}


def _demo() -> dict[str, Any]:
    row = next(r["unseen"] for r in quick.demo()["table"] if r["measure"] == "text–text cosine")
    return {"before": row["before"], "constant": row["control_constant"], "turned": row["control_random_rotation"]}


def _mixed(results: list[Any]) -> dict[str, Any]:
    unit = [run["unit rows"][3] for run in results[0]["results"]]
    return {"share": 100 * sum(unit) / len(unit)}


def _easy(results: list[Any]) -> dict[str, Any]:
    rows = [dict(zip(results[0]["columns"], row, strict=True)) for row in results[0]["rows"]]
    by = {
        row["pair"].split(":")[0]: row["mean"]
        for row in rows
        if row["metric"] == "cca_linear" and row["part"].startswith("easy: captions")
    }
    return {"add": by["add"], "swap": by["swap"]}


def _kernels(results: list[Any]) -> dict[str, Any]:
    by = {(one["kernel"], one["relation"]): one for one in results[0]["results"]["kernels"]}
    rmse = by["sample, image–text, as they are", "affine"]["rmse"]
    return {"rmse": rmse, "images": by["sample, image–image, as they are", "affine"]["correlation"]}


def _held(results: list[Any]) -> dict[str, Any]:
    found = results[0]["results"]["random"]
    return {"models": found["of"] // 4, "held": found["held"]}


def _spanning(results: list[Any]) -> dict[str, Any]:
    inside, (most, least) = results[0]["sample_texts_inside"], results[0]["singular"]
    return {"few": inside["32"], "more": inside["48"], "most": most, "least": least}


def _mean(values: list[Any]) -> Any:
    """Return the mean over splits; NaN if it cannot be measured."""
    return np.mean(np.array(values, float), axis=0)


def _choice(results: list[Any]) -> dict[str, Any]:
    found = {one["pair"].split("→")[-1].strip(): one for result in results for one in result["results"]}
    gains = {}
    for name, one in found.items():
        at = one["sizes"].index(50)
        gains[name] = _mean(one["scores"]["variance"])[at] - _mean(one["scores"]["random"])[at]
    needed = {(n, m): _mean(v) for n, one in found.items() for m, v in one["needed"].items()}
    photos = "Caltech-101 heads, photos"
    return {
        "eva": gains["EVA-02"],
        "b16": gains["ViT-B/16"],
        "names": gains["MPNet"],
        "eva_needs": [needed["EVA-02", m][0] for m in ("variance", "random")],
        "b16_needs": [needed["ViT-B/16", m][0] for m in ("variance", "random")],
        "photos": [needed[photos, m][1] for m in ("variance", "random")],
    }


def _text_order(results: list[Any]) -> dict[str, Any]:
    found = {one["order"]: np.mean(one["values"], axis=0) for one in results[0]["results"] if one["n"] == 50}
    return {"minilm": found["MiniLM's"] - found["random"], "own": found["the source model's"] - found["random"]}


def _text_pairs(results: list[Any]) -> dict[str, Any]:
    by = {(one["data"][:6], one["pairs"], one["use"]): one for one in results[1]["results"] if one["texts"] == 100}
    scores = {key: np.mean(one["values"], axis=0)[0] for key, one in by.items()}
    return {
        "sample": scores["sample", 0, ""],
        "sample_more": scores["sample", 100, "directions"],
        "heads": scores["Caltec", 0, ""],
        "heads_more": scores["Caltec", 100, "directions"],
        "source": by["Caltec", 0, ""]["source"],
    }


def _means(results: list[Any]) -> dict[str, Any]:
    return {"loss": {int(m): loss for m, loss in zip(SHOWN, losses(results).T, strict=False) if m.isdigit()}}


def _protected(results: list[Any]) -> dict[str, Any]:
    lines = [line for one in results for store, each in one["results"]["lines"].items() if store in ("LVIS names", "Caltech prompts") for line in each]  # fmt: skip
    return {"least": 100 * min(line["found"] for line in lines if line["pairs"] == 100 and line["search"] > 0.5)}


def _reembedded(results: list[Any], place: int) -> dict[str, Any]:
    """Return the share of the new model's score that is reached with rows re-embedded by entropy, at one of the measured shares."""
    runs = results[0]["results"]
    return {"share": 100 * np.mean([run["entropy"][place] for run in runs]) / np.mean([run["new"] for run in runs])}


def _coverage(results: list[Any]) -> dict[str, Any]:
    """Return the share of stages at which an interval contained the true value, and of stops at which the target was reached, over all data sets."""
    by: dict[str, list[list[float]]] = {}
    for name, cells in results[0]["results"].items():
        kind = name.rsplit(": ", 1)[1].partition("@")[0]
        by.setdefault("weighted" if kind.startswith("weighted ") else kind.rpartition(" ")[2], []).append(cells)
    found = {name: pooled(cells) for name, cells in by.items()}
    result = {name: one[1] for name, one in found.items()}
    return {"stages": found["cosine"][0], "stops": [found[name][0] for name in ("estimate", "end")], **result}


def _verdicts(results: list[Any]) -> dict[str, Any]:
    """Return the correct verdicts by target, the runs that missed it, and those in which this was predicted."""
    runs = [one for run in results[0]["results"] for one in run.values()]
    out: dict[str, Any] = {"runs": len(runs)}
    for target in ("0.95", "0.99"):
        result = [(one["said"][target] == "re-embed everything", one["reached"] < float(target)) for one in runs]
        short = [said for said, fell in result if fell]
        out[f"t{target[2:]}"] = {"right": sum(a == b for a, b in result), "short": len(short), "said": sum(short)}
    return out


def _in_runs(results: list[Any]) -> dict[str, Any]:
    """Return the number of runs with an interval of n, and of those in which it contained what the run needed."""
    said = [one for found in results for one in found["results"]["runs"] if one["share"] is not None]
    return {"said": len(said), "held": sum(map(holds, said))}


def _over_splits(results: list[Any], *keys: Any) -> float:
    """Return the mean over splits of one entry of nested results."""
    values = []
    for run in results[0]["results"]:
        for key in keys:
            run = run[key]
        values.append(run)
    return float(np.mean(values))


def _pairs(results: list[Any]) -> dict[str, Any]:
    ways = {"names": "auto, names", "none": "auto", "random": "random", "rotation": "random, rotation"}
    return {name: [_over_splits(results, way, place) for place in range(6)] for name, way in ways.items()} | {
        "new": _over_splits(results, "new")
    }


def _unseen(results: list[Any]) -> dict[str, Any]:
    photos, other = "Caltech-101", 1
    texts, none = "half of the texts known", "half known to the first map, none to the plan"
    return {
        "texts": [_over_splits(results, photos, texts, place, other) for place in range(4)],
        "none": [_over_splits(results, photos, none, place, other) for place in range(4)],
        "old": _over_splits(results, photos, "old", other),
    }


def _halves(results: list[Any]) -> dict[str, Any]:
    return {
        kind: [_over_splits(results, "Caltech-101", 0, "kinds", kind, place) for place in range(4)]
        for kind in ("none", "factor", "query")
    }


def _quality(results: list[Any]) -> dict[str, Any]:
    """Return where figure 5 saturates on simulated models, and the corresponding values of the stand-ins."""
    found = results[0]["results"]
    least = min(one["details"] for one in found["lines"] if one["saturated"] == 1)
    first = min(one["details"] for one in found["lines"] if one["saturated"] > 0)
    most = max(one["details"] for one in found["lines"] if one["details"] < first)
    return {"least": least, "most": most, **found["stand_ins"]}


SENTENCES = (
    Sentence("docs/exposure.md", "left {least:.0f} % of the texts or more readable from a hundred pairs", _protected, JOBS["exposure"]),
    Sentence("docs/means.md", "the largest loss in any line below is {loss[100][1]:.3f}. With thirty rows the median loss is {loss[30][0]:.3f} and the largest {loss[30][1]:.3f}, "
             "with ten {loss[10][0]:.3f} and {loss[10][1]:.3f}.", _means, JOBS["means-rows"]),
    Sentence("docs/sample.md", "the cosine is {before:.2f} unmapped, {constant:.2f} for a constant and {turned:.2f} for a random rotation", _demo),
    Sentence("docs/similarity.md", "SVCCA's {s[value]:.3f} between photos and captions is {s[null_mean]:.3f} by chance and {s[held_out]:.3f} on held-out rows.",
             lambda results: {"s": next(s for s in results[0]["scores"] if s["metric"] == "svcca")}, JOBS["similarity"]),
    Sentence("docs/similarity.md", "the best of four still scores {best:.2f}.", _layers, JOBS["layers"]),
    Sentence("docs/similarity.md", "({least:.1f} standard deviations; the others {next:.1f} to {most:.1f})", _layers, JOBS["layers"]),
    Sentence("docs/match.md", "the first canonical correlation is {first[match]:.3f} for the matching pairs but {first[other]:.2f} for texts re-paired at random, and {drawn:.2f} for those with half of the rows; "
             "the mean canonical correlation scores {low:.2f} to {high:.2f} on noise, so its {photos:.2f} between photos and prompts", _matching, JOBS["match"]),
    Sentence("docs/match.md", "it is at chance (p = {ours[p_value]:.2f}), although the AUC over halves is {ours[auc]:.2f}; on whole embeddings (`--components 0`) it is "
             "{whole[match]:.3f} against {whole[other]:.3f}, p = {whole[p_value]:.3f}.", _matching, JOBS["match"]),
    Sentence("docs/match.md", "({hard[match]:.3f} and {hard[other]:.3f} for its CCA, {cka[match]:.3f} and {cka[other]:.3f} for its CKA on COCO)", _matching, JOBS["match"]),
    Sentence("docs/theory.md", "C.21 guarantees an error of at most {b[promised]:.0f} (sharp: {b[sharp]:.0f}), with ε = {epsilon:.2f} and σ_min = {sigma:.2f}; the measured error is {b[measured]:.2f}. "
             "The singular values of A run from {low:.4f} to {high:.1f}, where those of a rotation are all 1, and the error of the second half, on texts, is {texts:.0f} (median).", _theory, JOBS["theory"]),
    Sentence("docs/files.md", "({share:.0f} % of those found instead of 50 %)", _mixed, JOBS["mixed-store"]),
    Sentence("docs/reproducing.md", "in all three data sets for details of {least:.2f} and above, and in none of them for details up to {most:.2f};", _quality, JOBS["few-classes"]),
    Sentence("docs/reproducing.md", "details of {sample:.2f} (sample) and {caltech101:.2f} (caltech101).", _quality, JOBS["few-classes"]),
    Sentence("docs/reproducing.md", "do distinguish the two: {fitted:.3f} against {random:.3f} on the sample.", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "has a text–text cosine of {turned:.3f} on LVIS; replacing every row by the target's mean gives {constant:.3f}", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "the cosine of LVIS images with themselves is only {image:.3f}, below the constant control ({image_constant:.3f}), while that of texts is {text:.3f}.", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "still classified with an accuracy of {class:.3f} ({alone:.3f} before).", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "Caltech-101 does not ({by_texts:.3f} against {by_images:.3f}).", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "figure 4 *{fig4_sample}* on both", _canonical, JOBS["canonical"]),
    Sentence("docs/reproducing.md", "figure 5 *{fig5_sample}*, figure 34 *{fig34_sample}* on the sample and *{fig34_caltech101}* on Caltech-101, figure 53 *{fig53_sample}*",
             _canonical, JOBS["canonical"]),
    Sentence("docs/jam.md", "the first canonical correlation of 50 dimensions is {add:.2f} by chance with 950 rows and {swap:.2f} with 777.", _easy, JOBS["jam-measures"]),
    Sentence("docs/transport.md", "it was {low:.1f} to {high:.1f} times what is reported", _convergence, JOBS["klot-convergence"]),
    Sentence("docs/theory.md", '"affine").rmse # {rmse:.3f}', _kernels, JOBS["theory"]),
    Sentence("docs/theory.md", '"affine").correlation # {images:.3f}', _kernels, JOBS["theory"]),
    Sentence("docs/theory.md", "{models:,} models, four bounds each. All {held:,} held.", _held, JOBS["theory-random"]),
    Sentence("docs/anchors.md", "at 50 it adds {eva[0]:.3f} and {b16[0]:.3f} to text retrieval on LVIS, {names[0]:.3f} on ImageNet's names, and {eva[1]:.3f} to images on EVA-02.", _choice, JOBS["anchors"]),
    Sentence("docs/anchors.md", "on LVIS {eva_needs[0]:.0f} and {b16_needs[0]:.0f} pairs instead of {eva_needs[1]:.0f} and {b16_needs[1]:.0f} within", _choice, JOBS["anchors"]),
    Sentence("docs/anchors.md", "{photos[0]:.0f} pairs instead of {photos[1]:.0f} across.", _choice, JOBS["anchors"]),
    Sentence("docs/anchors.md", "at 50 it adds {minilm[1]:.3f} to text retrieval and {minilm[2]:.3f} to images, on EVA-02.", _text_order, JOBS["text-anchors"]),
    Sentence("docs/anchors.md", "adds about twice as much ({own[1]:.3f} and {own[2]:.3f}).", _text_order, JOBS["text-anchors"]),
    Sentence("docs/anchors.md", "rises from {sample:.3f} to {sample_more:.3f} in the sample and from {heads:.3f} to {heads_more:.3f} between the Caltech-101 heads", _text_pairs, JOBS["text-anchors"]),
    Sentence("docs/anchors.md", "(the source itself classifies them at {source:.3f})", _text_pairs, JOBS["text-anchors"]),
    Sentence("docs/spanning.md", "{few:.3f} for the 32 strongest image directions of 64, {more:.3f} for 48.", _spanning, JOBS["spanning"]),
    Sentence("docs/spanning.md", "with singular values from {most:.1f} down to {least:.4f}.", _spanning, JOBS["spanning"]),
    Sentence("docs/progressive.md", "re-embedding 4 % of the photos gives {share:.1f} % of the new model's accuracy", lambda results: _reembedded(results, 2), JOBS["progressive-caltech"]),
    Sentence("docs/progressive.md", "re-embedding 45 % of the pictures gives {share:.1f} % of its recall@10", lambda results: _reembedded(results, 5), JOBS["progressive-emoji"]),
    Sentence("docs/progressive.md", "Over all {stages:.0f} stages, coverage is {agreement:.3f} for agreement, {overlap:.3f} for overlap, {cosine:.3f} for the cosine and {weighted:.3f} for "
             "weighted scores", _coverage, JOBS["progressive-coverage"]),
    Sentence("docs/progressive.md", "The store had truly reached the target in {estimate:.3f} of {stops[0]:.0f} cases in which a run stopped when the estimate reached it, and in "
             "{end:.3f} of {stops[1]:.0f} in which it stopped when the lower end did", _coverage, JOBS["progressive-coverage"]),
    Sentence("docs/progressive.md", "plain cosines find {none[1]:.3f} of the native photos and {none[2]:.3f} of the mapped ones; `factor` finds {factor[1]:.3f} and {factor[2]:.3f}", _halves, JOBS["progressive-halves"]),
    Sentence("docs/progressive.md", "accuracy starts at {names[0]:.3f} and passes the new model's at 11 %. Without them, and with random photos, a rotation refitted on all re-embedded photos is ahead of the "
             "plan's own refit at 7 and 11 % ({rotation[1]:.3f} against {random[1]:.3f}, and {rotation[2]:.3f} against {random[2]:.3f})", _pairs, JOBS["progressive-pairs"]),
    Sentence("docs/progressive.md", "their names find {texts[0]:.3f} of these photos at the start ({none[0]:.3f} with a plan without texts), {texts[1]:.3f} ({none[1]:.3f}) at 4 %, {texts[2]:.3f} ({none[2]:.3f}) at 8 % "
             "and {texts[3]:.3f} ({none[3]:.3f}) at 16 %; the old model finds {old:.3f}", _unseen, JOBS["progressive-unseen"]),
    Sentence("docs/certify.md", "The interval of n contained the share that the run needed in {held} of {said} runs", _in_runs, JOBS["certify-progressive"]),
    Sentence("docs/progressive.md", "For the target .95, {t95[right]} of {runs} verdicts were right, and {t95[said]} of the {t95[short]} runs that fell short got “re-embed everything”; for .99, {t99[right]} were right, "
             "and {t99[said]} of {t99[short]} got it", _verdicts,
             JOBS["progressive-verdicts"]),
)  # fmt: skip
