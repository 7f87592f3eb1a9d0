"""``Encoder.count_tokens`` against tokenizers built here with the tokenizers library: what the model reads, cut off and
without padding.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import TEXTS, make_tokenizer

from congruence.encoders import load_encoder
from congruence.integrations.texts import TextVectors

pytestmark = pytest.mark.heavy

#: The last is cut off: 40 words and two marks, of which the models read 12.
COUNTED = [*TEXTS, "", "cat " * 40]
WANT = [7, 4, 12, 3, 2, 12]
ROOM = 12


@pytest.fixture(scope="session")
def sentences(bert, tmp_path_factory):
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    def save(name, **more):
        words = Transformer(str(bert))
        pooling = Pooling(words.get_embedding_dimension(), "mean")
        folder = tmp_path_factory.mktemp(name)
        library.SentenceTransformer(modules=[words, pooling], device="cpu", **more).save_pretrained(str(folder))
        return load_encoder(f"sentence-transformers:{folder}")

    return save


@pytest.fixture
def graph(tmp_path):
    nodes = [helper.make_node("Gather", ["t", "input_ids"], ["last_hidden_state"])]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "s"])
    out = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "s", 7])
    table = numpy_helper.from_array(np.random.default_rng(0).normal(size=(30, 7)).astype(np.float32), "t")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [ids], [out], [table]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, tmp_path / "ears.onnx")
    make_tokenizer().backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "ears.onnx"


def test_the_tokenizer_itself_counts_so():
    assert [min(len(make_tokenizer()(text)["input_ids"]), ROOM) for text in COUNTED] == WANT


def test_transformers_and_sentence_transformers(bert, sentences):
    assert load_encoder(f"hf:{bert}").count_tokens(COUNTED) == WANT
    encoder = sentences("plain")
    assert encoder.count_tokens(COUNTED) == WANT
    assert encoder.count_tokens([]) == []
    assert TextVectors(encoder).count_tokens(COUNTED) == WANT


@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_a_graph_reads_no_padding(graph, padding):
    facts = {"modality": "text", "pooling": "mean", "max_length": ROOM, "padding": padding}
    assert load_encoder(f"onnx:{graph}", description=facts).count_tokens(COUNTED) == WANT


def test_a_default_prompt_is_read_too(sentences):
    """As ``encode`` puts it in front of every text."""
    encoder = sentences("prompted", prompts={"q": "the photo "}, default_prompt_name="q")
    assert encoder.count_tokens(COUNTED) == [min(want + 2, ROOM) for want in WANT]


def test_static_embeddings_have_a_tokenizer_that_is_no_function(tmp_path):
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    words = StaticEmbedding(make_tokenizer().backend_tokenizer, embedding_dim=8)
    library.SentenceTransformer(modules=[words], device="cpu").save_pretrained(str(tmp_path / "static"))
    vectors = TextVectors(load_encoder(f"sentence-transformers:{tmp_path / 'static'}"))
    # Without marks, and a table of vectors has no longest text.
    assert vectors.count_tokens(COUNTED) == [len(text.split()) for text in COUNTED]
    assert vectors.count_tokens(COUNTED[-1:]) == [40]
