"""README and docs print what the commands print today. ``python benchmarks/regenerate.py`` writes these blocks anew."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import numpy as np  # noqa: E402

import bench_migrate  # noqa: E402
import bench_serve  # noqa: E402
import dual_encoders  # noqa: E402
import migrate_copies  # noqa: E402
import peers  # noqa: E402
import regenerate  # noqa: E402
from measured import (  # noqa: E402
    BLOCKS,
    JOBS,
    PAGES,
    REFERENCE,
    ROOT,
    SENTENCES,
    Block,
    Job,
    blocks,
    loose_tables,
    records,
    same,
)
from measured.blocks import compact  # noqa: E402
from measured.choice import leads  # noqa: E402

PRINTED = [(page, name) for page in PAGES for name in blocks(page)]
QUICK = [(page, name) for page, name in PRINTED if BLOCKS[name].job is None]
RECORDED = [(page, name) for page, name in PRINTED if BLOCKS[name].job and records.read(BLOCKS[name].job)]
UNRECORDED = [(page, name) for page, name in PRINTED if BLOCKS[name].job and not records.read(BLOCKS[name].job)]
#: Tables of means over splits.
SPREAD = [
    (page, name) for page, name in PRINTED if name.startswith(("few-anchors", "anchors-20", "anchors-50", "anchors-chosen", "text-anchors"))
]  # fmt: skip


def ids(cases):
    return [f"{page.name}-{name}" for page, name in cases]


def test_every_block_stands_on_a_page_and_every_record_is_of_a_job():
    assert {name for _, name in PRINTED} == set(BLOCKS)
    assert {path.stem for path in records.FOLDER.glob("*.json")} <= set(JOBS)


@pytest.mark.parametrize(("page", "name"), QUICK, ids=ids(QUICK))
@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
def test_a_page_prints_what_is_measured(page, name):
    if missing := BLOCKS[name].missing():
        pytest.skip(f"{name} needs {', '.join(missing)}")
    measured = BLOCKS[name].write()
    assert same(blocks(page)[name], measured), f"run python benchmarks/regenerate.py --only {name}\n{measured}"


@pytest.mark.parametrize(("page", "name"), RECORDED, ids=ids(RECORDED))
def test_a_page_prints_its_record(page, name):
    """To the character, and the record is of the commands that would be run today."""
    record = records.read(BLOCKS[name].job)
    assert not records.stale(BLOCKS[name].job, record), f"run python benchmarks/regenerate.py --only {name}"
    assert blocks(page)[name] == BLOCKS[name].write([run["results"] for run in record["runs"]])


@pytest.mark.parametrize(("page", "name"), UNRECORDED, ids=ids(UNRECORDED))
def test_a_page_says_what_has_no_record(page, name):
    """The block says when it was measured, and its writer renders a tiny run of the same command into a table of the same header."""
    block = blocks(page)[name]
    assert re.match(r"\*Measured on 20\d\d-\d\d-\d\d .*not run again since\.\*\n\n\|", block)
    tiny = json.loads((Path(__file__).parent / "measured" / f"{BLOCKS[name].job.name}.json").read_text())
    written = BLOCKS[name].write(tiny)
    assert written.splitlines()[:2] == block.splitlines()[2:4]
    assert len(written.splitlines()) == len(block.splitlines()) - 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_measured_number_stands_in_a_table_outside_a_block(page):
    place = str(page.relative_to(ROOT))
    assert set(loose_tables(page)) == {header for where, header in REFERENCE if where == place}


@pytest.mark.parametrize(("page", "name"), SPREAD, ids=ids(SPREAD))
def test_a_mean_over_splits_stands_with_its_spread(page, name):
    cells = [cell for line in blocks(page)[name].splitlines()[2:] for cell in line.strip("|").split("|")]
    means = [cell for cell in cells if re.match(r" [+−]?\d?\.\d{3}", cell)]
    assert len(means) >= 12
    assert all(re.match(r" [+−]?\d?\.\d{3} ± \d?\.\d{3}", cell) for cell in means)


def test_shares_are_written_without_leading_zeros():
    assert compact(0.7531, 0.0124) == ".753 ± .012"
    assert compact(-0.05, 0.0) == "−.050 ± .000"
    assert compact(0.99996, 0.1) == "1.000 ± .100"


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda s: f"{Path(s.page).stem}: {s.words[:30]}")
@pytest.mark.filterwarnings("ignore::congruence.errors.CongruenceWarning")
def test_a_sentence_has_the_numbers_of_its_table(sentence):
    known = records.results(sentence.job) if sentence.job else None
    assert known != []
    assert sentence.agrees(known), f"{sentence.page} has {sentence.printed()!r}; write {sentence.written(known)!r}"


def test_a_loose_table_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "| a |\n| --- |\n| 0.5 |\n\n<!-- numbers: x -->\n| b |\n| --- |\n| 0.5 |\n<!-- end -->\n\n| c |\n| --- |\n| v1 |\n"
    )
    assert list(loose_tables(page)) == ["| a |"]


def test_records_say_where_they_come_from_and_nothing_of_the_machine():
    for path in records.FOLDER.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert {"job", "date", "congruence", "commit", "machine", "threads", "runs"} <= set(record), path.name
        assert "+changes" not in record["commit"], path.name
        assert not re.search(r"/(?:work|tmp|home|root|usr)\b", path.read_text(encoding="utf-8")), path.name


def test_the_listing_names_every_block(capsys):
    regenerate.listing()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [name for _, name in PRINTED]
    assert all(re.search(r"(python|congruence) \S+", line) for line in lines)


def test_a_job_is_run_kept_and_noticed_when_its_arguments_change(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import json, sys; json.dump({'score': float(sys.argv[1])}, open(sys.argv[2], 'w'))")
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    job = Job("tiny", "minutes", (f"python {script} 0.5 OUT",))
    assert records.read(job) is None
    records.write(job, records.make(job))
    assert records.results(job) == [{"score": 0.5}]
    assert not records.stale(job, records.read(job))
    assert records.stale(replace(job, commands=(f"python {script} 0.6 OUT",)), records.read(job))
    with pytest.raises(RuntimeError, match="ended with"):
        records.make(replace(job, commands=("python no_such_script.py OUT",)))


def test_a_job_that_needs_an_environment_of_its_own_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["measured.blocks"], "ROOT", tmp_path)
    block = Block(str, Job("tiny", "minutes", ("python x.py --python .venv-none/bin/python --json OUT",)))
    assert block.missing() == [".venv-none/bin/python"]
    (tmp_path / ".venv-none" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-none" / "bin" / "python").touch()
    assert block.missing() == []


def test_other_packages_are_not_imported_here_and_named_where_they_are_missing():
    rows = np.eye(4)
    found = peers.run_peers(Path(sys.executable), rows, rows, {"4": (np.arange(4), rows)})
    assert len(found) == len(peers.PEERS)
    assert set(found.values()) == {"not installed"}
    assert not {package.replace("-", "_") for _, package, _ in peers.PEERS} & set(sys.modules)


def test_a_map_leads_within_one_standard_error_of_the_best_that_was_not_chosen():
    """In one column it is behind by 0.1 in every split, in the other by 0.1 in the mean and by more or less in each."""
    best, same = np.array([[0.5, 0.5]] * 4), np.array([[0.4, 0.1], [0.4, 0.7], [0.4, 0.1], [0.4, 0.7]])
    maps = {"a": best, "b": same, "chosen": best, "chosen, other modality seen": best + 1}
    assert leads(maps, "a") == [True, True]
    assert leads(maps, "b") == [False, True]
    assert leads({"a": best, "chosen": best - 0.1}, "chosen") == [False, False]


def test_servers_are_compared_within_rounds():
    """A machine four times as slow in the second round changes both servers alike."""

    def rounds(*seconds):
        return [{"seconds": [one] * 4, "errors": 0, "whole": one, "cpu": one} for one in seconds]

    bridge, plain = bench_serve.summary(rounds(1.5, 4.0)), bench_serve.summary(rounds(1.0, 4.0))
    assert bench_serve.ratios(bridge, plain) == {"p50": [1, 1.25, 1.5], "p99": [1, 1.25, 1.5], "cpu": [1, 1.25, 1.5]}


def test_migrations_are_compared_with_the_copy_of_their_round():
    """A machine four times as slow in the second round changes both alike."""
    rounds = [{way: {"seconds": t * k, "cpu": t * k} for way, t in (("copy", 1), ("fill", 2))} for k in (1, 4)]
    assert bench_migrate.ratios(rounds)["fill"] == {"seconds": [0.5, 0.5, 0.5], "cpu": [0.5, 0.5, 0.5]}


def test_the_mapped_copy_of_postgresql_changes_vectors_and_nothing_else():
    pa = pytest.importorskip("pyarrow")
    from congruence.databases.pgvector import copy_stream

    vectors, ids = np.random.default_rng(0).normal(size=(9000, 3)).astype(np.float32), pa.array(range(9000))
    stream = copy_stream(ids, vectors, "int8", "vector")
    pieces = [stream[k : k + 1000] for k in range(0, len(stream), 1000)]
    made = b"".join(migrate_copies.PgVector.mapped(pieces, 3, lambda X: X[:, ::-1]))
    assert made == copy_stream(ids, vectors[:, ::-1], "int8", "vector")


def test_dual_encoders_and_their_index_share_no_photo_and_no_wording_is_asked_that_was_learned():
    old, new, index = dual_encoders.parts(8242, seed=0)
    assert (len(old), len(new), len(index)) == (2500, 2500, 3242)
    assert len(set(old) | set(new) | set(index)) == 8242
    pair = dual_encoders.Pair(None, None, np.array([3, 1, 3]), ["a.jpg", "b.jpg", "c.jpg"], list("pqrstu"))
    learned, asked = dual_encoders.anchors_and_asked(pair, seed=0, known=False)
    assert sorted([*learned, *asked]) == list(range(6))
    assert [list(classes) for classes in dual_encoders.anchors_and_asked(pair, seed=0, known=True)] == [
        list(range(6))
    ] * 2
    texts = np.arange(6 * 4, dtype=float).reshape(6, 4, 1)
    rows = dual_encoders.anchor_rows(texts, learned)
    assert len(rows) == 3 * 3
    assert not set(rows.ravel()) & set(texts[:, dual_encoders.ASKED].ravel())
    assert pair.judgments(np.array([1, 3])) == {"q": {"b.jpg": 1}, "s": {"a.jpg": 1, "c.jpg": 1}}


def test_check_fails_where_a_page_prints_something_else(tmp_path, monkeypatch, capsys):
    text = "".join(
        f"<!-- numbers: {name} -->\n{BLOCKS[name].write()}<!-- end -->\n" for name in ("metrics", "demo-cosine")
    )
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(regenerate, "PAGES", [page])
    monkeypatch.setattr(sys, "argv", ["regenerate.py", "--check", "--only", "metrics", "demo-cosine"])
    assert regenerate.main() == 0
    page.write_text(text.replace("0 … 1.57", "0 … 1.97"), encoding="utf-8")
    assert regenerate.main() == 1
    assert "metrics: differs" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["regenerate.py", "--only", "metrics"])
    assert regenerate.main() == 0
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("printed", "measured", "equal"),
    [
        ("| a | 0.123 |", "| a | 0.125 |", True),
        ("| a | 0.123 |", "| a | 0.126 |", False),
        ("| a | −0.001 |", "| a | 0.001 |", True),
        ("| a | −0.100 |", "| a | 0.100 |", False),
        ("| a | 0.123 |", "| b | 0.123 |", False),
        ("| a | 0.123 |", "| a | 0.123 | 0.1 |", False),
        ("5,000 anchors", "5,001 anchors", True),
        ("5,000 anchors", "5,010 anchors", False),
    ],
)
def test_numbers_may_differ_by_rounding_only(printed, measured, equal):
    assert same(printed, measured) is equal
