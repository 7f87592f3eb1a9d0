import json

import numpy as np
import pytest

from congruence import fit, load
from congruence.errors import DuplicateWarning
from congruence.synthetic import rigid_problem

P = rigid_problem(300, 8, 8, noise=0.1, random_state=0)
NAMES = np.array([f"item {k}" for k in range(300)])


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "a.npz", v=P.X, w=P.X + 1, names=NAMES, other=np.roll(NAMES, 1), half=P.X[:150])
    wide, shuffled = np.hstack([P.Y, P.Y]), np.roll(P.Y, 5, axis=0)
    np.savez(tmp_path / "b.npz", v=P.Y, w=P.Y + 1, names=NAMES, wide=wide, shuffled=shuffled)
    return tmp_path


@pytest.fixture
def fitted(here, data):
    sides = "a.npz:v b.npz:v --ids names --set old_model=A --set new_model=B"
    here(f"fit {sides} --modality image --means text=a.npz:w,b.npz:w --holdout 60 -o map").ends(0)
    return data / "map"


# ------------------------------------------------------------------ the main job, on real embeddings


@pytest.mark.long
@pytest.mark.parametrize(("target", "least"), [("text_eva02_b16", 0.74), ("text_openai_vitb16", 0.73)])
def test_text_fitted_maps_carry_images_of_unseen_classes(here, lvis_path, tmp_path, target, least):
    """Fit on text alone, carry images, classify 303 unseen classes with the other model's text."""
    texts = [f"{lvis_path}:{name}" for name in ("text_openai_vitb32", target)]
    images = f"{lvis_path}:image_openai_vitb32_avg5"
    common = ["--ids", "names"]
    options = f"--modality text --holdout 303 --seed 0 --means image={images} -o map --json"
    done = here("fit", *texts, *common, *options.split()).ends(0)
    assert done.err == ""
    facts = json.loads(done.out)
    assert facts["n_pairs"] == 900
    assert facts["scores"]["held_out_pairs"] == 303
    assert facts["scores"]["pairing"]["looks_paired"]
    assert facts["scores"]["held_out_retrieval_at_1"] > 0.97
    sides = ("--old-image", images, "--old-text", texts[0], "--new-text", texts[1])
    result = here("lab evaluate", "map", *sides, *common, "--held-out", "--json").ends(0)
    rows = {(r["metric"], r["query"], r["against"]): r for r in json.loads(result.out)["rows"]}
    row = rows["zero_shot", "aligned image", "new text"]
    assert row["n"] == 303
    assert row["before"] < 0.02
    assert row["after"] > least
    assert row["old"] - row["after"] < 0.09
    assert rows["cosine", "aligned text", "new text"]["after"] > 0.9
    here("transform", "map", images, *common, "--modality", "image", "-o", "0.parquet").ends(0)


# ------------------------------------------------------------------ fit


def test_fit_reports_for_people_and_for_programs(here, data):
    text = here("fit", "a.npz:v", "b.npz:v", "-o", "m1")
    assert "directions that the pairs span" in text.out
    assert "8 of 8" in text.out
    assert text.err == ""
    facts = json.loads(here("fit", "a.npz:v", "b.npz:v", "-o", "m2", "--json").out)
    assert facts["rank"] == 8
    assert facts["output"] == "m2"
    np.testing.assert_array_equal(load(data / "m1").rotation_, load(data / "m2").rotation_)


@pytest.mark.parametrize(
    ("options", "kind", "parameters"),
    [
        ("--set center=false --set shrinkage=full", "orthogonal", {"center": False, "shrinkage": "full"}),
        (
            "--set shrinkage=soft --set shrinkage_strength=0.01",
            "orthogonal",
            {"shrinkage": "soft", "shrinkage_strength": 0.01},
        ),
        ("--set shrinkage=cv", "orthogonal", {"shrinkage": "cv"}),
        ("--set allow_reflection=false", "orthogonal", {"allow_reflection": False}),
        ("--method linear --set ridge=0.5", "linear", {"ridge": 0.5}),
        ("--method linear --set ridge=cv", "linear", {"ridge": "cv"}),
        ("--method mlp", "mlp", {}),
    ],
)
def test_every_method_and_option_reaches_the_map(here, data, options, kind, parameters):
    here("fit", "a.npz:v", "b.npz:v", "-o", "map", *options.split()).ends(0)
    m = load(data / "map")
    assert m.kind == kind
    assert {key: m.get_params()[key] for key in parameters} == parameters
    assert here("inspect", "map").code == 0


def test_shuffled_anchors_warn_and_strict_refuses(here, data):
    result = here("fit", "a.npz:v", "b.npz:shuffled", "-o", "map").ends(0)
    assert "The 300 rows do not look paired" in result.err
    assert "NO" in result.out
    here("fit", "a.npz:v", "b.npz:shuffled", "-o", "strict", "--set", "strict=true").ends(2)
    assert not (data / "strict").exists()
    assert here("fit", "a.npz:v", "b.npz:shuffled", "-o", "quiet", "--set", "check=false").err == ""


# ------------------------------------------------------------------ transform, evaluate, inspect, export


def test_transform_carries_and_comes_back(here, fitted, data):
    assert here("transform", "map", "a.npz:v", "--modality", "image", "--ids", "names", "-o", "out.parquet").code == 0
    asked = here("transform", "map", "a.npz:v", "-o", "asked.npy")
    asked.refused("old model (image)", "--modality image")
    back = here("transform", "map", "out.parquet", "--inverse", "-o", "back.npy", "--set", "dtype=float32", "--json")
    report = json.loads(back.out)
    assert (report["rows"], report["dim"], report["dtype"]) == (300, 8, "float32")
    assert "left out: id. Write a .parquet" in back.err
    np.testing.assert_allclose(np.load(data / "back.npy"), P.X, atol=1e-2)
    assert here("transform", "map", "a.npz:w", "--modality", "text", "-o", "text.npy", "--normalize", "yes").code == 0
    np.testing.assert_allclose(np.linalg.norm(np.load(data / "text.npy"), axis=1), 1)


def test_evaluate_reads_labels_and_prompts(here, fitted, data):
    (data / "labels.txt").write_text("\n".join(f"c{k % 10}" for k in range(300)))
    np.savez(data / "t.npz", a=P.X[:20] + 1, b=P.Y[:20] + 1, names=np.array([f"p{k}" for k in range(20)]))
    (data / "prompts.txt").write_text("\n".join(f"c{k % 10}" for k in range(20)))
    common = ["lab evaluate", "map", "--old-image", "a.npz:v", "--new-image", "b.npz:v", "--ids", "names"]
    texts = "--old-text t.npz:a --new-text t.npz:b --labels labels.txt --prompt-labels prompts.txt --json"
    result = here(*common, *texts.split()).ends(0)
    rows = {(r["metric"], r["query"], r["against"]): r for r in json.loads(result.out)["rows"]}
    assert rows["zero_shot", "aligned image", "aligned text"]["n"] == 300
    assert rows["cosine", "aligned text", "new text"]["n"] == 10
    heldout = json.loads(here(*common, "--held-out", "--json").out)
    assert heldout["rows"][0]["n"] == 60
    table = here(*common).out
    cosine = next(line.split() for line in table.splitlines() if line.strip().startswith("cosine"))
    row = next(row for row in json.loads(here(*common, "--json").out)["rows"] if row["metric"] == "cosine")
    assert cosine[-3:-1] == [f"{row[f'control_{name}']:.3f}" for name in ("constant", "random_rotation")]
    assert "variance lies in directions that the pairs span" in table
    searched = here(*common, "--set", "hubness=csls")
    for words in ("retrieval_csls", "transductive"):
        assert words in searched.out
    assert "'csls', 'qb_norm'" in here(*common, "--set", "hubness=hubs").err
    here(*common, "--labels", "prompts.txt").refused("20 entries of --labels")
    here("fit", "a.npz:v", "b.npz:v", "-o", "all")
    assert "Fit the map with --holdout" in here("lab evaluate", "all", "--old-image", "a.npz:v", "--held-out").err
    assert here("lab evaluate", "map").code == 2


def test_inspect_tells_everything(here, fitted):
    facts = json.loads(here("inspect", "map", "--json").out)
    assert facts["old"]["model"] == "A"
    assert facts["modalities"] == ["image", "text"]
    assert len(facts["singular_values"]) == 8
    text = here("inspect", "map").out
    assert all(word in text for word in ("pairs span", "alignment", "rows look paired", "quartiles", "chance 0.017"))
    (cosine,) = (line for line in text.splitlines() if "cosine" in line)  # nowhere without its controls
    for name in ("constant", "random_rotation", "unmapped"):
        assert f"{name.replace('_', ' ')} {facts['scores'][f'held_out_cosine_{name}']:.3f}" in cosine


def test_export_gives_faiss_the_same_map(here, fitted, data):
    faiss = pytest.importorskip("faiss")
    assert here("bridge export", "map", "-o", "map.vt", "--modality", "text").code == 0
    m = load(fitted).for_modality("text")
    transform = faiss.read_VectorTransform(str(data / "map.vt"))
    X = P.X.astype(np.float32)
    np.testing.assert_allclose(transform.apply(X), m.transform(X), atol=1e-5)
    assert here("bridge export", "map", "-o", "map.vt").code == 2
    assert "'faiss'" in here("bridge export", "map", "-o", "x", "--to", "milvus").err


def test_usage_errors_version_and_help(here):
    assert here("fit").code == 2
    assert here("conjure").code == 2
    assert here("--version").out.strip().startswith("0.")
    assert "transform" in here("--help").out


@pytest.mark.long
def test_demo_prints_the_table_and_writes_the_report(here, tmp_path):
    here("demo --sample emoji -o r.html --save-map map").ends(0)
    assert "<title>emoji-a → emoji-b" in (tmp_path / "r.html").read_text(encoding="utf-8")
    # Three emoji are there twice.
    assert set(load(tmp_path / "map").scores_["holdout"]) == {"seed", "threshold", "exceptions"}


@pytest.mark.long
def test_demo_claims(here, tmp_path):
    result = here("demo --sample emoji -o r.html --no-report --json --classes 600 --seed 3")
    data = json.loads(result.out)
    assert not (tmp_path / "r.html").exists()
    assert data["fitted_on_images_of"] == 600
    lines = {line["measure"]: line for line in data["table"]}
    text = lines["text–text cosine"]
    assert text["unseen"]["classes"] == 995
    assert abs(text["unseen"]["before"]) < 0.1
    assert text["unseen"]["after"] > 0.5
    assert abs(text["seen"]["after"] - text["unseen"]["after"]) < 0.1  # the map was not fitted on any text
    assert 0 < text["unseen"]["control_random_rotation"] < text["unseen"]["control_constant"] < 0.3
    assert lines["text → its text, at 1"]["unseen"]["chance"] == pytest.approx(1 / 995)
    subgroup = lines["image → another image of its subgroup, at 1"]["unseen"]
    assert 0.01 < subgroup["chance"] < subgroup["before"] + 0.02 < subgroup["after"]
    means = data["few_anchors"]["curves"][0]["mean"]
    assert means[0] < means[-1]


@pytest.mark.parametrize("classes", [1, 1595, 5000, -3])
def test_demo_needs_classes_on_both_sides(here, classes):
    here("demo", "--sample", "emoji", "--no-report", "--classes", classes).refused("2 to 1594")


# ------------------------------------------------------------------ report


@pytest.fixture(scope="module")
def sample_map(tmp_path_factory):
    from congruence.datasets import load_sample

    old, new = load_sample("emoji").source, load_sample("emoji").target
    means = {"text": (old["text"], new["text"])}
    with pytest.warns(DuplicateWarning):  # three pairs of emoji look alike
        mapping = fit(old["image"], new["image"], "orthogonal", holdout=795, means=means, check=False)
    return mapping.save(tmp_path_factory.mktemp("sample") / "map")


@pytest.mark.long
def test_report_on_the_sample(here, sample_map, tmp_path):
    out = tmp_path / "r.html"
    result = here("report", sample_map, "sample", "-o", out).ends(0)
    assert "held-out" in result.out
    assert out.exists()
    here("report", sample_map, "sample", "-o", out).refused("--force")
    data = json.loads(here("report", sample_map, "sample", "-o", out, "--force", "--all", "--json").out)
    assert data["scores"][0]["n"] == 1595


@pytest.mark.long
def test_evaluate_writes_the_same_report(here, fitted, data, tmp_path):
    out = tmp_path / "r.html"
    vectors = ["--old-image", "a.npz:v", "--new-image", "b.npz:v"]
    command = ["lab evaluate", "map", *vectors, "--ids", "names", "--held-out", "--report", out]
    here(*command).ends(0)
    assert "How many pairs are needed?" in out.read_text(encoding="utf-8")
    assert "--force" in here(*command).err
    assert here(*command, "--force").code == 0
