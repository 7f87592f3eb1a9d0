# ruff: noqa: F811  # fixtures of another module
"""Progressive re-embedding of a database: the vector of each row at each stage, and kills at every step."""

import errno
import json
import shutil
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from database_contract import Killed, kill_after
from memory_database import MemoryDatabase
from test_migrate import begin, bits, mapping, table, unit  # noqa: F401  # a fixture

from congruence import Embeddings, Space, errors
from congruence.upgrade.migrate import stages
from congruence.upgrade.migrate.encode import encode_by_command, encode_from_file, encode_items
from congruence.upgrade.migrate.stages import reembed
from congruence.upgrade.migrate.written import Marks

IMAGES = 200


@pytest.fixture(scope="module")
def truth(mapping):
    """The new model's vectors of each row: the mapped vector plus a part that no map can predict."""
    rng = np.random.default_rng(7)
    made = table()
    mapped = {
        one: mapping.for_modality(row["kind"]).transform(made.old[one][None])[0] for one, row in made.rows.items()
    }
    return {str(one): unit(row[None] + 0.1 * rng.normal(size=row.shape))[0] for one, row in mapped.items()}


class Model:
    """An encoder that counts the requested rows."""

    def __init__(self, truth, fail=None):
        self.truth, self.asked, self.fail = truth, [], fail

    def __call__(self, ids):
        if self.fail is not None and len(self.asked) >= self.fail:
            raise errors.FileError("Got no answer of the model; expected one. Start it.")
        self.asked += ids
        return np.stack([self.truth[one] for one in ids])


@pytest.fixture
def switched(mapping, tmp_path):
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        migration.switch()
    return made


def images(made):
    return [one for one, row in made.rows.items() if row["kind"] == "image"]


def check(made, plan, truth, before):
    """Check that each row has the new model's vector or that of the latest map, and all else is unchanged."""
    done = dict(zip(plan.ids.tolist(), plan.embedded.tolist(), strict=True))
    held = plan.transform(np.stack([made.old[int(one)] for one in plan.ids.tolist()]))
    for k, one in enumerate(plan.ids.tolist()):
        wanted = truth[one] if done[one] else held[k]
        np.testing.assert_allclose(made.new[int(one)], wanted, atol=2e-6)
    for one, row in made.rows.items():
        if row["kind"] == "text":
            assert made.new[one].tobytes() == before[one]


def test_each_stage_is_a_store_of_native_and_mapped_rows(switched, mapping, truth, tmp_path):
    made = switched
    old, before = bits(made.old), bits(made.new)
    model, result = Model(truth), []
    with begin(made, mapping, tmp_path) as migration:
        plan = reembed(migration, model, among="image", size=20, share=0.3, stage=result.append)
        check(made, plan, truth, before)
        assert plan.meter().n_embedded == len(model.asked) == len(set(model.asked)) == 60
        assert sum("re-embedded" in one for one in result) == 3
        assert migration.verify().passed
        assert migration.journal.state == "switched"
        events = [one["what"] for one in migration.journal.events]
        assert sum(one.startswith("re-embedded 20") for one in events) == 3
    assert bits(made.old) == old
    first = plan.history_[0].store["cosine"].value
    assert plan.history_[-1].store["cosine"].value > first


def test_a_further_call_goes_on_where_it_was(switched, mapping, truth, tmp_path):
    made, before = switched, bits(switched.new)
    model = Model(truth)
    with begin(made, mapping, tmp_path) as migration:
        assert reembed(migration, model, among="image", search="items", size=20, budget=40).search == "items"
    with begin(made, mapping, tmp_path) as migration:
        assert migration.verify().passed  # the migration knows of the rows that are not mapped
        assert migration.status()["reembedded"] == 40
        plan = reembed(migration, model, size=20, budget=80)  # among and search are remembered
        assert plan.search == "items"
        check(made, plan, truth, before)
    assert len(model.asked) == len(set(model.asked)) == 80
    assert [one.n_embedded for one in plan.history_] == [20, 40, 60, 80]
    with begin(made, mapping, tmp_path) as migration:
        assert migration.rollback()["identical"]
        assert migration.verify().passed
        migration.switch()
        check(made, plan, truth, before)


def test_a_full_disk_is_named_and_leaves_no_copy(switched, mapping, truth, tmp_path, monkeypatch):
    def full(self, vectors):
        raise OSError(errno.ENOSPC, "No space left on device")

    with begin(switched, mapping, tmp_path) as migration, pytest.raises(errors.StorageError, match="No space left"):
        monkeypatch.setattr(type(migration.mapper), "rows", full)
        reembed(migration, Model(truth), among="image", size=20, budget=20)
    assert not list((tmp_path / "journal").glob("*.tmp"))


def test_a_connection_lost_while_the_old_vectors_are_read_is_tried_again(switched, mapping, truth, tmp_path):
    lost = ["scan old"]

    def busy(step):
        if step in lost:
            lost.remove(step)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    with begin(switched, mapping, tmp_path, busy) as migration:
        plan = reembed(migration, Model(truth), among="image", size=20, budget=20)
    assert (lost, plan.meter().n_embedded) == ([], 20)


def test_a_run_that_goes_on_writes_no_row_again(switched, mapping, truth, tmp_path):
    """Between two batches each row holds what the map that wrote it gives: the next call has nothing to repair."""
    made = switched

    def run(stop):
        asked, written = [], []

        def encode(ids):
            if stop is not None and len(asked) >= stop:
                raise Killed
            asked.extend(ids)
            return Model(truth)(ids)

        with begin(made, mapping, tmp_path) as migration:
            write = migration.database.write
            migration.database.write = lambda ids, vectors: (written.append(len(ids)), write(ids, vectors))
            try:
                reembed(migration, encode, among="image", size=20, budget=80)
            except Killed:
                assert migration.verify().passed
        return written

    before = run(stop=60)
    assert sum(before) > 60
    held = bits(made.new)
    with begin(made, mapping, tmp_path) as migration:
        found = migration.passes.repair()
        assert found["written"] == 0
    assert bits(made.new) == held
    run(stop=None)


def test_texts_choose_and_stay_known(switched, mapping, truth, tmp_path):
    rng = np.random.default_rng(3)
    texts = unit(rng.normal(size=(30, 20)))
    new_texts = unit(mapping.for_modality("text").transform(texts))
    with begin(switched, mapping, tmp_path) as migration:
        sides = {"texts": texts, "new_texts": new_texts, "random_state": 4}
        first = reembed(migration, Model(truth), among="image", size=30, budget=30, **sides)
    with begin(switched, mapping, tmp_path) as migration:
        again = reembed(migration, Model(truth), size=30, budget=60)
    assert set(again.meter().store) == {"agreement", "overlap@10", "cosine"}
    assert again.history_[0].to_dict() == first.history_[0].to_dict()


def test_an_encoder_that_fails_loses_nothing(switched, mapping, truth, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "CHUNK", 8)
    model = Model(truth, fail=32)
    with begin(switched, mapping, tmp_path) as migration, pytest.raises(errors.FileError, match="no answer of the"):
        reembed(migration, model, among="image", size=40, budget=80)
    assert len(model.asked) == 32
    model.fail = None
    with begin(switched, mapping, tmp_path) as migration:
        reembed(migration, model, size=40, budget=80)
    assert len(model.asked) == len(set(model.asked)) == 80


def test_a_new_plan_for_changed_rows_knows_what_was_paid_for(switched, mapping, truth, tmp_path):
    made, model = switched, Model(truth)
    with begin(made, mapping, tmp_path) as migration:
        reembed(migration, model, among="image", size=20, budget=40)
    gone = images(made)[0]
    for side in (made.rows, made.old, made.new):
        side.pop(gone, None)
    paid = set(model.asked) - {str(gone)}
    with begin(made, mapping, tmp_path) as migration:
        plan = reembed(migration, model, size=20, budget=60)
        assert migration.verify().passed
    assert len(plan) == IMAGES - 1
    assert paid <= set(plan.ids[plan.embedded].tolist())
    assert len(model.asked) == len(set(model.asked))


def test_discarded_vectors_are_kept_for_the_next_time(mapping, truth, tmp_path):
    made, model = table(), Model(truth)
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        reembed(migration, model, among="image", size=20, budget=40)
        assert migration.journal.state == "filled"
        assert migration.verify().passed
        migration.discard()
        assert made.made is None
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed  # plainly mapped again
        plan = reembed(migration, model, among="image", size=20, budget=60)
    assert len(model.asked) == len(set(model.asked)) == 60
    assert plan.meter().n_embedded == 60


def test_bad_input_is_named_and_nothing_written(switched, mapping, truth, tmp_path):
    made, before = switched, bits(switched.new)
    short = lambda ids: Model(truth)(ids)[:-1]  # noqa: E731
    for error, words, encode, options in (
        (errors.ParameterError, "table has rows of image, text", Model(truth), {}),
        (errors.ParameterError, "Got 0 rows of video", Model(truth), {"among": "video"}),
        (errors.ShapeError, r"from encode; expected \(20, 24\)", short, {"among": "image"}),
        (errors.NotFiniteError, "encode", lambda ids: np.full((len(ids), 24), np.nan), {"among": "image"}),
        (errors.NotFiniteError, "encode", lambda ids: np.float64(1e60) * Model(truth)(ids), {"among": "image"}),
        (errors.ZeroRowError, "encode", lambda ids: np.float64(1e-60) * Model(truth)(ids), {"among": "image"}),
        (errors.ParameterError, "budget", Model(truth), {"among": "image", "share": 0.5}),
    ):
        with begin(made, mapping, tmp_path) as migration, pytest.raises(error, match=words):
            reembed(migration, encode, size=20, budget=40, **options)
    assert bits(made.new) == before
    assert not list(tmp_path.glob("journal/encoded/*"))  # nothing is kept that would be taken for the new model's
    fresh = table()
    (tmp_path / "b").mkdir()
    with begin(fresh, mapping, tmp_path / "b") as migration, pytest.raises(errors.MigrationError, match="No migration"):
        reembed(migration, Model(truth), among="image", budget=4)


def test_after_a_rollback_it_goes_on_beside_and_is_verified_and_switched_again(switched, mapping, truth, tmp_path):
    made, model = switched, Model(truth)
    with begin(made, mapping, tmp_path) as migration:
        migration.rollback()
        reembed(migration, model, among="image", size=20, budget=20)
        with pytest.raises(errors.MigrationError, match="migration is filled; to switch"):
            migration.switch()
        assert migration.verify().passed
        migration.switch()
    assert made.switched


def test_complete_files_are_re_embedded_before_the_switch(mapping, truth, tmp_path, here):
    """On a real ``.npy`` file, by the command: rows first, then the exchange."""
    made = table()
    names = images(made)
    np.save(tmp_path / "old.npy", np.stack([made.old[one] for one in names]))
    (tmp_path / "ids.txt").write_text("".join(f"{one}\n" for one in names))
    np.save(tmp_path / "new.npy", np.stack([truth[str(one)] for one in names]))
    mapping.save(tmp_path / "map")
    np.savez(tmp_path / "new.npz", vectors=np.load(tmp_path / "new.npy"), ids=np.array(names).astype(str))
    (tmp_path / "checked").mkdir()
    mapping.save(tmp_path / "checked" / "map")
    verdict = {"action": "progressive", "headline": "re-embed some", "reason": "so it is", "share": 0.2}
    (tmp_path / "checked" / "certificate.json").write_text(json.dumps({"verdict": verdict, "facts": {}}))
    words = ("run", "--from", "checked", "--set", "ids=ids.txt", "--modality", "image", "--yes")
    assert "Next: congruence migrate old.npy reembed" in here("migrate", "old.npy", *words).ends(0).out
    for words in (("reembed", "--encode", "new.npz", "--budget", 40, "--set", "batch=20"), ("verify",), ("switch",)):
        here("migrate", "old.npy", *words).ends(0)
    held = np.load(tmp_path / "old.npy")
    own = (np.abs(held - np.load(tmp_path / "new.npy")).max(axis=1) < 1e-6).sum()
    assert own == 40
    here("migrate", "old.npy", "reembed", "--budget", 60).refused("Roll back, re-embed, then verify and switch")


def test_a_damaged_folder_is_refused_and_nothing_touched(switched, mapping, truth, tmp_path):
    made = switched
    with begin(made, mapping, tmp_path) as migration:
        reembed(migration, Model(truth), among="image", size=20, budget=20)
    held = bits(made.new)
    path = next((tmp_path / "journal" / "progressive").glob("*/state/config.json"))
    result = json.loads(path.read_text())
    for change in ({"kind": "orthogonal"}, {"facts": None}, {"among": 7}):
        path.write_text(json.dumps(result | change))
        with pytest.raises(errors.CorruptFileError):
            begin(made, mapping, tmp_path)
    assert bits(made.new) == held


def both_kinds(made, mapping):
    """The new model's vectors of all rows, images and texts."""
    rng = np.random.default_rng(5)
    return {
        str(one): unit(mapping.for_modality(row["kind"]).transform(made.old[one][None]) + 0.1 * rng.normal(size=24))[0]
        for one, row in made.rows.items()
    }


def test_vectors_of_other_rows_are_refused_before_one_is_kept(switched, mapping, truth, tmp_path):
    made, before = switched, bits(switched.new)
    for wrong in (lambda rows: np.roll(rows, 1, axis=0), lambda rows: np.repeat(rows[:1], len(rows), axis=0)):
        with begin(made, mapping, tmp_path) as migration, pytest.raises(errors.MigrationError, match="encode"):
            reembed(migration, lambda ids, wrong=wrong: wrong(Model(truth)(ids)), among="image", size=100, budget=100)
    assert bits(made.new) == before
    with begin(made, mapping, tmp_path) as migration:
        model = Model(truth)
        plan = reembed(migration, model, among="image", size=100, budget=100)
        check(made, plan, truth, before)
    assert len(model.asked) == 100  # none of the wrong ones was kept


def test_each_modality_keeps_what_was_re_embedded_of_it(switched, mapping, tmp_path):
    made = switched
    every, old = both_kinds(made, mapping), bits(made.old)
    with begin(made, mapping, tmp_path) as migration:
        first = reembed(migration, Model(every), among="image", size=20, budget=40)
    with begin(made, mapping, tmp_path) as migration:
        second = reembed(migration, Model(every), among="text", size=20, budget=20)
        assert migration.verify().passed
    native = [one for plan in (first, second) for one in plan.ids[plan.embedded].tolist()]
    assert len(native) == 60
    for one in native:
        np.testing.assert_allclose(made.new[int(one)], every[one], atol=2e-6)
    with begin(made, mapping, tmp_path) as migration:
        assert migration.status()["reembedded"] == 60
        with pytest.raises(errors.ParameterError, match="image, text were re-embedded apart"):
            reembed(migration, Model(every), size=20, budget=40)
        again = Model(every)
        reembed(migration, again, among="image", size=20, budget=40)
        assert not again.asked
        migration.rollback()
        migration.discard()
        assert bits(made.old) == old
        migration.run()
        reembed(migration, again, among="text", size=20, budget=20)
        reembed(migration, again, among="image", size=20, budget=40)
        assert not again.asked


@pytest.mark.parametrize("step", ["reembed", "discard"])
@pytest.mark.parametrize("files", range(3))
def test_a_kill_while_folders_are_removed_stops_nothing(switched, mapping, truth, tmp_path, step, files):
    made, old = switched, bits(switched.old)

    def cut(path, **options):
        for file in sorted(one for one in path.rglob("*") if one.is_file())[:files]:
            file.unlink()
        raise Killed

    with begin(made, mapping, tmp_path) as migration:
        reembed(migration, Model(truth), among="image", size=20, budget=20)
        migration.rollback()
    with begin(made, mapping, tmp_path) as migration, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut)
        with pytest.raises(Killed):
            if step == "discard":
                migration.discard()
            else:
                reembed(migration, Model(truth), among="image", size=20, budget=40)
    with begin(made, mapping, tmp_path) as migration:
        assert migration.status()["stage"] == ("untouched" if step == "discard" else "prepared")
        if step == "discard":
            migration.discard()
            migration.run()
        reembed(migration, Model(truth), among="image", size=20, budget=40)
        assert migration.verify().passed
        migration.switch()
        migration.rollback()
        migration.discard()
    assert bits(made.old) == old
    assert not (tmp_path / "journal" / "progressive").exists()


@pytest.mark.parametrize("at", range(4))
def test_what_a_killed_process_wrote_is_ours_after_rows_have_gone(switched, mapping, truth, tmp_path, monkeypatch, at):
    """A new plan maps the rows otherwise, and what the last one wrote is not the application's."""
    made, old = switched, bits(switched.old)
    monkeypatch.setattr(MemoryDatabase, "capabilities", replace(MemoryDatabase.capabilities, follows_deletes=True))
    with begin(made, mapping, tmp_path) as migration, pytest.MonkeyPatch.context() as patch, suppress(Killed):
        kill_after(patch, Marks, "write", at)
        reembed(migration, Model(truth), among="image", size=20, budget=60)
    gone = images(made)[0]
    for side in (made.rows, made.old, made.new):
        del side[gone]
    with begin(made, mapping, tmp_path) as migration:
        reembed(migration, Model(truth), among="image", size=20, budget=60)
        found = migration.rollback()
    assert (found["added"], found["changed"], found["deleted"]) == (0, 0, 1)
    assert bits(made.old) == {one: row for one, row in old.items() if one != gone}


def test_what_a_killed_discard_left_is_not_taken_for_the_next_migrations(switched, mapping, tmp_path):
    made, folder = switched, tmp_path / "journal"
    with begin(made, mapping, tmp_path) as migration:
        migration.rollback()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, Marks, "remove", 0)
            migration.discard()
    Marks(np.arange(9, dtype=np.uint64)).write(folder)  # as of another map
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
    gone = images(made)[0]
    del made.old[gone]  # the application removes its vector
    with begin(made, mapping, tmp_path) as migration:
        migration.switch()
    assert gone not in made.new


def test_the_store_is_not_verified_once_rows_are_written(mapping, truth, tmp_path):
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, migration.database, "write", 0)
            reembed(migration, Model(truth), among="image", size=20, budget=20)
    with begin(made, mapping, tmp_path) as migration:
        assert migration.status()["state"] == "filled"


SCRIPT = """
import sys, numpy
ids = open(sys.argv[1], encoding="utf-8").read().splitlines()
numpy.save(sys.argv[2], numpy.array([[float(len(one)), 1.0] for one in ids], "float32"))
"""


def test_a_command_gets_ids_and_gives_rows(tmp_path):
    (tmp_path / "my encoder.py").write_text(SCRIPT)
    run = encode_by_command(f"'{sys.executable}' '{tmp_path / 'my encoder.py'}' {{ids}} {{out}}")
    np.testing.assert_array_equal(run(["a", "ü b", "c" * 9]), [[1, 1], [3, 1], [9, 1]])


def test_commands_that_fail_are_named(tmp_path):
    for command, words in (("python x.py {ids}", "has no {out}"), ("a 'b {ids} {out}", "quotation")):
        with pytest.raises(errors.ParameterError, match=words):
            encode_by_command(command)
    with pytest.raises(errors.ParameterError, match="line break"):
        encode_by_command("true {ids} {out}")(["a\nb"])
    for command, words in (
        ("no-such-command {ids} {out}", "cannot be run"),
        ("true {ids} {out}", "true wrote no array"),
        ("cat {ids} {out}", r"(?s)cat ended with exit status 1 .*No such file"),
    ):
        with pytest.raises(errors.FileError, match=words):
            encode_by_command(command)(["a"])


def test_a_file_and_items_are_asked_by_id():
    rows = Embeddings(np.eye(3, dtype=np.float32), ids=["a", "b", "c"])
    np.testing.assert_array_equal(encode_from_file(rows)(["c", "a"]), np.eye(3)[[2, 0]])
    with pytest.raises(errors.IdError, match="'x' for one"):
        encode_from_file(rows)(["c", "x"])
    with pytest.raises(errors.IdError, match="have no ids"):
        encode_from_file(Embeddings(np.eye(3, dtype=np.float32)))

    class Encoder:
        def encode_all(self, items, batch_size):
            return np.array([[len(one)] for one in items], np.float32)

    from congruence.embed import Items

    items = Items("photos.csv", "text", np.array(["1", "22"], object), ["x", "yyy"].__getitem__, str)
    np.testing.assert_array_equal(encode_items(Encoder(), items)(["22", "1"]), [[3], [1]])
    with pytest.raises(errors.IdError, match=r"photos\.csv"):
        encode_items(Encoder(), items)(["3"])


@pytest.fixture
def run(here, mapping, truth, tmp_path, monkeypatch):
    import congruence.databases
    from congruence.io import open_sink

    made = table()
    monkeypatch.setattr(congruence.databases, "open_database", lambda where, **names: MemoryDatabase(made))
    mapping.save(tmp_path / "map")
    import pyarrow as pa

    with open_sink(tmp_path / "new.npz", n=len(truth), dim=24, has_ids=True) as sink:
        sink.write(pa.array(list(truth)), np.stack(list(truth.values())).astype(np.float32))
    return lambda *words: here("migrate", "memory", *words)


def test_the_command_maps_switches_and_re_embeds(run, tmp_path):
    rates = ("--set", "batch=20", "--set", "encode_rate=10", "--set", "price=0.01")
    run("run", "--map", "map", "--yes").ends(0)
    run("switch").ends(0)
    more = ("--encode", "new.npz", "--modality", "image", "--share", 0.3, "--set", "plot=p.svg")
    done = run("reembed", *more, *rates).ends(0)
    assert "10.0 % re-embedded: " in done.err
    for words in ("30.0 % re-embedded: ", "no forecast yet: "):
        assert words in done.out
    assert "points" not in done.out  # too few random rows for a forecast
    assert (tmp_path / "p.svg").stat().st_size > 1000
    result = json.loads(run("reembed", "--budget", 80, *rates, "--json").ends(0).out)  # the rest as before
    assert [one["n_embedded"] for one in result["stages"]] == [20, 40, 60, 80]
    assert result["forecast"]["verdict"]
    assert result["forecast"]["minutes"][-1] > 0
    assert result["forecast"]["price"][-1] > 0
    assert "re-embedded" in run("status").out
    assert run("rollback").code == 0


def test_bad_options_of_the_command_are_refused_before_anything_is_written(run, tmp_path):
    run("run", "--map", "map", "--yes").ends(0)
    good = ("--encode", "new.npz", "--modality", "image")
    (tmp_path / "there.svg").write_text("mine")
    for words, said in (
        (good, "no --budget, --share or --until"),
        ((*good, "--share", 0.1, "--budget", 4), "expected one of the two"),
        ((*good, "--share", 2), "Got --share 2.0; expected at most 1"),
        (("--share", 0.1), "Got no --encode"),
        ((*good, "--share", 0.1, "--texts", "new.npz"), "Got --texts without --new-texts"),
        (("--encode", "nothing", "--share", 0.1), "which is neither a file nor a command"),
        ((*good, "--share", 0.1, "--set", "plot=p.docx"), "expected one that ends in .svg"),
        ((*good, "--share", 0.1, "--set", "plot=there.svg"), "there.svg. Pass another path."),
    ):
        run("reembed", *words).refused(said)
    assert not list(tmp_path.glob("migration-*/progressive"))


def test_a_file_of_another_model_is_refused(run, truth, tmp_path):
    from congruence.io import open_sink

    with open_sink(tmp_path / "other.npz", n=3, dim=24, has_ids=True, space=Space("another")) as sink:
        import pyarrow as pa

        sink.write(pa.array(["a", "b", "c"]), np.eye(3, 24, dtype=np.float32))
    run("run", "--map", "map", "--yes").ends(0)
    run("reembed", "--encode", "other.npz", "--modality", "image", "--share", 0.1).refused("another")


@pytest.mark.parametrize("at", range(8))
def test_rows_of_the_application_are_told_from_ours_after_a_kill(switched, mapping, truth, tmp_path, at):
    made, old = switched, bits(switched.old)
    changed, theirs = images(made)[3], -switched.new[images(switched)[3]]
    made.new[changed] = theirs
    writes = []

    def fail(step):
        writes.append(step)
        if writes.count("write") == at + 1:
            raise Killed

    model = Model(truth)
    with suppress(Killed), begin(made, mapping, tmp_path, fail=fail) as migration:
        reembed(migration, model, among="image", size=20, budget=60)
    with begin(made, mapping, tmp_path) as migration, pytest.raises(errors.MigrationError, match="0 rows .* 1 changed"):
        migration.rollback()
    with begin(made, mapping, tmp_path) as migration:
        reembed(migration, model, among="image", size=20, budget=60)
        assert made.new[changed].tobytes() == theirs.tobytes()
        found = migration.rollback("keep")
        assert (found["added"], found["changed"], found["deleted"]) == (0, 1, 0)
    assert bits(made.old) == {one: row for one, row in old.items() if one != changed}


@pytest.mark.parametrize("rolled_back", [False, True])
def test_what_the_application_writes_while_rows_are_encoded_stays(switched, mapping, truth, tmp_path, rolled_back):
    """After the switch new vectors, which stay; after a rollback old ones, by which the rows are mapped again."""
    made, model, wrote = switched, Model(truth), {}

    def encode(ids):
        vectors = model(ids)
        for one in {int(ids[0]), images(made)[len(model.asked)]} - set(wrote):  # encoded now, and mapped
            side = made.old if rolled_back else made.new
            side[one] = wrote[one] = unit(-side[one][None])[0]
        return vectors

    with begin(made, mapping, tmp_path) as migration:
        if rolled_back:
            migration.rollback()
        plan = reembed(migration, encode, among="image", size=20, budget=80)
        assert migration.verify().passed is not rolled_back
        if rolled_back:
            migration.run(resume=True)
            assert migration.verify().passed
            migration.switch()
    assert len(wrote) == 8
    done = dict(zip(plan.ids.tolist(), plan.embedded.tolist(), strict=True))
    for one, vector in wrote.items():
        wanted = plan.transform(vector[None])[0] if rolled_back else vector
        np.testing.assert_allclose(made.new[one], wanted, atol=2e-6)
    for one in set(images(made)) - set(wrote):
        if done[str(one)]:
            np.testing.assert_allclose(made.new[one], truth[str(one)], atol=2e-6)
    with begin(made, mapping, tmp_path) as migration:
        again = Model(truth)
        reembed(migration, again, among="image", size=20, budget=80)
        assert not set(again.asked) & (set(model.asked) - {str(one) for one in wrote})


@pytest.mark.parametrize(
    ("step", "nth", "next_step"),
    [
        pytest.param(*at, then, marks=[pytest.mark.long] * (at != ("write", 1) and then != "reembed"))
        for at in (("write", 1), ("write", 3), ("encode", 2), ("journal", 1), ("save", 2))
        for then in ("reembed", "run", "switch", "discard")
    ],
)
def test_rows_that_change_after_a_kill_are_mapped_by_their_content(mapping, truth, tmp_path, step, nth, next_step):
    made, model, count = table(), Model(truth), []
    a, b = images(made)[:2]

    def watched(name, call):
        def run(*arguments, **options):
            if name == step == "encode" and count.count(step) == nth:
                raise Killed  # before the model is asked: its answer would be lost
            result = call(*arguments, **options)
            count.append(name)
            if count.count(step) > nth:
                raise Killed
            return result

        return run

    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        count.clear()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(stages, "save_plan", watched("save", stages.save_plan))
            patch.setattr(type(migration.journal), "write", watched("journal", type(migration.journal).write))
            patch.setattr(migration.database, "write", watched("write", migration.database.write))
            encode = watched("encode", lambda ids: model(ids))
            reembed(migration, encode, among="image", size=50, share=1.0)
    changed = {one: made.old[other].copy() for one, other in ((a, b), (b, a))}
    made.old |= changed
    frozen = Model(truth)  # as a file of the earlier content
    with begin(made, mapping, tmp_path) as migration:
        if next_step == "discard":
            migration.discard()
            migration.run()
        elif next_step == "run":
            migration.run(resume=True)
        elif next_step == "switch" and migration.journal.state == "verified":
            migration.switch()
            for one in (a, b):
                assert abs(made.new[one] @ truth[str(one)]) < 0.999
        plan = reembed(migration, frozen, among="image", size=50, share=1.0)
        assert migration.verify().passed
        embedded = dict(zip(plan.ids.tolist(), plan.embedded.tolist(), strict=True))
        known = {str(one) for one in (a, b)} & set(model.asked)
        assert {one for one, done in embedded.items() if not done} == known
        for one in images(made):
            wanted = truth[str(one)] if embedded[str(one)] else plan.transform(made.old[one][None])[0]
            np.testing.assert_allclose(made.new[one], wanted, atol=2e-6)
