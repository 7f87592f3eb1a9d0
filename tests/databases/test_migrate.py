"""Migrations of the in-memory reference database: every step, a fault at every call, and the journal."""

import json
import random
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_database import MemoryDatabase, Table

import congruence
from congruence import Embeddings, OrthogonalMap, errors
from congruence._utils.records import digest_of
from congruence.databases import Stage, open_database
from congruence.embeddings import Space
from congruence.upgrade import migrate
from congruence.upgrade.migrate import Migration, passes
from congruence.upgrade.migrate.journal import hashes, id_digests, is_among, row_digests
from congruence.upgrade.migrate.passes import Retry, checksum_of
from congruence.upgrade.migrate.quantize import Quantizer
from congruence.upgrade.migrate.stages import reembed

D, E, N = 20, 24, 300
RNG = np.random.default_rng(0)
Q = np.linalg.qr(RNG.normal(size=(E, E)))[0][:D]


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


MEANS = {"image": unit(RNG.normal(size=(1, D)))[0] * 3, "text": unit(RNG.normal(size=(1, D)))[0] * 3}
SHIFT = {"image": unit(RNG.normal(size=(1, E)))[0] * 3, "text": unit(RNG.normal(size=(1, E)))[0] * 3}


def pairs(modality, n, seed):
    """Unit rows of two models that differ by a rotation and by their means."""
    Z = np.random.default_rng(seed).normal(size=(n, D)) / 2
    return unit(Z + MEANS[modality]), unit(Z @ Q + SHIFT[modality])


@pytest.fixture(scope="module")
def mapping():
    found = OrthogonalMap(center=True).fit(*pairs("image", 200, 1), modality="image")
    found = found.recenter(*(side.mean(axis=0) for side in pairs("text", 200, 2)), modality="text")
    found.source_space_ = Space("old", None, None, D, True)
    found.target_space_ = Space("new", None, None, E, True)
    return found


def table(n=N, ids="int", space=None, modality=True):
    rng = random.Random(1)
    numbers = rng.sample(range(10 * n), n)
    names = [f"item-{one}" for one in numbers] if ids == "text" else numbers
    image, text = pairs("image", n, 3)[0], pairs("text", n, 4)[0]
    kinds = ["image" if k % 3 else "text" for k in range(n)]
    rows = {
        one: {"title": f"t{one}", **({"kind": kind} if modality else {})}
        for one, kind in zip(names, kinds, strict=True)
    }
    vectors = {one: (image if kinds[k] == "image" else text)[k] for k, one in enumerate(names)}
    return Table(rows, vectors, space=space or Space())


def bits(vectors):
    return {one: row.tobytes() for one, row in vectors.items()}


def expected(mapping, made):
    kinds: dict[str, list] = {}
    for one in made.old:
        kinds.setdefault(made.rows[one].get("kind", "image"), []).append(one)
    found = {}
    for kind, names in kinds.items():
        rows = mapping.for_modality(kind).transform(np.array([made.old[one] for one in names]))
        found |= dict(zip(names, rows / np.linalg.norm(rows, axis=1, keepdims=True), strict=True))
    return {one: found[one] for one in made.old}


def begin(made, mapping, folder, fail=None, **options):
    database, retry = MemoryDatabase(made, fail), Retry(sleep=lambda s: None)
    return Migration(database, mapping, journal=folder / "journal", retry=retry, **options)


def test_a_rate_makes_the_passes_wait(mapping, tmp_path, monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(passes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(passes.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with begin(table(), mapping, tmp_path) as migration:
        migration.run(rate=100, callback=told.append)
        assert now[0] == pytest.approx(sum(told) / 100)
        assert sum(told) >= N
        with pytest.raises(errors.ParameterError, match="rate=0"):
            migration.run(rate=0, resume=True)


@pytest.mark.parametrize("ids", ["int", "text"])
def test_the_whole_way_and_back(mapping, tmp_path, ids):
    made = table(ids=ids)
    before = bits(made.old)
    with begin(made, mapping, tmp_path) as migration:
        plan = migration.plan(encode_rate=10, price=0.001)
        assert (plan.rows, plan.dim_old, plan.dim_new, plan.bytes_new) == (N, D, E, N * E * 4)
        assert plan.encode_minutes == pytest.approx(N / 600)
        assert plan.encode_cost == pytest.approx(0.3)
        assert plan.refused == []
        assert made.made is None
        migration.run()
        assert migration.database.stage() is Stage.PREPARED
        wanted = expected(mapping, made)
        assert set(made.new) == set(wanted)
        for one, row in wanted.items():
            np.testing.assert_allclose(made.new[one], row, atol=2e-6)
        with pytest.raises(errors.MigrationError, match=r"migration is filled; to switch, .*verified"):
            migration.switch()
        found = migration.verify()
        assert found.passed
        assert (found.rows_old, found.rows_new, found.wrong, found.index_recall) == (N, N, 0, 1.0)
        summary = migration.switch()
        assert made.switched
        assert bits(made.old) == before
        result = migration.rollback()
        assert result == {"rows": N, "identical": True, "checksum": summary["checksum_old"], "rows_without": 0} | {
            "switched": True,
            "added": 0,
            "changed": 0,
            "deleted": 0,
        }
        assert not made.switched
        assert migration.verify().passed
        migration.switch()
        migration.drop_old()
        with pytest.raises(errors.MigrationError, match="dropped"):
            migration.rollback()
    saved = json.loads((tmp_path / "journal" / "summary.json").read_text())
    digest = saved.pop("sha256")
    assert digest == digest_of(saved)
    assert (saved["rows"], saved["map"], saved["state"]) == (N, migration.journal.map_digest, "dropped")


@pytest.mark.long
def test_a_stop_at_any_call_is_resumed_and_nothing_is_lost_or_doubled(mapping, tmp_path):
    """Every call of the steps fails once; the migration then resumes in the same process, or in a new one."""
    calls = MemoryDatabase(table())
    with Migration(calls, mapping, journal=tmp_path / "count") as migration:
        migration.run()
        migration.verify()
        migration.switch()
        migration.rollback()
    total = len(calls.calls)
    assert total > 12
    for at in range(total):
        made, left = table(), [at]
        before, folder = bits(made.old), tmp_path / f"run{at}"

        def fail(step, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

        for _attempt in range(3):
            try:
                with Migration(MemoryDatabase(made, fail), mapping, journal=folder) as migration:
                    if migration.journal is None or migration.journal.state == "filling":
                        migration.run(resume=migration.journal is not None)
                    migration._sync()
                    if migration.journal.state == "filled":
                        assert migration.verify().passed
                    if migration.journal.state == "verified":
                        migration.switch()
                    assert migration.journal.state == "switched"
                    break
            except KeyboardInterrupt:
                continue
        assert made.switched
        assert set(made.new) == set(made.old)
        wanted = expected(mapping, made)
        assert all(np.allclose(made.new[one], wanted[one], atol=2e-6) for one in wanted)
        assert bits(made.old) == before


@pytest.mark.parametrize("created_again", [True, False])
def test_a_table_that_was_created_again_is_not_taken_for_one_whose_old_vectors_were_dropped(
    mapping, tmp_path, monkeypatch, created_again
):
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        migration.verify()
        migration.switch()
        if not created_again:  # killed after the database's step
            monkeypatch.setattr(MemoryDatabase, "drop_old", lambda self: self._remove_old() or exit())
            with pytest.raises(SystemExit):
                migration.drop_old()
    if created_again:
        made = table()
        with pytest.raises(errors.MigrationError, match="created again"):
            begin(made, None, tmp_path).status()
        with pytest.raises(errors.MigrationError, match="created again"):
            begin(made, None, tmp_path).rollback()
    else:
        assert begin(made, None, tmp_path).status()["state"] == "dropped"


def test_a_journal_that_lost_which_vectors_are_ours_is_refused(mapping, tmp_path):
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        migration.verify()
        migration.switch()
    (tmp_path / "journal" / "written.digests").unlink()
    with pytest.raises(errors.CorruptFileError, match=r"written\.digests is missing"):
        begin(made, None, tmp_path)


def test_a_table_that_was_created_again_before_the_switch_is_checked_again(mapping, tmp_path, monkeypatch):
    with begin(table(), mapping, tmp_path) as migration:
        migration.run()
    made = table(n=50)
    monkeypatch.setattr(MemoryDatabase, "repeated_ids", lambda self: ["1"])
    with begin(made, None, tmp_path) as migration, pytest.raises(errors.IdError):
        migration.run(resume=True)
    assert made.made is None
    monkeypatch.undo()
    with begin(made, None, tmp_path) as migration:
        migration.run(resume=True)
        assert migration.verify().passed
    assert set(made.new) == set(made.old)


def test_what_does_not_answer_is_asked_again_and_in_the_end_given_up(mapping, tmp_path):
    waits = []
    left = {"write": 3, "read": 2, "scan old": 1}

    def busy(step):
        if left.get(step, 0):
            left[step] -= 1
            raise errors.DatabaseUnavailableError("Got no answer; expected one. Wait.")

    made = table()
    retry = Retry(sleep=waits.append, first=0.5)
    Migration(MemoryDatabase(made, busy), mapping, journal=tmp_path / "a", retry=retry).run()
    assert len(made.new) == N
    assert len(waits) == 6
    assert waits.count(0.5) >= 2
    del waits[:]

    def gone(step):
        if step == "write":
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        Migration(MemoryDatabase(table(), gone), mapping, journal=tmp_path / "b", retry=Retry(sleep=waits.append)).run()
    assert waits == [0.5, 1, 2, 4, 8]


def test_rows_that_others_write_meanwhile_are_repaired_before_the_switch(mapping, tmp_path):
    made = table()
    names = list(made.old)
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        made.old[names[0]] = -made.old[names[0]]
        del made.rows[names[1]], made.old[names[1]]
        made.rows[99_999], made.old[99_999] = {"kind": "image", "title": ""}, made.old[names[2]].copy()
        migration.switch()
        assert [{k: one[k] for k in ("rows", "written", "removed")} for one in migration.journal.passes[-2:]] == [
            {"rows": N, "written": 2, "removed": 1},
            {"rows": N, "written": 0, "removed": 0},
        ]
    wanted = expected(mapping, made)
    assert set(made.new) == set(wanted)
    assert all(np.allclose(made.new[one], wanted[one], atol=2e-6) for one in wanted)


def test_a_table_that_never_rests_is_said(mapping, tmp_path):
    made = table(40)
    name = next(iter(made.old))

    def turn(step):
        if step == "scan old":
            made.old[name] = -made.old[name]

    with pytest.raises(errors.MigrationError, match="still changed in pass 5"):
        begin(made, mapping, tmp_path, turn).run()


def test_wrong_vectors_do_not_verify(mapping, tmp_path):
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        one = next(iter(made.new))
        good = made.new[one].copy()
        made.new[one] = -good
        found = migration.verify()
        assert not found.passed
        assert found.wrong == 1
        assert migration.journal.state == "filled"
        made.new[one] = good
        del made.new[one]
        assert "rows have an old vector" in migration.verify().problems[0]
        with pytest.raises(errors.MigrationError):
            migration.switch()
        migration.run(resume=True)
        assert migration.verify().passed


def test_held_out_vectors_of_the_new_model_find_their_rows(mapping, tmp_path):
    made = table(modality=False)
    names = list(made.old)[:50]
    wanted = expected(mapping, made)
    target = unit(np.array([wanted[one] for one in names]) + 0.02 * RNG.normal(size=(50, E)))
    with begin(made, mapping, tmp_path, modality="image") as migration:
        migration.run()
        good = migration.verify(heldout=Embeddings(target, ids=names))
        assert good.heldout["recall@10"] > 0.9
        assert good.heldout["chance@10"] == pytest.approx(10 / N)
        bad = migration.verify(heldout=Embeddings(unit(RNG.normal(size=(50, E))), ids=names))
        assert not bad.passed
        with pytest.raises(errors.IdError, match="ids"):
            migration.verify(heldout=Embeddings(target))


@pytest.mark.parametrize(("kind", "least"), [("float16", 0.99), ("int8", 0.9), ("binary", 0.1)])
def test_new_vectors_in_fewer_bits_and_from_them_to_the_next_model(mapping, tmp_path, kind, least):
    made = table(modality=False)
    before, wanted = bits(made.old), None
    with begin(made, mapping, tmp_path, element_type=kind, modality="image") as migration:
        plan = migration.plan()
        assert (plan.old_type, plan.element_type, made.made) == ("float32", kind, None)
        assert plan.bytes_new == N * E * {"float16": 2, "int8": 1, "binary": 1 / 8}[kind]
        assert least < plan.stored_recall <= 1
        migration.run()
        wanted = expected(mapping, made)
        found = migration.verify()
        assert found.passed, found.problems
        assert (found.wrong, found.index_recall) == (0, 1.0)
        assert least < found.stored_recall <= 1
        assert found.stored_recall == pytest.approx(plan.stored_recall, abs=0.1)
        one = next(iter(made.new))
        good = made.new[one].copy()
        made.new[one] = good + 2 if kind == "int8" else -good  # another code than rounding could give
        assert migration.verify().wrong == 1
        made.new[one] = good
        assert migration.verify().passed
        summary = migration.switch()
        stored = np.array([made.new[one] for one in wanted])
        exact = np.array(list(wanted.values()))
        if kind == "int8":
            ranges = np.load(tmp_path / "journal" / "ranges.npy")
            assert ranges.shape == (2, E)
            assert summary["ranges"] == pytest.approx([ranges[0, 0], ranges[1, 0]], rel=1e-6)
            assert np.abs(stored).max() == 127
            np.testing.assert_allclose(stored * ranges[1] / 127, exact, atol=0.51 * ranges[1, 0] / 127)
        elif kind == "binary":
            np.testing.assert_array_equal(stored, np.where(exact > 0, 1, -1))
        assert migration.rollback()["identical"]
        assert bits(made.old) == before
        assert migration.verify().passed
        migration.switch()
        migration.drop_old()
    # On to a third model: what was rounded away stays away.
    rotation = np.linalg.qr(np.random.default_rng(7).normal(size=(E, E)))[0].astype(np.float32)
    further = OrthogonalMap(center=False).fit(exact, exact @ rotation, modality="image")
    further.source_space_, further.target_space_ = (Space(name, None, None, E, True) for name in ("new", "third"))
    with begin(made, further, tmp_path / "on", element_type="float32", modality="image") as migration:
        assert migration.plan().old_type == kind
        migration.run()
        assert migration.verify().passed
        assert migration.mapper.scale == (kind in ("int8", "binary"))
    again = np.array([made.new[one] for one in wanted])
    cosine = np.einsum("ij,ij->i", exact @ rotation, again)
    assert cosine.min() > {"float16": 0.99999, "int8": 0.999, "binary": 0.5}[kind]


def test_the_ranges_of_the_first_sample_stay(mapping, tmp_path):
    made = table(modality=False)
    with begin(made, mapping, tmp_path, element_type="int8", modality="image") as migration:
        migration.run()
        first = migration.journal.ranges
    codes = {one: row.copy() for one, row in made.new.items()}
    one = min(made.old)
    made.old[one] = unit(np.eye(1, D))[0]
    with begin(made, None, tmp_path) as migration:
        migration.run(resume=True)
        assert migration.journal.ranges == first
        assert migration.journal.passes[-2]["written"] == 1
        found = migration.verify()
        assert found.passed
    assert {name for name in codes if not np.array_equal(codes[name], made.new[name])} == {one}


def test_ranges_that_are_given_are_used_and_what_lies_outside_is_counted(mapping, tmp_path):
    made = table(modality=False)
    exact = np.array(list(expected(mapping, made).values()))
    ranges = np.quantile(exact, [0.05, 0.95], axis=0)
    with begin(made, mapping, tmp_path, element_type="int8", ranges=ranges, modality="image") as migration:
        migration.run()
        found = migration.verify()
    assert found.passed
    assert found.clipped == pytest.approx(0.1, abs=0.02)
    stored = np.array([made.new[one] for one in expected(mapping, made)])
    assert (stored.min(), stored.max()) == (-128, 127)
    with pytest.raises(errors.ParameterError, match="ranges of shape"):
        begin(table(), mapping, tmp_path / "b", element_type="int8", ranges=ranges[:, :3])
    with pytest.raises(errors.ParameterError, match="old_ranges for float32 vectors"):
        begin(table(), mapping, tmp_path / "b", old_ranges=ranges)


def test_codes_without_their_scale_need_a_map_of_unit_rows(tmp_path):
    old, new = pairs("image", 200, 1)
    free = OrthogonalMap(center=False).fit(3 * old, 2 * new, modality="image")
    assert not free.source_space_.normalized
    wide = {k: row for k, row in enumerate(np.rint(100 * old))}
    refused = ("int8", errors.ParameterError, "old_ranges"), ("binary", errors.SpaceMismatchError, "have no norms")
    for kind, error, match in refused:
        made = Table({k: {"title": ""} for k in wide}, dict(wide), element_type=kind)
        with pytest.raises(error, match=match):
            begin(made, free, tmp_path, modality="image", element_type="float32").run()
        assert made.made is None
    made = Table({k: {"title": ""} for k in wide}, dict(wide), element_type="int8")
    ranges = [[-3 * 1.28] * D, [3 * 1.27] * D]  # one step is .03: a row of the map's size
    with begin(made, free, tmp_path, old_ranges=ranges, modality="image", element_type="float32") as migration:
        migration.run()
        assert migration.verify().passed
        np.testing.assert_allclose(np.array(list(made.new.values())), free.transform(3 * old), atol=0.1)
        migration.switch()
        migration.drop_old()
    assert begin(made, None, tmp_path).status()["state"] == "dropped"


@pytest.mark.parametrize("seconds", [None, 30.0, 1e-9])
def test_the_minutes_of_a_plan_are_those_of_the_slower_half(mapping, tmp_path, monkeypatch, seconds):
    def written(*words):
        if seconds is None:
            raise errors.ParameterError("Got no right to make temporary tables; expected it. Grant it.")
        return seconds

    monkeypatch.setattr(MemoryDatabase, "time_write", written)
    with begin(table(), mapping, tmp_path) as migration:
        plan = migration.plan()
        assert (plan.written_per_second is None) == (seconds is None)
        rate = min(plan.rows_per_second, np.inf if seconds is None else N / seconds)
        assert plan.minutes == pytest.approx(N / rate / 60)


def test_maps_that_do_not_belong_here_are_refused_before_anything_is_written(mapping, tmp_path):
    for space, match in [(Space("new", dim=D), "to which this map leads"), (Space("third", dim=D), "third")]:
        made = table(space=space)
        with pytest.raises(errors.SpaceMismatchError, match=match):
            begin(made, mapping, tmp_path).run()
        assert made.made is None
    other = OrthogonalMap().fit(*pairs("image", 50, 1), modality="image")
    made = table()
    with pytest.raises(errors.ModalityError):
        begin(made, other, tmp_path).run()
    assert made.made is None
    assert not (tmp_path / "journal").exists()


@pytest.fixture(scope="module")
def same_width():
    """A map between models of one width, with rows of both modalities; their rows, mapped ones, and another model's."""
    rotation, rng = np.linalg.qr(RNG.normal(size=(D, D)))[0], np.random.default_rng(7)
    shift = {name: unit(rng.normal(size=(1, D)))[0] * 3 for name in ("image", "text")}
    rows = {}
    for name in ("image", "text"):
        Z = rng.normal(size=(600, D)) / 2
        rows[name], rows[f"new {name}"] = unit(Z + MEANS[name]), unit(Z @ rotation + shift[name])
    known = {name: X[:200] for name, X in rows.items()}
    means = {"text": (known["text"], known["new text"])}
    found = congruence.fit(known["image"], known["new image"], modality="image", means=means, check=False)
    rows = {name: X[200:] for name, X in rows.items()}
    rows["mapped"] = unit(found.transform(rows["image"], modality="image"))
    rows["other model"] = unit(rng.normal(size=(400, D)) / 2 + 3 * unit(rng.normal(size=(1, D)))[0])
    return found, rows


def store(*parts):
    """A store whose rows of one kind stand together, as in a sorted one."""
    vectors = dict(enumerate(np.concatenate(parts)))
    return Table({k: {"title": ""} for k in vectors}, vectors)


@pytest.mark.parametrize("modality", ["image", None])
@pytest.mark.parametrize("share", [1, 0.5, 0.05])
@pytest.mark.parametrize("kind", ["new image", "mapped", "text", "other model"])
def test_rows_that_the_map_is_not_for_are_refused(same_width, kind, share, modality, tmp_path):
    found, rows = same_width
    n = int(share * 400)
    made = store(rows["image"][n:], rows[kind][:n])
    migration = begin(made, found, tmp_path, modality=modality)
    if kind == "text" and share == 1 and modality is None:
        assert migration.run().modality == "text"
        return
    error = errors.ModalityError if kind == "text" and modality is None else errors.SpaceMismatchError
    with pytest.raises(
        error, match=rf"{1 - share:.1%} old model \(image\)" if share < 1 else "different rows"
    ) as refused:
        migration.run()
    assert made.made is None
    assert not (tmp_path / "journal").exists()
    assert ("allow_unknown" in str(refused.value)) == (kind == "other model")
    if kind == "other model" and (modality or share < 1):
        assert migration.run(allow_unknown=True).modality == "image"
    else:
        with pytest.raises(errors.ModalityError if kind == "other model" else error):
            migration.run(allow_unknown=True)


@pytest.mark.parametrize("modality", ["image", None])
def test_rows_that_the_map_is_for_are_mapped_by_their_modality(same_width, modality, tmp_path):
    found, rows = same_width
    plan = begin(store(rows["image"]), found, tmp_path, modality=modality).plan()
    assert not plan.refused
    assert begin(store(rows["image"]), found, tmp_path, modality=modality).run().modality == "image"


@pytest.mark.parametrize("share", [1, 0.5, 0.05, 0.01])
def test_rows_that_may_be_of_any_model_are_refused_from_a_share_on(share, tmp_path):
    """The models' rows share no direction, so that rows of a stranger may be new content of theirs."""
    rng = np.random.default_rng(8)
    axes = rng.normal(size=(3, 5, 64))
    old, new, other = (unit(rng.normal(size=(700, 5)) @ a + rng.normal(size=(700, 64)) / 4) for a in axes)
    found = congruence.fit(old[:300], new[:300], "orthogonal", modality="image", check=False)
    n = int(share * 400)
    made = store(old[300 + n :], other[:n])
    with begin(made, found, tmp_path, modality="image") as migration:
        if share == 0.01:
            assert not migration.plan().refused
            migration.run()
        else:
            with pytest.raises(errors.SpaceMismatchError, match=r"% unknown.*; \d+ unknown: ids '\d+.*allow_unknown"):
                migration.run()
            assert made.made is None
            migration.run(allow_unknown=True)
        assert migration.verify().passed


def test_rows_that_come_before_a_re_embedding_are_judged(models, tmp_path):
    rows, mapping = models
    made = store(rows[0][200:500])
    with begin(made, mapping, tmp_path, modality="image") as migration:
        migration.run()
        for k, row in enumerate(rows[2][200:260]):
            made.rows[1000 + k], made.old[1000 + k] = {"title": ""}, row
        with pytest.raises(errors.SpaceMismatchError, match="added or changed .*unknown"):
            reembed(migration, lambda names: rows[1][200 : 200 + len(names)], size=10)
        assert not set(made.new) & set(range(1000, 1060))


def test_a_certificate_against_mapping_needs_anyway(mapping, tmp_path):
    verdict = {"action": "re-embed", "headline": "re-embed", "reason": "it loses too much"}
    certificate = {"verdict": verdict, "facts": {}}
    made = table()
    with begin(made, mapping, tmp_path) as migration:
        with pytest.raises(errors.MigrationError, match="it loses too much"):
            migration.run(certificate=certificate)
        assert made.made is None
        migration.run(certificate=certificate, anyway=True)
        other = {**certificate, "verdict": {**certificate["verdict"], "action": "map"}}
        assert migration.plan(certificate=other).verdict["action"] == "map"
        progressive = {"action": "progressive", "headline": "re-embed 8% progressively", "reason": "a bit is missing."}
        plan = migration.plan(certificate={"verdict": progressive, "facts": {}})
        result = next(one for one in plan.checks if one["check"] == "certificate")
        assert result["outcome"] == "good"
        assert "re-embed 8%" in result["detail"]
        assert "re-embed afterward" in result["detail"]
        with pytest.raises(errors.ParameterError, match="check --json"):
            migration.plan(certificate={"verdict": 3})
        for old in ("source", "old"):  # as in the folder of a check, and as its command prints it
            checks = migration.plan(certificate={**other, "facts": {old: "another model"}}).checks
            assert "another model" in next(one["detail"] for one in checks if one["check"] == "certificate's models")


def test_a_second_migration_and_another_map_are_refused(mapping, tmp_path):
    made = table()
    begin(made, mapping, tmp_path).run()
    with pytest.raises(errors.MigrationError, match="already begun.*`discard` it"):
        begin(made, mapping, tmp_path).run()
    with pytest.raises(errors.SpaceMismatchError, match="another map"):
        begin(made, OrthogonalMap().fit(*pairs("image", 50, 1), modality="image"), tmp_path)
    with pytest.raises(errors.MigrationError, match="without the journal"):
        begin(made, mapping, tmp_path / "elsewhere").run()
    with pytest.raises(errors.ParameterError, match="no map, and no journal"):
        begin(made, None, tmp_path / "elsewhere")
    assert begin(made, None, tmp_path).status()["state"] == "filled"
    begin(made, None, tmp_path).discard()
    assert (made.new, made.made) == ({}, None)
    begin(made, mapping, tmp_path).run()


def test_rows_that_cannot_be_mapped_are_named_and_nothing_is_switched(mapping, tmp_path):
    made = table(modality=False)
    one = sorted(made.old)[-1]
    made.old[one] = np.full(D, np.nan, np.float32)
    with pytest.raises(errors.NotFiniteError, match=str(one)):
        begin(made, mapping, tmp_path, modality="image").run()
    assert not made.switched
    made = table()
    made.rows[one]["kind"] = "smell"
    with pytest.raises(errors.ModalityError, match="smell"):
        begin(made, mapping, tmp_path / "b").run()


def test_two_runs_at_a_time_are_refused(mapping, tmp_path):
    made = table()
    second = []

    def look(step):
        if step == "write" and not second:
            second.append(1)
            with pytest.raises(errors.FileError, match="Another run"):
                begin(made, mapping, tmp_path).run(resume=True)

    begin(made, mapping, tmp_path, look).run()
    assert second


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("steps", [("run",), ("run", "verify", "switch")])
def test_a_run_that_another_began_since_the_plan_is_left_alone(mapping, tmp_path, monkeypatch, steps):
    made, other = table(), mapping.recenter(*(side.mean(axis=0) for side in pairs("text", 50, 5)), modality="text")
    first, second = (Migration(MemoryDatabase(made), one, journal=tmp_path) for one in (mapping, other))
    planned = second._plan(False)
    for step in steps:
        getattr(first, step)()
    before = contents(tmp_path)
    monkeypatch.setattr(second, "_plan", lambda *given, **options: planned)
    with pytest.raises(errors.MigrationError, match="meanwhile"):
        second.run()
    assert contents(tmp_path) == before
    assert Migration(MemoryDatabase(made), journal=tmp_path).journal.state == first.journal.state


@pytest.mark.parametrize("steps", [("run",), ("run", "verify"), ("run", "verify", "switch")])
def test_new_vectors_of_another_journal_are_left_alone(mapping, tmp_path, monkeypatch, steps):
    made = table()
    first, second = (Migration(MemoryDatabase(made), mapping, journal=tmp_path / name) for name in "ab")
    planned = second._plan(False)
    for step in steps:
        getattr(first, step)()
    before, vectors = contents(tmp_path / "a"), (bits(made.old), bits(made.new), made.switched)
    monkeypatch.setattr(second, "_plan", lambda *given, **options: planned)
    for step in (second.run, second.verify, second.switch, second.rollback, second.drop_old, second.discard):
        with pytest.raises(errors.MigrationError, match="another journal.*Pass that one"):
            step()
    assert contents(tmp_path / "a") == before
    assert (bits(made.old), bits(made.new), made.switched) == vectors


@pytest.mark.parametrize("since", ["run", "verify", "switch"])
def test_a_copy_of_a_journal_goes_on_where_the_original_switched(mapping, tmp_path, since):
    made = table()
    before = bits(made.old)
    with Migration(MemoryDatabase(made), mapping, journal=tmp_path / "a") as first:
        for step in ("run", "verify", "switch"):
            getattr(first, step)()
            if step == since:
                shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Migration(MemoryDatabase(made), journal=tmp_path / "b") as copy:
        if since == "run":  # its state allows no switch
            copy.reload()
            with pytest.raises(errors.MigrationError, match="filled"):
                copy.switch()
            return
        copy.switch()
    with Migration(MemoryDatabase(made), journal=tmp_path / "b") as copy:
        one = next(iter(made.new))
        made.new[one] = -made.new[one]
        with pytest.raises(errors.MigrationError, match="1 changed"):
            copy.rollback()
        made.new[one] = -made.new[one]
        assert copy.rollback()["identical"]
        assert (bits(made.old), made.switched) == (before, False)
        copy.discard()


def test_damaged_and_hostile_journals_give_one_error_and_touch_nothing(mapping, tmp_path):
    made = table(60)
    begin(made, mapping, tmp_path).run()
    path = tmp_path / "journal" / "journal.json"
    good = path.read_bytes()
    result = json.loads(good)
    before = bits(made.new)
    rng = random.Random(0)
    hostile = [b"", b"[]", b"{}", b"null", b"[" * 100_000, b"\xff" * 50, good + b"x"]
    hostile.append(json.dumps({**result, "state": "switched"}).encode())
    del result["digest"]
    wrong = {"state": ["gone"], "extra": [1], "dim": ["3", True], "rows": [-1, 2**63], "resumed": [-1]}
    wrong |= {"events": [[1], [{"at": 1, "what": "x"}]], "cursor": [{"a": 1}, [[1]]], "passes": [[3], [{"rows": 1}]]}
    wrong |= {"sample": [None, [{}], [True], [2**64]], "place": ["x" * 5000]}
    for change in ({key: value} for key, values in wrong.items() for value in values):
        body = {**result, **change}
        hostile.append(json.dumps({**body, "digest": digest_of(body)}).encode())
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        hostile.append(bytes(raw))
        hostile.append(good[: rng.randrange(len(good))])
    refused = 0
    for raw in hostile:
        path.write_bytes(raw)
        try:
            if json.loads(raw) == json.loads(good):
                continue
        except (ValueError, RecursionError):
            pass
        with pytest.raises(errors.CorruptFileError, match="damaged or was edited"):
            begin(made, None, tmp_path)
        refused += 1
    assert refused > 500
    assert bits(made.new) == before
    path.write_bytes(good)
    assert begin(made, None, tmp_path).verify().passed


def test_the_summary_is_signed_where_there_is_a_key(mapping, tmp_path, monkeypatch):
    import hmac

    monkeypatch.setenv("CONGRUENCE_SIGNING_KEY", "k3y")
    with begin(table(60), mapping, tmp_path) as migration:
        migration.run()
        migration.verify()
        summary = migration.switch()
    assert summary["hmac_sha256"] == hmac.new(b"k3y", summary["sha256"].encode(), "sha256").hexdigest()
    assert "k3y" not in (tmp_path / "journal" / "summary.json").read_text()


def test_rounding_is_no_difference_and_half_precision_rounds_more():
    X = RNG.normal(size=(40, 8)).astype(np.float32)
    single, half = Quantizer("float32", 8), Quantizer("float16", 8)
    assert not single.differs(X * np.float32(1 + 2e-7), X).any()
    assert single.differs(X + np.float32(1e-4), X).all()
    assert not half.differs(X.astype(np.float16).astype(np.float32), X).any()
    assert half.differs(X + np.float32(0.02), X).all()
    rotation = np.linalg.qr(RNG.normal(size=(256, 256)))[0].astype(np.float32)
    rows = unit(RNG.normal(size=(8000, 256)))
    parts = np.concatenate([part @ rotation for part in np.array_split(rows, 8)])
    assert not Quantizer("float32", 256).differs(parts, rows @ rotation).any()


@pytest.mark.parametrize("first", [7, 31])  # in the sample that the plan reads, or after it
@pytest.mark.parametrize(("value", "error"), [(np.nan, errors.NotFiniteError), (0.0, errors.ZeroRowError)])
def test_rows_of_nan_or_zeros_are_all_named(tmp_path, monkeypatch, value, error, first):
    rows = pairs("image", 50, 5)[0].astype(np.float32)
    rows[[first, 41]] = value
    np.save(tmp_path / "rows.npy", rows)
    found = OrthogonalMap().fit(*pairs("image", 200, 1))
    monkeypatch.setattr(migrate.plan, "SAMPLE", 20)
    monkeypatch.setattr(migrate.passes, "rows_per_block", lambda dim: 10)
    said = rf"in 2 of 50 rows of the database \(ids '{first}', '41'\)"

    def begin(**options):
        return Migration(open_database(str(tmp_path / "rows.npy")), found, journal=tmp_path / "journal", **options)

    with begin() as migration:
        refused = migration.plan().refused
        assert [bool(re.search(said, one)) for one in refused] == [True] * (first == 7)  # and nothing about norms
        with pytest.raises(error, match=said):
            migration.run()
        if migration.journal is not None:
            migration.discard()
    with begin(allow_zero_rows=True) as migration:
        if error is errors.ZeroRowError:
            migration.run()
            assert migration.verify().passed
        else:
            with pytest.raises(error, match=said):
                migration.run()


@pytest.fixture(scope="module")
def models():
    """Rows of two models of one width, and of a third, and a map that knows the rows of the first two."""
    rng = np.random.default_rng(5)
    Z = rng.normal(size=(700, D)) / 2
    turns = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(3)]
    rows = [unit(Z @ turn + 3 * unit(rng.normal(size=(1, D)))) for turn in turns]
    return rows, congruence.fit(rows[0][:200], rows[1][:200], "orthogonal", modality="image")


@pytest.mark.parametrize(
    ("mixed", "stranger", "when"),
    [
        (False, 1, "in the first pass"),
        (True, 2, "before the switch"),
        *(
            pytest.param(*kind, when, marks=pytest.mark.long)
            for kind, when in (
                ((True, 2), "in the first pass"),
                ((False, 1), "before the end of the run"),
                ((True, 2), "before the end of the run"),
                ((False, 1), "before the switch"),
            )
        ),
    ],
)
def test_rows_that_come_after_the_plan_are_judged_before_they_are_mapped(
    models, tmp_path, monkeypatch, mixed, when, stranger
):
    duckdb = pytest.importorskip("duckdb")
    rows, mapping = models
    where = tmp_path / "t.duckdb"

    def write(first, vectors, kind="image"):
        with duckdb.connect(str(where)) as client:
            client.execute(f"CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, kind TEXT, v FLOAT[{D}])")
            values = pa.table(
                {"id": first + np.arange(len(vectors)), "kind": [kind] * len(vectors), "v": list(vectors)}
            )
            client.register("given", values)
            client.execute("INSERT OR REPLACE INTO t (id, kind, v) SELECT * FROM given")

    def opened():
        database = open_database(where, rows="kind = 'image'" if mixed else None)
        return Migration(database, mapping, journal=tmp_path / "journal", modality="image")

    write(0, rows[0][200:500])
    if mixed:
        write(5000, rows[0][500:600], "text")
    with opened() as migration, monkeypatch.context() as patch:
        if when == "in the first pass":
            patch.setattr(passes, "rows_per_block", lambda dim: 100)
            real, calls = migration.database.write, []

            def killed(*arguments):
                if calls:
                    raise KeyboardInterrupt
                calls.append(real(*arguments))

            database = migration.database.without_condition()
            patch.setattr(type(database), "write", lambda self, *arguments: killed(*arguments))
            with pytest.raises(KeyboardInterrupt):
                migration.run(mixed=mixed)
        else:
            migration.run(mixed=mixed)
        if when == "before the switch":
            assert migration.verify().passed
    write(1000, rows[stranger][200:260])
    write(0, rows[stranger][300:310])
    for _ in range(2):  # a refusal stays one
        with opened() as migration, pytest.raises(errors.SpaceMismatchError, match="added or changed .*do not all fit"):
            migration.switch() if when == "before the switch" else migration.run(resume=True)
        with opened() as migration:
            assert migration.database.stage() is Stage.PREPARED
            found = migration.database.fetch(pa.array(range(1000, 1060)), "new")
            assert not len(found.ids)
    write(1000, rows[0][600:660])
    write(0, rows[0][300:310])
    if stranger == 2:  # of an unknown model, which is mapped if that is allowed
        write(2000, rows[2][200:260])
    with opened() as migration:
        migration.run(resume=True, allow_unknown=stranger == 2)
        assert migration.verify().passed
        migration.switch()
        assert migration.database.count("new") == 300 + 60 + 60 * (stranger == 2) + 100 * mixed


def test_a_checksum_knows_rows_and_not_their_order():
    rng = np.random.default_rng(0)
    X, ids, order = (
        rng.standard_normal((50, 4)).astype(np.float32),
        pa.array([f"a{k}" for k in range(50)]),
        rng.permutation(50),
    )
    whole = passes.checksum_of(ids, X)
    assert passes.checksum_of(ids.take(pa.array(order)), X[order]) == whole
    parts = passes.checksum_of(ids[:20], X[:20]) + passes.checksum_of(ids[20:], X[20:])
    assert passes.checksum_text(parts) == passes.checksum_text(whole)
    assert passes.checksum_of(ids, X[::-1]) != whole
    X[3, 1] = np.nextafter(X[3, 1], 9)
    assert passes.checksum_of(ids, X) != whole


def test_a_migration_that_an_earlier_version_switched_is_rolled_back(mapping, tmp_path):
    """Its marks and checksums are BLAKE2b digests."""
    made = table()
    before = bits(made.old)
    with begin(made, mapping, tmp_path) as migration:
        migration.run()
        assert migration.verify().passed
        migration.switch()
        everything = [(block.ids, block.vectors) for block in migration.database.scan("new")]
        old = sum(
            passes.checksum_of(block.ids, block.vectors, earlier=True) for block in migration.database.scan("old")
        )
        migration.journal.passes[-1]["old"] = passes.checksum_text(old, earlier=True)
        migration.journal.write(migration.folder)
    found = np.unique(np.concatenate([hashes(ids, vectors) for ids, vectors in everything]))
    (tmp_path / "journal" / "written.digests").unlink()
    (tmp_path / "journal" / "written.u64").write_bytes(found.astype("<u8").tobytes())
    with begin(made, None, tmp_path) as migration:
        back = migration.rollback()
        assert back["identical"]
        assert back["changed"] == back["added"] == back["deleted"] == 0
        assert migration.verify().passed
        migration.switch()
        one = next(iter(made.new))
        made.new[one] = -made.new[one]
        with pytest.raises(errors.MigrationError, match="1 changed"):
            migration.rollback()
    assert not (tmp_path / "journal" / "written.digests").exists()
    assert bits(made.old) == before


def test_digests_tell_rows_apart():
    rng = np.random.default_rng(0)
    X, ids = rng.standard_normal((2000, 7)).astype(np.float32), pa.array([f"photo {k}" * (k % 5) for k in range(2000)])
    found = row_digests(ids, X)
    parts = [row_digests(ids[at : at + 300], X[at : at + 300]) for at in range(0, 2000, 300)]
    np.testing.assert_array_equal(np.concatenate(parts), found)
    assert (row_digests(pa.array(range(2000)), X) == row_digests(pa.array(map(str, range(2000))), X)).all()
    names = pa.array(["", "a", "aa", "b", "ab", "ba", "a\0", "\0a", "ä", "abcdefgh" * 40])
    assert len({*id_digests(names).tolist()}) == len(names)
    for other in (-X, X * 2, X[:, ::-1], np.roll(X, 1, axis=0), np.nextafter(X, np.float32(9))):
        assert not np.isin(row_digests(ids, np.ascontiguousarray(other)), found).any()
    # One changed bit changes half of the digest's bits.
    words = X[:1].view(np.uint32) ^ (np.uint32(1) << np.arange(32, dtype=np.uint32))[:, None] * (np.arange(7) == 2)
    flipped = row_digests(pa.array([""] * 32), words.astype(np.uint32).view(np.float32)) ^ found[0]
    assert 24 < np.mean([int(one).bit_count() for one in flipped]) < 40
    # Bits as 1 and -1, of which a plain sum of products tells 2³³ apart.
    bits = np.unique(np.where(rng.random((2**19, 40)) < 0.5, -1, 1).astype(np.float32), axis=0)
    assert len(np.unique(row_digests(pa.array(["a"] * len(bits)), bits))) == len(bits)
    assert row_digests(pa.array([""]), np.zeros((1, 8), np.float32))[0] != 0


_IDS = st.one_of(
    st.lists(st.sampled_from(["", "a", "a\0", "a\0\0", "\0", "1", "01", "1 ", "b", "ä"]), min_size=1, max_size=6),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12), min_size=1, max_size=6),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=6),
)
_VALUES = {
    "float32": st.floats(-2, 2, width=32),
    "float16": st.floats(-2, 2, width=16),
    "int8": st.integers(-128, 127).map(float),
    "binary": st.sampled_from([-1.0, 1.0]),
    "mostly zero": st.sampled_from([0.0, 0.0, 0.0, 1.0, -0.0]),
}


@given(ids=_IDS, kind=st.sampled_from(sorted(_VALUES)), dim=st.integers(1, 4), data=st.data())
def test_digests_tell_apart_what_hashes_do(ids, kind, dim, data):
    """Rows, sums over tables, and which rows are known; the second table has rows of the first, mixed with others."""
    row = st.lists(_VALUES[kind], min_size=dim, max_size=dim)
    vectors = np.array(data.draw(st.lists(row, min_size=len(ids), max_size=len(ids))), np.float32)
    picks = st.lists(st.tuples(*[st.integers(0, len(ids) - 1)] * 2), min_size=len(ids), max_size=len(ids))
    names, rows = np.array(data.draw(picks)).T
    first, second = (pa.array(ids), vectors), (pa.array(ids).take(pa.array(names)), vectors[rows])
    digests, wanted = ([digest(*table) for table in (first, second)] for digest in (row_digests, hashes))
    both, all_wanted = np.concatenate(digests), np.concatenate(wanted)
    np.testing.assert_array_equal(both[:, None] == both, all_wanted[:, None] == all_wanted)
    same = sorted(wanted[0].tolist()) == sorted(wanted[1].tolist())
    assert (checksum_of(*first) == checksum_of(*second)) == same
    np.testing.assert_array_equal(is_among(digests[1], np.unique(digests[0])), np.isin(wanted[1], wanted[0]))
    texts = pa.array([str(name) for name in ids], pa.large_string())
    np.testing.assert_array_equal(
        row_digests(texts.slice(len(ids) // 2), vectors[len(ids) // 2 :]), digests[0][len(ids) // 2 :]
    )


def test_each_modality_has_its_own_means_and_a_constant_stands_in_for_a_column(mapping, tmp_path):
    made = table()
    begin(made, mapping, tmp_path).run()
    plain = table(modality=False)
    begin(plain, mapping, tmp_path / "other", modality="text").run()
    image, text = (next(one for one, row in made.rows.items() if row["kind"] == kind) for kind in ("image", "text"))
    assert not np.allclose(made.new[image], plain.new[image], atol=0.05)
    np.testing.assert_allclose(made.new[text], plain.new[text], atol=2e-6)
