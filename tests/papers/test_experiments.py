"""The experiments as they are described: whole, of their own paper, and changed by parameters that are checked."""

from dataclasses import replace

import numpy as np
import pytest

from congruence.errors import InputError, ParameterError
from congruence_papers import EXPERIMENTS, PAPERS, Data, Experiment, canonical, listing, run
from congruence_papers.core import Paper, Study, mean


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_whole(name):
    one = EXPERIMENTS[name]
    (paper,) = (paper for paper in PAPERS.values() if one in paper.experiments)
    assert {*one.parameters} <= {*paper.kinds[one.kind].parameters}
    paper.parameters(replace(one, parameters={}), one.parameters)  # each value is one that may be given
    assert {*one.metrics} <= {*paper.metrics}
    assert one.models
    assert one.data
    assert {*one.sample_data} <= {*paper.sample_data}
    assert one.sample_data[0] == ("sample" if paper.name == "canonical" else "synthetic")
    assert one.claim
    # Figure 12 says how and not what, and of experiments that are not in a paper it claims nothing.
    assert one.claims or name == "sotalign-fig12" or one.claim.startswith("No claim of the paper")
    assert paper.name == "canonical" or name.startswith(f"{paper.name}-")
    if one.numbers and "columns" in one.numbers and paper.name == "jam":
        assert all(len(values) == len(one.numbers["columns"]) for values in one.numbers.values())


def numbered(what, n):
    return [f"{what}{k}" for k in range(1, n + 1)]


SOTALIGN_DRAWN = [f"sotalign-fig{k}" for k in (1, 2, 3, 6)]
JAM_DRAWN = ["jam-fig2", "jam-fig3", *(f"jam-table{k}" for k in (1, 4, 5, 9, 10, 11))]


@pytest.mark.parametrize(
    ("paper", "names", "drawn"),
    [
        ("canonical", numbered("fig", 56) + numbered("table", 2), ["fig8"]),
        ("sotalign", numbered("sotalign-fig", 12) + numbered("sotalign-table", 11), SOTALIGN_DRAWN),
        ("jam", numbered("jam-fig", 5) + numbered("jam-table", 12), JAM_DRAWN),
    ],
)
def test_every_figure_and_table_is_listed(paper, names, drawn):
    rows = {row["name"]: row for row in listing() if row["paper"] == paper}
    more = [f"jam-{x}" for x in ("context", "controls", "layers", "reconstruction", "towers", "transfer")]
    assert [name for name in rows if name not in more] == names  # in this order; these are not in the paper
    assert {name for name in rows if not rows[name]["runs_here"]} == {*drawn}
    if paper == "jam":
        assert {*more} <= {*rows}


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("fig5", {"share": 0.5}, "fig5 has no parameter share, but fit, methods"),
        ("fig4", {"captions": "c.csv"}, "fig4 has no parameter captions"),
        ("table1", {"fit": "text"}, "but none"),
        ("fig5", {"classes": [1, 5]}, "whole numbers from 2"),
        ("fig5", {"classes": [2.5]}, "whole numbers from 2"),
        ("fig5", {"classes": 5}, "a list"),
        ("fig5", {"means": "middle"}, "one of seen, all"),
        ("fig5", {"methods": ["sail"]}, "some of orthogonal"),
        ("fig5", {"evaluation_templates": "one"}, "one of all, single"),
        ("fig4", {"share": 0}, "a share above 0"),
        ("fig4", {"share": 1.5}, "a share above 0"),
        ("fig2", {"steps": 0}, "at least 1"),
        ("fig2", {"steps": True}, "at least 1"),
        ("fig55", {"edits": ["a"]}, "a mapping"),
        ("sotalign-table4", {"methods": ["orthogonal"]}, "some of sotalign"),
        ("sotalign-table4", {"pairs": [1]}, "whole numbers from 2"),
        ("sotalign-table4", {"tune": 1}, "true or false"),
        ("sotalign-table4", {"test": -3}, "at least 1"),
        ("sotalign-table4", {"overlap": 2}, "from 0 to 1"),
        ("sotalign-fig4", {"vary": "both"}, "no parameter vary"),
        ("jam-fig4", {"spread_mix": [0.0, 1.5]}, "two numbers from 0 to 1"),
        ("jam-fig4", {"spread_mix": [0.5]}, "two numbers"),
        ("jam-fig4", {"tasks": ["negate"]}, "some of replace, add, swap"),
        ("jam-fig4", {"train": -1}, "at least 1"),
        ("jam-table2", {"methods": ["sotalign"]}, "some of con, negcon, spread, cca"),
        ("jam-table2", {"dual_encoders": [3]}, "a list of names"),
        *(("jam-reconstruction", {"weights": w}, "weight") for w in ([-1.0, 1.0], [1.0], [0.5, [1]], [0.5, [1, 2, 3]])),
        *(("jam-context", {"pairs": pairs}, "each above 1") for pairs in ([], [0], [1.5], ["many"])),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_parameter_is_named(name, changed, message):
    with pytest.raises(ParameterError, match=message):
        run(name, parameters=changed)


def test_parameters_of_the_command_are_json_or_text(here, monkeypatch):
    def see(name, *, parameters, **_):
        seen.append(parameters)
        raise InputError("Seen.")

    seen = []
    monkeypatch.setattr("congruence_papers.running.run", see)
    given = ["methods=a,b", "classes=2,5", "share=0.5", 'edits={"Birman": "Russian Blue"}', "captions=c.csv"]
    for name, entries in (("fig5", given), ("jam-reconstruction", ["weights=[0.5, [1, 0.1]]"])):
        here("lab reproduce", name, *(word for entry in entries for word in ("--set", entry))).ends(2)
    assert seen == [
        {
            **{"methods": ["a", "b"], "classes": [2, 5], "share": 0.5},
            **{"edits": {"Birman": "Russian Blue"}, "captions": "c.csv"},
        },
        {"weights": [0.5, [1, 0.1]]},
    ]
    for wrong in ("methods", "=3", "methods="):
        assert "NAME=VALUE" in here("lab reproduce", "fig5", "--set", wrong).ends(2).err


class Throws(Data):
    """Throws of a loaded die."""

    eyes = np.array([1, 6, 6, 6, 6])

    def contents(self):
        return {"throws": len(self.eyes)}


def mean_of_throws(job):
    for data in job.data:
        for seed in job.seeds:
            drawn = np.random.default_rng(seed).choice(data.eyes, job["throws"])
            job.add({"data": data.name, "metric": "eyes", "quantity": "after"}, drawn.mean())
            job.tick()


def test_what_a_paper_describes_is_what_is_run(monkeypatch):
    loaded = mean("eyes") > 4
    one = Experiment(
        *("dice-fig1", "Throws", "1", "dice_mean", "The die is loaded.", (loaded,)),
        **{"models": ("ivory",), "data": ("casino",), "sample_data": ("loaded",), "metrics": ("eyes",)},
        **{"seeds": 2, "parameters": {"throws": 50}},
    )
    kinds = {"dice_mean": Study(mean_of_throws, "the throws", {"throws": 10})}
    dice = Paper(
        *("dice", "the dice paper", (one,), kinds, {"eyes": "mean number of eyes"}, {}, Throws, ("loaded", "fair")),
        lambda name, *_, **__: Throws(name, stand_in="stand-in: a made-up die"),
        lambda experiment, models, **_: [],
        lambda facts: f"{facts['throws']} throws",
    )
    monkeypatch.setitem(PAPERS, "dice", dice)
    results = run(one).results
    assert results["title"] == "Throws, on loaded [stand-in: a made-up die]"
    assert results["data"][0]["count"] == "5 throws"
    (row,) = results["rows"]
    drawn = [np.random.default_rng(seed).choice(Throws.eyes, 50).mean() for seed in (0, 1)]
    assert row["values"] == pytest.approx(drawn)
    assert (results["held"]["verdict"], results["resampled"], results["seeds"]) == ("yes", "the throws", [0, 1])
    assert results["words"] == {"eyes": "mean number of eyes"}
    with pytest.raises(ParameterError, match=r"dice-fig1 runs on loaded, not fair"):
        run(one, models="fair")
    with pytest.raises(InputError, match="Got no data"):
        run(one, models="paper")
    with pytest.raises(InputError, match="needs collections of Throws"):
        run(one, collections=[canonical.open_sample("sample")])
