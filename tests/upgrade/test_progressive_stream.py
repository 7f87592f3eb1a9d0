"""Progressive re-embedding of stores larger than memory: the same as in memory, resumed and saved piece by piece."""

import shutil
import tracemalloc

import numpy as np
import pytest

from congruence import Embeddings
from congruence.errors import CorruptFileError, NotFiniteError, OutputExistsError, ParameterError, StorageError
from congruence.io import open_source
from congruence.upgrade.progressive import Progressive, progressive, state
from congruence.upgrade.progressive.rows import Lazy, is_on_disk

WORDS = 40


def given(problem, texts=True):
    both = {"texts": problem.source_texts[:WORDS], "new_texts": problem.target_texts[:WORDS]}
    return {"modality": "image", **(both if texts else {})}


@pytest.fixture
def on_disk(problem, tmp_path, monkeypatch):
    """The store as a file that is mapped into memory, read 16 rows at a time."""
    np.save(tmp_path / "old.npy", problem.source_images.astype(np.float32))
    monkeypatch.setattr("congruence.upgrade.progressive.rows.BLOCK_BYTES", 1)
    return np.load(tmp_path / "old.npy", mmap_mode="r")


def step(plan, problem, batches, size=40):
    """Go some batches further, and return what was asked for and what was to be remapped."""
    result = []
    for _, ids in zip(range(batches), plan.batches(size), strict=False):
        update = plan.update(ids, problem.target_images[ids])
        result.append((ids.tolist(), update.remap.tolist()))
    return result


@pytest.mark.parametrize("texts", [True, False])
def test_a_stream_asks_for_the_same_rows_and_fits_the_same_map_as_memory(problem, mapping, on_disk, texts):
    kinds = given(problem, texts)
    if texts:
        kinds["labels"] = (problem.source_images @ problem.source_texts[:WORDS].T).argmax(axis=1)
    memory = Progressive(mapping, np.array(on_disk), **kinds)
    stream = Progressive(mapping, on_disk, **kinds)
    assert isinstance(stream._mapped, Lazy)
    assert step(stream, problem, 5) == step(memory, problem, 5)
    np.testing.assert_allclose(stream.correction_.coef, memory.correction_.coef, rtol=1e-7, atol=1e-9)
    assert stream.correction_.facts() == memory.correction_.facts()
    for ours, theirs in zip(stream.history_, memory.history_, strict=True):
        for name, one in theirs.store.items():
            found = ours.store[name]
            np.testing.assert_allclose([found.value, found.low], [one.value, one.low], rtol=0, atol=1e-6)
    np.testing.assert_allclose(stream.store(), memory.store(), atol=1e-6)
    np.testing.assert_allclose(np.concatenate([rows for _, rows in stream.scan()]), memory.store(), atol=1e-6)
    np.testing.assert_allclose(stream.mapped([7, 3]), memory.mapped([7, 3]), atol=1e-6)
    ours, theirs = stream.forecast(), memory.forecast()
    assert (ours.verdict, ours.rows) == (theirs.verdict, theirs.rows)
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-6)


@pytest.mark.parametrize("order", ["coverage", "distance", "k-center", "residual", "overlap", "random"])
def test_each_order_reads_a_stream(problem, mapping, on_disk, order):
    asked = []
    for store in (on_disk, np.array(on_disk)):
        plan = Progressive(mapping, store, order=order, **given(problem))
        asked.append(step(plan, problem, 2, 20))
    assert asked[0] == asked[1]


def test_vectors_given_again_replace_the_former_ones(problem, mapping, on_disk, tmp_path):
    plans = [Progressive(mapping, store, **given(problem)) for store in (on_disk, np.array(on_disk))]
    for plan in plans:
        step(plan, problem, 2)
        folder = plan.save(tmp_path / type(plan._old).__name__)
        again = plan.ids[plan.embedded][:30]
        plan.update(again, problem.target_images[again[::-1]])
        np.testing.assert_allclose(plan.store()[again], problem.target_images[again[::-1]], atol=1e-6)
        plan.save(folder, force=True)
        loaded = Progressive.load(folder, mapping, plan._old, **given(problem))
        np.testing.assert_array_equal(loaded.new_vectors.take(again), plan.new_vectors.take(again))
    np.testing.assert_allclose(plans[0].correction_.coef, plans[1].correction_.coef, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["source", "data set"])
def test_files_and_data_sets_are_read_through(problem, mapping, on_disk, tmp_path, kind):
    """An opened store with ids, and what gives rows by slice and by increasing numbers only, as HDF5 does."""
    if kind == "source":
        np.savez(tmp_path / "old.npz", vectors=on_disk, ids=np.arange(400, 800))
        both = open_source(tmp_path / "old.npz"), Embeddings(np.array(on_disk), ids=np.arange(400, 800))
        plan, memory = (Progressive(mapping, old, **given(problem)) for old in both)
        assert plan.ids.tolist() == memory.ids.tolist()
        first = next(plan.batches(30)), next(memory.batches(30))
        assert first[0].tolist() == first[1].tolist()
        return

    class Dataset:
        shape = on_disk.shape

        def __getitem__(self, key):
            assert isinstance(key, slice) or (np.diff(key) > 0).all()
            return np.array(on_disk[key])

    plan = Progressive(mapping, Dataset(), stream=True, **given(problem))
    assert step(plan, problem, 2) == step(Progressive(mapping, np.array(on_disk), **given(problem)), problem, 2)


def test_bad_rows_of_a_stream_are_found_before_the_first_batch(problem, mapping, on_disk):
    class Dataset:
        shape = on_disk.shape

        def __getitem__(self, key):
            return np.where(np.arange(16) == 3, np.nan, on_disk[key])

    with pytest.raises(NotFiniteError, match="old"):
        Progressive(mapping, Dataset(), stream=True, **given(problem))


def test_memory_is_a_few_bytes_a_row(mapping, problem, tmp_path, monkeypatch):
    """Between batches a stream has 12 bytes a row and the ids; nothing of the width of a vector."""
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
    assert held < n * 40  # the vectors take 64 bytes a row, and in memory they are there four times


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_run_remaps_what_an_unbroken_one_does(problem, mapping, on_disk, tmp_path, stop, stream):
    kinds = {**given(problem), "stream": stream}
    unbroken = Progressive(mapping, on_disk, tolerance=0.02, **kinds)
    result = step(unbroken, problem, 6)
    assert any(0 < len(remap) < 200 for _, remap in result[stop:])
    plan = Progressive(mapping, on_disk, tolerance=0.02, **kinds)
    step(plan, problem, stop)
    plan.save(tmp_path / "plan")
    with pytest.raises(ParameterError, match=r"Got tolerance=0\.1, which the saved plan sets"):
        Progressive.load(tmp_path / "plan", mapping, on_disk, tolerance=0.1, **kinds)
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, **kinds)
    np.testing.assert_allclose(again.mapped(), plan.mapped(), atol=1e-6)
    np.testing.assert_array_equal(again.transform(problem.source_images), plan.transform(problem.source_images))
    assert [one.to_dict() for one in again.history_] == [one.to_dict() for one in plan.history_]
    assert step(again, problem, 6 - stop) == result[stop:]
    np.testing.assert_allclose(again.correction_.coef, unbroken.correction_.coef)


def test_rows_of_too_old_a_map_are_written_again(problem, mapping, on_disk, monkeypatch):
    """No more than MOST of the maps that rows were written by are kept: rows of the oldest are written again."""
    for most, tolerance in ((1, 10.0), (2, 0.02)):
        monkeypatch.setattr("congruence.upgrade.progressive.refit.MOST", most)
        result = []
        for stream in (False, True):
            plan = Progressive(mapping, on_disk, tolerance=tolerance, stream=stream, **given(problem))
            result.append(step(plan, problem, 6, 20))
            assert len(plan.written.maps) <= most
        assert result[0] == result[1]
        if most == 1:
            assert [len(remap) for _, remap in result[0]] == [380, 360, 340, 320, 300, 280]


def files(folder):
    return {path.name for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("stream", [False, True])
def test_only_what_is_new_is_written(problem, mapping, on_disk, tmp_path, stream, monkeypatch):
    plan = Progressive(mapping, on_disk, stream=stream, **given(problem))
    step(plan, problem, 1)
    plan.save(tmp_path / "plan")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "plan").glob("*.npy")}
    step(plan, problem, 2)
    plan.save(tmp_path / "plan", force=True)
    if stream:  # which lets go of vectors that are saved
        assert all(is_on_disk(part.table) for part in plan.new_vectors._parts)
    pieces = [*(tmp_path / "plan").glob("*.npy")]
    assert len(pieces) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert sum(len(np.load(path)) for path in pieces) == 120
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, stream=stream, **given(problem))
    np.testing.assert_array_equal(
        again.new_vectors.take(again.new_vectors.rows), plan.new_vectors.take(plan.new_vectors.rows)
    )
    # Saved elsewhere, the plan is whole there, too, and goes on without its first folder.
    plan.save(tmp_path / "copy")
    assert files(tmp_path / "copy") == files(tmp_path / "plan")
    shutil.rmtree(tmp_path / "plan")
    step(plan, problem, 1)
    plan.save(tmp_path / "copy", force=True)
    assert Progressive.load(tmp_path / "copy", mapping, on_disk, **given(problem)).meter().n_embedded == 160


@pytest.mark.parametrize("nth", range(4))
def test_killed_while_it_saves_the_last_stage_stands(problem, mapping, on_disk, tmp_path, nth, monkeypatch):
    """At each file that save writes: the folder is that of one stage or the next, and the next save goes through."""
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
        from congruence import persist

        after = nth % 2 == 0
        write_piece = killing(state.write_piece, after)
        patch.setattr("congruence.upgrade.progressive.state.write_piece", write_piece)
        patch.setattr("congruence.upgrade.progressive.refit.write_piece", write_piece)
        patch.setattr(persist, "write_folder", killing(persist.write_folder, after))
        patch.setattr(progressive, "sweep", killing(progressive.sweep, after))
        with pytest.raises(Killed):
            plan.save(tmp_path / "plan", force=True)
    again = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    assert again.meter().n_embedded in (40, 120)
    plan.save(tmp_path / "plan", force=True)
    whole = Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
    assert whole.meter().n_embedded == 120
    assert len(files(tmp_path / "plan")) == len(whole.written.maps) + 2


def test_damaged_or_missing_pieces_are_refused_in_one_line(problem, mapping, on_disk, tmp_path):
    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 2)
    plan.save(tmp_path / "plan")
    for path in sorted(tmp_path.glob("plan/*.*")):
        raw = path.read_bytes()
        for wrong in (raw[:-3], raw[:99] + b"x" + raw[100:], b"", None):
            path.unlink()
            if wrong is not None:
                path.write_bytes(wrong)
            with pytest.raises(CorruptFileError, match=r"^[^\n]*\. Restore[^\n]*$"):
                Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))
        path.write_bytes(raw)
    Progressive.load(tmp_path / "plan", mapping, on_disk, **given(problem))


def test_a_state_that_names_other_files_is_refused(problem, mapping, on_disk, tmp_path):
    from congruence import persist

    plan = Progressive(mapping, on_disk, **given(problem))
    step(plan, problem, 2)
    plan.save(tmp_path / "plan")
    arrays, config = persist.read_folder(tmp_path / "plan" / "state")
    good = config["facts"]
    for wrong in (
        {"vectors": ["../../etc/passwd"]},
        {"vectors": [good["maps"][0][1]]},
        {"vectors": []},
        {"vectors": good["vectors"] * 2, "maps": []},
        {"maps": [[0, good["vectors"][0], good["maps"][0][2]]]},
        {"maps": None},
        {"vectors": 7},
    ):
        result = {"kind": progressive.KIND, "facts": {**good, **wrong}}
        persist.write_folder(tmp_path / "plan" / "state", arrays, result, "", force=True)
        with pytest.raises(CorruptFileError):
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


def test_a_saved_plan_is_of_either_kind(problem, mapping, on_disk, tmp_path):
    """What a stream saves continues in memory, and the other way."""
    for first, second in ((on_disk, np.array(on_disk)), (np.array(on_disk), on_disk)):
        plan = Progressive(mapping, first, **given(problem))
        step(plan, problem, 2)
        folder = plan.save(tmp_path / type(first).__name__)
        again = Progressive.load(folder, mapping, second, **given(problem))
        assert step(again, problem, 1) == step(plan, problem, 1)
