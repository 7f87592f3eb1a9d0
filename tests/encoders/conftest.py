"""Tiny models with random weights, saved by the libraries themselves."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny_models import SMALL, VISION, make, make_tokenizer, text_config


@pytest.fixture(scope="session")
def transformers():
    """Import the library in the first test that needs it: an import at module level would load it in every process that
    collects tests.
    """
    import transformers

    return transformers


@pytest.fixture(scope="session")
def clip(tmp_path_factory, transformers):
    config = transformers.CLIPConfig(
        text_config=text_config(bos_token_id=2, eos_token_id=3), vision_config=VISION, projection_dim=8
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return make(
        tmp_path_factory.mktemp("clip"), transformers.CLIPModel(config), processor, make_tokenizer(cls_token=None)
    )


@pytest.fixture(scope="session")
def siglip(tmp_path_factory, transformers):
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    config = transformers.SiglipConfig(text_config=text_config(), vision_config=VISION)
    processor = SiglipImageProcessorPil(size={"height": 16, "width": 16})
    # As in published SigLIP models, padding tokens are not masked.
    tokenizer = make_tokenizer(model_input_names=["input_ids"])
    return make(tmp_path_factory.mktemp("siglip"), transformers.SiglipModel(config), processor, tokenizer)


@pytest.fixture(scope="session")
def siglip2(tmp_path_factory, transformers):
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    vision = {**SMALL, "patch_size": 8, "num_patches": 16}
    config = transformers.Siglip2Config(text_config=text_config(), vision_config=vision)
    processor = Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)
    tokenizer = make_tokenizer(model_input_names=["input_ids"])
    return make(tmp_path_factory.mktemp("siglip2"), transformers.Siglip2Model(config), processor, tokenizer)


@pytest.fixture(scope="session")
def flava(tmp_path_factory, transformers):
    from transformers.models.flava.image_processing_pil_flava import FlavaImageProcessorPil

    config = transformers.FlavaConfig(
        image_config=VISION, text_config=text_config(), multimodal_config=SMALL, projection_dim=8, hidden_size=16
    )
    processor = FlavaImageProcessorPil(size={"height": 16, "width": 16}, crop_size={"height": 16, "width": 16})
    return make(tmp_path_factory.mktemp("flava"), transformers.FlavaModel(config), processor, make_tokenizer())


@pytest.fixture(scope="session")
def claps(tmp_path_factory, transformers):
    """Return CLAPs by name: one that cuts long audio, and one that fuses parts of it."""
    import torch

    folders = {}
    for name, bins, cut in (("cut", 16, "rand_trunc"), ("fused", 64, "fusion")):
        audio = {"num_mel_bins": bins, "spec_size": max(32, bins), "window_size": 2, "hidden_size": 32}
        audio |= {"patch_embeds_hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2]}
        audio |= {"num_hidden_layers": 2, "projection_dim": 8, "enable_fusion": name == "fused"}
        # As in RoBERTa, two of the positions are not for tokens.
        words = text_config(projection_dim=8, type_vocab_size=1) | {"pad_token_id": 1, "max_position_embeddings": 14}
        config = transformers.ClapConfig(text_config=words, audio_config=audio, projection_dim=8)
        rates = {"sampling_rate": 8000, "hop_length": 160, "fft_window_size": 256, "frequency_max": 4000}
        extractor = transformers.ClapFeatureExtractor(feature_size=bins, max_length_s=1, truncation=cut, **rates)
        torch.manual_seed(0)  # of some other weights, rectified units would answer every sound alike
        place = tmp_path_factory.mktemp("clap")
        folders[name] = make(place, transformers.ClapModel(config), extractor, make_tokenizer())
    return folders


@pytest.fixture(scope="session")
def xclip(tmp_path_factory, transformers):
    from transformers.models.videomae.image_processing_pil_videomae import VideoMAEImageProcessorPil

    mit = {f"mit_{name}": size for name, size in {**SMALL, "num_hidden_layers": 1, "hidden_size": 8}.items()}
    words = text_config(bos_token_id=2, eos_token_id=3)
    config = transformers.XCLIPConfig(
        text_config=words, vision_config={**VISION, **mit, "num_frames": 4}, projection_dim=8,
        prompt_layers=1, prompt_num_attention_heads=2,
    )  # fmt: skip
    processor = VideoMAEImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    tokenizer = make_tokenizer(cls_token=None)
    return make(tmp_path_factory.mktemp("xclip"), transformers.XCLIPModel(config), processor, tokenizer)


@pytest.fixture(scope="session")
def clipseg(tmp_path_factory, transformers):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    words = text_config(bos_token_id=2, eos_token_id=3)
    config = transformers.CLIPSegConfig(text_config=words, vision_config=VISION, projection_dim=8, extract_layers=[1])
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    tokenizer = make_tokenizer(cls_token=None)
    return make(tmp_path_factory.mktemp("clipseg"), transformers.CLIPSegModel(config), processor, tokenizer)


@pytest.fixture(scope="session")
def align(tmp_path_factory, transformers):
    from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil

    eyes = {"image_size": 32, "hidden_dim": 16, "width_coefficient": 0.1, "depth_coefficient": 0.1}
    config = transformers.AlignConfig(text_config=text_config(), vision_config=eyes, projection_dim=16)
    processor = EfficientNetImageProcessorPil(size={"height": 32, "width": 32})
    return make(tmp_path_factory.mktemp("align"), transformers.AlignModel(config), processor, make_tokenizer())


@pytest.fixture(scope="session")
def blip2(tmp_path_factory, transformers):
    language = {"model_type": "opt", "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config=text_config(encoder_hidden_size=16, cross_attention_frequency=2),
        text_config={**language, "vocab_size": 30, "max_position_embeddings": 12, "word_embed_proj_dim": 16},
        num_query_tokens=4,
    )
    return make(tmp_path_factory.mktemp("blip2"), transformers.Blip2Model(config), None, make_tokenizer())


def _dino_processor():
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

    return BitImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


@pytest.fixture(scope="session")
def dinov2(tmp_path_factory, transformers):
    model = transformers.Dinov2Model(transformers.Dinov2Config(**VISION, mlp_ratio=2))
    return make(tmp_path_factory.mktemp("dinov2"), model, _dino_processor())


@pytest.fixture(scope="session")
def dinov2_registers(tmp_path_factory, transformers):
    config = transformers.Dinov2WithRegistersConfig(**VISION, mlp_ratio=2, num_register_tokens=4)
    model = transformers.Dinov2WithRegistersModel(config)
    return make(tmp_path_factory.mktemp("registers"), model, _dino_processor())


@pytest.fixture(scope="session")
def dinov3(tmp_path_factory, transformers):
    model = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**VISION, num_register_tokens=2))
    folder = make(tmp_path_factory.mktemp("dinov3"), model)
    # Its own processor needs torchvision; this is what it saves.
    facts = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 16, "width": 16}, "resample": 2}
    facts |= {"rescale_factor": 1 / 255, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory, transformers):
    model = transformers.BertModel(transformers.BertConfig(**text_config()))
    return make(tmp_path_factory.mktemp("bert"), model, None, make_tokenizer())


@pytest.fixture(scope="session")
def sentences(bert, tmp_path_factory):
    """Return a function that saves BERT and a mean as sentence-transformers does, and returns the folder."""

    def save(**more):
        import sentence_transformers as library
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        folder = tmp_path_factory.mktemp("sentences")
        words = Transformer(str(bert))
        pooling = Pooling(words.get_embedding_dimension(), "mean")
        library.SentenceTransformer(modules=[words, pooling], device="cpu", **more).save_pretrained(str(folder))
        return folder

    return save


@pytest.fixture(scope="session")
def llama(tmp_path_factory, transformers):
    config = transformers.LlamaConfig(**text_config(pad_token_id=None, bos_token_id=2, eos_token_id=3))
    tokenizer = make_tokenizer(pad_token=None, cls_token=None, sep_token=None, eos_token="[SEP]")
    return make(tmp_path_factory.mktemp("llama"), transformers.LlamaModel(config), None, tokenizer)


@pytest.fixture(scope="session")
def sounds():
    """Shorter than, as long as, and longer than what the tiny CLAPs take."""
    rng = np.random.default_rng(1)
    return [(rng.normal(size=size).astype(np.float32), 8000) for size in (500, 4000, 8000, 20_000)]


@pytest.fixture(scope="session")
def clips():
    """Videos of four, nine and two frames."""
    rng = np.random.default_rng(2)
    shape = (20, 24, 3)
    return [[Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(n)] for n in (4, 9, 2, 4)]


@pytest.fixture(scope="session")
def images():
    rng = np.random.default_rng(0)
    # One of them three pixels high, which libraries take for channels unless told otherwise.
    sizes = [(16, 16), (20, 33), (3, 9), (40, 17), (16, 24)]
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
