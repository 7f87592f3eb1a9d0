"""The page of a certificate: what it is about is named."""

import base64
import re
from dataclasses import replace

import pytest

from congruence import Embeddings, Space
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify


def certificate():
    p = upgrade_problem(80, 12, random_state=0)
    sides = []
    for model, images, texts in (
        ("a-model-with-quite-a-long-name/ViT-B-32", p.source_images, p.source_texts),
        ("another <model>", p.target_images, p.target_texts),
    ):
        rows = (("image", images), ("text", texts))
        sides.append({kind: Embeddings(X, space=Space(model, "2026-01", kind)) for kind, X in rows})
    return render_certificate(certify(*sides, random_state=7, data="shop/photos.parquet"))


@pytest.fixture(scope="module")
def page():
    return certificate()


def test_models_data_date_and_seed_are_named(page):
    models = "a-model-with-quite-a-long-name/ViT-B-32@2026-01, 12-d", "another &lt;model&gt;@2026-01, 12-d"
    for words in (*models, "shop/photos.parquet"):
        assert words in page
    assert re.search(r"<dd>20\d\d-\d\d-\d\d, 7</dd>", page)


@pytest.fixture(scope="module")
def crowded():
    """A certificate with all strategies and costs, long words, and names of items that do not fit."""
    p = upgrade_problem(120, 12, classes=20, random_state=0)
    sides = [{"image": images} for images in (p.source_images, p.target_images)]
    texts = p.source_texts, p.target_texts
    c = certify(*sides, text_queries=texts, random_state=7, rows=10_000_000, encode_rate=500, price=0.001)
    assert c.lists
    assert len(c.costs) >= 5
    examples = [
        {**one, "query": "a long query " * 9, "lists": {way: ["x" * 90] * 5 for way in ("keep", "stored", "re-embed")}}
        for one in c.examples
    ]
    verdict = replace(c.verdict, headline="undecided between " + "this and that " * 8, reason="It is so. " * 60)
    confidence = dict.fromkeys(("map", "progressive", "re-embed", "keep", "queries"), 0.2)
    verdict = replace(verdict, action="undecided", confidence=confidence)
    pairing, notes = {**c.pairing, "state": "cannot tell"}, [*c.notes, "The pairing cannot be told. " * 6]
    facts = {**c.facts, "source": "model " * 20, "data": "shop/photos.parquet, " * 8}
    return replace(c, examples=examples, verdict=verdict, pairing=pairing, notes=notes, facts=facts, make_map=None)


@pytest.mark.long
@pytest.mark.parametrize("size", [(8.27, 11.69), (8.5, 11)], ids=["A4", "letter"])
@pytest.mark.parametrize("pictures", [False, True])
def test_it_prints_on_one_sheet_with_all_that_one_decides_by(crowded, look, tmp_path, size, pictures):
    from congruence.datasets import load_sample
    from congruence.report.summary import data_uri

    thumbnail = data_uri(next(iter(load_sample("photos").thumbnails.values())))
    (tmp_path / "c.html").write_text(render_certificate(crowded, {"x" * 90: thumbnail} if pictures else {}))
    tab = look(tmp_path / "c.html", width=1000, height=1000)

    def sheets():
        printed = tab.ask("Page.printToPDF", paperWidth=size[0], paperHeight=size[1], preferCSSPageSize=True)
        return len(re.findall(rb"/Type\s*/Page\b(?!s)", base64.b64decode(printed["data"])))

    assert sheets() == 1
    tab.ask("Emulation.setEmulatedMedia", media="print")
    words = tab.evaluate("document.body.innerText")
    for said in (
        "cannot be told",
        "minutes",
        "price",
        "rollback",
        "Probability",
        "encode 50 items",
        "Next:",
        "10,000,000",
    ):
        assert said in words
    assert words.count("a long query") >= 3
    assert "All numbers" not in words
    tab.evaluate("document.querySelector('.more').style.display = 'block'")
    assert sheets() > 1  # or the count would prove nothing


@pytest.mark.parametrize("action", ["map", "queries", "leave", "progressive", "re-embed", "keep", "undecided"])
def test_every_verdict_has_its_way_back_and_its_next_step(crowded, action):
    text = render_certificate(replace(crowded, verdict=replace(crowded.verdict, action=action), make_map=None))
    changes = action in ("map", "progressive", "undecided")
    assert ("rollback restores them" in text) == changes
    assert ("the store does not change" in text) == (action in ("queries", "leave", "keep"))


def test_what_is_missing_for_minutes_and_money_is_said(page):
    assert "--set encode_rate" in page
    assert "--store" in page
