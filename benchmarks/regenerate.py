"""Write the numbers of README and docs anew, from the commands that print them.

python benchmarks/regenerate.py                  every block that takes seconds
python benchmarks/regenerate.py --slow           and those that take minutes (few anchors, training)
python benchmarks/regenerate.py --only NAME …    these blocks
python benchmarks/regenerate.py --check          write nothing; exit 1 where a page prints something else

A block stands between ``<!-- numbers: NAME -->`` and ``<!-- end -->``. tests/test_numbers.py compares those that take
seconds with a fresh run. Tables outside a block name the command that printed them and are not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(<!-- numbers: (?P<name>[a-z-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.S)
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


def command(*arguments: str) -> str:
    """Return what a command of congruence prints on standard output."""
    from congruence.cli import app

    out = io.StringIO()
    # Warnings go to standard error and are no part of a page.
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app(list(arguments), standalone_mode=False)
    return out.getvalue()


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def shown(value: float | None) -> str:
    return "–" if value is None else "1" if value == 1 else f"{value:.3f}".replace("-", "−")


@cache
def demo() -> dict[str, Any]:
    return json.loads(command("demo", "--no-report", "--json"))


def demo_retrieval() -> str:
    header = ["on 795 unseen emoji", "unmapped", "mapped", "chance", "the target model itself"]
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
    rows = [[curve["name"], *(shown(v) for v in curve["mean"])] for curve in wanted]
    return table(["anchor images", *map(str, few["n"])], rows)


def sample_spectra() -> str:
    """Fit the sample's maps with two filters, on images or texts, over four random splits."""
    import congruence
    from congruence.datasets import load_sample
    from congruence.evaluation import evaluate
    from congruence.splits import Split

    sample = load_sample()
    rows = []
    for fitted in ("image", "text"):
        for name, given in (('`"full"`, the textbook rotation', {"spectrum": "full"}), ("default", {})):
            scores = []
            for seed in range(4):
                other = "text" if fitted == "image" else "image"
                means = {other: (sample.source[other], sample.target[other])}
                mapping = congruence.fit(
                    sample.source[fitted], sample.target[fitted], modality=fitted, means=means,
                    holdout=len(sample.source[fitted]) - 800, seed=seed, check=False, **given,
                )  # fmt: skip
                split = Split.from_dict(mapping.scores_["holdout"])
                sides = [side["text"].take(split.held_out(side["text"].ids)) for side in (sample.source, sample.target)]
                found = evaluate(mapping, {"text": sides[0]}, {"text": sides[1]})
                scores.append([found.get(m, "aligned text", "target text").after for m in ("retrieval", "cosine")])
            rows.append([name, f"{fitted}s", *(shown(v) for v in np.mean(scores, axis=0))])
    return table(["spectrum", "fitted on", "text → its text, at 1", "text–text cosine"], rows)


def certificate() -> str:
    lines = command("certify", "sample", "--anchors", "200").splitlines()
    said = "\n".join(lines[:3])
    return f"```\n$ congruence certify sample --anchors 200\n{said}\n```\n"


@cache
def lvis_scores() -> dict[str, list[dict[str, dict[str, float]]]]:
    sys.path.insert(0, str(ROOT / "examples"))
    import lvis

    data = str(DATA / "lvis1203_clip.npz")
    return {name: [lvis.measure(data, key, 303, seed) for seed in range(5)] for name, key in lvis.TARGETS.items()}


def lvis_images() -> str:
    return _lvis("images → its text, at 1", ["mapped", "unmapped", "chance", "source model itself"])


def lvis_texts() -> str:
    return _lvis("text–text cosine", ["mapped", "constant", "random rotation", "unmapped"], "text → text, at 1")


def _lvis(score: str, columns: list[str], before: str | None = None) -> str:
    rows = []
    for target, splits in lvis_scores().items():
        cells = [target]
        for name, column in [*([(before, "mapped")] if before else []), *((score, c) for c in columns)]:
            values = [split[name][column] for split in splits]
            cells.append(f"{shown(float(np.mean(values)))} ± {np.std(values, ddof=1):.3f}")
        rows.append(cells)
    header = ["target", *([f"{before}, mapped"] if before else []), f"{score}, mapped", *columns[1:]]
    return table(header, rows)


def heads() -> str:
    """README's training command, over three seeds: the trained heads beside their teacher."""
    (line,) = re.findall(r"^congruence (train sotalign .*?-o heads)$", page_text("README.md"), flags=re.M | re.S)
    words = line.replace("\\\n", " ").replace("$IN", str(DATA / "imagenet1000_unimodal.npz")).split()
    keys = [f"test_mean@{k}" for k in (1, 5, 10)]
    rows = {"teacher alone": [], "trained heads": []}
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            given = [*words[:-1], f"{folder}/heads", "--seed", str(seed), "--json"]
            scores = json.loads(command(*given))["scores"]
        rows["teacher alone"].append([scores[f"teacher_{key}"] for key in keys])
        rows["trained heads"].append([scores[key] for key in keys])
    header = ["mean recall, 200 test pairs", "at 1", "at 5", "at 10"]
    cells = [
        [name, *(f"{m:.3f} ± {s:.3f}" for m, s in zip(np.mean(v, 0), np.std(v, 0, ddof=1), strict=True))]
        for name, v in rows.items()
    ]
    return table(header, cells)


@cache
def few_anchors() -> list[str]:
    script = [sys.executable, str(ROOT / "benchmarks" / "bench_few_anchors.py"), "--splits", "6"]
    run = subprocess.run(
        [*script, "--data", str(DATA / "lvis1203_clip.npz")], capture_output=True, text=True, check=True
    )
    return re.findall(r"(?:^\|.*\n)+", run.stdout, flags=re.M)


def few_anchors_readme() -> str:
    """The two tables to EVA-02 that README shows, without differences: both sides centered, then as a search would be."""
    rows = []
    for k, mark in ((0, ""), (1, "*as searched:* ")):
        lines = re.sub(r" \([+-]\d+ ± \d+\)", "", few_anchors()[k]).splitlines()
        for line in lines[2:]:
            name, *cells = line.strip("| ").split(" | ")
            if name in ("default", "full (the paper's)", "ridge, GCV"):
                rows.append([f"{mark}{name}", *cells])
    return table(["map, by number of text anchors", "20", "50", "100", "200", "400", "900"], rows)


#: Blocks by name: what writes them, and whether it takes minutes.
BLOCKS: dict[str, tuple[Callable[[], str], bool]] = {
    "demo-retrieval": (demo_retrieval, False),
    "demo-cosine": (demo_cosine, False),
    "demo-anchors": (demo_anchors, False),
    "sample-spectra": (sample_spectra, False),
    "certificate": (certificate, False),
    "lvis-images": (lvis_images, False),
    "lvis-texts": (lvis_texts, False),
    "heads": (heads, True),
    "few-anchors": (few_anchors_readme, True),
    **{f"few-anchors-{'abcdef'[k]}": ((lambda k=k: few_anchors()[k]), True) for k in range(6)},
}
#: Blocks that read embeddings which are not shipped.
NEEDS_DATA = {name for name in BLOCKS if name.startswith(("lvis", "heads", "few"))}


def page_text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: Path) -> dict[str, str]:
    """Return the texts of a page's blocks by name."""
    return {found["name"]: found["text"] for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def same(printed: str, measured: str) -> bool:
    """Compare two texts; numbers may differ by two units of the last digit shown, as rounding on another processor does."""
    if _NUMBER.sub("#", printed) != _NUMBER.sub("#", measured):
        return False
    for a, b in zip(_NUMBER.findall(printed), _NUMBER.findall(measured), strict=True):
        x, y = (float(v.replace(",", "").replace("−", "-")) for v in (a, b))
        unit = 10.0 ** -len(a.partition(".")[2]) if "." in a else 1.0
        if abs(x - y) > 2.001 * unit:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--only", nargs="+", choices=BLOCKS, metavar="NAME")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    wrong = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, printed in blocks(page).items():
            write, slow = BLOCKS[name]
            chosen = name in options.only if options.only else options.slow or not slow
            if not chosen or (name in NEEDS_DATA and not DATA.exists()):
                continue
            measured = write()
            agrees = same(printed, measured)
            wrong += not agrees
            print(f"{page.relative_to(ROOT)} {name}: {'as printed' if agrees else 'differs'}")
            if not agrees and not options.check:
                begin, end = f"<!-- numbers: {name} -->\n", "<!-- end -->"
                text = text.replace(f"{begin}{printed}{end}", f"{begin}{measured}{end}")
        if not options.check:
            page.write_text(text, encoding="utf-8")
    return int(bool(wrong) and options.check)


if __name__ == "__main__":
    sys.exit(main())
