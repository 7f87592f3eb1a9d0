import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import congruence
from congruence.datasets import Bundle
from congruence.embeddings import Embeddings, Space
from congruence.errors import InputError
from congruence.evaluation import evaluate
from congruence.report import render, summarize
from congruence.splits import Split

NASTY = '<script>alert("x")</script>&'


def make(n=60, d=8, d_out=8, noise=0.1, seed=0, **facts):
    """Two models that differ by a rotation and noise, the same for images and texts."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((max(d, d_out), max(d, d_out))))[0][:d, :d_out]
    sides = {"source": {}, "target": {}}
    ids = [f"c{k}" for k in range(n)]
    concept = rng.standard_normal((n, d))
    for modality in ("image", "text"):
        X = concept + 0.4 * rng.standard_normal((n, d)) + (0.5 if modality == "text" else 0)
        Y = X @ Q + noise * rng.standard_normal((n, d_out))
        for side, vectors, model in (("source", X, "old"), ("target", Y, "new")):
            sides[side][modality] = Embeddings(vectors, ids=ids, space=Space(model, modality=modality)).normalize()
    return Bundle(sides["source"], sides["target"], **facts)


def fit(bundle, **options):
    means = {"text": (bundle.source["text"], bundle.target["text"])}
    options = {"holdout": 20, "check": False, "means": means, **options}
    return congruence.fit(bundle.source["image"], bundle.target["image"], **options)


@pytest.fixture(scope="module")
def bundle():
    png = b"\x89PNG\r\n\x1a\n"
    return make(
        labels={f"c{k}": f"g{k % 4}" for k in range(60)},
        texts={"image": {f"c{k}": f"{NASTY} {k}" for k in range(60)}},
        thumbnails={f"c{k}": png for k in range(30)} | {"c31": NASTY.encode()},
    )


@pytest.fixture(scope="module")
def summary(bundle):
    return summarize(fit(bundle), bundle)


def test_numbers_are_those_of_evaluate_on_held_out_items(bundle, summary):
    mapping = fit(bundle)
    split = Split.from_dict(mapping.scores_["holdout"])
    sides = bundle.side("source"), bundle.side("target")
    heldout = [{m: rows.take(split.held_out(rows.ids)) for m, rows in side.items()} for side in sides]
    expected = evaluate(mapping, *heldout)
    assert summary["held_out"]
    assert len(summary["scores"]) == len(expected.rows)
    for got, row in zip(summary["scores"], expected.rows, strict=True):
        assert got["after"] == pytest.approx(row.after)
        assert got["n"] == 20
    everything = summarize(mapping, bundle, held_out=False)
    assert not everything["held_out"]
    assert everything["scores"][0]["n"] == 60


def test_the_summary_is_plain_data_and_repeats(bundle, summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarize(fit(bundle), bundle) == summary
    assert summarize(fit(bundle), bundle, random_state=1)["commuting"]["examples"] != summary["commuting"]["examples"]


def test_the_verdict_follows_the_numbers(bundle, summary):
    row = next(r for r in summary["scores"] if r["metric"] == "zero_shot" and r["query"] == "aligned image")
    assert summary["verdict"]["reached"] == pytest.approx(row["after"] / row["target"])
    assert summary["verdict"]["level"] == "passes"
    sentence = summary["verdict"]["sentence"]
    assert f"{row['after']:.1%}" in sentence
    assert f"{row['chance']:.1%} by chance" in sentence
    assert row["chance"] == 1 / 20
    assert "cosine" not in sentence  # a headline has no room for controls
    assert "can stand in" in summary["verdict"]["action"]
    noise = np.random.default_rng(0).standard_normal((2, 60, 8))
    sides = zip(noise, bundle.target.items(), strict=True)
    bad = Bundle(bundle.source, {m: Embeddings(N, rows.ids, space=rows.space).normalize() for N, (m, rows) in sides})
    assert summarize(fit(bad), bad)["verdict"]["level"] != "passes"


def test_histograms_and_kernel_against_numpy(bundle, summary):
    everything = summarize(fit(bundle), bundle, held_out=False)
    before = (bundle.source["image"].vectors * bundle.target["image"].vectors).sum(axis=1)
    image = everything["histograms"][0]
    assert image["mean_before"] == pytest.approx(before.mean(), abs=1e-6)
    np.testing.assert_allclose(np.array(image["before"]) * 60, np.histogram(before, image["edges"])[0], atol=1e-9)
    for kind in ("after", "constant", "random_rotation"):
        assert sum(image[kind]) == pytest.approx(1)
    score = next(r for r in everything["scores"] if r["metric"] == "cosine" and "image" in r["query"])
    assert image["mean_constant"] == pytest.approx(score["control_constant"], abs=1e-6)
    assert image["mean_random_rotation"] == pytest.approx(score["control_random_rotation"], abs=1e-6)
    kernels = [(side["image"].vectors @ side["text"].vectors.T).ravel() for side in (bundle.source, bundle.target)]
    assert everything["kernel"]["correlation"] == pytest.approx(np.corrcoef(*kernels)[0, 1], abs=1e-5)
    assert len(everything["kernel"]["matched"]) == 60


def test_clouds_keep_distances_of_the_leading_plane(bundle):
    data = summarize(fit(bundle), bundle, held_out=False)["clouds"]
    points = data["before"]["points"]
    assert set(points) == {"source image", "source text", "target image", "target text"}
    sides = (*bundle.side("source").values(), *bundle.side("target").values())
    stacked = np.vstack([rows.vectors for rows in sides]).astype(float)
    values = np.linalg.svd(stacked - stacked.mean(0), compute_uv=False)
    assert data["before"]["variance_share"] == pytest.approx((values[:2] ** 2).sum() / (values**2).sum(), abs=1e-6)
    flat = np.vstack([points[f"{s} {m}"] for s in ("source", "target") for m in ("image", "text")])
    np.testing.assert_allclose(np.linalg.svd(flat, compute_uv=False), values[:2], rtol=1e-3)
    gap = np.linalg.norm(bundle.source["image"].mean - bundle.source["text"].mean)
    assert data["before"]["gaps"]["source"] == pytest.approx(gap)
    # Pairs lie nearer to each other after the map than before it.
    before, after = (data[when]["points"] for when in ("before", "after"))
    apart = [np.linalg.norm(np.subtract(p["source image"], p["target image"]), axis=1).mean() for p in (before, after)]
    assert apart[1] < 0.5 * apart[0]


def test_the_commuting_diagram_by_hand(bundle):
    mapping = fit(bundle)
    data = summarize(mapping, bundle, held_out=False, examples=60)["commuting"]
    unit = {(side, m): rows.vectors for side in ("source", "target") for m, rows in bundle.side(side).items()}
    shares = []
    for k in range(60):
        moved = mapping.for_modality("image").transform(unit["source", "image"][k : k + 1])[0]
        direct = np.argsort(-(unit["target", "image"] @ moved))[:5]
        read = np.argmax(unit["source", "text"] @ unit["source", "image"][k])
        text = mapping.for_modality("text").transform(unit["source", "text"][read][None])[0]
        found = np.argmax(unit["target", "text"] @ text)
        mediated = np.argsort(-(unit["target", "image"] @ unit["target", "text"][found]))[:5]
        shares.append(len({*direct} & {*mediated}) / 5)
    assert data["overlap"] == pytest.approx(np.mean(shares))
    assert data["chance"] == pytest.approx(5 / 60)
    assert len(data["examples"]) == 60
    found = []
    for e in data["examples"]:
        for path, at in e["own_at"].items():
            ranks = [r for r, item in enumerate(e[path], 1) if item["id"] == e["query"]["id"]]
            assert at == (ranks[0] if ranks else None)
            assert [r for r, item in enumerate(e[path], 1) if item["own"]] == ranks
        both = {item["id"] for item in e["direct"]} & {item["id"] for item in e["mediated"]}
        assert {item["id"] for item in e["direct"] if item["shared"]} == both
        found.append(e["own_at"]["direct"] is not None)
    assert data["found"] == pytest.approx(np.mean(found))


def test_few_anchors_rise_and_end_at_the_full_fit(bundle, summary):
    curve = summary["few_anchors"]
    assert curve["n"] == [5, 10, 20, 40]
    curves = {(c["measure"], c["items"], c["kind"]): c["mean"] for c in curve["curves"]}
    for measure, kind, name in (
        ("retrieval", "mapped", "after"),
        ("cosine", "mapped", "after"),
        ("cosine", "constant", "control_constant"),
        ("cosine", "random rotation", "control_random_rotation"),
    ):
        row = next(r for r in summary["scores"] if r["metric"] == measure and "image" in r["query"])
        assert curves[measure, "image", kind][-1] == pytest.approx(row[name], abs=1e-5), (measure, kind)
    assert curves["cosine", "image", "mapped"][0] < curves["cosine", "image", "mapped"][-1]
    measures = [c["measure"] for c in curve["curves"]]
    assert measures.index("cosine") > max(k for k, m in enumerate(measures) if m != "cosine")
    assert curve["chance"] == 1 / 20


def test_what_is_missing_is_left_out(bundle):
    only = Bundle({"image": bundle.source["image"]}, {"image": bundle.target["image"]})
    mapping = congruence.fit(only.source["image"], only.target["image"], check=False)
    summary = summarize(mapping, only)
    assert (summary["kernel"], summary["commuting"], summary["edits"]) == (None, None, None)
    assert "counterpart" in summary["verdict"]["sentence"]
    assert summary["few_anchors"]["n"][-1] == 30
    page = render(summary)
    assert "Two paths" not in page
    with pytest.raises(InputError, match="held-out pairs"):
        summarize(mapping, only, held_out=True)
    with pytest.raises(InputError, match="nothing can be measured|No source"):
        summarize(mapping, Bundle({}, {}))


@pytest.mark.parametrize("method", ["orthogonal", "linear"])
def test_models_of_other_widths_and_other_maps(method):
    bundle = make(d=6, d_out=9)
    options = {} if method == "orthogonal" else {"means": None}
    summary = summarize(fit(bundle, method=method, **options), bundle)
    assert summary["histograms"][0]["before"] is None
    assert (summary["spectrum"] is None) == (method == "linear")
    assert "<svg" in render(summary)


def test_edits_by_hand(bundle):
    wanted = {"e0": "c3", "e1": "c7"}
    at = [int(c[1:]) for c in wanted.values()]
    edits = Embeddings(bundle.source["text"].vectors[at], ids=list(wanted), space=bundle.source["text"].space)
    facts = {"classes": {"edit": wanted}, "texts": {"edit": {"e0": "a blue circle"}}, "before": {"e0": "c1"}}
    full = Bundle({**bundle.source, "edit": edits}, bundle.target, thumbnails=bundle.thumbnails, **facts)
    data = summarize(fit(full), full)["edits"]
    assert data["rows"][0]["text"] == "a blue circle"
    assert data["rows"][0]["before"] == "c1"
    assert (data["n"], data["gallery"], data["oracle_top5"]) == (2, 60, None)
    hits = [any(item["wanted"] for item in row["found"]) for row in data["rows"]]
    assert data["top5"] == np.mean(hits)
    assert data["chance"] == pytest.approx(5 / 60)
    for row in data["rows"]:
        ranks = [r for r, item in enumerate(row["found"], 1) if item["wanted"]]
        assert row["found_at"] == (ranks[0] if ranks else None)
    page = render(summarize(fit(full), full))
    assert page.count("✓ hit") + page.count("✗ miss") == 2 + 2 * 6  # captions, and both paths of the examples
    assert any(hits)


class Page(HTMLParser):
    VOID = ("meta", "link", "img", "br", "path", "polyline", "polygon")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.headings = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag, tag


def check_page(text, nasty=None):
    """Check that a page is well formed, escaped, fetches nothing, and suits keyboards and screen readers."""
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert nasty is None or nasty not in text
    for tag, name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith(("data:", "#")), (tag, value)
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert page.headings[0] == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert page.tags.count("img") == len([a for a in page.attributes if a[:2] == ("img", "alt")])
    assert page.tags.count("svg") == len([a for a in page.attributes if a == ("svg", "role", "img")])
    assert page.tags.count("svg") == len([a for a in page.attributes if a[:2] == ("svg", "aria-label")])
    return page


def test_the_page_is_well_formed_escaped_and_alone(summary):
    text = render(summary)
    page = check_page(text, NASTY)
    assert "&lt;script&gt;" in text
    assert page.tags.count("img") > 0
    assert ("html", "lang", "en") in page.attributes
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_a_file_that_is_no_picture_is_not_shown(bundle):
    data = summarize(fit(bundle), bundle, held_out=False, examples=60)["commuting"]
    shown = {e["query"]["id"]: e["query"]["picture"] for e in data["examples"]}
    assert shown["c31"] is None  # a script where a picture should be
    assert shown["c40"] is None
    assert all(shown[f"c{k}"].startswith("data:image/png;base64,") for k in range(30))


def test_the_source_is_the_measure_where_the_target_has_no_images(bundle):
    half = Bundle(bundle.source, {"text": bundle.target["text"]})
    means = {"image": (half.source["image"], None)}
    mapping = congruence.fit(half.source["text"], half.target["text"], holdout=20, check=False, means=means)
    summary = summarize(mapping, half)
    row = next(r for r in summary["scores"] if r["metric"] == "zero_shot" and r["query"] == "aligned image")
    assert summary["verdict"]["reached"] == pytest.approx(row["after"] / row["source"])
    assert "in the old model itself" in summary["verdict"]["sentence"]
