"""The commands behind all recorded numbers, to be run from the root of the repository."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from measured.blocks import ROOT, Job

SHARED = "../shared/data"
LVIS, CALTECH, IMAGENET = (f"{SHARED}/{name}.npz" for name in ("lvis1203_clip", "caltech101_unimodal", "imagenet1000_unimodal"))  # fmt: skip
COCO = f"{SHARED}/coco500_openai_vitb16.npz"

#: Figures of the Canonical paper, and the stand-ins on which they are shown.
FIGURES = {
    "fig2": ("sample", "caltech101", "lvis"),
    "fig3": ("sample", "caltech101"),
    "fig4": ("sample", "caltech101"),
    "fig5": ("sample", "caltech101"),
    "fig6": ("sample", "caltech101", "lvis"),
    "fig44": ("sample", "caltech101", "lvis"),
    "fig11": ("sample", "caltech101"),
    "fig34": ("sample", "caltech101", "lvis"),
    "fig39": ("sample", "caltech101", "lvis"),
    "fig40": ("sample", "caltech101", "lvis"),
    "fig43": ("sample", "caltech101", "lvis"),
    "fig49": ("sample", "caltech101", "lvis"),
    "fig52": ("caltech101", "lvis"),
    "fig53": ("sample", "caltech101"),
    "fig55": ("sample", "caltech101"),
    "fig56": ("sample",),
}
_FILES = {"sample": "", "caltech101": f" --file {CALTECH}", "lvis": f" --file {LVIS}"}


def rows_of(results: dict[str, Any]) -> dict[str, Any]:
    """Keep the part of an experiment's results that tables show: seeds, verdict, notes and one line per row, without the values of single draws."""
    keys = ("data", "pair", "series", "part", "x", "metric", "quantity", "mean", "sd", "n")
    rows = [[row[key] for key in keys] for row in results["rows"] if not row["metric"].endswith("_distance")]
    return {
        "title": results["title"],
        "seeds": results["seeds"],
        "held": results["held"]["verdict"],
        "columns": list(keys),
        "rows": [[round(v, 6) if isinstance(v, float) else v for v in row] for row in rows],
    }


def tests_of(results: dict[str, Any]) -> dict[str, Any]:
    """Keep also the per-item tests of the losses."""
    return {**rows_of(results), "item_tests": results["extra"]["item_tests"]}


def values_of(results: dict[str, Any]) -> dict[str, Any]:
    """Keep also the values of single splits, for differences paired over splits."""
    kept = rows_of(results)
    kept["values"] = [
        [round(v, 6) for v in row["values"]] for row in results["rows"] if not row["metric"].endswith("_distance")
    ]
    return kept


def rounded(results: Any) -> Any:
    """Keep all numbers, with six digits."""
    return json.loads(json.dumps(results), parse_float=lambda text: round(float(text), 6))


def bridge_scores(results: dict[str, Any]) -> dict[str, Any]:
    """Keep the scores of each split and, at each cut-off, the rates of the old model and of each method of translating cut-offs."""
    runs = []
    for run in results["results"]:
        known = run["thresholds"]
        runs.append({
            "scores": {one["system"]: [round(v, 6) for v in one["scores"].values()] for one in run["scores"]["systems"]},
            "old": {key: [round(v, 7) for v in known["old"][key]] for key in ("fpr", "recall")},
            "ways": {name: {key: [round(v, 7) for v in way[key]] for key in ("fpr", "recall")} for name, way in known["ways"].items()},
        })  # fmt: skip
    return {"metrics": list(results["results"][0]["scores"]["systems"][0]["scores"]), "runs": runs}


def photo_towers(results: dict[str, Any]) -> dict[str, Any]:
    """Keep the same as :func:`bridge_scores`, for unseen and for known names, and all results of combined towers."""
    found = results["results"]
    return {part: bridge_scores({"results": found[part]}) for part in ("unseen", "known")} | {"towers": found["towers"]}


def _training_command() -> tuple[str, ...]:
    """Return the training command of docs/training.md for three seeds."""
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^congruence (train sotalign [^`]*?)-o few-heads$", text, flags=re.M | re.S)
    words = " ".join(line.replace("\\\n", " ").replace("$IN", IMAGENET).split())
    return tuple(f"congruence {words} -o SCRATCH/heads --seed {seed} --json" for seed in range(3))


def training_scores(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results["scores"].items() if "@" in key}


def matching(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Keep only the mean and standard deviation of the scores of random subsets."""
    out = []
    for one in results["results"]:
        kept = {key: value for key, value in one.items() if not key.endswith("_scores")}
        for side in ("match", "other"):
            scores = one[f"{side}_scores"]
            kept[f"{side}_drawn"] = [float(np.mean(scores)), float(np.std(scores))]
        out.append(kept)
    return out


def means_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Keep the scores of each split as lists, ordered by number of rows."""
    kept = []
    for one in results["results"]:
        first = one["splits"][0]
        values = {
            which: {
                key: [[round(by[m][key], 6) for m in by] for by in (split[which] for split in one["splits"])]
                for key in next(iter(first[which].values()))
            }
            for which in first
        }
        rows = list(next(iter(first.values())))
        kept.append({"world": one["world"], "spread": one["spread"], "rows": rows, "values": values})
    return kept


def _layers(metric: str, rows: str = "") -> str:
    return f"congruence similarity '{IMAGENET}:image_*' '{IMAGENET}:text_*' --layers --metric {metric}{rows} --seed 0 --json"


def figure_commands() -> dict[tuple[str, str], str]:
    """Return the commands behind docs/reproducing.md by figure and stand-in."""
    return {(figure, models): _figure(figure, models) for figure, where in FIGURES.items() for models in where}


def _figure(figure: str, models: str) -> str:
    return f"congruence reproduce {figure} --models {models}{_FILES[models]} -o OUT"


_SPEED = "python benchmarks/bench_"
JOBS = {
    job.name: job
    for job in (
        Job("canonical", "minutes", tuple(figure_commands().values()), rows_of),
        Job("canonical-single", "minutes", tuple(f"{_figure(f, 'caltech101')} --evaluation-templates single" for f in ("fig11", "fig34")), rows_of),
        Job("lvis", "minutes", (f"python examples/lvis.py {LVIS} --json OUT",), rounded),
        Job("few-anchors", "minutes", (f"python benchmarks/bench_few_anchors.py --data {LVIS} --splits 6 --json OUT",)),
        Job("anchors", "minutes", tuple(
            f"python benchmarks/bench_anchors.py --data {SHARED} --splits 5 --only {part} --json OUT" for part in ("EVA-02", "B/16", "ImageNet", "sample", "Caltech")
        )),
        Job("anchors-chosen", "minutes", (f"python benchmarks/bench_anchors.py --data {SHARED} --splits 5 --chosen --json OUT",)),
        Job("text-anchors", "minutes", tuple(
            f"python benchmarks/bench_text_anchors.py --data {SHARED} --part {part} --json OUT" for part in ("order --splits 6", "pairs --splits 10")
        )),
        Job("towers", "minutes", tuple(f"python benchmarks/towers.py {part} --json OUT" for part in ("sample", f"lvis {LVIS}"))),
        Job("photo-towers", "minutes", (f"python benchmarks/photo_towers.py {CALTECH} --json OUT",), photo_towers),
        *(Job(f"progressive-{part}", "minutes", (f"python benchmarks/bench_progressive.py {SHARED} --part {part} --splits {splits} --json OUT",)) for part, splits in (
            ("caltech", "5 --cache build/dual"), ("emoji", 5), ("lvis", 5), ("coverage", "60 --cache build/dual"), ("settings", "5 --cache build/dual"),
        )),
        Job("photo-sample", "minutes", ("python benchmarks/photo_sample.py --json OUT", f"python benchmarks/photo_sample.py --fresh {CALTECH} --json OUT")),
        Job("progressive-intervals", "minutes", ("python benchmarks/progressive_intervals.py --runs 100 --json OUT",)),
        *(Job(f"progressive-{part}", "minutes", (f"python benchmarks/progressive_evidence.py {SHARED} --part {part} --splits 5 --cache build/dual --json OUT",))
          for part in ("pairs", "unseen", "halves", "verdicts")),
        *(Job(f"progressive-{part}", "minutes", (f"python benchmarks/progressive_orders.py {SHARED} --part {part} --splits {splits} --cache build/dual --json OUT",))
          for part, splits in (("kinds", 10), ("mixtures", 5), ("duplicates", 5))),
        Job("mixed-search", "minutes", (f"python benchmarks/mixed_search.py {SHARED} --json OUT",)),
        Job("origins", "minutes", (f"python benchmarks/bench_doctor.py {SHARED} --json OUT",)),
        Job("drift", "minutes", (f"python benchmarks/drift.py {SHARED} --streams 200 --repeats 10 --json OUT",)),
        Job("frames", "minutes", tuple(f"python benchmarks/frames.py {LVIS} --part {part} --json OUT" for part in ("complete", "partial", "chain"))),
        Job("choice", "minutes", tuple(f"python benchmarks/choice.py --data {SHARED} --only {part} --python .venv-peers/bin/python --json OUT" for part in (
            *(f"lvis-{target} --anchors {pairs}" for target in ("eva", "openai") for pairs in ("20 50 100", "200 900")), "sample", "caltech",
            "names-mpnet --anchors 20 50 100 200 700", "names-e5 names-e5-mpnet --anchors 20 50 100 200 700",
        ))),
        Job("heads", "minutes", _training_command(), training_scores),
        Job("few-classes", "minutes", (f"python benchmarks/few_classes.py --data {CALTECH} --json OUT",)),
        Job("mixed-store", "minutes", tuple(f"python benchmarks/mixed_store.py {LVIS}{more} --json OUT" for more in ("", " --anchors 100", " --anchors 600", " --target text_openai_vitb16"))),
        Job("bridge", "minutes", (
            "python benchmarks/bench_bridge.py sample --json OUT", *(f"python benchmarks/bench_bridge.py lvis {LVIS}{more} --json OUT" for more in ("", " --anchors 803 --unseen")),
            f"python benchmarks/bench_bridge.py caltech {CALTECH} --json OUT",
        ), bridge_scores),
        Job("bridge-speed", "minutes", ("python benchmarks/bench_bridge.py speed --json OUT",), timing=True),
        Job("means-rows", "minutes", (f"python benchmarks/bench_means.py --data {SHARED} --json OUT",), means_rows),
        Job("compare-maps", "minutes", (f"python benchmarks/bench_compare.py --data {LVIS} --json OUT",)),
        Job("exposure-unpaired", "minutes", (f"python benchmarks/bench_exposure.py --data {SHARED} --store 'LVIS names' --unpaired --json OUT",)),
        Job("exposure", "minutes", tuple(f"python benchmarks/bench_exposure.py --data {SHARED} --store '{store}' --json OUT" for store in ("LVIS names", "LVIS images", "Caltech prompts", "Caltech photos"))),
        Job("negatives", "minutes", (f"python benchmarks/bench_negatives.py --data {SHARED}/sugarcrepe --json OUT",)),
        Job("match", "minutes", (
            f"congruence match {COCO}:image {COCO}:text --hard nearest --json",
            f"congruence match {IMAGENET}:image_effnet_lite0 {IMAGENET}:text_minilm_l6 --hard nearest --json",
            f"congruence match {IMAGENET}:image_effnet_lite0 {IMAGENET}:text_minilm_l6 --metric cknna --definition congruence --components 0 --json",
        ), matching),
        Job("similarity", "minutes", (
            f"congruence similarity {IMAGENET}:image_effnet_lite0 {IMAGENET}:text_minilm_l6 --metric all --json",
            f"congruence similarity {LVIS}:text_openai_vitb32 {LVIS}:text_eva02_b16 --metric all --json",
        )),
        Job("layers", "minutes", (
            *(_layers("cknna", rows) for rows in ("", " --max-rows 100", " --max-rows 60")), *map(_layers, ("mutual_knn", "linear_cka", "svcca")),
        )),
        Job("joint-maps", "minutes", ("python benchmarks/regenerate.py --measure joint-maps",)),
        Job("refine", "minutes", tuple(f"python benchmarks/bench_refine.py --data {LVIS} --first {k} --splits 1 --json OUT" for k in range(5))),
        Job("refine-others", "minutes", tuple(f"python benchmarks/bench_refine.py --data {data} --models {models} --json OUT" for models, data in (("openai-b16", LVIS), ("names", IMAGENET)))),
        Job("unpaired", "minutes", tuple(f"python benchmarks/bench_unpaired.py --data {SHARED} --part {part} --json OUT" for part in ("texts --seeds 2", "other", "synthetic", "synthetic --first 3"))),
        Job("offset", "minutes", ("python benchmarks/regenerate.py --measure offset",)),
        Job("quantized", "minutes", ("python benchmarks/regenerate.py --measure quantized",)),
        Job("spanning", "minutes", ("python benchmarks/regenerate.py --measure spanning",)),
        Job("shift", "minutes", ("python benchmarks/regenerate.py --measure shift",)),
        Job("sinkhorn", "minutes", ("python benchmarks/regenerate.py --measure sinkhorn",)),
        Job("klot-convergence", "minutes", ("python benchmarks/klot_convergence.py --json OUT",)),
        Job("theory", "minutes", (f"python benchmarks/bench_theory.py --part real --data {LVIS} --json OUT",)),
        Job("theory-random", "minutes", ("python benchmarks/bench_theory.py --part random --json OUT",)),
        Job("sotalign-start", "minutes", (f"python benchmarks/sotalign_start.py {IMAGENET} --json OUT",)),
        Job("sotalign-overlap", "minutes", tuple(
            f"python benchmarks/sotalign_overlap.py {CALTECH} --encoders {encoders} --json OUT" for encoders in ("photos", "texts")
        )),
        Job("sotalign-overlap-shift", "minutes", (f"python benchmarks/sotalign_overlap.py {CALTECH} --shift --json OUT",)),
        Job("sotalign-images", "minutes", tuple(
            f"python benchmarks/sotalign_images.py {SHARED} --settings {name} --json OUT" for name in ("imagenet", "emoji", "caltech", "lvis-minilm", "lvis-clip")
        )),
        Job("sotalign-unbalanced", "minutes", tuple(
            f"python benchmarks/sotalign_unbalanced.py {CALTECH} --encoders {encoders} --json OUT" for encoders in ("photos", "texts")
        )),
        Job("sotalign-why", "minutes", (f"python benchmarks/sotalign_why.py {IMAGENET} --json OUT",)),
        Job("train-cost", "minutes", (f"{_SPEED}train.py --cpu --threads 1 --unpaired 2048 --pairs 512 --steps 2 --json OUT",), timing=True),
        Job("klot-2000", "minutes", (f"{_SPEED}klot.py --rows 2000 --repeat 1 --json OUT",), timing=True),
        Job("pairing", "minutes", tuple(f"python benchmarks/bench_pairing.py --data {SHARED} --part {part} --json OUT" for part in (
            "real --fits 2000 --seed 3000", "noisy --fits 1000 --seed 4000", "shuffled --seed 6000", "weak --fits 60 --seed 7000",
            "power --seed 5000", "kinds --seed 8000", "ranking --seed 9000", "unseen --fits 700 --seed 9500", "time",
        )), timing=True),
        Job("migrate-kills", "minutes", tuple(f"python benchmarks/migrate_faults.py {kind} --chain --json OUT" for kind in (
            "lancedb --rows 200000 --points states", "pgvector", "duckdb --points states", *(f"{one} --rows 2000 --points states" for one in ("qdrant", "sqlite-vec", "chroma")),
        ))),
        Job("migrate-kills-qdrant", "minutes", ("python benchmarks/migrate_faults.py qdrant --rows 20000 --chain --points states --json OUT",)),
        Job("migrate-faults", "minutes", tuple(f"python benchmarks/migrate_faults.py {kind} --fault {fault} --json OUT" for kind, fault in (
            ("pgvector --rows 5000", "server-restart"), *((f"{kind} --rows 5000", "concurrent-writes") for kind in ("lancedb", "pgvector")),
            *((f"{kind} --rows 5000", "disk-full") for kind in ("lancedb", "duckdb", "pgvector", "sqlite-vec")),
            *((f"{kind} --rows 5000", "duplicate-ids") for kind in ("lancedb", "duckdb")),
        ))),
        Job("migrate-fuzz", "minutes", tuple(f"python benchmarks/fuzz_migrate.py --cases 25000 --first {first} --json OUT" for first in range(0, 100000, 25000))),
        Job("certify-real", "minutes", (f"python benchmarks/certify_real.py --data {SHARED} --json OUT",)),
        Job("certify-progressive", "minutes", tuple(f"python benchmarks/certify_progressive.py {part} --json OUT" for part in (
            "--seed 200 --pairs 30", "--seed 300 --pairs 12 --anchors 80", "--part emoji --pairs 3", f"--part caltech --data {SHARED} --cache build/dual --seed 2 --pairs 3",
        ))),
        Job("certify-calibration", "hours", tuple(
            f"python benchmarks/certify_calibration.py --kind {kind} --pairs 40 --seed {seed} --json OUT"
            for kind in ("simulated", "distorted") for seed in (77, 78)
        )),
        Job("serve", "minutes", (f"python benchmarks/bench_serve.py {IMAGENET} --rounds 4 --requests 8 --windows 0.003 --json OUT",), timing=True),
        Job("migrate-speed", "minutes", (
            f"{_SPEED}migrate.py lancedb --rows 100000 --json OUT",
            *(f"{_SPEED}migrate.py {kind} --rows 20000 --json OUT" for kind in ("duckdb", "sqlite-vec", "pgvector")),
        ), timing=True),
        Job("migrate-peers", "minutes", tuple(f"{_SPEED}migrate.py {which} --ways whole --peers .venv-peers/bin/python --json OUT" for which in (
            "pgvector --rows 2000 --peer isotrieve", "lancedb --rows 300 --peer rebasis",
        )), timing=True),
        Job("migrate-memory", "minutes", tuple(f"{_SPEED}migrate.py {which} --ways fill --rounds 1 --json OUT" for which in (
            *(f"lancedb --dim 64 --rows {10 ** k}" for k in (4, 5, 6)), *(f"{kind} --rows {10 ** k}" for kind in ("sqlite-vec", "pgvector", "duckdb") for k in (4, 5)),
        )), timing=True),
        Job("progressive-memory", "minutes", ("python benchmarks/bench_progressive_memory.py --rows 100000 1000000 --json OUT",), timing=True),
        Job("engines", "minutes", tuple(
            f"python benchmarks/bench_engines.py --rows {rows} --files {files} --rounds {rounds} --kills 0 --json OUT"
            for rows, files, rounds in ((200_000, 20, 3), (1_000_000, 20, 2), (5_000_000, 100, 2))
        ), timing=True),
        Job("engines-kills", "minutes", ("python benchmarks/bench_engines.py --rows 200000 --rounds 1 --kills 20 --json OUT",)),
        Job("speed", "hours", (
            f"{_SPEED}transform.py --json OUT",
            f"{_SPEED}transform.py --suffix .parquet --repeat 2 --json OUT",
            f"{_SPEED}fit.py --json OUT",
            f"{_SPEED}klot.py --rows 10000 --repeat 1 --exact 0 --ways plain dense features streamed --json OUT",
        ), timing=True),
        Job("speed-metrics", "minutes", (
            f"{_SPEED}similarity.py --rows 10000 --json OUT",
            f"{_SPEED}sliced.py --json OUT",
            f"{_SPEED}sliced.py --rows 20000 10007 --json OUT",
        ), timing=True),
        Job("performance-threads", "minutes", tuple(
            f"{_SPEED}performance.py --tables forward{beside} --json OUT" for beside in ("", " --spinners 1")
        ), timing=True),
        Job("performance-plans", "minutes", tuple(
            f"{_SPEED}performance.py --tables transport {which} --rounds 2 --python .venv-peers/bin/python --json OUT"
            for which in ("--threads 1 2", "--threads 2 --most 1000 --spinners 1")
        ), timing=True),
        Job("performance-neighbors", "minutes", (f"{_SPEED}performance.py --tables neighbors --json OUT",), timing=True),
        Job("performance-certify", "minutes", (f"{_SPEED}performance.py --tables certify --json OUT",), timing=True),
        Job("performance-maps", "minutes", (
            f"{_SPEED}performance.py --tables maps --threads 1 2 --rounds 3 --python .venv-peers/bin/python --json OUT",
        ), timing=True),
        Job("klot-5000", "hours", (f"{_SPEED}klot.py --rows 5000 --repeat 1 --ways plain implicit pot geomloss dense features --json OUT",), timing=True),
        Job("klot-10000", "hours", (
            f"{_SPEED}klot.py --rows 10000 --iterations 10 --repeat 1 --exact 0 --ways plain implicit pot geomloss dense features --json OUT",
        ), timing=True),
        Job("alignment-imagenet", "hours", tuple(
            f"congruence reproduce benchmarks/configs/alignment-imagenet{which}.yaml --models imagenet1000 --file {IMAGENET} -o OUT" for which in ("-50", "-100", "-200", "-400")
        ), values_of),
        Job("alignment-caltech", "hours", tuple(
            f"congruence reproduce benchmarks/configs/alignment-caltech{which}.yaml --models caltech101 --file {CALTECH} -o OUT" for which in ("-50", "-200", "-800", "-sue")
        ), values_of),
        Job("alignment-world", "hours", (
            "python benchmarks/sotalign_world.py --pairs 100 400 --json OUT",
            "python benchmarks/sotalign_world.py --pairs 200 --splits 3 --json OUT",
            "python benchmarks/sotalign_world.py --pairs 200 --unpaired 1000 --methods cca sail sotalign --json OUT",
        )),
        Job("jam-sugarcrepe", "hours", (
            f"congruence reproduce jam-table2 --models sugarcrepe --file {SHARED}/sugarcrepe --cache SCRATCH/captions -o OUT",
        ), rows_of),
        Job("jam-photos", "hours", (
            f"congruence reproduce jam-table2 --models caltech101 --file {CALTECH} -o OUT",
            f"congruence reproduce jam-table2 --models imagenet1000 --file {IMAGENET} -o OUT",
        ), rows_of),
        Job("jam-text-only", "minutes", tuple(
            f"congruence reproduce benchmarks/configs/jam-text-only.yaml --models {data} -o OUT"
            for data in (f"sugarcrepe --file {SHARED}/sugarcrepe --cache SCRATCH/captions", f"caltech101 --file {CALTECH}", f"imagenet1000 --file {IMAGENET}")
        ), rows_of),
        Job("jam-item-tests", "hours", (
            f"congruence reproduce benchmarks/configs/jam-item-tests.yaml --models sugarcrepe --file {SHARED}/sugarcrepe --cache SCRATCH/captions -o OUT",
        ), tests_of),
        Job("jam-precision", "minutes", (
            f"python benchmarks/jam_precision.py {SHARED}/sugarcrepe --cache build/captions --losses con spread --json OUT",
        ), timing=True),
        Job("jam-precision-cost", "minutes", (
            f"python benchmarks/jam_precision.py {SHARED}/sugarcrepe --cache build/captions --steps-only --json OUT",
        ), timing=True),
        Job("jam-emoji", "hours", (f"python benchmarks/jam_emoji.py {SHARED}/emoji --cache SCRATCH/emoji.npz --json OUT",)),
        Job("jam-layers", "hours", (
            f"congruence reproduce benchmarks/configs/jam-layers-replace.yaml --models sugarcrepe --file {SHARED}/sugarcrepe --cache SCRATCH/captions -o OUT",
        ), rows_of),
        *(Job(f"jam-more-{which}", "minutes", (
            f"congruence reproduce benchmarks/configs/jam-more-{which}.yaml --models sugarcrepe --file {SHARED}/sugarcrepe --cache build/captions -o OUT",
        ), rows_of) for which in ("transfer", "controls", "reconstruction", "layers", "towers")),
        Job("jam-context", "minutes", ("congruence reproduce jam-context --models synthetic -o OUT",), tests_of),
        Job("jam-measures", "minutes", (
            f"congruence reproduce jam-fig1 --models sugarcrepe --file {SHARED}/sugarcrepe --cache SCRATCH/captions -o OUT",
        ), rows_of),
    )
}  # fmt: skip
