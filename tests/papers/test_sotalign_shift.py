"""Equation 14 as a column: every kind of experiment gives it, POT agrees, and it tells collections that lie apart."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from congruence.synthetic import unimodal_problem
from congruence_papers import Experiment, SOTAlignData, run
from congruence_papers.figure import write_experiment
from congruence_papers.sotalign.experiments import SHIFTS

pytest.importorskip("torch")

pytestmark = [pytest.mark.filterwarnings("ignore::congruence.errors.ConvergenceWarning"), pytest.mark.long]

SIZES = {"pairs": 60, "unpaired": 150, "validation": 20, "test": 30}
SIZES |= {"pairs_sweep": [20, 60], "unpaired_sweep": [40, 150]}


def world(sources: int = 2) -> SOTAlignData:
    made = unimodal_problem(700, 16, 12, latent=5, sources=sources, shift=1.5, random_state=2)
    options = {"image_source": made.source, "text_source": made.source, "sources": ("home", "away")[:sources]}
    sides = {"look": made.images}, {"read": made.texts}, made.image_labels, made.text_labels
    return SOTAlignData("world", *sides, **options, sizes=SIZES)


def own(kind: str, metrics: tuple[str, ...] = ("mean_r1", *SHIFTS), **parameters: object) -> Experiment:
    tune = {} if kind == "sotalign_source_distances" else {"tune": False}
    options = {"sample_data": ("synthetic",), "seeds": 2, "metrics": metrics, "parameters": {**tune, **parameters}}
    return Experiment("own", "t", "6", kind, "none", **options)


def shifts(results) -> dict[tuple[object, ...], dict[str, list[float]]]:
    out: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for row in results["rows"]:
        if row["metric"] in SHIFTS:
            what = (row["pair"], row["part"], row["x"], row["quantity"])
            out.setdefault(what, {})[row["metric"]] = row["values"]
    return out


@pytest.mark.parametrize(
    ("kind", "more", "rows"),
    [
        ("sotalign_methods", {"methods": ["procrustes"]}, 1),
        ("sotalign_teachers", {"teachers": ["procrustes"], "divergences": ["none"]}, 1),
        ("sotalign_sweep", {"methods": ["procrustes"]}, 4),
        ("sotalign_paired_sources", {"methods": ["procrustes"]}, 2),
        ("sotalign_unpaired_sources", {"vary": "both"}, 4),
        ("sotalign_encoders", {"methods": ["procrustes"]}, 1),
    ],
)
def test_every_kind_gives_the_distance_and_its_floor_where_it_is_asked_for(kind, more, rows, tmp_path):
    outcome = run(own(kind, **more), collections=[world()], quick=True)
    found = shifts(outcome.results)
    assert len(found) == 2 * rows
    for (*_, quantity), of in found.items():
        assert quantity in ("after", "floor")
        assert [*of] == [*SHIFTS]
        assert len(of["shift"]) == 2  # a value a draw
        np.testing.assert_allclose(of["shift"], np.add(of["image_shift"], of["text_shift"]))
    write_experiment(tmp_path / "out", outcome)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out/results.csv").read_text())))
    assert {line["metric"] for line in lines} >= {*SHIFTS}
    assert not shifts(run(own(kind, ("mean_r1",), **more), collections=[world()], quick=True).results)


def test_pot_measures_the_same_of_the_same_split():
    ot = pytest.importorskip("ot")
    data = world(1)
    results = run(own("sotalign_methods", methods=["procrustes"]), collections=[data]).results
    found = next(of for what, of in shifts(results).items() if what[-1] == "after")
    sizes = {key: SIZES[key] for key in ("unpaired", "validation", "test")}
    for seed in (0, 1):
        parts = data.split(60, seed=seed, **sizes)
        images, texts = (parts.unpaired_images, parts.images), (parts.unpaired_texts, parts.texts)
        for metric, clouds in (("image_shift", images), ("text_shift", texts)):
            X, A = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in clouds)
            wanted = ot.sliced_wasserstein_sphere(X, A, n_projections=400, p=2, seed=3)
            assert found[metric][seed] == pytest.approx(wanted, rel=0.08)  # circles differ: 0.04 apart


def test_rows_of_another_collection_are_further_than_the_floor_and_those_of_the_pairs_are_not():
    results = run(own("sotalign_paired_sources", methods=["procrustes"]), collections=[world()]).results
    found = shifts(results)
    for metric in SHIFTS:
        (home, floor), (away, base) = (
            [np.mean(found[None, f"pairs of {source}", None, quantity][metric]) for quantity in ("after", "floor")]
            for source in ("home", "away")
        )
        assert home < 1.3 * floor
        assert away > 2 * base


def test_it_does_not_see_whether_unpaired_rows_have_partners():
    data = replace(world(1), sizes={**SIZES, "unpaired": 200})
    found = []
    for overlap in (0.0, 1.0):
        config = own("sotalign_methods", overlap=overlap, methods=["procrustes"])
        rows = shifts(run(config, collections=[data]).results)
        found.append([np.mean(rows[None, "60 pairs", None, quantity]["shift"]) for quantity in ("after", "floor")])
    for after, floor in found:
        assert after < 1.3 * floor
