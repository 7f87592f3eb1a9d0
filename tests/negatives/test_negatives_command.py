"""The command: tables in, tables out, counts, and one sentence for bad input."""

import csv
import json

import pyarrow.parquet as pq
import pytest

from congruence.errors import OutputExistsError, ParameterError, ShapeError
from congruence_papers.negatives import generate, write_negatives

CAPTIONS = ["A cat asleep on a bed.", 'A man in a "red" hat, next to a dog', "xyzzy"]


@pytest.fixture
def table(tmp_path):
    with open(tmp_path / "in.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "image", "caption", "label"])
        writer.writerows([[f"i{k}", f"{k // 2}.jpg", text, "dog"] for k, text in enumerate(CAPTIONS)])
    return tmp_path / "in.csv"


def expected(**options):
    return [(f"i{n.row}", n.caption, n.negative, n.kind) for n in generate(CAPTIONS, **options)]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_every_format_holds_the_same(here, table, tmp_path, suffix):
    result = here("lab negatives", "in.csv", "-o", f"out.{suffix}", "--per-caption", "2", "--seed", "4", "--json").ends(
        0
    )
    path = tmp_path / f"out.{suffix}"
    if suffix == "csv":
        with open(path, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        rows = pq.read_table(path).to_pylist()
    assert [tuple(row.values()) for row in rows] == expected(per_caption=2, random_state=4)
    assert list(rows[0]) == ["id", "caption", "negative", "kind"]
    report = json.loads(result.out)
    assert report["negatives"] == len(rows)
    assert report["captions"] == 3
    assert report["kinds"]["replace_obj"]["without"] == 1
    assert sum(kind["negatives"] for kind in report["kinds"].values()) == len(rows)


def test_kinds_columns_and_groups(here, table, tmp_path):
    result = here(
        "lab negatives", "in.csv", "-o", "a.jsonl", "--kinds", "replace_obj, add_att", "--group-column", "image"
    ).ends(0)
    assert "replace_obj" in result.out
    assert "swap_obj" not in result.out
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    groups = ["0.jpg", "0.jpg", "1.jpg"]
    assert [tuple(row.values()) for row in rows] == expected(kinds=["replace_obj", "add_att"], groups=groups)


def test_lines_of_text(here, tmp_path):
    (tmp_path / "in.txt").write_text("A cat asleep.\nA dog on a mat.\n")
    assert here("lab negatives", "in.txt", "-o", "out.csv", "--kinds", "replace_obj").code == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["in.csv", "-o", "out.csv", "--kinds", "replace_verb"], "expected one of 'replace_obj'"),
        (["in.csv", "-o", "out.csv", "--column", "nothing"], "--column nothing"),
        (["in.csv", "-o", "out.csv", "--group-column", "nothing"], "nothing"),
        (["in.csv", "-o", "out.xml"], "suffix"),
        (["in.csv", "-o", "out.csv", "--per-caption", "0"], "--per-caption 0"),
        (["empty.csv", "-o", "out.csv"], "empty.csv"),
        (["header.csv", "-o", "out.csv"], "No rows"),
        (["blank.txt", "-o", "out.csv"], "blank caption at row 1"),
        (["empty.txt", "-o", "out.csv"], "No rows"),
        (["blank.txt", "-o", "out.csv", "--group-column", "image"], "--group-column"),
        (["absent.csv", "-o", "out.csv"], "absent.csv"),
        (["foreign.txt", "-o", "out.csv", "--kinds", "swap_obj"], "No negatives"),
        (["in.csv", "-o", "there.csv"], "exists"),
        (["in.csv", "-o", "in.csv", "--force"], "in.csv is the source"),
        (["link.csv", "-o", "in.csv", "--force"], "in.csv is the source link.csv"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(here, table, tmp_path, arguments, message):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "header.csv").write_text("caption\n")
    (tmp_path / "blank.txt").write_text("A cat.\n\nA dog.\n")
    (tmp_path / "foreign.txt").write_text("Eine Katze auf dem Bett\n")
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "link.csv").symlink_to(table)
    captions = table.read_text()
    before = sorted(path.name for path in tmp_path.iterdir())
    result = here("lab negatives", *arguments).refused(message)
    assert result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert table.read_text() == captions


def test_writing_from_python(tmp_path):
    made = generate(CAPTIONS)
    write_negatives(made, tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == [str(n.row) for n in made]
    with pytest.raises(OutputExistsError):
        write_negatives(made, tmp_path / "a.csv")
    write_negatives(made[:1], tmp_path / "a.csv", force=True)
    with pytest.raises(ShapeError, match="No negatives"):
        write_negatives([], tmp_path / "b.csv")
    with pytest.raises(ShapeError, match="3 captions and 1 ids"):
        write_negatives(made, tmp_path / "b.csv", ["only"])
    with pytest.raises(ParameterError, match=r"\.csv"):
        write_negatives(made, tmp_path / "b.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
