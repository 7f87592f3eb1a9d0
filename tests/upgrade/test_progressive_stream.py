"""Progressive re-embedding of stores of any kind and size: read as far as needed, resumed, and saved part by part."""

import shutil
import tracemalloc
from itertools import product

import numpy as np
import pytest

from congruence import Embeddings, persist
from congruence.errors import CorruptFileError, NotFiniteError, OutputExistsError, ParameterError, StorageError
from congruence.io import open_source
from congruence.upgrade.progressive import Progressive, progressive, state
from congruence.upgrade.progressive.refit import MapTerms, Training

WORDS = 40


def given(problem, texts=True):
    both = {"texts": problem.source_texts[:WORDS], "new_texts": problem.target_texts[:WORDS]}
    return {"modality": "image", **(both if texts else {})}


class DataSet:
    """Rows by slice and by increasing numbers only, as HDF5 gives them; counts those read."""

    def __init__(self, rows):
        self.rows, self.shape, self.read = rows, rows.shape, 0

    def __getitem__(self, key):
        assert isinstance(key, slice) or (np.diff(key) > 0).all()
        found = np.array(self.rows[key])
        self.read += len(found)
        return found


@pytest.fixture
def on_disk(problem, tmp_path):
    """The store as a file that is mapped into memory."""
    np.save(tmp_path / "old.npy", problem.source_images.astype(np.float32))
    return np.load(tmp_path / "old.npy", mmap_mode="r")


def step(plan, problem, batches, size=40):
    """Go some batches further, and return what was asked for and what was to be remapped."""
    result = []
    for _, ids in zip(range(batches), plan.batches(size), strict=False):
        update = plan.update(ids, problem.target_images[ids])
        result.append((ids.tolist(), update.remap.tolist()))
    return result


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        *(("data set", True), ("file", False)),
        *(
            pytest.param(kind, texts, marks=pytest.mark.long)
            for kind, texts in [("data set", False), ("file", True), *product(("memory map", "float64"), (True, False))]
        ),
    ],
)
def test_a_store_of_any_kind_is_migrated_alike(problem, mapping, on_disk, tmp_path, kind, texts):
    kinds = given(problem, texts)
    if texts:
        kinds["labels"] = (problem.source_images @ problem.source_texts[:WORDS].T).argmax(axis=1)
    store = {
        "memory map": lambda: on_disk,
        "data set": lambda: DataSet(on_disk),
        "file": lambda: open_source(tmp_path / "old.npy"),
        "float64": lambda: problem.source_images.astype(np.float64),
    }[kind]()
    memory, other = (Progressive(mapping, old, **kinds) for old in (np.array(on_disk), store))
    assert step(other, problem, 5) == step(memory, problem, 5)
    np.testing.assert_equal(other.correction_.arrays(), memory.correction_.arrays())
    assert [one.to_dict() for one in other.history_] == [one.to_dict() for one in memory.history_]
    np.testing.assert_array_equal(other.store(), memory.store())
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in other.scan()]), memory.store())
    np.testing.assert_array_equal(other.mapped([7, 3]), memory.mapped()[[7, 3]])
    assert other.forecast() == memory.forecast()


@pytest.mark.parametrize("kind", ["texts", "plain"])
def test_a_regression_from_sums_is_that_from_rows(kind):
    """With and without a fold, weighted, and for the map without texts of a set with them."""
    rng = np.random.default_rng(0)
    n, fold, weights = 90, np.arange(90) % 5, rng.uniform(1, 3, 90)
    parts = MapTerms(*(rng.standard_normal((n, d)) for d in (5, 4)), None, rng.standard_normal((n, 4)))
    Y, found = rng.standard_normal((n, 4)), []
    for rows, step in ((1, 90), (10**6, 7)):  # fewer rows than features are kept as they are
        training = Training(rows, "texts")
        for start in range(0, n, step):
            part = np.arange(start, min(start + step, n))
            training.add(parts.take(part), Y[part], weights[part], fold[part])
        found.append([*training.ridge(kind, [0.1, 3.0]), *training.ridge(kind, [1.0], without=2)])
    X = np.hstack([parts.rows, parts.mixed]) if kind == "texts" else parts.rows
    E = Y - parts.base - (parts.mixed if kind == "texts" else 0)
    w = weights / weights.mean()
    A, E = (side - np.average(side, axis=0, weights=w) for side in (X, E))
    wanted = np.linalg.solve(A.T @ (w[:, None] * A) + 3 * np.eye(A.shape[1]), A.T @ (w[:, None] * E))
    np.testing.assert_allclose(found[0][1].coef, wanted)
    for one, other in zip(*found, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(
    ("order", "weighted"),
    [
        *(("auto", True), ("residual", False)),
        *(
            pytest.param(order, weighted, marks=pytest.mark.long)
            for order, weighted in [("auto", False), ("residual", True), *product(("entropy", "random"), (False, True))]
        ),
    ],
)
def test_a_batch_out_of_many_rows_does_not_read_them_all(problem, mapping, monkeypatch, order, weighted):
    """All rows are read at the start, and when the refitted map makes them be written again."""
    for name, most in (("POOL", 500), ("SEEN", 100), ("MOVED", 100)):
        monkeypatch.setattr(progressive, name, most)
    n = 20_000
    store = DataSet(np.random.default_rng(0).standard_normal((n, 16), np.float32))
    weights = np.where(np.arange(n) % 100 < 2, 50.0, 1.0) if weighted else None
    plan = Progressive(mapping, store, order=order, weights=weights, **given(problem))
    turn, asked = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))[0], []
    for ids in plan.batches(50, budget=500):
        plan.update(ids, store.rows[ids] @ turn)
        asked.append(ids)
        assert store.read < n + 2000 + len(asked) * 2000
    asked = np.concatenate(asked)
    assert len(np.unique(asked)) == 500
    if weighted:
        assert np.mean(asked % 100 < 2) > 0.6
    assert plan.forecast().rows[0] == 0


def test_the_meter_is_blind_in_a_store_of_which_orders_see_a_part(problem, mapping, monkeypatch):
    """Whatever the vectors of the meter's rows, the same rows are asked for, and the same map is fitted."""
    monkeypatch.setattr(progressive, "POOL", 120)
    found = []
    for spoil in (False, True):
        plan, asked = Progressive(mapping, problem.source_images, **given(problem)), []
        spoiled = np.zeros(len(plan), bool)
        for ids in plan.batches(30, share=0.3):
            if plan.states.due[spoiled].any():
                break  # from here on a spoiled row is a chosen one
            ours = (plan.states.role[ids] == state.METER) & ~plan.states.due[ids]
            spoiled[ids[ours]] = True
            vectors = problem.target_images[ids].copy()
            vectors[ours] = vectors[ours][:, ::-1] if spoil else vectors[ours]
            asked.append(sorted(ids.tolist()))
            plan.update(ids, vectors)
        found.append((asked, plan.correction_.coef))
    assert len(found[0][0]) > 1
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_vectors_given_again_replace_the_former_ones(problem, mapping, on_disk, tmp_path):
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 2)
    folder = plan.save(tmp_path / "plan")
    again, before = plan.ids[plan.embedded][:30], plan.mapped()
    plan.update(again, problem.target_images[again[::-1]])
    assert np.abs(plan.mapped() - before).max() > 1e-3  # the map is fitted on them at once
    np.testing.assert_allclose(plan.store()[again], problem.target_images[again[::-1]], atol=1e-6)
    plan.save(folder, force=True)
    loaded = Progressive.load(folder, mapping, on_disk, **given(problem))
    np.testing.assert_array_equal(loaded.new_vectors.take(again), plan.new_vectors.take(again))


def test_bad_rows_of_a_store_are_found_before_the_first_batch(problem, mapping, on_disk):
    rows = np.array(on_disk)
    rows[7, 3] = np.nan
    with pytest.raises(NotFiniteError, match="old.*row 7"):
        Progressive(mapping, DataSet(rows), **given(problem))


def test_memory_is_a_few_bytes_a_row(mapping, problem, tmp_path):
    """Between batches a plan has 12 bytes a row and the ids; nothing of the width of a vector."""
    n = 20_000
    np.save(tmp_path / "old.npy", np.random.default_rng(0).standard_normal((n, 16), dtype=np.float32))
    store = np.load(tmp_path / "old.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        plan = Progressive(mapping, store, order="random", **given(problem))
        step_rows = next(plan.batches(100))
        plan.update(step_rows, store[step_rows])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < n * 40  # the vectors take 64 bytes a row


@pytest.mark.parametrize("stop", [2, *(pytest.param(one, marks=pytest.mark.long) for one in (1, 4))])
def test_a_resumed_run_remaps_what_an_unbroken_one_does(problem, mapping, on_disk, tmp_path, stop):
    unbroken = Progressive(mapping, on_disk, **given(problem))
    result = step(unbroken, problem, 6)
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, stop)
    plan.save(tmp_path / "plan")
    with pytest.raises(ParameterError, match=r"Got tolerance=0\.1, which the saved plan sets"):
        Progressive.load(tmp_path / "plan", mapping, on_disk, tolerance=0.1, **given(problem))
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    np.testing.assert_array_equal(again.store(), plan.store())
    assert [one.to_dict() for one in again.history_] == [one.to_dict() for one in plan.history_]
    assert step(again, problem, 6 - stop) == result[stop:]
    np.testing.assert_allclose(again.correction_.coef, unbroken.correction_.coef)


def parts(folder):
    return {path.name for path in folder.iterdir() if path.name.startswith("vectors-")}


def test_only_what_is_new_is_written(problem, mapping, on_disk, tmp_path):
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 1)
    plan.save(tmp_path / "plan")
    (first,) = parts(tmp_path / "plan")
    before = (tmp_path / "plan" / first / persist.WEIGHTS).stat().st_mtime_ns
    step(plan, problem, 2)
    vectors = plan.new_vectors.take(plan.new_vectors.rows)
    plan.save(tmp_path / "plan", force=True)
    assert len(parts(tmp_path / "plan")) == 3
    assert (tmp_path / "plan" / first / persist.WEIGHTS).stat().st_mtime_ns == before
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    np.testing.assert_array_equal(again.new_vectors.take(again.new_vectors.rows), vectors)
    # Saved elsewhere, the plan is whole there, too, and goes on without its first folder.
    plan.save(tmp_path / "copy")
    assert parts(tmp_path / "copy") == parts(tmp_path / "plan")
    shutil.rmtree(tmp_path / "plan")
    step(plan, problem, 1)
    plan.save(tmp_path / "copy", force=True)
    assert len(parts(tmp_path / "copy")) == 4
    assert Progressive.load(tmp_path / "copy", mapping, on_disk, **given(problem)).meter().n_embedded == 160


@pytest.mark.parametrize("nth", range(4))
def test_killed_while_it_saves_the_last_stage_stands(problem, mapping, on_disk, tmp_path, nth, monkeypatch):
    """At each step of save: the folder is that of one stage or the next, and the next save goes through."""
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 1)
    plan.save(tmp_path / "plan")
    step(plan, problem, 2)

    class Killed(BaseException):
        pass

    count = 0

    def killing(call, after):
        def run(*arguments, **options):
            nonlocal count
            count += 1
            if count == nth + 1 and not after:
                raise Killed
            found = call(*arguments, **options)
            if count == nth + 1:
                raise Killed
            return found

        return run

    with monkeypatch.context() as patch:
        patch.setattr(persist, "write_folder", killing(persist.write_folder, nth % 2 == 0))
        patch.setattr(progressive, "sweep", killing(progressive.sweep, nth % 2 == 0))
        with pytest.raises(Killed):
            plan.save(tmp_path / "plan", force=True)
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    assert again.meter().n_embedded in (40, 120)
    plan.save(tmp_path / "plan", force=True)
    whole = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    assert whole.meter().n_embedded == 120
    assert len(parts(tmp_path / "plan")) == 3


def test_damaged_or_missing_parts_are_refused_in_one_line(problem, mapping, on_disk, tmp_path):
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 2)
    plan.save(tmp_path / "plan")
    for path in sorted(tmp_path.glob("plan/vectors-*/*.*[!d]")):
        raw = path.read_bytes()
        for wrong in (raw[:-3], raw[:99] + b"x" + raw[100:], b"", None):
            path.unlink()
            if wrong is not None:
                path.write_bytes(wrong)
            with pytest.raises(CorruptFileError, match=r"^[^\n]*\. Restore[^\n]*$"):
                Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
        path.write_bytes(raw)
    Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))


def test_nothing_else_is_replaced_and_a_full_disk_leaves_the_last_stage(
    problem, mapping, on_disk, tmp_path, monkeypatch
):
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    mapping.save(tmp_path / "map")
    for name in ("mine", "map"):
        with pytest.raises(OutputExistsError, match="which contains files that do not belong to a plan"):
            plan.save(tmp_path / name, force=True)
    plan.save(tmp_path / "plan")
    with pytest.raises(OutputExistsError, match="Pass force=True"):
        plan.save(tmp_path / "plan")

    def full(*_, **__):
        raise StorageError("No space is left.", "Free some.")

    step(plan, problem, 1)
    monkeypatch.setattr(progressive.persist, "write_folder", full)
    with pytest.raises(StorageError):
        plan.save(tmp_path / "plan", force=True)
    assert Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem)).meter().n_embedded == 40


def test_an_opened_store_keeps_its_ids(problem, mapping, on_disk, tmp_path):
    np.savez(tmp_path / "old.npz", vectors=on_disk, ids=np.arange(400, 800))
    both = open_source(tmp_path / "old.npz"), Embeddings(np.array(on_disk), ids=np.arange(400, 800))
    plan, memory = (Progressive(mapping, old, **given(problem)) for old in both)
    assert plan.ids.tolist() == memory.ids.tolist()
    assert next(plan.batches(30)).tolist() == next(memory.batches(30)).tolist()
