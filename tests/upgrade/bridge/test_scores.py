"""What a bridge is measured by, its thresholds, and the command."""

import json

import numpy as np
import pytest
from bridge_data import two_models, unit

from congruence import Bridge, Embeddings, OrthogonalMap, Space
from congruence.errors import CorruptFileError, IdError, InputError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.evaluation import thresholds
from congruence.evaluation.judgments import Judgments
from congruence.evaluation.thresholds import match_quantiles
from congruence.metrics import class_retrieval, recall_at_k
from congruence.metrics.hubness import QBNorm

NEW, OLD = two_models(500, 8, 8, noise=0.15, random_state=2)
IDS = [f"d{i}" for i in range(500)]
#: The index's rows are other encodings of the items that queries ask for.
ROWS_NEW, ROWS_OLD = (unit(side + 0.2 * np.random.default_rng(5).standard_normal(side.shape)) for side in (NEW, OLD))
HELD = np.arange(300, 500)


@pytest.fixture(scope="module")
def bridge():
    return Bridge(OrthogonalMap().fit(NEW[:300], OLD[:300], modality="text"))


@pytest.fixture
def known(sides):
    """The sides that thresholds are fitted on."""
    return {name: side for name, side in sides.items() if name != "index_new"}


@pytest.fixture
def sides():
    names = [IDS[i] for i in HELD]
    return {
        "queries": Embeddings(NEW[HELD], ids=names, space=Space("new", modality="text")),
        "queries_old": Embeddings(OLD[HELD[::-1]], ids=names[::-1], space=Space("old", modality="text")),
        "index": Embeddings(ROWS_OLD, ids=IDS),
        "index_new": Embeddings(ROWS_NEW[::-1], ids=IDS[::-1]),
    }


@pytest.mark.parametrize("first", [True, False])
def test_copies_of_the_wanted_row_are_found_as_often_wherever_it_stands(bridge, sides, first):
    """Of four equal rows one is wanted: a quarter of what is found, and not all of it or nothing."""
    once = bridge.evaluate(sides["queries"], sides["index"]).systems[0].scores["recall@1"]
    names = [IDS, *([f"copy {k} of {name}" for name in IDS] for k in range(3))]
    ids = [name for some in (names if first else names[::-1]) for name in some]
    index = Embeddings(np.tile(ROWS_OLD, (4, 1)), ids=ids)
    found = bridge.evaluate(sides["queries"], index).systems[0]
    assert found.system == "bridge"
    assert 0.5 * once / 4 < found.scores["recall@1"] < 1.6 * once / 4


def test_every_line_is_the_measure_of_its_own_queries_and_rows(bridge, sides):
    scores = bridge.evaluate(**sides, candidates=500)
    systems = "old model, bridge, two-stage, re-embedded, unmapped, chance"
    assert ", ".join(one.system for one in scores.systems) == systems
    for k in (1, 10):
        name = f"recall@{k}"
        for system, queries, rows in (
            ("old model", OLD[HELD], ROWS_OLD),
            ("bridge", bridge.transform(NEW[HELD]), ROWS_OLD),
            ("re-embedded", NEW[HELD], ROWS_NEW),
            ("unmapped", NEW[HELD], ROWS_OLD),
        ):
            assert scores[system][name] == pytest.approx(recall_at_k(queries, rows, HELD, k)), system
        assert scores["chance"][name] == pytest.approx(k / 500)
    # All rows are candidates here: the second stage is the new model itself.
    assert scores["two-stage"] == scores["re-embedded"]
    assert scores.candidates == 500
    assert scores["unmapped"]["recall@1"] < scores["bridge"]["recall@1"] < scores["old model"]["recall@1"]


def test_the_second_stage_helps_and_does_without_what_is_missing(bridge, sides):
    scores = bridge.evaluate(**sides, candidates=30)
    assert scores["two-stage"]["recall@1"] > scores["bridge"]["recall@1"] + 0.02
    half = {**sides, "index_new": sides["index_new"].take(np.arange(250))}
    part = bridge.evaluate(**half, candidates=30)
    assert "re-embedded" not in [one.system for one in part.systems]
    assert any("250 of 500 rows have no vector" in note for note in part.notes)


def test_graded_judgments_and_classes(bridge, sides):
    qrels = {IDS[i]: {IDS[i]: 2, IDS[(i + 1) % 500]: 1} for i in HELD[:50]}
    scores = bridge.evaluate(sides["queries"], sides["index"], qrels=qrels, at=[5], mode="share")
    assert scores.n_queries == 50
    assert set(scores["bridge"]) == {"recall@5", "ndcg@10"}
    labels = np.arange(500) % 7
    by_class = bridge.evaluate(NEW[HELD], ROWS_OLD, labels=(labels[HELD], labels), modality="text")
    expected = recall_at_k(bridge.transform(NEW[HELD]), ROWS_OLD, [np.flatnonzero(labels == c) for c in labels[HELD]])
    assert by_class["bridge"]["recall@1"] == pytest.approx(expected)


@pytest.mark.parametrize("options", [{"hubness": "csls"}, {"hubness": QBNorm(0.1)}], ids=str)
@pytest.mark.parametrize("bank", [None, NEW[:120]], ids=["own queries", "a bank"])
def test_a_correction_is_that_of_a_search_on_every_line(bridge, sides, options, bank):
    scores = bridge.evaluate(**sides, candidates=40, bank=bank, **options)
    plain = bridge.evaluate(**sides, candidates=40)
    asked, own = NEW[HELD], np.arange(500)
    searched = {"bank": bank, "modality": "text", **options}

    def share(found):
        return np.mean([own[i] in row for i, row in zip(HELD, found, strict=True)])

    first = bridge.search(asked, ROWS_OLD, 10, **searched).ids
    second = bridge.search(asked, ROWS_OLD, 10, candidates=40, rerank=ROWS_NEW, **searched).ids
    assert scores["bridge"] == {**scores["bridge"], "recall@1": share(first[:, :1]), "recall@10": share(first)}
    assert scores["two-stage"] == {**scores["two-stage"], "recall@1": share(second[:, :1]), "recall@10": share(second)}
    for system, queries, rows, known in (
        ("old model", OLD[HELD], ROWS_OLD, None),
        ("re-embedded", asked, ROWS_NEW, bank),
        ("unmapped", asked, ROWS_OLD, bank),
    ):
        assert scores[system]["recall@1"] == class_retrieval(queries, rows, own[HELD], own, bank=known, **options)
    assert scores["bridge"] != plain["bridge"]
    assert scores["chance"] == plain["chance"]
    named = options.get("hubness")
    assert scores.hubness == getattr(named, "name", named)
    assert any(("transductive" if bank is None else "old model's line") in note for note in scores.notes)
    assert (plain.hubness, plain.notes) == (None, [])


def test_what_cannot_be_measured_is_refused(bridge, sides):
    with pytest.raises(InputError, match="without ids"):
        bridge.evaluate(NEW[HELD], ROWS_OLD)
    queries, few = sides["queries"], sides["queries_old"].take(np.arange(9))
    wide = Embeddings(np.ones((200, 9), np.float32), ids=queries.ids)
    for given, error, says in (
        ({"hubness": "isf"}, ParameterError, "hubness='isf'"),
        ({"bank": NEW[:9]}, ParameterError, "bank is used only with hubness"),
        ({"queries_old": wide}, ShapeError, r"9 features, but the index"),
        ({"queries_old": OLD[:3]}, ShapeError, "queries_old"),
        ({"queries_old": few, "qrels": {queries.ids[0]: {"d0": 1}}}, InputError, "query of queries_old"),
        ({"index_new": Embeddings(NEW[:3], ids=["x", "y", "z"])}, IdError, "index_new"),
    ):
        with pytest.raises(error, match=says):
            bridge.evaluate(queries, sides["index"], **given)


def test_matched_quantiles_find_a_monotone_relation():
    old = np.sort(np.random.default_rng(0).standard_normal(20_000))
    points, values = match_quantiles(old, np.sort(0.3 * old + np.tanh(old)))
    np.testing.assert_allclose(values, 0.3 * points + np.tanh(points), atol=2e-3)
    assert points[0] == old[0]
    assert points[-1] == old[-1]


def test_a_translated_cut_keeps_the_false_positive_rate_of_unseen_queries(bridge, known):
    bridge.fit_thresholds(**{**known, "queries": known["queries"].take(np.arange(100))})
    later = HELD[100:]
    scores = {"old": OLD[later] @ ROWS_OLD.T, "new": bridge.transform(NEW[later]) @ ROWS_OLD.T}
    wrong = np.ones((100, 500), bool)
    wrong[np.arange(100), later] = False
    for rate in (0.1, 0.02):
        found = bridge.translate(float(np.quantile(scores["old"][wrong], 1 - rate)))
        old, new = (scores["old"][wrong] >= found.threshold).mean(), (scores["new"][wrong] >= found.value).mean()
        assert new == pytest.approx(old, rel=0.15)
        assert found.fpr_interval[0] <= found.fpr <= found.fpr_interval[1]
        assert found.fpr == pytest.approx(found.fpr_old, rel=0.15)
        assert found.recall == pytest.approx(float((scores["new"][~wrong] >= found.value).mean()), abs=0.1)
        assert found.recall_interval[0] <= found.recall <= found.recall_interval[1]


def test_large_indexes_are_sampled(monkeypatch, bridge, known):
    monkeypatch.setattr(thresholds, "MOST_PAIRS", 20_000)
    monkeypatch.setattr(thresholds, "MOST_QUERIES", 100)
    found = bridge.fit_thresholds(**known).thresholds
    assert found.n_queries == 100
    assert 19_900 <= found.n_pairs <= 20_000
    assert found.n_relevant == 100  # relevant rows count whether they are in the sample or not
    again = bridge.fit_thresholds(**known, random_state=1).thresholds
    assert not np.array_equal(again.table, found.table)


def test_thresholds_are_saved_with_the_bridge(tmp_path, bridge, known):
    bridge.fit_thresholds(**known)
    path = bridge.save(tmp_path / "bridge")
    assert Bridge.load(path).translate(0.4) == bridge.translate(0.4)
    for row, value, rows in ((3, np.nan, None), (0, 9, None), (2, 2, None), (0, None, 5)):
        spoiled = Bridge.load(path)
        table = spoiled.thresholds.table[:rows].copy()
        if value is not None:
            table[row, 4] = value
        object.__setattr__(spoiled.thresholds, "table", table)
        spoiled.save(tmp_path / "spoiled", force=True)
        with pytest.raises(CorruptFileError, match="damaged"):
            Bridge.load(tmp_path / "spoiled")


def test_thresholds_that_cannot_be_are_refused(bridge, known):
    with pytest.raises(ParameterError, match="fit_thresholds"):
        Bridge(bridge.map).translate(0.3)
    bridge.fit_thresholds(**known)
    wrong = {1.5: "one from", -1.5: "one from", float("nan"): "one from", True: "a number", "0.3": "a number"}
    for cut, says in wrong.items():
        with pytest.raises(ParameterError, match=f"expected {says}"):
            bridge.translate(cut)
    with pytest.raises(TooFewAnchorsError, match="two queries per fold"):
        bridge.fit_thresholds(**{**known, "queries": known["queries"].take(np.arange(7))})
    with pytest.raises(ParameterError, match="folds"):
        bridge.fit_thresholds(**known, folds=0)


@pytest.fixture
def files(tmp_path, bridge, sides):
    bridge.map.save(tmp_path / "map")
    for name, side in sides.items():
        np.savez(tmp_path / f"{name}.npz", v=side.vectors, names=side.ids.astype(str))
    (tmp_path / "qrels").write_text("".join(f"{IDS[i]} 0 {IDS[i]} 1\n" for i in HELD))
    return tmp_path


COMMAND = ("bridge evaluate", "map", "--queries", "queries.npz:v", "--index", "index.npz:v", "--ids", "names")
MORE = ("--old-queries", "queries_old.npz:v", "--new-index", "index_new.npz:v")


def test_the_command_measures_translates_and_saves(here, files, bridge, sides):
    done = here(*COMMAND, *MORE, "--qrels", "qrels", "--threshold", 0.5, "--threshold", 0.6, "-o", "out", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    expected = bridge.evaluate(**sides)
    assert [one["system"] for one in report["systems"]] == [one.system for one in expected.systems]
    assert [one["scores"] for one in report["systems"]] == [pytest.approx(one.scores) for one in expected.systems]
    saved = Bridge.load(files / "out")
    assert json.loads(json.dumps(saved.translate(0.5).to_dict())) == report["thresholds"][0]
    assert here(*COMMAND, "-o", "out").code == 2
    changed = ("-o", "out", "--force", "--modality", "text", "--set", "normalize=no")
    assert here("bridge evaluate", "out", *COMMAND[2:], *changed).code == 0
    assert (Bridge.load(files / "out").modality, Bridge.load(files / "out").normalize) == ("text", False)
    assert (
        here("bridge evaluate", "out", *COMMAND[2:], "-o", "out", "--force").code == 0
    )  # what a bridge was told stays
    assert (Bridge.load(files / "out").modality, Bridge.load(files / "out").normalize) == ("text", False)


def test_the_command_says_what_is_missing(here, files):
    (files / "bad").write_text("a 0 b\n")
    for extra, says in (
        (("--threshold", 0.5), "--old-queries"),
        (("--qrels", "bad"), "line 1 of bad with 3 fields"),
        (("--labels", "index.npz:names"), "expected QUERIES,INDEX"),
        (("--set", "bank=queries.npz:v"), "Pass --set hubness="),
        ((*MORE, "--threshold", 0.5, "--set", "hubness=csls"), "Got --set hubness with --threshold"),
    ):
        done = here(*COMMAND, *extra)
        assert done.code == 2
        assert says in done.err, done.err
        assert done.err.count("\n") == 1


def test_a_bridge_where_a_map_is_asked_for_is_refused(here, files):
    Bridge.load(files / "map").save(files / "saved")
    asked = ("--old-text", "queries.npz:v", "--new-text", "queries_old.npz:v")
    here("lab evaluate", "saved", *asked).refused("Got a bridge in saved; expected a map")


def test_the_command_corrects_as_a_search_does(here, files, bridge, sides):
    np.savez(files / "bank.npz", v=NEW[:120])
    done = here(*COMMAND, *MORE, "--set", "hubness=csls", "--set", "bank=bank.npz", "--json").ends(0)
    expected = bridge.evaluate(**sides, hubness="csls", bank=NEW[:120])
    assert [one["scores"] for one in json.loads(done.out)["systems"]] == [one.scores for one in expected.systems]


def test_the_same_model_needs_no_translation():
    same = Bridge(OrthogonalMap(shrinkage="full").fit(OLD, OLD)).fit_thresholds(OLD[:100], OLD[:100], ROWS_OLD)
    for cut in (-0.3, 0.2, 0.6):
        found = same.translate(cut)
        assert found.value == pytest.approx(cut, abs=1e-4)
        # Only rounding lies between the two, and the folds' own choice of quantiles.
        assert found.fpr == pytest.approx(found.fpr_old, abs=2e-3)
        assert found.recall is found.recall_old is found.recall_interval is None  # rows without ids


def test_unmapped_queries_are_a_candidate_where_the_widths_agree(tmp_path):
    rng = np.random.default_rng(0)
    old = unit(rng.standard_normal((400, 32)))
    ids, rows = np.arange(200, 400).astype(str), old[200:]
    asked = unit(rows + 0.2 * unit(rng.standard_normal((200, 32))))
    judged = {"queries_old": Embeddings(asked, ids=ids), "index": Embeddings(rows, ids=ids)}
    near = unit(old + 0.02 * rng.standard_normal(old.shape))  # the same model by another library
    turned = old @ np.linalg.qr(rng.standard_normal((32, 32)))[0]
    for new, pairs, leave in ((near, 12, True), (near, 200, False), (turned, 200, False)):
        change = np.linalg.lstsq(old, new, rcond=None)[0]
        bridge = Bridge(OrthogonalMap(center=False).fit(new[:pairs], old[:pairs]))
        bridge.fit_thresholds(Embeddings(unit(asked @ change), ids=ids), **judged).save(tmp_path / "saved", force=True)
        for one in (bridge, Bridge.load(tmp_path / "saved")):
            found = one.translate(0.5)
            assert found.leave is leave
            assert found.unmapped.fpr_old == found.fpr_old
            assert found.unmapped.recall == pytest.approx(0 if new is turned else found.recall_old, abs=0.05)
    wide = Bridge(OrthogonalMap(center=False).fit(old[:200], np.pad(old[:200], ((0, 0), (0, 4)))))
    judged = {name: Embeddings(np.pad(one.vectors, ((0, 0), (0, 4))), ids=ids) for name, one in judged.items()}
    found = wide.fit_thresholds(Embeddings(asked, ids=ids), **judged).translate(0.5)
    assert (found.unmapped, found.leave) == (None, False)


@pytest.mark.parametrize("hits", [0, 1])
def test_rates_of_none_and_of_all_have_intervals_with_a_width(hits):
    """A threshold that no relevant pair passes, or all of them do, is no certainty."""
    rng = np.random.default_rng(0)
    rows, near = (unit(rng.standard_normal((40, 16))) for _ in range(2))
    queries = unit(rows + 0.01 * near) if hits else near
    judgments = Judgments([np.array([k]) for k in range(40)], [np.ones(1) for k in range(40)])
    fitted = thresholds.fit_thresholds((queries, rows), (queries, rows), judgments, folds=5, random_state=0)
    translated = fitted.translate(fitted.describe()["highest"])
    assert translated.recall == hits
    low, high = translated.recall_interval
    assert 0.05 < high - low < 0.15  # Wilson's for 40 pairs is 0.088
