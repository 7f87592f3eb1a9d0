"""``congruence migrate`` as a user types it, on the in-memory reference database."""

import json
import re
import shlex
import sqlite3
import sys

import duckdb
import numpy as np
import pytest
from memory_database import MemoryDatabase
from test_migrate import D, E, N, bits, mapping, pairs, table, unit  # noqa: F401  # a fixture

import congruence.databases
from congruence import OrthogonalMap, fit
from congruence.cli.migrate import ACTIONS
from congruence.embeddings import Space
from congruence.errors import ParameterError
from congruence.io import open_sink
from congruence.upgrade.migrate import Migration


@pytest.fixture
def made(monkeypatch):
    made = table()
    made.opened = []
    monkeypatch.setattr(
        congruence.databases, "open_database", lambda where, **names: made.opened.append(names) or MemoryDatabase(made)
    )
    return made


def certify(folder, mapping, action="map", modality="other", **facts):  # noqa: F811
    """Write what ``congruence check -o FOLDER`` writes."""
    mapping.save(folder / "map", force=True)
    verdict = {"action": action, "headline": f"{action} it", "reason": "so it is", "share": None}
    content = {"verdict": {**verdict, **facts}, "facts": {"modality": modality}}
    (folder / "certificate.json").write_text(json.dumps(content))


@pytest.fixture
def run(here, mapping, tmp_path):  # noqa: F811
    mapping.save(tmp_path / "map")
    (tmp_path / "checked").mkdir()
    certify(tmp_path / "checked", mapping)
    return lambda *words: here("migrate", "memory", *words)


def next_command(done):
    """Return the words after ``congruence migrate memory`` of the command that is to be copied."""
    (line,) = [line for line in done.out.splitlines() if line.startswith(("Next: ", "Once you are sure: "))]
    words = shlex.split(line.partition(": ")[2])
    assert words[:3] == ["congruence", "migrate", "memory"]
    return words[3:]


def test_every_next_command_can_be_copied_and_needs_no_option_twice(run, made, mapping, tmp_path):  # noqa: F811
    before = bits(made.old)
    planned = run("plan", "--from", "checked", "--modality-column", "kind", "--table", "t", "--set", "price=0.001")
    planned.ends(0)
    for words in (f"{N}", "20 to 24 components", "0.30", "map it: so it is"):
        assert words in planned.out
    assert made.made is None
    assert not list(tmp_path.glob("migration-*"))
    words = next_command(planned)
    assert words[:3] == ["run", "--from", "checked"]
    asked = run(*words).ends(2)
    assert "--yes" in asked.err
    assert made.made is None
    done = run(*words, "--yes").ends(0)
    assert "verified" in done.out
    assert not made.switched
    assert next_command(done) == ["switch"]
    done = run("switch").ends(0)
    assert made.opened[-1] == {"table": "t", "column": None, "ids": None, "modality_column": "kind", "rows": None}
    assert made.switched
    assert next_command(done) == ["finish"]
    status = run("status").ends(0)
    assert "readers see the new vectors; the old ones are kept" in status.out
    status = json.loads(run("status", "--json").out)
    assert (status["state"], status["stage"], status["rows_mapped"]) == ("switched", "switched", N)
    back = run("rollback").ends(0)
    assert "bit for bit as before" in back.out
    assert (made.switched, bits(made.old)) == (False, before)
    assert next_command(back) == ["verify"]
    done = run("verify").ends(0)
    run(*next_command(done)).ends(0)
    assert "--yes" in run("finish").ends(2).err
    assert len(next(iter(made.old.values()))) == D
    assert "congruence" not in run("finish", "--yes").ends(0).out
    assert not made.switched
    assert len(next(iter(made.old.values()))) == E
    assert "nothing" in run("status").out
    for action in ("plan", "run"):
        run(action, "--map", "map").refused("--journal")
    mapping.inverse().save(tmp_path / "back")
    run("run", "--map", "back", "--journal", "j", "--yes").ends(0)
    run("switch").ends(0)  # the migration that has not ended


@pytest.mark.parametrize("action", ["discard", "finish"])
def test_new_vectors_that_nobody_sees_are_removed_with_what_was_kept(run, made, tmp_path, action):
    run("run", "--map", "map", "--yes", "--journal", "j").ends(0)
    done = run(action, "--yes").ends(0)
    assert next_command(done) == ["run", "--map", "map"]
    assert made.made is None
    assert [path.name for path in (tmp_path / "j").iterdir()] == ["map"]


def test_a_run_that_was_stopped_continues_without_its_options(run, made, monkeypatch):
    real = MemoryDatabase.build_index
    monkeypatch.setattr(MemoryDatabase, "build_index", lambda self: 1 / 0)
    stopped = run("run", "--from", "checked", "--set", "element_type=float16", "--yes").ends(70)
    assert "To continue: congruence migrate memory run" in stopped.err
    assert "finish the run" in run("status").out
    monkeypatch.setattr(MemoryDatabase, "build_index", real)
    assert json.loads(run("run", "--json").ends(0).out)["rows_new"] == N
    assert made.made[1] == "float16"


@pytest.mark.parametrize(
    ("before", "action", "method", "said"),
    [
        ((), "plan", "scan", "nothing was written"),
        ((), "run", "scan", "nothing was written"),
        ((), "run", "write", "To continue: congruence migrate memory run"),
        ((), "run", "search", "Repeat the command"),
        (("run",), "status", "count", "nothing was written"),
        (("run",), "verify", "search", "Repeat the command"),
        (("run",), "switch", "_show_new", "Repeat the command"),
        (("run",), "discard", "_remove_new", "Repeat the command"),
        (("run", "switch"), "rollback", "_show_old", "Repeat the command"),
        (("run", "switch"), "finish", "_remove_old", "Repeat the command"),
    ],
)
def test_a_step_that_is_interrupted_says_what_is_kept_and_the_same_command_goes_on(
    run, made, monkeypatch, before, action, method, said
):
    words = {"plan": ("--map", "map"), "run": ("--map", "map", "--yes")}
    words |= dict.fromkeys(("discard", "finish"), ("--yes",))
    for step in before:
        run(step, *words.get(step, ())).ends(0)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDatabase, method, interrupt)
        stopped = run(action, *words.get(action, ())).ends(130).err
    assert said in stopped.splitlines()[-1]
    assert ("status" in stopped) == (said == "Repeat the command")
    assert ("nothing was written" in stopped) == (said == "nothing was written")
    run(action, *words.get(action, ())).ends(0)


@pytest.mark.parametrize(
    ("state", "action", "following"),
    [
        ((), "switch", "run --from FOLDER"),
        ((), "status", "run --from FOLDER"),
        (("run",), "drop-old", "switch"),
        (("run", "switch"), "run", "rollback"),
        (("run", "switch"), "discard", "rollback"),
        (("run", "switch"), "plan", "status"),
        (("run", "switch", "rollback"), "switch", "verify"),
        (("run", "switch", "rollback"), "drop-old", "verify"),
        (("run", "switch", "drop-old"), "rollback", ""),
    ],
)
def test_an_action_out_of_order_says_what_to_type(run, made, state, action, following):
    for step in state:
        run(step, *(["--map", "map"] if step == "run" else []), *(["--yes"] if step in ("run", "drop-old") else []))
    before = bits(made.old), bits(made.new), made.switched
    run(action, *(["--yes"] if action == "drop-old" else [])).refused(
        following and f"congruence migrate memory {following}"
    )
    assert (bits(made.old), bits(made.new), made.switched) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_in_place_of_the_address_says_what_to_type(here, action):
    here("migrate", action, "photos.lance").refused(f"Type: congruence migrate photos.lance {action}")
    assert "Example: congruence migrate library/photos.lance" in here("migrate", action, "--help").ends(0).out


@pytest.mark.long
def test_every_printed_command_finds_its_journal_among_others(here, mapping, tmp_path):  # noqa: F811
    """Two columns of one table, each with its own default journal."""
    duckdb = pytest.importorskip("duckdb")
    mapping.save(tmp_path / "map")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as client:
        client.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, a FLOAT[{D}], b FLOAT[{D}])")
        rows = pairs("image", N, 3)[0].tolist()
        client.executemany("INSERT INTO t VALUES (?, ?, ?)", [(k, row, row) for k, row in enumerate(rows)])

    def follow(*words):
        """Run a command, and return the command that it prints, on standard error if it fails."""
        done = here("migrate", "t.duckdb", *words)
        lines = [line for line in (done.out + done.err).splitlines() if "congruence migrate t.duckdb" in line]
        return done, shlex.split(lines[-1].rpartition("congruence migrate t.duckdb ")[2].partition(" first.")[0])

    begin = ("--map", "map", "--modality", "image")
    for column in "ab":
        planned, words = follow("plan", *begin, "--column", column)
        planned.ends(0)
        run, following = follow(*words, "--yes")
        run.ends(0)
    journals = sorted(path.name for path in tmp_path.glob("migration-*"))
    assert following[:2] == ["switch", "--journal"]
    for journal in journals:
        refused, words = follow("drop-old", "--yes", "--journal", journal)
        refused.refused()
        done, words = follow(*words)
        done.ends(0)
        assert words == ["finish", "--journal", journal]
        refused, words = follow("discard", "--yes", "--journal", journal)
        refused.refused()
        done, words = follow(*words)
        done.ends(0)
        assert words == ["verify", "--journal", journal]
    done, words = follow("finish", "--yes", "--journal", journals[0])
    done.ends(0)
    column = words[words.index("--column") + 1]
    again, words = follow("run", *begin, *words[3:], "--yes")
    again.ends(0)
    status = json.loads(here("migrate", "t.duckdb", "status", *words[1:], "--json").out)
    assert status["place"].endswith(column)


def test_a_journal_of_another_database_says_which(run, here, made):
    run("run", "--map", "map", "--journal", "j", "--yes").ends(0)
    here("migrate", "other", "switch", "--journal", "j").refused("memory status --journal j")
    here("migrate", "./memory", "switch").ends(0)


def test_another_map_than_the_one_that_was_begun_with_is_refused(run, made, mapping, tmp_path):  # noqa: F811
    run("run", "--map", "map", "--yes").ends(0)
    mapping.for_modality("image").save(tmp_path / "other")
    run("run", "--map", "other").refused("congruence migrate memory discard")


@pytest.mark.parametrize("content", ["{", "[]", '{"url": 3}'])
def test_damaged_options_are_refused(run, made, tmp_path, content):
    run("run", "--map", "map", "--journal", "j", "--yes").ends(0)
    (tmp_path / "j" / "options.json").write_text(content)
    run("switch").refused("options.json")


def test_another_user_of_a_server_goes_on(run, here, made, tmp_path):
    here("migrate", "postgresql://one@host/db", "run", "--map", "map", "--yes").ends(0)
    (journal,) = tmp_path.glob("migration-*")
    here("migrate", "postgresql://two@host/db", "switch").ends(0)
    assert made.switched
    here("migrate", "postgresql:///db?host=host", "rollback", "--journal", journal).refused("is the journal of")
    here("migrate", "postgresql://host/db", "rollback", "--journal", journal).ends(0)
    assert not made.switched


def test_no_password_is_kept_or_printed(here, made, mapping, tmp_path):  # noqa: F811
    mapping.save(tmp_path / "map")
    refused = here("migrate", "postgresql://me:s3cret@host/db", "run", "--map", "map", "--yes").refused("PGPASSWORD")
    assert "s3cret" not in refused.err
    assert not list(tmp_path.glob("migration-*"))
    url = "postgresql://me@host/db"
    here("migrate", url, "run", "--map", "map", "--yes").ends(0)
    (kept,) = tmp_path.glob("migration-*/options.json")
    here("migrate", url, "switch").ends(0)
    command = f"{sys.executable} -c 1 --api-key=s3cret {{ids}} {{out}}"
    here("migrate", url, "reembed", "--encode", command, "--share", 0.1, "--modality", "image").refused()
    assert "s3cret" not in kept.read_text()


def test_json_is_all_that_is_printed(run, made):
    plan = json.loads(run("plan", "--map", "map", "--json").out)
    assert {"rows", "checks", "minutes", "bytes_new", "next"} <= set(plan)
    for action, expected in (("run", {"passed": True, "rows_new": N}), ("verify", {"passed": True}),
                             ("switch", {"rows": N}), ("rollback", {"identical": True}),
                             ("finish", {"removed": "new"})):  # fmt: skip
        words = ["--map", "map", "--yes"] if action == "run" else ["--yes"] if action == "finish" else []
        result = json.loads(run(action, *words, "--json").out)
        assert expected.items() <= result.items()
        assert "next" in result


def test_a_plan_says_what_a_type_costs_and_a_run_how_queries_are_to_be_quantized(run, made, tmp_path):
    planned = run("plan", "--map", "map", "--set", "element_type=int8")
    for words in ("float32 to int8", "int8: round(x /", "of the 10 nearest rows in float32", "no scratch table"):
        assert words in planned.out
    done = run("run", "--map", "map", "--set", "element_type=int8", "--yes", "--journal", "j").ends(0)
    rule = next(line for line in done.out.splitlines() if line.startswith("Quantize queries in the same way"))
    assert rule.split(": int8")[1] in planned.out.replace("stored as", "")
    assert "recall as stored" in done.out
    ranges = np.load(tmp_path / "j" / "ranges.npy")
    assert f"{ranges[1, 0] / 127:.4g}"[:5] in rule
    run("discard", "--yes").ends(0)
    made.element_type = "int8"
    for one, row in made.old.items():
        made.old[one] = np.rint(100 * row)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    np.save(tmp_path / "narrow.npy", np.ones((2, 3)))
    np.savez(tmp_path / "several.npz", low=np.zeros(3), high=np.ones(3))
    for path, match in (
        ("bad.npy", "is not an .npy file"),
        ("several.npz", "is not an .npy file"),
        ("none.npy", "none.npy"),
        ("narrow.npy", "old_ranges"),
    ):
        run("plan", "--map", "map", "--set", f"old_ranges={path}").refused(match)
    np.save(tmp_path / "old.npy", np.repeat([[-1.28], [1.27]], len(row), axis=1))
    planned = run("plan", "--map", "map", "--set", "old_ranges=old.npy")
    assert "unknown, since the vectors before their quantization to int8" in planned.out


def test_what_does_not_verify_ends_with_one(run, made, tmp_path):
    names = list(made.old)[:40]
    good = unit(np.random.default_rng(5).normal(size=(40, E)))
    with open_sink(tmp_path / "new.npz", n=40, dim=E, has_ids=True) as sink:
        import pyarrow as pa

        sink.write(pa.array(names), good)
    run("run", "--map", "map", "--yes").ends(0)
    done = run("verify", "--heldout", "new.npz").ends(1)
    assert "no better than chance" in done.out
    run("switch").refused("congruence migrate memory run")


def test_what_was_written_between_run_and_verify_leads_to_the_run_that_maps_it(run, made):
    run("run", "--map", "map", "--yes").ends(0)
    for one in list(made.old)[:30]:
        made.old[one] = -made.old[one]
    done = run("verify").ends(1)
    assert "changed since the run" in done.out
    assert next_command(done) == ["run"]
    assert "run again" in run("status").out
    run("switch").refused("congruence migrate memory run")
    run("run").ends(0)
    run("switch").ends(0)


def test_a_run_that_another_began_since_the_plan_keeps_its_options(run, made, monkeypatch, tmp_path):
    plan, calls = Migration._plan, []

    def late(migration, *given, **options):
        calls.append(migration)
        found = plan(migration, *given, **options)
        if len(calls) == 2:  # the plan of the run itself
            run("run", "--map", "map", "--modality-column", "kind", "--table", "t", "--yes").ends(0)
        return found

    monkeypatch.setattr(Migration, "_plan", late)
    run("run", "--map", "map", "--modality", "image", "--yes").ends(2)
    (kept,) = tmp_path.glob("migration-*/options.json")
    assert json.loads(kept.read_text())["table"] == "t"
    run("switch").ends(0)
    assert made.opened[-1]["modality_column"] == "kind"


@pytest.mark.parametrize("action", ["status", "verify", "switch", "rollback", "discard"])
def test_a_folder_that_is_no_journal_is_answered_with_the_one_that_is_here(run, made, tmp_path, action):
    run("run", "--map", "map", "--modality-column", "kind", "--yes").ends(0)
    (here,) = tmp_path.glob("migration-*")
    refused = run(action, "--journal", "elsewhere").refused(f"Pass --journal {here.name}")
    assert not made.switched
    run("status", *re.findall(r"--journal [\w-]+", refused.err)[-1].split()).ends(0)


@pytest.mark.parametrize("since", [(), ("verify",), ("change", "verify"), ("change", "verify", "run")])
@pytest.mark.parametrize("action", ["finish", "discard"])
def test_rows_with_only_a_new_vector_lead_to_commands_that_work(run, made, since, action):
    run("run", "--map", "map", "--yes", "--modality-column", "kind").ends(0)
    run("switch").ends(0)
    one = max(made.rows) + 1
    made.rows[one], made.new[one] = {"kind": "image"}, unit(np.ones((1, E)))[0]
    run("rollback", "--new-rows", "keep").ends(0)
    for step in since:
        if step == "change":
            made.old |= {name: -row for name, row in list(made.old.items())[:30]}
        else:
            run(step).ends(int(step == "verify" and "change" in since))
    refused = run(action, "--yes").refused("have only a new vector")
    commands = re.findall(r"congruence migrate memory (\w+)", refused.err)
    assert commands[-1] == "switch"
    for command in commands:
        run(command).ends(0)
    assert made.switched
    assert (made.new[one] == unit(np.ones((1, E)))[0]).all()
    run("finish", "--yes").ends(0)
    assert made.old.keys() == made.rows.keys()


def test_the_certificates_advice_and_share_are_heeded(run, made, mapping, tmp_path):  # noqa: F811
    certify(tmp_path / "checked", mapping, "keep")
    assert "keep it: so it is" in run("plan", "--from", "checked").ends(1).out
    against = run("run", "--from", "checked", "--yes").ends(2)
    assert "keep it: so it is" in against.out
    assert "anyway" in against.err
    assert made.made is None
    assert "--yes" in run("run", "--from", "checked", "--set", "anyway=true").ends(2).err
    assert made.made is None
    run("run", "--from", "checked", "--yes", "--set", "anyway=true").ends(0)
    run("discard", "--yes").ends(0)
    certify(tmp_path / "checked", mapping, "progressive", share=0.1)
    assert next_command(run("run", "--from", "checked", "--yes").ends(0)) == ["switch"]
    assert next_command(run("switch").ends(0)) == ["reembed", "--encode", "FILE"]
    names = list(made.old)
    np.savez(tmp_path / "new.npz", v=np.stack([made.new[one] for one in names]), ids=np.array(names).astype(str))
    words = ("reembed", "--encode", "new.npz", "--modality", "image", "--set", "batch=10", "--json")
    last = json.loads(run(*words).ends(0).out)["stages"][-1]
    assert last["n_embedded"] == round(0.1 * 200)
    more = json.loads(run("reembed", "--budget", 30, "--json").ends(0).out)["stages"]  # the rest is kept
    assert more[-1]["n_embedded"] == 30


@pytest.mark.parametrize("damage", ["{", None])
def test_a_folder_without_a_certificate_is_refused(run, made, tmp_path, damage):
    path = tmp_path / "checked" / "certificate.json"
    path.write_text(damage) if damage else path.unlink()
    run("run", "--from", "checked", "--yes").refused("certificate.json", "congruence check OLD NEW -o FOLDER")


def test_maps_that_do_not_fit_the_rows_are_refused(run, made, mapping, tmp_path):  # noqa: F811
    mapping.inverse().save(tmp_path / "back")
    OrthogonalMap().fit(np.eye(9), np.eye(9)).save(tmp_path / "narrow")
    for name, words in (("back", "congruence check OLD NEW -o FOLDER"), ("narrow", "expected 9-d")):
        for action in (("plan",), ("run", "--yes")):
            run(*action, "--map", name).refused(words)
    old, new = pairs("image", 200, 1)
    fit(unit(new[:, :D]), old, modality="image").save(tmp_path / "swapped")
    for action in (("plan",), ("run", "--yes")):  # the same width, but rows of the model to which it leads
        assert "new model" in run(*action, "--map", "swapped", "--modality", "image").ends(2).err
    assert made.made is None
    assert not list(tmp_path.glob("migration-*"))


@pytest.mark.parametrize(("certified", "words"), [("image", "--also text=OLD,NEW"), ("other", "--modality text")])
def test_a_certificate_of_another_modality_than_the_store_is_answered_with_a_check(
    run, made, tmp_path, certified, words
):
    made.space = Space(modality="text")
    certify(tmp_path / "checked", fit(*pairs("image", 200, 1), modality=certified), modality=certified)
    typed = f"congruence check OLD NEW {words} -o checked --force"
    run("plan", "--from", "checked").refused("Got text rows", typed)


@pytest.mark.parametrize("action", [("plan",), ("run", "--yes")])
def test_a_modality_that_nothing_tells_is_asked_for(run, made, tmp_path, action):
    """The store's own record tells it, then the certificate."""
    kinds = {one: row.pop("kind") for one, row in made.rows.items()}
    both = fit(*pairs("image", 200, 1), modality="image", means={"text": pairs("text", 200, 2)})
    certify(tmp_path / "checked", both)
    run(*action, "--from", "checked").refused("--modality image")
    run(*action, "--from", "checked", "--modality", "audio").refused("audio")
    for one in (one for one, kind in kinds.items() if kind == "image"):
        del made.rows[one], made.old[one]
    made.space = Space(modality="text")
    run(*action, "--from", "checked", "--modality", "image").refused("recorded as text", "--modality")
    run(*action, "--from", "checked").ends(0)
    run("discard", "--yes")
    made.space = Space()
    certify(tmp_path / "checked", both, modality="text")
    run(*action, "--from", "checked").ends(0)
    if action[0] == "run":
        (journal,) = tmp_path.glob("migration-*/journal.json")
        assert json.loads(journal.read_text())["modality"] == "text"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("sideways", "--map", "map"), "sideways"),
        (("run",), "--from"),
        (("run", "--from", "checked", "--map", "map"), "--map"),
        (("run", "--map", "nowhere"), "nowhere"),
        (("run", "--map", "map", "--set", "element_type=float8"), "float8"),
        (("run", "--map", "map", "--modality", "smell"), "smell"),
        (("plan", "--map", "map", "--set", "encode_rate=-1"), "encode_rate"),
        (("plan", "--map", "map", "--set", "encode_rate=soon"), "encode_rate"),
        (("plan", "--map", "map", "--set", "anyway=perhaps"), "anyway"),
        (("plan", "--map", "map", "--set", "speed=9"), "speed"),
        (("switch", "--set", "element_type=int8"), "element_type"),
        (("switch", "--dry-run"), "--dry-run"),
    ],
)
def test_bad_words_are_refused(run, made, words, match):
    done = run(*words).ends(2)
    assert match in done.err
    assert made.made is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan", "--mixed"), {"mixed": True, "allow_unknown": False}),
        (("run", "--yes", "--allow-unknown"), {"mixed": False, "allow_unknown": True}),
        (("rollback", "--new-rows", "map-back"), {"new_rows": "map-back"}),
    ],
)
def test_a_flag_arrives(run, made, monkeypatch, words, expected):
    from congruence import Migration

    def arrive(self, **options):
        raise ParameterError(json.dumps({name: options[name] for name in expected}), "Arrived.")

    if words[0] == "rollback":
        run("run", "--map", "map", "--yes").ends(0)
    monkeypatch.setattr(Migration, words[0], arrive)
    if words[0] == "run":
        monkeypatch.setattr(Migration, "plan", arrive)
    done = run(*words, *([] if words[0] == "rollback" else ["--map", "map"]))
    assert json.loads(done.err.removeprefix("error: ").removesuffix(" Arrived.\n")) == expected


def test_a_place_that_is_no_database_is_refused_without_its_password():
    with pytest.raises(ParameterError, match="photos.txt"):
        congruence.databases.open_database("photos.txt")
    with pytest.raises(ParameterError, match="mysql") as caught:
        congruence.databases.open_database("mysql://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


def test_an_address_shows_no_secret():
    from congruence.databases import Address

    words = "me:hun%40ter2@host:5432/db?sslmode=require&password=second1"
    for text, secrets in [
        (f"postgresql://{words}", ("hun%40ter2", "hun@ter2", "second1")),
        ("https://host:6333?api_key=k3yk3y", ("k3yk3y",)),
        ("postgres://me:p[w@host/db", ("p[w",)),
    ]:
        address = Address.parse(text)
        for secret in secrets:
            assert secret not in address.shown
            assert secret not in repr(address)
            assert secret not in address.hide(f"could not connect to {text}: {secret} is wrong")
        assert "host" in address.shown or "***" in address.shown
    plain = Address.parse("postgresql://me@host/db?sslmode=require")
    assert plain.shown == "postgresql://me@host/db?sslmode=require"
    local = ("milvus:///a/my.db", "qdrant:///folder", "sqlite:////abs/x.db", "chroma://./folder", "postgresql:///db")
    for text in local:
        assert Address.parse(text).shown == text  # the next command is printed with it


@pytest.mark.parametrize("name", ["a.sqlite", "a.duckdb", "lancedb://a"])
def test_a_database_without_tables_says_so(here, mapping, tmp_path, name):  # noqa: F811
    mapping.save(tmp_path / "map")
    what = "vec0 tables" if name == "a.sqlite" else "tables"
    (tmp_path / "a").mkdir()
    sqlite3.connect(tmp_path / "a.sqlite").execute("VACUUM").connection.close()
    duckdb.connect(str(tmp_path / "a.duckdb")).close()
    here("migrate", name, "plan", "--map", "map").refused(f"{name} has no {what}")
    here("migrate", name, "switch").refused(f"{name} has no {what}")


def test_a_step_that_would_need_a_table_says_that_no_migration_has_begun(here, tmp_path):
    with duckdb.connect(str(tmp_path / "a.duckdb")) as user:
        user.execute("CREATE TABLE one (id INTEGER, v FLOAT[2]); CREATE TABLE two (id INTEGER, v FLOAT[2])")
    done = here("migrate", "a.duckdb", "switch").ends(2)
    assert "No migration of this database has begun here. a.duckdb has 2 tables" in done.err
    assert "congruence migrate a.duckdb run" in done.err
