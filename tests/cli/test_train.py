"""``congruence train`` as a newcomer calls it."""

import json

import numpy as np
import pytest

from congruence.splits import Split

pytest.importorskip("torch", reason="training needs torch")

QUICK = "--set max_steps=20 --set n_components=8 --set learning_rate=3e-3 --set validate_every=10 --set folds=2"


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(6, 20)), rng.normal(size=(6, 16))
    z, u, v = rng.normal(size=(60, 6)), rng.normal(size=(70, 6)), rng.normal(size=(80, 6))
    for name, rows in (("x", z @ A), ("y", z @ B), ("images", u @ A), ("texts", v @ B)):
        np.save(tmp_path / f"{name}.npy", rows.astype(np.float32))
    return tmp_path


def sotalign(files, *more):
    rows = f"--pairs {files}/x.npy,{files}/y.npy --unpaired {files}/images.npy,{files}/texts.npy"
    return ["train", "sotalign", *rows.split(), "-o", f"{files}/map", *QUICK.split(), *more]


def test_train_inspect_and_use(here, files):
    options = "--test 0.2 --grid divergence_weight=1e-3,0.1 --set first_model=vision"
    options += " --set teacher_n_components=8"
    done = here(*sotalign(files, *options.split())).ends(0)
    assert "recall at 5" in done.out
    assert "80" not in done.err
    assert done.err.count("divergence_weight=") == 2
    assert not (files / "map.checkpoint").exists()
    facts = json.loads(here("inspect", str(files / "map"), "--json").out)
    assert facts["first"]["model"] == "vision"
    assert facts["second"]["modality"] == "text"
    assert facts["training"]["learning_rate"] == 3e-3
    assert facts["scores"]["test_pairs"] == 12
    done = here("transform", "map", "texts.npy", "-o", "out.npy", "--side", "second").ends(0)
    assert np.load(files / "out.npy").shape == (80, 8)


def test_a_checkpoint_that_was_named_stays(here, files):
    here(*sotalign(files, "--checkpoint", str(files / "keep"))).ends(0)
    assert (files / "keep" / "000" / "fold0" / "checkpoint.json").is_file()


def test_a_folder_where_checkpoints_would_go_is_left_alone(here, files):
    (files / "map.checkpoint").mkdir()
    (files / "map.checkpoint" / "thesis.txt").write_text("years of work")
    here(*sotalign(files)).refused("--checkpoint")
    assert (files / "map.checkpoint" / "thesis.txt").read_text() == "years of work"
    assert not (files / "map").exists()
    (files / "map.checkpoint" / "thesis.txt").unlink()
    done = here(*sotalign(files))  # an empty folder is used, and stays
    assert done.code == 0, done.err
    assert list((files / "map.checkpoint").iterdir()) == []
    (files / "map.checkpoint").rmdir()
    (files / "map.checkpoint").write_text("years of work")
    done = here(*sotalign(files, "--force")).ends(2)
    assert (files / "map.checkpoint").read_text() == "years of work"


def test_an_interrupted_run_is_taken_up_and_what_is_not_its_own_stays(here, files, monkeypatch):
    from congruence.train.checkpoint import Checkpoint

    save, saved = Checkpoint.save, []

    def stop(self, module, optimizer, history, best):
        save(self, module, optimizer, history, best)
        saved.append(history.steps)
        if len(saved) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", stop)
    stopped = here(*sotalign(files, "--set", "checkpoint_every=5")).ends(130).err
    assert f"The checkpoints are in {files}/map.checkpoint; repeat the command" in stopped
    assert "nothing" not in stopped
    (files / "map.checkpoint" / "notes.txt").write_text("mine")
    part = files / "map.checkpoint" / "000"
    (part / "fold0").rename(part / ".fold0.old")  # as a kill can leave it
    done = here(*sotalign(files, "--set", "checkpoint_every=5")).ends(0)
    assert saved[:8] == 2 * [5, 10, 15, 20]  # two folds; then all pairs, as long as was best
    assert "files that are not checkpoints" in done.err
    assert {path.name for path in (files / "map.checkpoint").iterdir()} == {"notes.txt", "checkpoints.json"}


def test_one_run_at_a_time_uses_a_folder_of_checkpoints(here, files):
    from congruence.train.checkpoint import own_folder

    with own_folder(files / "map.checkpoint"):
        here(*sotalign(files)).refused("another run")
        assert (files / "map.checkpoint").is_dir()
    assert not (files / "map.checkpoint").exists()
    assert not (files / "map").exists()


@pytest.fixture
def captions(tmp_path):
    """Images with two captions each, and wrong ones that differ from them in one direction."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(6, 20)), rng.normal(size=(6, 16))
    z = np.repeat(rng.normal(size=(60, 6)), 2, axis=0) + 0.05 * rng.normal(size=(120, 6))
    wrong = z.copy()
    wrong[np.arange(120), rng.integers(6, size=120)] *= -1
    for name, rows in (("v", z @ A), ("t", z @ B), ("n", wrong @ B)):
        np.save(tmp_path / f"{name}.npy", rows.astype(np.float32))
    (tmp_path / "groups.txt").write_text("\n".join(f"image {i // 2}" for i in range(120)))
    return tmp_path


def jam(captions, *more):
    rows = f"--pairs {captions}/v.npy,{captions}/t.npy --negatives {captions}/n.npy --set groups={captions}/groups.txt"
    quick = "--set max_epochs=20 --set hidden=[32] --set latent=8 --set dropout=0.0"
    return ["train", "jam", *rows.split(), "-o", f"{captions}/map", *quick.split(), *more]


@pytest.mark.long
def test_jam_from_files(here, captions):
    done = here(*jam(captions, "--seed", "42", "--set", "first_model=vision")).ends(0)
    assert "caption before its wrong ones" in done.out
    report = json.loads(here("inspect", str(captions / "map"), "--json").out)
    assert report["split"] == {"train": 84, "validation": 18, "test": 18}
    assert report["scores"]["test_binary_recall"] > 0.6
    assert report["training"]["random_state"] == 42
    assert report["first"]["model"] == "vision"
    assert not (captions / "map.checkpoint").exists()
    plain = here(*jam(captions, "--force", "--set", "loss=con", "--json")).ends(0)
    assert json.loads(plain.out)["training"]["loss"] == "con"


@pytest.mark.long
def test_jam_counts_an_image_of_two_captions_once(here, captions):
    rows = np.load(captions / "v.npy")
    np.save(captions / "v.npy", np.repeat(rows[::2], 2, axis=0))
    here(*jam(captions, "--report", str(captions / "page.html"))).ends(0)
    scores = json.loads(here("inspect", str(captions / "map"), "--json").out)["scores"]
    page = json.loads(here("report map --pairs v.npy,t.npy --groups groups.txt -o r.html --json").out)
    assert (page["between"]["first"], page["between"]["second"]) == (9, 18)
    for row in page["between"]["rows"]:
        for way in ("first_to_second", "second_to_first"):
            assert scores[f"test_{way}@{row['k']}"] == row[way]
    assert "test_second_to_first@10" not in scores  # nine images


@pytest.mark.parametrize(
    ("train", "change", "said"),
    [
        (sotalign, "--set max_steps", "NAME=VALUE"),
        (sotalign, "--set epochs=3", "epochs"),
        (sotalign, "--validation half", "--validation"),
        (sotalign, "--grid divergence_weight=x,y", "divergence_weight"),
        (sotalign, "--set epsilon_teacher=1e-7", "epsilon_teacher"),
        (sotalign, "--set device=cuda:9", "device"),
        (sotalign, "--negatives n.npy", "jam"),
        (jam, "--unpaired x.npy,y.npy", "--unpaired"),
        (jam, "--set keep_pairs=9", "--set keep_pairs"),
        (jam, "--grid steps=1,3", "steps"),
        (jam, "--set steps=3", "steps"),
        (jam, "--set spread_mix=2", "spread_mix"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(here, files, captions, train, change, said):
    here(*train(files, *change.split())).refused(said)
    assert not (files / "map").exists()
    assert not (files / "map.checkpoint").exists()


@pytest.fixture
def repeated(captions):
    """The same, with each image twice bit by bit, as 120 rows of 60 images."""
    rows = np.load(captions / "v.npy")
    np.save(captions / "v.npy", np.repeat(rows[::2], 2, axis=0))
    (captions / "tasks.txt").write_text("\n".join(["swap", "add"] * 60))
    return captions


def test_jam_without_groups_keeps_an_image_in_one_part(here, repeated):
    quick = "train jam --pairs v.npy,t.npy --negatives n.npy --set max_epochs=3 --set hidden=[8] --set latent=4 -o map"
    done = here(f"{quick} --tasks tasks.txt --json").ends(0)
    assert "120 of 120 rows whose vectors equal" in done.err
    report = json.loads(done.out)
    scores = report["scores"]
    assert report["split"] == {"train": 84, "validation": 18, "test": 18}
    heldout = Split.from_dict(scores["holdout"]).held_out(np.arange(120).astype(str))
    assert np.array_equal(heldout[::2], heldout[1::2])  # both captions of an image
    assert (scores["identical_rows"], scores["identical_groups"]) == (120, 60)
    # Five-way recall, and each task by itself.
    assert scores["test_choice_options"] == 5
    assert scores["test_choice_recall"] <= scores["test_binary_recall"]
    assert {name: line["n"] for name, line in scores["test_tasks"].items()} == {"swap": 9, "add": 9, "all": 18}
    alone = here(f"{quick} --set groups=none --force").ends(0)
    assert "equal another" not in alone.err
    assert "caption first of 5" in alone.out


def test_jam_takes_what_other_methods_take(here, captions):
    (captions / "recipe.yaml").write_text(
        "method: jam\npairs: [v.npy, t.npy]\nnegatives: n.npy\ngroups: groups.txt\n"
        "parameters: {max_epochs: 3, hidden: [8], latent: 4}\n"
    )
    options = "--validation 20 --test 30 --grid spread_mix=0.1,0.9 -o map --json"
    done = here("train", "--config", "recipe.yaml", *options.split()).ends(0)
    report = json.loads(done.out)
    assert report["split"] == {"train": 70, "validation": 20, "test": 30}
    trials = report["scores"]["trials"]
    assert [trial["spread_mix"] for trial in trials] == [0.1, 0.9]
    assert f"spread_mix=0.1: recall at 1, first → second {trials[0]['first_to_second_recall_at_1']:.3f}" in done.err
    best = max(trials, key=lambda trial: trial["first_to_second_recall_at_1"])
    assert report["training"]["spread_mix"] == best["spread_mix"]
    assert report["scores"]["validation_first_to_second_recall_at_1"] == best["first_to_second_recall_at_1"]
    assert report["training"]["random_state"] == 5  # the paper's


def test_unpaired_rows_that_are_missing_are_asked_for_by_their_options(here, files):
    here(f"train sotalign --pairs x.npy,y.npy -o map {QUICK}").refused("Pass --unpaired")


def test_sotalign_stands_beside_its_teacher(here, files):
    paper = [word for entry in ("max_steps=1", "init=random", "teacher=cca") for word in ("--set", entry)]
    done = here(*sotalign(files, "--test", "20", *paper)).ends(0)
    assert "its teacher's recall at 1" in done.out
    assert "worse than their linear teacher on the same 20 test pairs" in done.err
    scores = json.loads(here("inspect", str(files / "map"), "--json").out)["scores"]
    assert scores["test_mean@1"] < scores["teacher_test_mean@1"]
    assert f"{scores['teacher_test_mean@1']:.3f}" in scores["notes"][0]
    assert "teacher_test_mean@1" in (files / "map" / "README.md").read_text()
    # The teacher's numbers are those of the teacher alone on the same rows.
    alone = ["train", "cca", *sotalign(files)[2:8], "-o", str(files / "cca"), "--test", "20", "--set", "ridge=0.1"]
    assert here(*alone).code == 0
    other = json.loads(here("inspect", str(files / "cca"), "--json").out)["scores"]
    assert scores["teacher_test_mean@1"] == other["test_mean@1"]


def test_pairs_in_files_of_their_own_score_the_teacher_too(here, files):
    for side in "xy":
        rows = np.load(files / f"{side}.npy")
        np.save(files / f"more_{side}.npy", rows[40:])
        np.save(files / f"{side}.npy", rows[:40])
    own = ["--validation", f"{files}/more_x.npy,{files}/more_y.npy"]
    done = here(*sotalign(files, *own, "--set", "teacher=cca", "--set", "ridge=0.1")).ends(0)
    assert "its teacher's" in done.out
    scores = json.loads(here("inspect", str(files / "map"), "--json").out)["scores"]
    here("train", "cca", *sotalign(files)[2:4], "-o", str(files / "cca"), *own, "--set", "ridge=0.1").ends(0)
    other = json.loads(here("inspect", str(files / "cca"), "--json").out)["scores"]
    assert scores["teacher_validation_mean_recall_at_1"] == other["validation_mean_recall_at_1"]


def test_without_a_method_the_map_is_self_trained_on_all_pairs(here, files):
    rows = f"--pairs {files}/x.npy,{files}/y.npy --unpaired {files}/images.npy,{files}/texts.npy"
    done = here(f"train {rows} -o {files}/map").ends(0)
    assert "chosen by folds" in done.out
    report = json.loads(here("inspect", str(files / "map"), "--json").out)
    assert report["n_pairs"] == 60
    assert report["scores"]["self_training"]["folds"] == 5


def test_a_teacher_that_wins_is_returned_and_said(here, files):
    steps = "--set max_steps=5 --set learning_rate=1.0 --set max_iter=5"  # too large a rate: the heads get worse
    rows = f"--pairs {files}/x.npy,{files}/y.npy --unpaired {files}/images.npy,{files}/texts.npy"
    done = here(f"train sotalign {rows} -o {files}/map {steps}").ends(0)
    assert "The teacher is returned" in done.out
    assert "chosen by folds" in done.out
