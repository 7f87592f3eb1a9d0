"""The page of a certificate: what it is about is named."""

import re

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
