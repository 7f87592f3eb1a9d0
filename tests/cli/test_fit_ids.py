"""What ``congruence fit`` pairs rows by, and what it says when it cannot."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import congruence
from congruence.io.id_columns import id_columns, id_fault, usual_id_column
from congruence.synthetic import rigid_problem

N = 60
P = rigid_problem(N, 5, 5, noise=0.05, random_state=0)
NAMES = np.array([f"item {k}" for k in range(N)])
ORDER = np.random.default_rng(0).permutation(N)


def table(path, vectors, /, **columns):
    pq.write_table(pa.table({"vector": list(vectors), **columns}), path)


def paired(here, *arguments):
    """Fit, and return what was paired by and whether partners found each other."""
    result = here("fit", *arguments, "-o", "map", "--force", "--json").ends(0)
    facts = json.loads(result.out)
    return facts["paired_by"], facts["scores"]["pairing"]["looks_paired"], result.err


def test_arrays_named_names_pair_rows_that_lie_in_another_order(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, names=NAMES)
    np.savez(tmp_path / "b.npz", v=P.Y[ORDER], names=NAMES[ORDER])
    assert paired(here, "a.npz:v", "b.npz:v") == ("id (names)", True, "")
    by, looks, said = paired(here, "a.npz:v", "b.npz:v", "--ids", "none")
    assert (by, looks) == ("position", False)
    assert "do not look paired" in said


def test_tables_pair_by_id_also_with_arrays_whose_ids_have_another_name(here, tmp_path):
    table(tmp_path / "a.parquet", P.X, id=np.arange(N))
    np.savez(tmp_path / "b.npz", v=P.Y[ORDER], names=ORDER)
    assert paired(here, "a.parquet", "b.npz:v") == ("id (names)", True, "")
    table(tmp_path / "b.parquet", P.Y[ORDER], id=ORDER)
    assert paired(here, "a.parquet", "b.parquet") == ("id", True, "")
    assert "paired by" in here("fit", "a.parquet", "b.parquet", "-o", "other").out


def test_means_leave_held_out_items_out_by_the_ids_that_were_found(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, w=P.X + 1, names=NAMES)
    np.savez(tmp_path / "b.npz", v=P.Y, w=P.Y + 1, names=NAMES)
    common = ["fit", "a.npz:v", "b.npz:v", "--method", "orthogonal", "--modality", "image", "--holdout", "20"]
    common += ["--means", "text=a.npz:w,b.npz:w"]
    assert here(*common, "-o", "found").code == here(*common, "-o", "named", "--ids", "names").code == 0
    found, named = (congruence.load(tmp_path / name).modality_means_ for name in ("found", "named"))
    np.testing.assert_array_equal(found["text"], named["text"])


def test_rows_without_ids_on_one_side_pair_by_position(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, names=NAMES)
    np.save(tmp_path / "b.npy", P.Y)
    assert paired(here, "a.npz:v", "b.npy") == ("position", True, "")


def test_ids_that_differ_in_part_are_counted(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, ids=NAMES)
    np.savez(tmp_path / "b.npz", v=P.Y, ids=np.where(np.arange(N) < 4, np.char.add(NAMES, "!"), NAMES))
    by, looks, said = paired(here, "a.npz:v", "b.npz:v")
    assert (by, looks) == ("id", True)
    assert "differ in 4 of 60 rows; the other 56 are paired by id. Pass --set missing=error" in said
    assert paired(here, "a.npz:v", "b.npz:v", "--ids", "ids")[2] == ""  # who names ids knows them


def test_ids_with_nothing_in_common_are_refused(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, names=NAMES)
    np.savez(tmp_path / "b.npz", v=P.Y, names=np.char.add(NAMES, "!"))
    here("fit", "a.npz:v", "b.npz:v", "-o", "map").refused(
        "(item 0, …) and b.npz:v (item 0!, …) that differ in 60 of 60 rows",
        "Pass --ids COLUMN for others, or --ids none to pair by position.",
    )
    assert not (tmp_path / "map").exists()
    assert paired(here, "a.npz:v", "b.npz:v", "--ids", "none")[:2] == ("position", True)


def test_a_usual_name_whose_entries_repeat_is_not_used_and_says_so(here, tmp_path):
    for name, vectors in (("a", P.X), ("b", P.Y)):
        np.savez(tmp_path / f"{name}.npz", v=vectors, names=np.array(["cat", "dog"] * (N // 2)))
    by, looks, said = paired(here, "a.npz:v", "b.npz:v")
    assert (by, looks) == ("position", True)
    assert "column names of a.npz:v is not used to pair by id: it contains 'cat' 30 times. Pass --ids COLUMN" in said


def test_different_lengths_say_which_columns_could_hold_ids(here, tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, image=NAMES, number=np.arange(N), score=np.arange(N) / 7, short=NAMES[:9])
    np.savez(tmp_path / "b.npz", v=P.Y[:50], image=NAMES[:50], label=np.array(["x"] * 50))
    here("fit", "a.npz:v", "b.npz:v", "-o", "map").refused(
        "Got 60 rows in a.npz:v and 50 in b.npz:v, and no ids on both sides",
        "Pass --ids COLUMN (columns that could hold ids in a.npz:v: image, number; b.npz:v: image).",
    )
    assert paired(here, "a.npz:v", "b.npz:v", "--ids", "image")[:2] == ("id (image)", True)
    table(tmp_path / "c.parquet", P.Y[:50], path=NAMES[:50])
    said = here("fit", "a.npz:v", "c.parquet", "-o", "m").err
    assert "Pass --ids OLD,NEW" in said
    np.save(tmp_path / "d.npy", P.Y[:50])
    said = here("fit", "a.npz:v", "d.npy", "-o", "m").err
    assert "Pass --ids OLD,NEW" in said
    assert "d.npy: none" in said


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv", "jsonl", "safetensors", "h5"])
def test_id_columns_of_each_format(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    rows = range(4)
    plain = {"id": np.arange(4), "twice": np.array([1, 1, 2, 3]), "real": np.arange(4) / 3}
    texts = {"image": np.array(["a", "b", "c", "d"])}
    X = np.arange(8.0).reshape(4, 2)
    if kind == "npz":
        np.savez(path, v=X, **plain, **texts)
    elif kind == "parquet":
        table(path, X, **plain, **texts)
    elif kind == "csv":
        lines = [f"{k},{plain['twice'][k]},{k / 3},{texts['image'][k]},{k}.5,{k}" for k in rows]
        path.write_text("id,twice,real,image,v0,v1\n" + "\n".join(lines) + "\n")
    elif kind == "jsonl":
        lines = [{"vector": [k, 1.0], **{n: c[k].item() for n, c in {**plain, **texts}.items()}} for k in rows]
        path.write_text("\n".join(map(json.dumps, lines)))
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"v": X, **plain}, path)
        texts = {}
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["v"] = X
            for name, column in {**plain, "image": texts["image"].astype(object)}.items():
                file[name] = column
    key = {"parquet": "vector", "jsonl": None}.get(kind, "v")
    assert set(id_columns(path, key, 4)) == {"id", *texts}
    assert usual_id_column(path, key, 4) == "id"
    assert id_fault(path, "twice") == "it contains '1' 2 times"


def test_formats_of_one_array_and_folders_have_no_id_columns(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    assert id_columns(tmp_path / "x.npy", None, 3) == id_columns(tmp_path, None, 3) == []


def test_files_out_of_step_are_paired_again_by_the_ids_that_are_written(here, tmp_path):
    p = rigid_problem(201, 20, noise=0.1, random_state=0)
    np.save(tmp_path / "a.npy", np.delete(p.X, 20, axis=0))
    np.save(tmp_path / "b.npy", np.delete(p.Y, 180, axis=0))
    refused = here("fit", "a.npy", "b.npy", "-o", "map", "--set", "realign=step").ends(2)
    assert not (tmp_path / "map").exists()
    command = refused.err.split("then run: congruence ")[1].split()
    assert here(*command, "--json").ends(0)
    scores = congruence.load(tmp_path / "MAP").scores_
    assert scores["pairing"]["state"] == "paired"
    assert scores["n_pairs"] >= 197
    np.save(tmp_path / "c.npy", np.load(tmp_path / "a.npy") + 1)
    assert "nothing is realigned" in here("fit a.npy c.npy -o same --set realign=same").ends(0).err
    assert not (tmp_path / "same-old.txt").exists()
