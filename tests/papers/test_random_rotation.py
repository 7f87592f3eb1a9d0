"""Beside every measure of a mapped row stands what a random rotation about the right means gives."""

import pytest

from congruence_papers import listing, run
from congruence_papers.canonical.maps import METRICS

pytestmark = pytest.mark.long

#: Figures without a map: gaps and kernels within each model, and tables of the data.
WITHOUT_A_MAP = {"gap", "kernels", "statistics", "templates"}


def one_of_each_kind() -> dict[str, str]:
    found: dict[str, str] = {}
    for row in listing():
        if row["paper"] == "canonical" and "sample" in row["runs_here"] and row["kind"] not in WITHOUT_A_MAP:
            found.setdefault(row["kind"], row["name"])
    return found


@pytest.mark.parametrize(("kind", "name"), one_of_each_kind().items())
def test_every_measure_of_a_map_has_the_control(kind, name):
    rows = run(name, models="sample", quick=True, seeds=1).results["rows"]
    mapped = {row["metric"] for row in rows if row["quantity"] == "after"}
    beside = {row["metric"] for row in rows if row["quantity"] == "random_rotation" or row["series"] == "random"}
    assert mapped
    assert mapped <= beside, mapped - beside
    constant = {row["metric"] for row in rows if row["quantity"] == "constant"}
    assert {metric for metric in mapped if "cosine" in metric} <= constant


def test_a_random_rotation_finds_no_class_and_keeps_what_rotations_keep():
    rows = run("fig11", models="sample", quick=True, seeds=1).results["rows"]
    value = {(row["metric"], row["quantity"]): row["mean"] for row in rows}
    assert {metric for metric, _ in value} <= set(METRICS)
    for metric in ("image_retrieval", "text_retrieval", "aligned_image_text", "image_aligned_text"):
        assert value[metric, "random_rotation"] < 0.1 < 0.4 < value[metric, "after"]
    kept = "aligned_image_aligned_text"
    assert value[kept, "random_rotation"] == pytest.approx(value[kept, "after"], abs=0.03)
