"""``Encoder.count_tokens`` against tokenizers built here with the tokenizers library: what the model reads, cut off and
without padding.
"""

import pytest
from graphs import text_graph
from tiny_models import TEXTS, make_tokenizer

from congruence.encoders import load_encoder
from congruence.integrations.texts import TextVectors

#: The last is cut off: 40 words and two marks, of which the models read 12.
COUNTED = [*TEXTS, "", "cat " * 40]
WANT = [7, 4, 12, 3, 2, 12]
ROOM = 12


@pytest.mark.heavy
@pytest.mark.long
def test_transformers_and_sentence_transformers(bert, sentences):
    assert load_encoder(f"hf:{bert}").count_tokens(COUNTED) == WANT
    encoder = load_encoder(f"sentence-transformers:{sentences()}")
    assert encoder.count_tokens(COUNTED) == WANT
    assert encoder.count_tokens([]) == []
    assert TextVectors(encoder).count_tokens(COUNTED) == WANT


@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_a_graph_reads_no_padding(tmp_path, padding):
    facts = {"modality": "text", "pooling": "mean", "max_length": ROOM, "padding": padding}
    assert load_encoder(f"onnx:{text_graph(tmp_path / 'ears.onnx')}", description=facts).count_tokens(COUNTED) == WANT


@pytest.mark.heavy
@pytest.mark.long
def test_a_default_prompt_is_read_too(sentences):
    """As ``encode`` puts it in front of every text."""
    folder = sentences(prompts={"q": "the photo "}, default_prompt_name="q")
    encoder = load_encoder(f"sentence-transformers:{folder}")
    assert encoder.count_tokens(COUNTED) == [min(want + 2, ROOM) for want in WANT]
    assert encoder.space.prompt == "the photo "


@pytest.mark.heavy
@pytest.mark.long
def test_static_embeddings_have_a_tokenizer_that_is_no_function(tmp_path):
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    words = StaticEmbedding(make_tokenizer().backend_tokenizer, embedding_dim=8)
    library.SentenceTransformer(modules=[words], device="cpu").save_pretrained(str(tmp_path / "static"))
    vectors = TextVectors(load_encoder(f"sentence-transformers:{tmp_path / 'static'}"))
    # Without marks, and a table of vectors has no longest text.
    assert vectors.count_tokens(COUNTED) == [len(text.split()) for text in COUNTED]
    assert vectors.count_tokens(COUNTED[-1:]) == [40]
