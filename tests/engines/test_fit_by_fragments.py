import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_data import FILES, OUT, ROWS, X, Y, table, write_parts

from congruence import LinearMap, OrthogonalMap, load
from congruence._utils.engine import FAN_IN
from congruence.engines import LocalEngine, fit_dataset, open_dataset, open_pairs, read_sample
from congruence.errors import IdError, NotFiniteError, ParameterError

pytestmark = pytest.mark.long

HERE = LocalEngine()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """One table with two columns, in more fragments than a merge takes, and the same in two data sets."""
    home = tmp_path_factory.mktemp("pairs")
    two = table().append_column("new", pa.FixedSizeListArray.from_arrays(Y.ravel(), OUT))
    (home / "both").mkdir()
    pq.write_table(two, home / "both/a.parquet", row_group_size=30)
    write_parts(home / "old")
    write_parts(home / "new", Y, group=77)
    return home


@pytest.mark.parametrize("parameters", [{}, {"center": False, "shrinkage": "full"}])
def test_a_fit_by_fragments_is_the_fit_on_all_rows(both, parameters):
    one = OrthogonalMap(**parameters).fit(X, Y, modality="image")
    cut = open_pairs(f"{both / 'both'}:vector", f"{both / 'both'}:new")
    for pairs in (cut, open_pairs(str(both / "old"), str(both / "new"))):
        got = fit_dataset(pairs, "orthogonal", engine=HERE, modality="image", **parameters)
        np.testing.assert_allclose(got.rotation_, one.rotation_, atol=1e-6)  # of float32 rows
        np.testing.assert_allclose(got.source_mean_, one.source_mean_, atol=1e-15)
        assert got.n_pairs_ == FILES * ROWS
        assert (got.source_space_.modality, got.source_space_.normalized) == ("image", False)
        assert got.scores_["pairing"]["state"] == "paired"
        assert got.role_ == "store"
        assert (got.readout_ is None, got.readout_.queries) == (False, ())


def test_moments_of_many_fragments_are_merged_in_a_tree(both):
    data = open_dataset(f"{both / 'both'}:vector", fragment_bytes=1)
    assert len(data.fragments) == 40 > 2 * FAN_IN
    second = open_dataset(f"{both / 'both'}:new", fragment_bytes=1)
    partners = {a.name: b for a, b in zip(data.fragments, second.fragments, strict=True)}
    pairs = type(open_pairs(str(both / "old"), str(both / "new")))(data, second, partners)
    got = fit_dataset(pairs, "linear", engine=HERE)
    one = LinearMap().fit(X, Y)
    np.testing.assert_allclose(got.coef_, one.coef_, atol=1e-11)
    assert got.ridge_ == pytest.approx(one.ridge_)
    merged = []
    merge = lambda names: merged.append(len(names)) or b"|".join(names)  # noqa: E731
    order = HERE.reduce(lambda fragment: fragment.name.encode(), merge, data.fragments)
    assert sorted(order.decode().split("|")) == sorted(one.name for one in data.fragments)
    assert max(merged) <= FAN_IN + 1


def test_rows_that_do_not_belong_together_are_refused(both, tmp_path):
    write_parts(tmp_path / "new", Y)
    shuffled = pq.read_table(tmp_path / "new/part-1.parquet").take([1, 0, *range(2, ROWS)])
    pq.write_table(shuffled, tmp_path / "new/part-1.parquet")
    pairs = open_pairs(str(both / "old"), str(tmp_path / "new"))
    with pytest.raises(IdError, match=r"row 0 of .*part-1.*Join both"):
        fit_dataset(pairs, engine=HERE)
    (tmp_path / "new/part-3.parquet").unlink()
    with pytest.raises(ParameterError, match="Join both"):
        open_pairs(str(both / "old"), str(tmp_path / "new"))
    with pytest.raises(ParameterError, match="moments"):
        fit_dataset(pairs, "cca", engine=HERE)
    spoiled = Y.copy()
    spoiled[ROWS * 2 + 3, 0] = np.inf
    write_parts(tmp_path / "spoiled", spoiled)
    with pytest.raises(NotFiniteError, match="The fragment is part-2"):
        fit_dataset(open_pairs(str(both / "old"), str(tmp_path / "spoiled")), engine=HERE)


def test_a_sample_holds_the_same_items_of_every_data_set(both, tmp_path):
    rows = table(0, None, Y)
    (tmp_path / "mixed").mkdir()
    order = np.random.default_rng(0).permutation(len(rows))
    pq.write_table(rows.take(order[:700]), tmp_path / "mixed/a.parquet")
    pq.write_table(rows.take(order[700:]), tmp_path / "mixed/b.parquet")
    old = read_sample(open_dataset(str(both / "old")), engine=HERE, share=0.25, random_state=3)
    new = read_sample(open_dataset(str(tmp_path / "mixed")), engine=HERE, share=0.25, random_state=3)
    assert sorted(old.ids.tolist()) == sorted(new.ids.tolist())
    assert abs(len(old) - 300) < 4 * np.sqrt(300 * 0.75)
    for name in old.ids.tolist()[:5]:
        np.testing.assert_array_equal(old[str(name)], X[name])
        np.testing.assert_array_equal(new[str(name)], Y[name])
    other = read_sample(open_dataset(str(both / "old")), engine=HERE, share=0.25, random_state=4)
    assert set(other.ids.tolist()) != set(old.ids.tolist())
    whole = read_sample(open_dataset(str(both / "old")), engine=HERE)
    np.testing.assert_array_equal(whole.vectors, X)


def test_commands_on_data_sets_say_what_they_say_of_files(both, here, tmp_path):
    """``--engine local`` reads these folders whole; ``file://`` names a data set, which is read by fragments."""
    old, new = f"file://{both / 'old'}", f"file://{both / 'new'}"
    by_fragments = here("fit", old, new, "-o", "a", "--method", "orthogonal", "--queries", "all", "--json")
    assert by_fragments.code == 0, by_fragments.err
    assert json.loads(by_fragments.out)["paired_by"] == "fragments"
    assert here("fit", both / "old", both / "new", "-o", "b", "--method", "orthogonal").code == 0
    np.testing.assert_allclose(load(tmp_path / "a").rotation_, load(tmp_path / "b").rotation_, atol=1e-6)
    sides = [("--old-image", a, "--new-image", b) for a, b in ((old, new), (both / "old", both / "new"))]
    scores = [json.loads(here("lab evaluate", "b", *side, "--json").out) for side in sides]
    assert scores[0] == scores[1]
    few = here("lab evaluate", "b", *sides[0], "--set", "sample=200", "--json")
    assert few.code == 0, few.err
    for option, value in (("--holdout", "0.1"), ("--unpaired-source", "x.npy")):
        refused = here("fit", old, new, "-o", "c", option, value)
        assert refused.code == 2
        assert option in refused.err
    refused = here("lab evaluate", "b", *sides[0], "--set", "sample=9", "--labels", "l.txt")
    assert refused.code == 2
    assert "--set sample=1200" in refused.err
    said = [here("check", side[1], side[3], "-o", f"checked{k}", "--json") for k, side in enumerate(sides)]
    assert said[0].code == 0, said[0].err
    assert json.loads(said[0].out)["verdict"] == json.loads(said[1].out)["verdict"]
