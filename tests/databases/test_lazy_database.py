# ruff: noqa: F811  # fixtures of another module
"""LazySearch over a migrated database: what is written back, by whom, and what kills and other writers leave."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from database_contract import Killed
from test_migrate import N, begin, bits, mapping, table, unit  # noqa: F401  # a fixture
from test_reembed import Model, images, run, switched, truth  # noqa: F401  # fixtures

from congruence import LazySearch, errors, persist
from congruence.upgrade import lazy
from congruence.upgrade.migrate.journal import Journal
from congruence.upgrade.migrate.native import EncodedRows
from congruence.upgrade.migrate.stages import reembed


def asked(truth, made, n=6):
    """Queries near images, by the new model."""
    rng = np.random.default_rng(3)
    rows = np.stack([truth[str(one)] for one in images(made)[:n]])
    return unit(rows + 0.1 * rng.normal(size=rows.shape)).astype(np.float32)


def lists(found):
    return [[int(one) for one in row] for row in found]


def test_rows_are_encoded_once_written_back_and_gone_after_a_rollback(switched, mapping, truth, tmp_path):
    made, model = switched, Model(truth)
    old, before, Q = bits(made.old), bits(made.new), asked(truth, switched)
    with begin(made, mapping, tmp_path) as migration:
        search = LazySearch(migration, None, model, budget=10, modality="image")
        hits = search.search(Q, k=5)
        assert hits.reembedded.all()
        wanted = [[truth[str(one)] @ q for one in row] for row, q in zip(lists(hits.ids), Q, strict=True)]
        np.testing.assert_allclose(hits.scores, wanted, atol=1e-5)
        assert bits(made.new) == before  # nothing is written yet, and nothing lost if this process is killed now
    again = Model(truth)
    with begin(made, mapping, tmp_path) as migration:
        search = LazySearch(migration, None, again, budget=10, modality="image", check=False)
        assert search.reembedded_share_ == len(model.asked) / N
        search.search(Q, k=5)
        search.write()
        assert search.write() is None
        done = [*model.asked, *again.asked]
        assert len(done) == len(set(done)) == search.rows.n_native
        for one, row in made.new.items():
            own = str(one) in done
            assert own == (np.abs(row - truth.get(str(one), row + 1)).max() < 1e-5)
            assert own or row.tobytes() == before[one]
        assert migration.verify().passed
        assert migration.status()["reembedded"] == len(done)
        assert not (migration.folder / "encoded").exists()
        reembed(migration, again, among="image", rows=[])  # maps the others anew by what is known
        others = [one for one in images(made) if str(one) not in done]
        assert any(made.new[one].tobytes() != before[one] for one in others)
        assert migration.rollback()["identical"]
        assert bits(made.old) == old


def test_a_refit_scores_rows_and_leaves_the_table_as_it_is(switched, mapping, truth, tmp_path, monkeypatch):
    monkeypatch.setattr(lazy, "LEAST", 40)
    made, Q = switched, asked(truth, switched, 12)
    before = bits(made.new)
    with begin(made, mapping, tmp_path) as migration:
        options = {"budget": 10, "modality": "image", "check": False}
        search = LazySearch(migration, None, Model(truth), **options)
        plain = LazySearch(migration, None, Model(truth), refit=False, **options)
        search.search(Q)
        assert search.rows.n_native >= 40
        assert search.rows.correction is not None
        assert bits(made.new) == before
        (list_,), (stored,) = (one.rows.near(Q[:1], 50, 10) for one in (search, plain))
        rows, mapped = np.isnan(list_.exact), np.array([made.new[int(one)] for one in list_.keys])
        own = np.array([truth[one] for one in list_.keys]) @ Q[0]
        np.testing.assert_allclose(stored.mapped[rows], (mapped @ Q[0])[rows], atol=1e-5)
        assert np.abs(list_.mapped - own)[rows].mean() < np.abs(stored.mapped - own)[rows].mean()
        again = LazySearch(migration, None, Model(truth), **options)  # another process, from the journal
        np.testing.assert_allclose(again.rows.near(Q[:1], 50, 10)[0].mapped, list_.mapped, atol=1e-5)
        search.write(remap=True)
        assert search.rows.correction is None
        assert bits(made.new) != before
        assert migration.rollback()["identical"]


def test_two_workers_share_what_they_encode(switched, mapping, truth, tmp_path):
    made, models, Q = switched, (Model(truth), Model(truth)), asked(truth, switched, 12)
    with begin(made, mapping, tmp_path) as one, begin(made, mapping, tmp_path) as two:
        options = {"budget": 10, "modality": "image", "check": False}
        a, b = (LazySearch(m, None, model, **options) for m, model in zip((one, two), models, strict=True))
        for k, query in enumerate(Q):
            (a, b)[k % 2].search(query)
            if k == 5:
                a.write()  # also what the other has encoded
                assert not two.folder.joinpath("encoded").exists()
        b.write()
        done = models[0].asked + models[1].asked
        assert len(done) == len(set(done)) == b.rows.n_native
        a.rows.refresh()
        assert a.rows.n_native == len(done)
        assert two.verify().passed
        assert one.rollback()["identical"]
        assert sum(np.abs(made.new[int(name)] - truth[name]).max() < 1e-5 for name in done) == len(done)


def test_deleted_changed_and_new_rows(switched, mapping, truth, tmp_path):
    made, model, Q = switched, Model(truth), asked(truth, switched)
    with begin(made, mapping, tmp_path) as migration:
        search = LazySearch(migration, None, model, budget=20, modality="image", check=False)
        search.search(Q[0])
        gone, changed, theirs = (int(one) for one in model.asked[:3])
        for part in (made.rows, made.old, made.new):
            part.pop(gone)
        made.old[changed] = unit(made.old[changed][None] + 0.5)[0]
        made.new[theirs] = unit(np.ones((1, len(made.new[theirs]))))[0].astype(np.float32)  # by the application
        kept = made.new[theirs].tobytes()
        real = made.new.copy()
        migration.database.search = lambda q, k, side="new": [pa.array([*real, gone])] * len(q)
        hits = search.search(Q[0], k=300)
        assert search.counts_["skipped"] == 1
        assert gone not in hits.ids
        assert hits.reembedded[hits.ids.tolist().index(theirs)]
        search.write()
        assert made.new[theirs].tobytes() == kept
        assert gone not in made.new


def test_steps_of_others_meanwhile(switched, mapping, truth, tmp_path):
    made, Q = switched, asked(truth, switched)
    with begin(made, mapping, tmp_path) as migration, begin(made, mapping, tmp_path) as other:
        search = LazySearch(migration, None, Model(truth), budget=10, modality="image", check=False)
        search.search(Q[:2])
        assert other.rollback()["identical"]
        assert search.search(Q[:4], k=5).reembedded.all()
        search.write()
        assert other.verify().passed
        other.switch()
        other.drop_old()
        with pytest.raises(errors.MigrationError, match="dropped"):
            search.search(Q)


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_killed_at_any_step_nothing_is_lost_or_done_twice(switched, mapping, truth, tmp_path, monkeypatch, at):
    made, model, Q = switched, Model(truth), asked(truth, switched)
    steps, real = [], persist.write_folder

    def kill(step):
        if step in ("write", "folder", "journal") and len(steps) >= at:
            raise Killed
        steps.append(step)

    def write(*args, **kwargs):
        kill("folder")
        return real(*args, **kwargs)

    def record(*args, real=Journal.write):
        kill("journal")
        return real(*args)

    with begin(made, mapping, tmp_path, fail=kill) as migration, monkeypatch.context() as patch:
        patch.setattr(persist, "write_folder", write)
        patch.setattr(Journal, "write", record)
        try:
            search = LazySearch(migration, None, model, budget=20, modality="image")
            search.search(Q)
            search.write()
        except Killed:
            pass
    with begin(made, mapping, tmp_path) as migration:
        search = LazySearch(migration, None, model, budget=20, modality="image")
        hits = search.search(Q)
        search.write()
        assert hits.reembedded.all()
        assert len(model.asked) - len(set(model.asked)) <= 256  # the batch that was not on the disk yet
        assert search.rows.n_native == len(set(model.asked))
        assert not EncodedRows(migration.folder, search.rows.dim).rows
        assert migration.verify().passed
        assert migration.rollback()["identical"]


def test_what_cannot_be_searched_lazily_is_refused(switched, mapping, truth, tmp_path):
    with begin(switched, mapping, tmp_path) as migration:
        with pytest.raises(errors.ParameterError, match="image, text"):
            LazySearch(migration, None, Model(truth))
        search = LazySearch(migration, None, Model({k: -v for k, v in truth.items()}), modality="image")
        with pytest.raises(errors.SpaceMismatchError):
            search.search(asked(truth, switched)[0])
        with pytest.raises(errors.ParameterError, match="journal"):
            search.save(tmp_path / "lazy")
        assert not (migration.folder / "encoded").exists()
    with begin(table(), mapping, tmp_path / "other") as migration:
        migration._begin(N, False)
        with pytest.raises(errors.MigrationError, match="filling"):
            LazySearch(migration, None, Model(truth))


def test_the_command_re_embeds_what_a_log_uses_resumes_and_maps_the_rest_again(run, truth, tmp_path):
    rows = np.stack([row for one, row in truth.items()])[:30]
    np.savez(tmp_path / "log.npz", vectors=unit(rows).astype(np.float32))
    run("run", "--map", "map", "--yes").ends(0)
    run("switch").ends(0)
    given = ("--queries", "log.npz", "--encode", "new.npz", "--modality", "image")
    result = json.loads(run("reembed", *given, "--budget", 40, "--json").ends(0).out)
    assert [one["n_embedded"] for one in result["stages"]] == [40]
    result = json.loads(run("reembed", *given, "--budget", 60, "--json").ends(0).out)
    assert result["stages"][-1]["n_embedded"] == 60
    assert "60 of these are re-embedded" in run("status").out
    run("reembed", "--remap").ends(0)
    run("reembed", *given, "--budget", 80, "--until", 0.9).refused("--until or --texts")
    assert run("verify").code == 0
    assert run("rollback").code == 0


def test_bridge_search_re_embeds_a_switched_database(run, here, truth, tmp_path):
    rows = unit(np.stack(list(truth.values()))[:12]).astype(np.float32)
    np.savez(tmp_path / "log.npz", vectors=rows)
    run("run", "--map", "map", "--yes").ends(0)
    run("switch").ends(0)
    (folder,) = tmp_path.glob("migration-*")
    words = ("bridge", "search", folder, "--queries", "log.npz", "--index", "memory", "-k", 5)
    lazily = (*words, "--encode", "new.npz", "--set", "among=image", "--budget", 8)
    first = json.loads(here(*lazily, "--json").ends(0).out)
    assert {hit["model"] for hit in first["hits"]} == {"new"}
    for hit in first["hits"]:
        assert hit["score"] == pytest.approx(float(truth[str(hit["id"])] @ rows[hit["query"]]), abs=1e-5)
    assert 40 < first["encoded"] <= 96 + 20
    assert f"{first['encoded']:,} of these are re-embedded" in run("status").out
    again = json.loads(here(*lazily, "--json").ends(0).out)
    assert again["reembedded_share"] > first["reembedded_share"]
    assert again["agreement"] > first["agreement"]
    assert "rows were encoded" in here(*lazily, "--set", "limit=0").ends(0).out
    np.savez(
        tmp_path / "other.npz", vectors=np.roll(np.load(tmp_path / "new.npz")["vectors"], 1, axis=0), ids=list(truth)
    )
    wrong = ("--encode", "other.npz", "--set", "among=image", "--budget", 60)
    here(*words, *wrong).refused("another order")
    here(*words[:2], tmp_path / "map", *words[3:], "--set", "limit=3").refused("--set limit without --encode")
    assert run("rollback").code == 0


def test_bridge_search_re_embeds_a_file_and_keeps_it_in_a_folder(here, mapping, truth, tmp_path, monkeypatch):
    made = table()
    names = [str(one) for one in images(made)]
    np.savez(tmp_path / "old.npz", vectors=np.stack([made.old[int(one)] for one in names]), ids=names)
    some = [one for one in names if one != names[3]]  # whose item is gone
    np.savez(tmp_path / "new.npz", vectors=np.stack([truth[one] for one in some]).astype(np.float32), ids=some)
    np.savez(tmp_path / "asked.npz", vectors=truth[names[3]][None].astype(np.float32))
    mapping.save(tmp_path / "map")
    words = ("bridge", "search", "map", "--queries", "asked.npz", "--index", "old.npz", "--encode", "new.npz", "--json")
    kept = ("--budget", 30, "--set", "journal=kept", "--set", "among=image")
    first = json.loads(here(*words, *kept).ends(0).out)
    assert 29 <= first["encoded"] <= 29 + 20  # those of the check
    assert first["failed"] == 1
    assert "missing from the file" in first["error"]
    assert names[3] not in [hit["id"] for hit in first["hits"]]
    again = json.loads(here(*words, *kept, "--set", "limit=0").ends(0).out)
    assert (again["encoded"], again["reembedded_share"]) == (0, first["encoded"] / len(names))
    search = LazySearch.search

    def stop(*given):
        search(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(LazySearch, "search", stop)
    for folder, said in (("other", "rows were encoded, which are kept"), (None, "nothing was written")):
        settings = ("--set", "among=image", *(("--set", f"journal={folder}") if folder else ()))
        assert said in here(*words, "--budget", 30, *settings).ends(130).err


def test_bridge_search_is_scored_by_the_users_own_judgments(here, mapping, truth, tmp_path):
    made = table()
    names = [str(one) for one in images(made)]
    new = np.stack([truth[one] for one in names]).astype(np.float32)
    Q = unit(new[:8] + 0.05).astype(np.float32)
    np.savez(tmp_path / "old.npz", vectors=np.stack([made.old[int(one)] for one in names]), ids=names)
    np.savez(tmp_path / "new.npz", vectors=new, ids=names)
    np.savez(tmp_path / "asked.npz", vectors=Q, ids=[f"q{k}" for k in range(8)])
    first = np.argsort(-(Q @ new.T), axis=1)[:, :10]
    lines = [f"q{k} 0 {names[row]} 1" for k, rows in enumerate(first) for row in rows]
    (tmp_path / "qrels.txt").write_text("\n".join([*lines, "q9 0 x 1", "q0 0 gone 0"]))
    mapping.save(tmp_path / "map")
    words = ("bridge", "search", "map", "--queries", "asked.npz", "--index", "old.npz", "--set", "among=image")
    judged = ("--encode", "new.npz", "--budget", 40, "--set", "qrels=qrels.txt")
    found = json.loads(here(*words, *judged, "--json").ends(0).out)
    before, after = found["scores"]
    hits = [{hit["id"] for hit in found["hits"] if hit["query"] == f"q{k}"} for k in range(8)]
    right = np.mean([len(hits[k] & {names[row] for row in first[k]}) / 10 for k in range(8)])
    assert after["ndcg@10"] > before["ndcg@10"]
    assert after["ndcg@10"] == pytest.approx(right, abs=0.1)
    assert f"ndcg@10 {before['ndcg@10']:.3f} → " in here(*words, *judged).ends(0).out
    here(*words[:-2], "--set", "qrels=qrels.txt").refused("--set qrels without --encode")


def test_bridge_search_refuses_before_anything_is_encoded_or_replaced(here, mapping, truth, tmp_path):
    made = table()
    names = [str(one) for one in images(made)]
    new = np.stack([truth[one] for one in names]).astype(np.float32)
    for name, vectors, ids in (
        ("old", np.stack([made.old[int(one)] for one in names]), names),
        ("new", new, names),
        ("strange", new, [f"x{one}" for one in names]),
        ("asked", new[:2], ["q0", "q1"]),
    ):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).ravel()), vectors.shape[1])
        pq.write_table(pa.table({"photo": ids, "vector": column}), tmp_path / f"{name}.parquet")
    mapping.save(tmp_path / "map")
    (tmp_path / "qrels.txt").write_text(f"q9 0 {names[0]} 1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "journal.json").write_text("{}")
    words = ("bridge", "search", "map", "--queries", "asked.parquet", "--index", "old.parquet", "--ids", "photo")
    words += ("--set", "among=image", "--budget", 10)
    with_file = (*words, "--encode", "new.parquet", "--set")
    before = (tmp_path / "new.parquet").read_bytes()
    here(*with_file, "limit=3", "--out", "new.parquet", "--force").refused("is the source new.parquet")
    assert (tmp_path / "new.parquet").read_bytes() == before
    here(*with_file, "journal=kept", "--set", "qrels=qrels.txt").refused("None of 2 queries is judged")
    assert not (tmp_path / "kept").exists()
    here(*with_file, "journal=notes").refused("notes has other files")
    here(*with_file, "journal=map").refused("map has other files")
    here(*with_file, "journal=").refused("--set journal=")
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_dir()) == ["map", "notes"]
    here(*words, "--encode", "strange.parquet", "--out", "hits.csv").refused("missing from the file")
    here(*words, "--encode", "false {ids} {out}", "--out", "hits.csv").refused("false ended with exit status 1")
    assert not (tmp_path / "hits.csv").exists()
    assert "rows were encoded" in here(*with_file, "journal=kept").ends(0).out
    for part in (tmp_path / "kept" / "encoded").iterdir():
        (part / "model.safetensors").write_bytes(b"")
    here(*with_file, "journal=kept").refused("Remove kept/encoded/part-")
