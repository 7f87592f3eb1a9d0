"""The command and the page: from files to a verdict, as a user runs it."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from certify_data import sides

import congruence
from congruence.cli.check import _next as next_command
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import ACTIONS, certify

#: Which map is chosen is the subject of test_which_map.py.
QUICK = ["--method", "orthogonal"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    p = upgrade_problem(160, 24, source_noise=1.0, target_noise=0.6, shared=0.9, random_state=0)
    path = tmp_path_factory.mktemp("certify")
    ids = np.array([f"item {i}" for i in range(160)])
    kinds = np.array([f"k{k}" for k in p.labels])
    np.savez(path / "old.npz", image=p.source_images, text=p.source_texts, ids=ids, kind=kinds)
    np.savez(path / "new.npz", image=p.target_images[::-1], text=p.target_texts[::-1], ids=ids[::-1])
    return path


@pytest.fixture
def run(here):
    """Run the command in a folder whose outputs it may replace."""
    return lambda *words, command="check": here(command, *words, *(["--force"] if command == "check" else []))


def files(folder, *modalities):
    first, *others = modalities or ("image", "text")
    words = [f"{folder}/{side}.npz:{first}" for side in ("old", "new")] + ["--modality", first]
    for name in others:
        words += ["--also", f"{name}={folder}/old.npz:{name},{folder}/new.npz:{name}"]
    return words


def test_two_modalities_end_in_a_verdict_and_each_way_stands_with_its_costs(folder, tmp_path, run):
    cost = ["--set", "rows=20000", "--set", "encode_rate=10", "--set", "price=0.5"]
    out = run(*files(folder), "--ids", "ids", *cost, "-o", tmp_path / "c", "--verbose", *QUICK).out
    assert out.startswith("Verdict: ")
    for words in (
        "of the resamples",
        "map the queries",
        "recall@10",
        "More pairs",
        "Deriving a rotation",
        "gallery of 160",
    ):
        assert words in out
    for page in (out, (tmp_path / "c/certificate.html").read_text(encoding="utf-8")):
        assert not re.search(r"vacuous|does not apply here|\binf\b|0\.000 … 1\.000|1\.000 … 1\.000", page)
    table = out[out.index("Cost of each strategy") :].split("\n \n")[0]
    assert re.search(r"re-embed .* 20,000 +33\.3 +10,000\.00", table)
    assert re.search(r"map the stored vectors .* 0 +0\.0 +0\.00", table)
    result = json.loads((tmp_path / "c/certificate.json").read_text())
    assert [way["strategy"] for way in result["costs"]] == [*ACTIONS]
    assert result["costs"][4]["items"] == round(20000 * result["costs"][4]["share"])
    assert len(result["progressive"]["value"]) == len(result["progressive"]["share"])
    run(*files(folder), "--ids", "ids", "--set", "rows=0", *QUICK).refused("rows")


@pytest.mark.parametrize("name", ["chosen.txt", pytest.param("chosen.parquet", marks=pytest.mark.long)])
def test_chosen_anchors_are_scored_on_the_other_items(folder, tmp_path, run, name):
    """`congruence lab anchors` writes them; among each other they would be found better than other items are."""
    place = str(tmp_path / name)
    arguments = [f"{folder / 'old.npz'}:image", "-n", "100", "-o", place, "--ids", "ids"]
    said = run(*arguments, command="lab anchors").out
    assert "congruence check with --anchors" in " ".join(said.split())
    data = json.loads(run(*files(folder, "image"), "--ids", "ids", "--anchors", place, "--json", *QUICK).out)
    assert (data["n_anchors"], data["n_queries"]) == (100, 60)
    assert not any("scored among each other" in note for note in data["notes"])
    np.savez(tmp_path / "plain.npz", vectors=np.eye(3))
    run(*files(folder), "--ids", "ids", "--anchors", tmp_path / "plain.npz", *QUICK).refused(
        "without ids for --anchors"
    )


def test_kappa_is_computed_on_request_only(monkeypatch):
    from congruence.upgrade.certify import theorems

    calls = []
    real = theorems.kappa
    monkeypatch.setattr(theorems, "kappa", lambda *a, **k: calls.append(1) or real(*a, **k))
    p = upgrade_problem(30, 4, random_state=0)
    quick = {"method": "orthogonal"}
    said = next(e for e in certify(*sides(p), **quick).theory if e["theorem"] == "Def. 5.4")
    assert not calls
    assert "--set theory=full" in said["sentence"]
    full = next(e for e in certify(*sides(p), theory="full", **quick).theory if e["theorem"] == "Def. 5.4")
    assert calls
    assert full["numbers"]["kappa"][0] >= 1


def test_anchors_split_off_the_queries_thresholds_and_exit_code(folder, run):
    easy = ["--set", "retention=0.01", "--set", "must_move=true", "--set", "tie=.9", "--exit-code"]
    result = run(*files(folder), "--ids", "ids", "--anchors", 100, "--json", *easy, *QUICK).ends(0)
    data = json.loads(result.out)
    assert (data["n_anchors"], data["n_queries"]) == (100, 60)
    hard = ["--set", "worth=0.9", "--exit-code"]
    result = run(*files(folder), "--ids", "ids", *hard, *QUICK)
    assert result.code == 14
    assert "keep the old model" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "retention=2"], "retention=2"),
        (["--anchors", "160"], "--anchors 160 of 160"),
        (["--set", "fitted=sound"], "--set fitted=sound"),
        (["--also", "text=nowhere.npy"], "Got --also twice for text"),
    ],
)
def test_bad_input_is_one_sentence(folder, arguments, words, run):
    run(*files(folder), "--ids", "ids", *arguments, *QUICK).refused(words)


def test_a_folder_of_other_files_is_not_replaced(folder, tmp_path, run):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine.txt").write_text("mine")
    run(*files(folder), "--ids", "ids", "-o", tmp_path / "c", *QUICK).refused("mine.txt")
    assert (tmp_path / "c/mine.txt").read_text() == "mine"


@pytest.mark.parametrize("modalities", [pytest.param(("image",), marks=pytest.mark.long), ("image", "text")])
def test_json_holds_what_the_library_returns_and_the_map_that_was_measured_is_kept(folder, tmp_path, modalities, run):
    data = json.loads(run(*files(folder, *modalities), "--ids", "ids", "--json").out)
    mapping = congruence.load(tmp_path / "checked/map")
    p = upgrade_problem(160, 24, source_noise=1.0, target_noise=0.6, shared=0.9, random_state=0)
    certificate = certify(*sides(p, modalities=modalities))
    same, measured = certificate.fit(), certificate.to_dict()
    assert data["verdict"]["action"] == measured["verdict"]["action"]
    task = measured["task"]
    ours, theirs = (one["strategies"][task]["stored"]["value"] for one in (data, measured))
    assert ours == pytest.approx(theirs)
    assert [t["theorem"] for t in data["theory"]] == [t["theorem"] for t in measured["theory"]]
    sides_of = ("old", "new", "mapped")
    for kept in (mapping, same):
        assert set(kept.origins_) == {f"{side}.{name}" for side in sides_of for name in modalities}
    for name in modalities:
        rows = p.source_images if name == "image" else p.source_texts
        np.testing.assert_allclose(mapping.transform(rows, modality=name), same.transform(rows, modality=name))
    kept = json.loads((tmp_path / "checked/certificate.json").read_text())
    assert kept["verdict"] == data["verdict"]


@pytest.mark.long
def test_the_page_is_whole_and_self_contained():
    p = upgrade_problem(80, 12, random_state=0)
    source, target = sides(p)
    for parts in ((source, target), sides(p, modalities=("text",)), (source, {"text": target["text"]})):
        certificate = certify(*parts, method="orthogonal")
        page = render_certificate(certificate)
        assert not re.search(r"(?:src|href)=[\"']?(?!#|data:)[^\"'> ]", page)
        assert "<script" not in page
        assert page.count("<svg") == 2 + (certificate.task != "overlap@10" and "overlap@10" in certificate.strategies)
        assert certificate.verdict.headline[1:] in page


@pytest.mark.long
def test_text_queries_of_other_items(folder, tmp_path, run):
    p = upgrade_problem(60, 24, random_state=1)
    np.savez(tmp_path / "texts.npz", old=p.source_texts, new=p.target_texts)
    place, images = tmp_path / "texts.npz", files(folder, "image")
    texts = ["--queries", f"{place}:new", "--old-queries", f"{place}:old"]
    # The files' column of ids names items of the store; these texts have none.
    data = json.loads(run(*images, *texts, "--json", *QUICK).out)
    assert data["task"] == "graded_text_overlap@10"
    assert data["strategies"]["text_overlap@10"]["stored"]["n"] == 60
    run(*images, *texts[2:], *QUICK).refused("--queries too")


def test_the_next_command_of_each_verdict_can_be_typed(folder, tmp_path, run):
    """Files that are not paired are paired by their ids; more anchors come from the store, not from those in use."""
    names = ["old.npy", "new.npy"]
    rng = np.random.default_rng(0)
    old = rng.normal(size=(100, 24))
    np.save(tmp_path / names[0], old)
    np.save(tmp_path / names[1], (old @ np.linalg.qr(rng.normal(size=(24, 24)))[0])[rng.permutation(100)])
    found = json.loads(run(*names, "-o", "c", "--json", *QUICK).out)
    assert found["verdict"]["headline"] == "undecided: the pairs look mispaired"
    assert found["next"] == "congruence check old.npy new.npy --ids OLD-IDS,NEW-IDS -o c --force"
    certificate = SimpleNamespace(
        verdict=SimpleNamespace(action="undecided", more=40), n_anchors=160, pairing={"state": "paired"}
    )
    (tmp_path / "s.lance").touch()
    for store, named in ((None, "STORE"), ("postgresql://h/d", "STORE"), ("s.lance", "s.lance")):
        said = next_command(certificate, *names, "c", store)
        assert said == f"congruence lab anchors {named} -n 200 --method random -o chosen.txt"
