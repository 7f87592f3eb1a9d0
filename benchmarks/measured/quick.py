"""Blocks that take seconds to measure: they are measured each time, also by ``make test``."""

from __future__ import annotations

import contextlib
import io
import json
import re
from functools import cache
from typing import Any

import numpy as np

from measured.blocks import DATA, ROOT, Block, command, minus, shown, table
from measured.jobs import JOBS

LVIS, IMAGENET = ("lvis1203_clip.npz",), ("imagenet1000_unimodal.npz",)


@cache
def demo() -> dict[str, Any]:
    return json.loads(command("demo", "--sample", "emoji", "--no-report", "--no-migration", "--json"))


def demo_retrieval() -> str:
    header = ["795 unseen emoji", "unmapped", "mapped", "chance", "target model"]
    rows = [row for row in demo()["table"] if "chance" in row["unseen"]]
    keys = ("before", "after", "chance", "oracle")
    return table(header, [[row["measure"], *(shown(row["unseen"][key]) for key in keys)] for row in rows])


def demo_cosine() -> str:
    rows = [row for row in demo()["table"] if "control_constant" in row["unseen"]]
    keys = ("before", "after", "control_constant", "control_random_rotation")
    header = ["cosine", "unmapped", "mapped", "constant", "random rotation"]
    names = [row["measure"].removesuffix(" cosine") for row in rows]
    return table(header, [[n, *(shown(r["unseen"][k]) for k in keys)] for n, r in zip(names, rows, strict=True)])


def demo_anchors() -> str:
    few = demo()["few_anchors"]
    wanted = [c for c in few["curves"] if c["items"] == "text" and c["kind"] in ("mapped", "constant")]
    columns = [map(shown, curve["mean"]) for curve in wanted]
    rows = [list(cells) for cells in zip(map(str, few["n"]), *columns, strict=True)]
    return table(["anchor images", *(curve["name"] for curve in wanted)], rows)


def sample_spectra() -> str:
    """Fit the sample's maps with two filters, on images or texts, over four random splits."""
    import congruence
    from congruence.datasets import load_sample
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    sample = load_sample("emoji")
    rows = []
    for fitted in ("image", "text"):
        for name, given in (('`"full"`, the textbook rotation', {"shrinkage": "full"}), ("default", {})):
            scores = []
            for seed in range(4):
                other = "text" if fitted == "image" else "image"
                means = {other: (sample.source[other], sample.target[other])}
                mapping = congruence.fit(
                    sample.source[fitted], sample.target[fitted], "orthogonal", modality=fitted, means=means,
                    holdout=len(sample.source[fitted]) - 800, random_state=seed, check=False, **given,
                )  # fmt: skip
                split = Split.from_dict(mapping.scores_["holdout"])
                sides = [side["text"].take(split.held_out(side["text"].ids)) for side in (sample.source, sample.target)]
                found = evaluate(mapping, {"text": sides[0]}, {"text": sides[1]})
                scores.append([found.get(m, "aligned text", "target text").after for m in ("retrieval", "cosine")])
            rows.append([name, f"{fitted}s", *(shown(v) for v in np.mean(scores, axis=0))])
    return table(["shrinkage", "fitted on", "text → its text, at 1", "text–text cosine"], rows)


def bridge_example() -> str:
    """Run the first code lines of docs/bridge.md, and return their output as a table."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs/bridge.md").read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "bridge.md", "exec"), {})
    head, *lines = (re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines())
    return table([head[0], *head[1:]], lines)


def lvis_images(results: list[Any]) -> str:
    columns = {"image → text accuracy: mapped": "mapped", "unmapped": "unmapped", "chance": "chance", "source model": "source model itself"}  # fmt: skip
    return _lvis(results, {words: ("images → its text, at 1", column) for words, column in columns.items()})


def lvis_texts(results: list[Any]) -> str:
    score = "text–text cosine"
    columns = {f"{score}: mapped": "mapped", "constant": "constant", "random rotation": "random rotation", "unmapped": "unmapped"}  # fmt: skip
    retrieval = {"text → text recall@1: mapped": ("text → text, at 1", "mapped")}
    return _lvis(results, retrieval | {words: (score, column) for words, column in columns.items()})


def _lvis(results: list[Any], columns: dict[str, tuple[str, str]]) -> str:
    """Return mean and standard deviation over splits by target; columns are given as header, score and column of the record."""
    rows = []
    for target, splits in results[0].items():
        cells = [target]
        for score, column in columns.values():
            values = [split[score][column] for split in splits]
            cells.append(f"{shown(float(np.mean(values)))} ± {np.std(values, ddof=1):.3f}")
        rows.append(cells)
    return table(["target", *columns], rows)


def zero_shot() -> str:
    """Fit on LVIS texts, with the modality gap of images taken from the source model; classify unseen images with and without that gap."""
    import congruence
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    rows = []
    for holdout in (1153, 303):
        text, image, other = (
            congruence.read_embeddings(f"{DATA / LVIS[0]}:{key}", ids="names", space=congruence.Space(modality=m))
            for key, m in (
                ("text_openai_vitb32", "text"),
                ("image_openai_vitb32_avg5", "image"),
                ("text_eva02_b16", "text"),
            )
        )
        given = {"holdout": holdout, "random_state": 0, "means": {"image": (image, None)}, "check": False}
        mapping = congruence.fit(text, other, "orthogonal", **given)
        unseen = Split.from_dict(mapping.scores_["holdout"]).held_out(text.ids)
        sides = {"text": text.take(unseen), "image": image.take(unseen)}, {"text": other.take(unseen)}
        found = evaluate(mapping, *sides)
        scores = [found.get(m, "aligned image", "target text").after for m in ("zero_shot", "zero_shot_centered")]
        half = evaluate(congruence.fit(text, other, **given), *sides)
        scores.insert(1, half.get("zero_shot", "aligned image", "target text").after)
        covered = 100 * found.covered_share["image"]
        cells = [str(1203 - holdout), f"{holdout:,}", *map(shown, scores)]
        rows.append([*cells, f"{covered:.0f} %" if round(covered, 1) == 100 else f"{covered:.1f} %"])
    header = [
        "text anchors",
        "unseen classes",
        "`zero_shot` (gap mapped)",
        "`zero_shot` (as `fit` chooses)",
        "`zero_shot_centered`",
    ]
    return table([*header, "image variance in covered directions"], rows)


def sample_models() -> str:
    """Return the retrieval scores of each of the sample's two models: as measured when the sample was created, and measured again."""
    from congruence.datasets import load_sample
    from congruence.metrics import recall_at_k

    sample = load_sample("emoji")
    retrieval, first = [], []
    for side, name in ((sample.source, "emoji-a"), (sample.target, "emoji-b")):
        texts, images = side["text"].vectors, side["image"].vectors
        own = [[k] for k in range(len(texts))]
        retrieval.append(" / ".join(f"{recall_at_k(images, texts, own, k):.3f}" for k in (1, 5, 10)))
        first.append(shown(sample.info["each_model_alone"][name]["subgroup_of_the_first"]))
    rows = [
        ["image tower", "EfficientNet-Lite0", "MobileNet-v2"],
        ["text tower (frozen)", "MiniLM-L6, English, WordPiece", "multilingual E5 small, SentencePiece"],
        ["objective", "SigLIP", "softmax InfoNCE"],
        ["training pictures", "Noto, current and 2013–2017 designs", "Twemoji, EmojiOne 2, OpenMoji"],
        ["augmentation", "rotation, scaling, erased rectangles", "brightness, color, noise"],
        ["captions", "Unicode names, 70 % of the tags", "short codes of three chat platforms, another 70 % of the tags"],
        ["image → caption recall@1 / 5 / 10", *retrieval],
        ["first caption in the correct subgroup", *first],
    ]  # fmt: skip
    return table(["", "`emoji-a`", "`emoji-b`"], rows)


def metrics_table() -> str:
    """Return the properties of each metric in ``METRICS``."""
    from congruence.metrics import METRICS

    order = (
        "rotation",
        "isotropic scaling",
        "translation",
        "joint permutation",
        "joint rotation",
        "row scaling",
        "symmetry",
    )
    rows = []
    for name, metric in METRICS.items():
        low, high = (minus("∞" if v == np.inf else "-∞" if v == -np.inf else f"{v:.3g}") for v in metric.range)
        unchanged = ", ".join(what for what in order if what in metric.invariances)
        closer = "larger" if metric.larger_is_closer else "smaller"
        rows.append([f"`{name}`", f"{low} … {high}", closer, unchanged, metric.cost, metric.reference])
    return table(["metric", "range", "closer is", "invariances", "operations", "reference"], rows)


def autoencoder_sizes() -> str:
    """Return the parameters and operations of JAM's autoencoders by width of the input, compared with table 12 of the paper."""
    from congruence_papers import load_config, run

    config = load_config("jam-table12")
    rows = run("jam-table12").results["rows"]
    values = {((row["pair"] or "").split(" ")[0], row["metric"]): row["mean"] for row in rows}
    paper = {name.replace("_", "-"): cells for name, cells in config.paper["numbers"].items()}
    widths = config.parameters["widths"]
    lines = []
    for words, key in (
        ("DINOv2 ViT-B", "dinov2-base"), ("DINOv2 ViT-L", "dinov2-large"), ("Llama3.2 1B", "llama3.2-1b"), ("Gemma2 2B", "gemma2-2b"),
        ("Gemma2 9B", "gemma2-9b"), ("Llama3.2 3B, OLMo2 7B", "llama3.2-3b"), ("OLMo2 13B", "olmo2-13b"),
    ):  # fmt: skip
        millions, operations = values[key, "parameters"], values[key, "mflops"]
        theirs = [f"{v:.2f}" for v in paper[key]]
        lines.append([words, str(widths[key]), f"{millions:.2f}", theirs[0], f"{operations:.1f}", theirs[1]])
    return table(
        ["backbone", "input width", "parameters (M)", "parameters, paper (M)", "MFLOP per row", "GFLOP, paper"], lines
    )


def layers_output() -> str:
    """Return the output of ``similarity --layers`` without trailing spaces, with the data path as printed on the page."""
    sides = [f"{DATA / IMAGENET[0]}:{side}_*" for side in ("image", "text")]
    printed = command("similarity", *sides, "--layers", "--metric", "cknna").splitlines()
    shown_ = "\n".join(line.rstrip() for line in printed)
    places = " ".join(f'"../shared/data/{IMAGENET[0]}:{side}_*"' for side in ("image", "text"))
    return f"```\n$ congruence similarity {places} \\\n    --layers --metric cknna\n{shown_}\n```\n"


BLOCKS = {
    "demo-retrieval": Block(demo_retrieval),
    "demo-cosine": Block(demo_cosine),
    "demo-anchors": Block(demo_anchors),
    "bridge-example": Block(bridge_example),
    "sample-models": Block(sample_models),
    "sample-spectra": Block(sample_spectra),
    "lvis-images": Block(lvis_images, JOBS["lvis"]),
    "lvis-texts": Block(lvis_texts, JOBS["lvis"]),
    "zero-shot": Block(zero_shot, data=LVIS),
    "metrics": Block(metrics_table),
    "layers-output": Block(layers_output, data=IMAGENET),
    "autoencoder-sizes": Block(autoencoder_sizes),
}
