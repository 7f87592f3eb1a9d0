"""Every experiment runs on the sample; the files are whole; the numbers are what plain NumPy makes of the same rows."""

import base64
import csv
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.linalg import orthogonal_procrustes

from arrays import unit
from congruence.errors import CorruptFileError, InputError, OutputExistsError, ParameterError, ShapeError
from congruence.metrics import cca
from congruence.report.pictures import to_document
from congruence.synthetic import random_rotation
from congruence_papers import EXPERIMENTS, Collection, Model, Outcome, run
from congruence_papers.canonical import contrastive_heads, open_sample
from congruence_papers.canonical.experiments import Case
from congruence_papers.canonical.maps import EvaluationRows, controls
from congruence_papers.core import ExperimentJob
from congruence_papers.figure import draw_experiment, to_csv, write_experiment

pytestmark = pytest.mark.long

SVG = "{http://www.w3.org/2000/svg}"


def tiny(seed: int = 0, n: int = 90, d: int = 6, noise: float = 0.0) -> Collection:
    """Two models related by one rotation, with a modality gap."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 9
    centers = rng.normal(size=(9, d))
    images = centers[labels] + 0.1 * rng.normal(size=(n, d)) + 1.0
    prompts = np.repeat(centers, 2, axis=0) + 0.05 * rng.normal(size=(18, d)) - 1.0
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    sides = [unit(images), unit(prompts)]
    moved = [side @ turn + noise * rng.normal(size=side.shape) for side in sides]
    return Collection(
        *("tiny", (Model("a", *sides), Model("b", *moved)), tuple("abcdefghi"), np.array([f"i{k}" for k in range(n)])),
        *(labels, np.arange(n) < 45, np.repeat(np.arange(9), 2), np.tile([0, 1], 9)),
        **{"domain": np.arange(9) % 2, "domains": ("even", "odd")},
    )


def without_images(data, *names):
    models = tuple(Model(m.name, None if m.name in names else m.images, m.prompts) for m in data.models)
    return replace(data, models=models)


def get(results, metric, quantity="after", **more):
    wanted = {"metric": metric, "quantity": quantity, **more}
    found = [row for row in results["rows"] if all(row[k] == v for k, v in wanted.items())]
    assert len(found) == 1, (metric, quantity, more, len(found))
    return found[0]


def test_models_a_rotation_apart_are_aligned_exactly():
    results, back = (run(name, collections=[tiny()]).results for name in ("fig11", "fig39"))
    for kind in ("image", "text"):
        assert get(results, f"{kind}_cosine")["mean"] == pytest.approx(1, abs=1e-9)
        assert get(back, f"{kind}_cosine")["mean"] == pytest.approx(1, abs=1e-9)  # there and back
        assert get(results, f"{kind}_distance")["mean"] == pytest.approx(0, abs=1e-6)
    for metric in ("aligned_image_text", "image_aligned_text", "aligned_image_aligned_text"):
        for quantity in ("after", "model_a"):
            assert get(results, metric, quantity)["mean"] == pytest.approx(get(results, metric, "model_b")["mean"])
    assert get(results, "text_cosine", "before")["mean"] < 0.9


def test_the_numbers_are_those_of_scipy_on_the_same_rows():
    data = tiny(noise=0.1)
    metrics = ("image_cosine", "text_cosine", "aligned_image_text")
    config = replace(EXPERIMENTS["fig4"], metrics=metrics, seeds=1, parameters={"share": 1.0})
    results = run(config, collections=[data]).results
    a, b = data.models
    X, Y = a.images[:45], b.images[:45]
    R, _ = orthogonal_procrustes(X - X.mean(0), Y - Y.mean(0))

    moved = unit((a.images[45:] - X.mean(0)) @ R + Y.mean(0))
    wanted = float((moved * unit(b.images[45:])).sum(1).mean())
    assert get(results, "image_cosine")["mean"] == pytest.approx(wanted, abs=1e-9)
    P, T = (unit(unit(m.prompts).reshape(9, 2, -1).mean(1)) for m in (a, b))
    texts = unit((P - P.mean(0)) @ R + T.mean(0))
    assert get(results, "text_cosine")["mean"] == pytest.approx(float((texts * T).sum(1).mean()), abs=1e-9)
    accuracy = float(((moved @ T.T).argmax(1) == data.labels[45:]).mean())
    assert get(results, "aligned_image_text")["mean"] == pytest.approx(accuracy)


def test_seen_and_unseen_classes_are_apart():
    results = run("fig5", collections=[tiny(noise=0.05)]).results
    for n in (2, 3, 5, 8):
        for part in ("seen", "unseen"):
            assert get(results, "text_cosine", part=part, x=n, series="orthogonal")["n"] == 5
    assert not [row for row in results["rows"] if row["x"] is not None and row["x"] >= 9]


def test_a_map_of_one_half_serves_the_other_for_exact_models():
    results = run("fig6", collections=[tiny()]).results
    rows = [row for row in results["rows"] if row["quantity"] == "after" and row["metric"] == "text_cosine"]
    assert len(rows) == 6
    assert all(row["mean"] == pytest.approx(1, abs=1e-9) for row in rows)


def test_draws_differ_but_the_references_of_a_fixed_split_do_not():
    results = run("fig4", seeds=3).results
    assert len(set(get(results, "text_cosine")["values"])) == 3
    assert get(results, "text_cosine", "before")["n"] == 1
    assert "80%" in results["resampled"]


def test_what_stands_in_is_named_in_title_json_figure_and_table(here, tmp_path):
    result = here("lab reproduce", "fig5", "--quick", "-o", "out")
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["title"] == "Few classes, on emoji [stand-in: two small models of emoji]"
    assert results["stands_for"] == {"models": ["openai-l14/flava"], "data": ["pets"]}
    figure = "".join(ET.parse(tmp_path / "out/figure.svg").getroot().itertext())
    for words in (
        *(results["title"], "The paper's claim, for its own models and data: Seen and unseen classes rise together"),
        *(f"Held here: {results['held']['verdict']}", "67 classes; 706 images to fit on, 742 to measure on"),
        *("Seeds: 0, 1.", "openai-l14/flava on pets, which have not been run"),
    ):
        assert words in " ".join(result.out.split())
        assert words.split(" [")[0] in " ".join(figure.split())


def test_the_controls_are_those_of_plain_numpy():
    data = tiny(noise=0.1)
    results = run("fig4", collections=[data], seeds=1).results
    a, b = (model.images[45:] for model in data.models)
    mean_a, mean_b = (model.images[:45].mean(0) for model in data.models)

    def cosine(Z):
        return float(np.mean((Z * b).sum(1) / np.linalg.norm(Z, axis=1) / np.linalg.norm(b, axis=1)))

    assert get(results, "image_cosine", "constant")["mean"] == pytest.approx(cosine(np.tile(mean_b, (45, 1))))
    seen = EvaluationRows(
        (a, b), (None, None), data.labels[45:], np.arange(45), np.arange(9), {"image": (mean_a, mean_b)}
    )
    found = controls(seen, ["image_cosine"], draws=300)["image_cosine"]["random_rotation"]
    turned = [cosine((a - mean_a) @ random_rotation(6, random_state=k) + mean_b) for k in range(300)]
    assert found == pytest.approx(np.mean(turned), abs=0.03)


def one_template(data):
    keep = data.prompt_templates == 0
    models = tuple(Model(m.name, m.images, m.prompts[keep]) for m in data.models)
    kept = {name: getattr(data, name)[keep] for name in ("prompt_labels", "prompt_templates", "text_fit")}
    return replace(data, models=models, **kept)


def test_a_fit_on_text_takes_every_prompt_so_that_no_class_is_left_out():
    seen = []
    data = one_template(tiny(noise=0.1))
    config = EXPERIMENTS["fig34"]

    fit = Case.fit

    def watched(case, anchors, *more, **options):
        seen.append((case.modality, set(case.data.prompt_labels[anchors]) if case.modality == "text" else None))
        return fit(case, anchors, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Case, "fit", watched)
        results = run(config, collections=[data]).results
    assert [labels for modality, labels in seen if modality == "text"] == [set(range(9))]
    assert get(results, "text_retrieval", series="orthogonal")["n"] == 1  # a closed form on all prompts does not vary
    assert get(results, "text_retrieval", series="orthogonal, fitted on images")["n"] == 3
    assert "every prompt" in results["resampled"]


def test_texts_are_measured_by_one_template_or_by_all_whatever_was_fitted_on():
    data = tiny(noise=0.1)
    by = [{"evaluation_templates": templates} for templates in ("all", "single")]
    both, one = (run("fig34", collections=[data], parameters=parameters).results for parameters in by)
    first = run("fig34", collections=[one_template(data)]).results
    alone = {name: get(r, "aligned_image_text", "model_b")["mean"] for name, r in (("one", one), ("first", first))}
    assert alone["one"] == alone["first"]
    cosines = [get(r, "text_cosine", series="orthogonal")["mean"] for r in (both, one, first)]
    assert len(set(cosines)) == 3  # fitted on both templates, measured by one, is neither of the others
    assert [r["data"][0]["evaluation_templates"] for r in (both, one)] == ["all", "single"]
    with pytest.raises(ParameterError, match="evaluation_templates 'some'.*all, single"):
        run("fig34", collections=[data], parameters={"evaluation_templates": "some"})


def test_maps_of_a_cycle_are_fitted_on_different_prompts_of_every_class():
    data = tiny(noise=0.1)
    job = ExperimentJob(EXPERIMENTS["fig39"], [data], [0], {"share": 0.6})
    drawn = [Case(job, data, (0, 1), "text").draw_subset(np.random.default_rng(k)) for k in range(4)]
    assert len({tuple(rows) for rows in drawn}) > 1
    assert all(set(data.prompt_labels[rows]) == set(range(9)) for rows in drawn)


def test_a_composition_needs_three_models():
    with pytest.raises(InputError, match="three models, not 2"):
        run("fig40", collections=[tiny()])


def test_figures_that_need_images_of_both_models_say_so():
    blind = without_images(tiny(), "b")
    for name in ("fig3", "fig53", "fig55"):
        with pytest.raises(InputError, match="images and texts of both"):
            run(name, collections=[blind])
    results = run("fig11", collections=[blind]).results
    assert any("fitted on texts" in note for note in results["notes"])
    assert "image_cosine" not in {row["metric"] for row in results["rows"]}


def test_a_metric_nobody_can_measure_is_an_error():
    mute, config = without_images(tiny(), "a", "b"), EXPERIMENTS["fig11"]
    assert run(config, collections=[mute]).results["rows"]
    with pytest.raises(InputError, match="none of image_cosine"):
        run(replace(config, metrics=("image_cosine",)), collections=[mute])


def test_collections_refuse_what_does_not_fit():
    data = tiny()
    parts = [data.classes, data.ids, data.labels, data.train, data.prompt_labels, data.prompt_templates]
    with pytest.raises(ShapeError, match="44 marks"):
        Collection("x", data.models, *parts[:3], data.train[:44], *parts[4:])
    with pytest.raises(InputError, match="outside 0 to 8"):
        Collection("x", data.models, *parts[:2], data.labels + 1, *parts[3:])
    with pytest.raises(InputError, match="No prompt for 1 classes"):
        Collection("x", data.models, *parts[:4], np.repeat([0, 1, 2, 3, 4, 5, 6, 7, 7], 2), parts[5])
    with pytest.raises(ShapeError, match="Got 10 images of a; expected 90"):
        Collection("x", (Model("a", data.models[0].images[:10], None),), *parts)
    bad = data.models[0].images.copy()
    bad[3, 2] = np.nan
    with pytest.raises(InputError, match="images of a"):
        Collection("x", (Model("a", bad, None),), *parts)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "lvis1203_clip.npz"
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(CorruptFileError, match="cannot be used as lvis"):
        open_sample("lvis", tmp_path)
    np.savez(path, names=np.array(["a"]))
    with pytest.raises(CorruptFileError, match="cannot be used as lvis"):
        open_sample("lvis", path)
    with pytest.raises(ParameterError, match="variant"):
        open_sample("sample", variant="huge")


def test_an_output_that_exists_is_left_alone(tmp_path):
    outcome = run("table1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("keep")
    with pytest.raises(OutputExistsError):
        write_experiment(tmp_path / "out", outcome)
    assert (tmp_path / "out/mine.txt").read_text() == "keep"
    with pytest.raises(OutputExistsError, match=r"mine\.txt"):
        write_experiment(tmp_path / "out", outcome, force=True)
    (tmp_path / "out/mine.txt").unlink()
    for _ in range(2):  # an empty folder, and an experiment's
        write_experiment(tmp_path / "out", outcome, force=True)
        assert (tmp_path / "out/results.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_words_in_a_figure_are_escaped():
    results = run("table1").results
    results["title"] = "<script>alert(1)</script> & more"
    results["rows"][0]["data"] = "</svg><b>"
    figure = ET.fromstring(to_document(draw_experiment(results), results["title"]))
    assert any("<script>" in text.text for text in figure.iter(f"{SVG}text"))
    assert not list(figure.iter(f"{SVG}script"))


def test_pictures_that_are_none_are_not_shown(tmp_path):
    outcome = run("fig53", quick=True)
    assert outcome.pictures

    def images(pictures):
        write_experiment(tmp_path / "out", Outcome(outcome.results, pictures), force=True)
        return list(ET.parse(tmp_path / "out/figure.svg").getroot().iter(f"{SVG}image"))

    shown = images(outcome.pictures)
    assert len(shown) == 3 * 11
    # Each with all its pixels, where it belongs: the first query stands at the left.
    query = outcome.results["extra"]["examples"][0]["query"]["id"]
    drawn = io.BytesIO(base64.b64decode(shown[0].get("href").partition("base64,")[2]))
    pixels = [np.asarray(Image.open(file).convert("RGBA")) for file in (drawn, io.BytesIO(outcome.pictures[query]))]
    np.testing.assert_array_equal(*pixels)
    assert [shown[0].get(key) for key in ("width", "height")] == ["64", "64"]
    assert shown[0].get("transform").startswith("matrix(1 0 0 1 8 ")
    whole = next(iter(outcome.pictures.values()))
    for broken in (b"<svg onload=alert(1)>", whole[: len(whole) // 2]):
        assert not images(dict.fromkeys(outcome.pictures, broken))


def test_csv_keeps_commas_and_quotes():
    job = ExperimentJob(EXPERIMENTS["fig4"], [], [0], {})
    job.add({"data": 'a, "b"', "metric": "m", "quantity": "after"}, 1 / 3)
    (line,) = csv.DictReader(io.StringIO(to_csv(job.rows())))
    assert line["data"] == 'a, "b"'
    assert float(line["values"]) == 1 / 3
    assert line["sd"] == ""


def test_heads_are_regularised_cca():
    """At ridge → 0 the singular values of the heads' cross-covariance are the canonical correlations."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(400, 5))
    X = np.hstack([Z, rng.normal(size=(400, 4))]) @ rng.normal(size=(9, 9))
    Y = np.hstack([Z + 0.5 * rng.normal(size=Z.shape), rng.normal(size=(400, 2))]) @ rng.normal(size=(7, 7))
    heads = contrastive_heads(X, Y, 7, ridge=1e-9)
    F = (X - heads.image_mean) @ heads.image_matrix
    G = (Y - heads.text_mean) @ heads.text_matrix
    values = np.linalg.svd(F.T @ F / 400, compute_uv=False)
    # Whitened directions scaled by √s have covariance s.
    np.testing.assert_allclose(values, np.linalg.svd(G.T @ G / 400, compute_uv=False), atol=1e-5)
    assert values.mean() == pytest.approx(cca(X, Y), abs=1e-4)
