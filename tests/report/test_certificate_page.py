"""The page of a certificate: what to do comes first, what it is about is named, and a telephone shows every number."""

import re

import pytest

from congruence import Embeddings, Space
from congruence.report import render_certificate
from congruence.synthetic import upgrade_problem
from congruence.upgrade.certify import certify


@pytest.fixture(scope="module")
def page():
    p = upgrade_problem(80, 12, random_state=0)
    sides = []
    for model, images, texts in (
        ("a-model-with-quite-a-long-name/ViT-B-32", p.source_images, p.source_texts),
        ("another <model>", p.target_images, p.target_texts),
    ):
        rows = (("image", images), ("text", texts))
        sides.append({kind: Embeddings(X, space=Space(model, "2026-01", kind)) for kind, X in rows})
    return render_certificate(certify(*sides, random_state=7, data="shop/photos.parquet"))


def test_models_data_date_and_seed_are_named(page):
    models = "a-model-with-quite-a-long-name/ViT-B-32@2026-01, 12-d", "another &lt;model&gt;@2026-01, 12-d"
    for words in (*models, "shop/photos.parquet"):
        assert words in page
    assert re.search(r"<dd>20\d\d-\d\d-\d\d, 7</dd>", page)


@pytest.mark.long
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
