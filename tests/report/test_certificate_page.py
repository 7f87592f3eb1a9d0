"""The page of a certificate: what to do comes first, what it is about is named, and a telephone shows every number."""

from __future__ import annotations

import re

import pytest

from congruence import Embeddings, Space
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify


@pytest.fixture(scope="module")
def page():
    p = upgrade_problem(80, 12, random_state=0)
    sides = [
        {
            kind: Embeddings(rows, space=Space(model=model, revision="2026-01", modality=kind))
            for kind, rows in (("image", images), ("text", texts))
        }
        for model, images, texts in (
            ("a-model-with-quite-a-long-name/ViT-B-32", p.source_images, p.source_texts),
            ("another <model>", p.target_images, p.target_texts),
        )
    ]
    return render_certificate(certify(*sides, repeats=2, draws=200, random_state=7, data="shop/photos.parquet"))


def test_models_data_date_and_seed_are_named(page):
    for words in (
        "a-model-with-quite-a-long-name/ViT-B-32@2026-01, 12-d",
        "another &lt;model&gt;@2026-01, 12-d",
        "shop/photos.parquet",
        ", 7</dd>",
    ):
        assert words in page
    assert re.search(r"<dd>20\d\d-\d\d-\d\d, 7</dd>", page)


def test_what_to_do_comes_first_and_theorems_are_folded(page):
    assert (
        page.index("<strong>Next:</strong>") < page.index("recall@1") < page.index("<details>") < page.index("Thm C.25")
    )
    assert "<details open" not in page
    for old in ("carried", "carry", "stay", "probed"):
        assert old not in page.split("</style>")[1].lower()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_number_is_visible_without_scrolling(page, look, tmp_path, width):
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    boxes, out, scroll = look(tmp_path / "page.html", width=width, height=2000).evaluate("""(() => {
      const boxes = [...document.querySelectorAll('.value, td .note, dd, svg')].filter(e => !e.closest('details'))
        .map(e => e.getBoundingClientRect());
      const out = boxes.filter(b => b.right > innerWidth + 1 || b.left < -1 || b.width < 1).length;
      return [boxes.length, out, document.documentElement.scrollWidth];
    })()""")
    assert boxes > 40
    assert out == 0
    assert scroll <= width
