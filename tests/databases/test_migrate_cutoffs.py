"""Cut-offs of an application before and after a migration: the share of irrelevant pairs above them stays the same."""

import json

import numpy as np
import pytest
from test_migrate import E, N, begin, mapping, pairs, table, unit  # noqa: F401  # a fixture
from test_migrate_command import made, run  # noqa: F401  # fixtures

from congruence import Embeddings
from congruence.errors import MigrationError, ModalityError, ParameterError, ShapeError, TooFewAnchorsError
from congruence.io import open_sink


@pytest.fixture
def done(mapping, tmp_path):  # noqa: F811
    rows = table()
    with begin(rows, mapping, tmp_path) as migration:
        migration.run()
        yield rows, migration


def share(queries, vectors, cut):
    """The share of all pairs, computed by brute force in float64."""
    return float((unit(queries).astype(float) @ unit(vectors).astype(float).T >= cut).mean())


def test_the_share_of_pairs_above_stays(done):
    rows, migration = done
    old_queries, new_queries = pairs("text", 400, 9)
    image = [one for one, row in rows.rows.items() if row["kind"] == "image"]
    before, after = (np.stack([side[one] for one in image]) for side in (rows.old, rows.new))
    fitted = migration.fit_thresholds(new_queries, old_queries, among="image")
    cut = float(np.quantile(unit(old_queries) @ unit(before).T, 0.99))
    found = fitted.translate(cut)
    assert found.fpr_old == pytest.approx(share(old_queries, before, cut), abs=2e-4)
    assert share(new_queries, after, found.value) == pytest.approx(share(old_queries, before, cut), rel=0.03)
    assert found.fpr_unchanged == pytest.approx(share(new_queries, after, cut), abs=2e-4)
    assert abs(found.fpr - found.fpr_old) < 0.3 * abs(found.fpr_unchanged - found.fpr_old)
    assert fitted.n_pairs == 400 * len(image)
    assert found.recall is None


def test_rows_with_each_other_as_in_a_search_for_duplicates(done):
    rows, migration = done
    before, after = (np.stack(list(side.values())) for side in (rows.old, rows.new))
    found = migration.fit_thresholds().translate(0.9)
    assert share(after, after, found.value) == pytest.approx(share(before, before, 0.9), rel=0.1)
    assert migration.fit_thresholds().n_pairs == (N // 2) * (N - N // 2)


def test_queries_with_a_rows_id_count_it_as_relevant(done):
    rows, migration = done
    ids = np.array(list(rows.rows)[:60]).astype(str)
    sides = [np.stack([side[int(one)] for one in ids]) for side in (rows.new, rows.old)]
    fitted = migration.fit_thresholds(*(Embeddings(side, ids=ids) for side in sides))
    assert fitted.n_relevant == 60
    assert fitted.translate(0.9).recall == 1.0  # each is its own row


def test_bad_input_is_named(done, mapping, tmp_path):  # noqa: F811
    _, migration = done
    old_queries, new_queries = pairs("text", 40, 9)
    for error, words, sides, options in (
        (ParameterError, "Got queries without queries_old", (new_queries, None), {}),
        (ParameterError, "Got queries_old without queries", (None, old_queries), {}),
        (ShapeError, f"Got 20-d queries; expected {E}-d", (old_queries, new_queries), {}),
        (TooFewAnchorsError, "two queries per fold", (new_queries[:6], old_queries[:6]), {}),
        (TooFewAnchorsError, "are of video", (new_queries, old_queries), {"among": "video"}),
    ):
        with pytest.raises(error, match=words):
            migration.fit_thresholds(*sides, **options)
    plain = table(modality=False)
    (tmp_path / "b").mkdir()
    with begin(plain, mapping, tmp_path / "b", modality="image") as other:
        with pytest.raises(MigrationError, match="No migration"):
            other.fit_thresholds()
        other.run()
        with pytest.raises(ModalityError, match="no such column"):
            other.fit_thresholds(among="image")


def test_the_command_prints_what_a_cut_off_becomes(run, made, tmp_path):  # noqa: F811
    run("run", "--map", "map", "--yes").ends(0)
    for name, rows in zip(("old", "new"), pairs("text", 400, 9), strict=True):
        with open_sink(tmp_path / f"{name}.npy", n=len(rows), dim=rows.shape[1]) as sink:
            sink.write(None, rows)
    words = ("verify", "--set", "queries=new.npy", "--set", "queries_old=old.npy", "--threshold", 0.9)
    shown = run(*words).ends(0)
    assert "0.9000" in shown.out
    assert "cross-validated over queries" in shown.out
    found = json.loads(run(*words, "--json").out)["thresholds"]
    assert found["values"][0]["threshold"] == 0.9
    assert found["n_queries"] == 400
    for bad, said in (
        (("verify", "--threshold", 7), "expected one from"),
        (("verify", "--threshold", 0.5, "--set", "queries=new.npy"), "without queries_old"),
    ):
        refused = run(*bad)
        assert refused.code == 2
        assert said in refused.err
