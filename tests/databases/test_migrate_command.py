"""``congruence migrate`` as a user types it, on the in-memory reference database."""

import json
import shlex

import numpy as np
import pytest
from memory_database import MemoryDatabase
from test_migrate import E, N, bits, mapping, pairs, table, unit  # noqa: F401  # a fixture

import congruence.databases
from congruence import LinearMap
from congruence.cli.migrate import shell_command
from congruence.errors import ParameterError
from congruence.io import open_sink


@pytest.fixture
def made(monkeypatch):
    made = table()
    monkeypatch.setattr(congruence.databases, "open_database", lambda where, **names: MemoryDatabase(made))
    return made


@pytest.fixture
def run(here, mapping, tmp_path):  # noqa: F811
    mapping.save(tmp_path / "map")
    return lambda *words: here("migrate", "memory", *words)


def test_the_steps_in_order_with_what_to_type_next(run, made, tmp_path):
    before = bits(made.old)
    planned = run("--map", "map", "--dry-run", "--encode-rate", 50, "--price", 0.001)
    assert planned.code == 0
    for words in (f"{N}", "20 to 24 components", "0.30", "keeps no description", "none given"):
        assert words in planned.out
    assert made.made is None
    assert not list(tmp_path.glob("migration-*"))
    asked = run("--map", "map")
    assert (asked.code, made.made) == (2, None)
    assert "--yes" in asked.err
    done = run("--map", "map", "--yes")
    assert done.code == 0, done.err
    assert "verified" in done.out
    assert "Next: congruence migrate memory switch\n" in done.out
    assert not made.switched
    assert run("switch").code == 0
    assert made.switched
    assert "switch, with" not in run("verify").out  # it is switched already
    assert "verified\n" in run("status").out  # an event a line, whole
    status = json.loads(run("status", "--json").out)
    assert (status["state"], status["stage"], status["rows_mapped"]) == ("switched", "switched", N)
    back = run("rollback")
    assert "bit for bit as before" in back.out
    assert not made.switched
    assert bits(made.old) == before
    refused = run("drop-old", "--yes")
    assert refused.code == 2
    assert "rolled back; to drop the old vectors" in refused.err
    assert run("verify").code == 0
    assert run("switch").code == 0
    assert run("drop-old").code == 2
    assert run("drop-old", "--yes").code == 0
    assert not made.switched
    assert len(next(iter(made.old.values()))) == E


def test_the_next_step_can_be_shell_command_as_it_is_printed_without_a_password(run, made):
    done = run("--map", "map", "--yes", "--table", "my photos", "--journal", "my j")
    assert done.code == 0, done.err
    assert "Next: congruence migrate memory switch --table 'my photos' --journal 'my j'\n" in done.out
    said = shell_command("postgresql://me:s3cret@host/db", "switch", table="photos", column=None)
    assert said == "congruence migrate 'postgresql://me:***@host/db' switch --table photos"
    assert shlex.split(shell_command("qdrant:///a b?x=1", "switch"))[2] == "qdrant:///a b?x=1"


def test_json_is_all_that_is_printed(run, made):
    plan = json.loads(run("plan", "--map", "map", "--json").out)
    assert {"rows", "checks", "minutes", "bytes_new"} <= set(plan)
    result = json.loads(run("--map", "map", "--yes", "--json").out)
    assert (result["passed"], result["rows_new"]) == (True, N)
    assert json.loads(run("switch", "--json").out)["rows"] == N


def test_a_plan_says_what_a_type_costs_and_a_run_how_queries_are_to_be_quantized(run, made, tmp_path):
    planned = run("--map", "map", "--element-type", "int8", "--dry-run")
    costs = ("float32 to int8", "int8: round(x /", "of the 10 nearest rows in float32", "no scratch table")
    for words in costs:
        assert words in planned.out
    done = run("--map", "map", "--element-type", "int8", "--yes", "--journal", "j")
    assert done.code == 0, done.err
    rule = next(line for line in done.out.splitlines() if line.startswith("Quantize queries in the same way"))
    assert rule.split(": int8")[1] in planned.out.replace("stored as", "")
    assert "recall as stored" in done.out
    ranges = np.load(tmp_path / "j" / "ranges.npy")
    assert f"{ranges[1, 0] / 127:.4g}"[:5] in rule
    assert run("discard", "--journal", "j", "--yes").code == 0
    assert not (tmp_path / "j" / "ranges.npy").exists()
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
        ("narrow.npy", "--old-ranges"),
    ):
        refused = run("plan", "--map", "map", "--old-ranges", path)
        assert refused.code == 2
        assert match in refused.err
    np.save(tmp_path / "old.npy", np.repeat([[-1.28], [1.27]], len(row), axis=1))
    assert (
        "unknown, since the vectors before their quantization to int8"
        in run("plan", "--map", "map", "--old-ranges", "old.npy").out
    )


def test_what_does_not_verify_ends_with_one(run, made, tmp_path):
    names = list(made.old)[:40]
    good = unit(np.random.default_rng(5).normal(size=(40, E)))
    with open_sink(tmp_path / "new.npz", n=40, dim=E, has_ids=True) as sink:
        import pyarrow as pa

        sink.write(pa.array(names), good)
    done = run("--map", "map", "--yes", "--heldout", "new.npz")
    assert done.code == 1
    assert "no better than chance" in done.out
    assert run("switch").code == 2


def test_a_certificate_is_heeded_and_files_that_are_none_are_refused(run, made, tmp_path):
    result = {"verdict": {"action": "keep", "headline": "keep the old model", "reason": "it is better"}, "facts": {}}
    (tmp_path / "c.json").write_text(json.dumps(result))
    (tmp_path / "bad.json").write_text("{")
    against = run("--map", "map", "--yes", "--certificate", "c.json")
    assert against.code == 2
    assert "keep the old model: it is better" in against.out
    assert "--anyway" in against.err
    assert made.made is None
    for name in ("bad.json", "none.json"):
        refused = run("--map", "map", "--yes", "--certificate", name)
        assert refused.code == 2
        assert name in refused.err
    assert run("--map", "map", "--yes", "--certificate", "c.json", "--anyway").code == 0


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("sideways", "--map", "map"), "sideways"),
        (("switch",), "no map, and no journal"),
        (("switch", "--dry-run"), "--dry-run"),
        (("--map", "nowhere"), "nowhere"),
        (("--map", "map", "--resume"), "Nothing to resume"),
        (("--map", "map", "--element-type", "float8"), "float8"),
        (("--map", "map", "--modality", "smell"), "smell"),
        (("--map", "map", "--encode-rate", "-1", "--dry-run"), "--encode-rate"),
    ],
)
def test_bad_words_are_refused(run, made, words, match):
    done = run(*words)
    assert done.code == 2
    assert match in done.err
    assert made.made is None


def test_a_map_of_another_width_ends_with_two(run, made, tmp_path):
    LinearMap().fit(np.eye(3), np.ones((3, 2))).save(tmp_path / "narrow")
    for words in (["--yes"], ["--dry-run"], ["plan", "--json"]):
        done = run(*words, "--map", "narrow")
        assert (done.code, done.out) == (2, "")
        assert "20-d" in done.err
        assert "3-d" in done.err
    assert made.made is None


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
