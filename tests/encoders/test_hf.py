"""The adapter against transformers called by hand, on tiny models with random weights."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import TEXTS, make_tokenizer

from congruence.encoders import load_encoder, load_towers
from congruence.errors import CorruptFileError, DtypeError, FileError, NotFiniteError, ParameterError

pytestmark = [pytest.mark.heavy, pytest.mark.long]
assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def unit(X):
    X = np.asarray(X, dtype=np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def by_hand(folder, modality, items, **tokens):
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    if modality == "image":
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        inputs = [processor(images=item, return_tensors="pt", input_data_format="channels_last") for item in items]
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = [tokenizer(item, return_tensors="pt", **tokens) for item in items]
    return model, inputs


@torch.no_grad()
def features(folder, modality, items, **tokens):
    model, inputs = by_hand(folder, modality, items, **tokens)
    function = model.get_image_features if modality == "image" else model.get_text_features
    return torch.stack([function(**one).pooler_output[0] for one in inputs])


@torch.no_grad()
def states(folder, modality, items):
    model, inputs = by_hand(folder, modality, items)
    outs = [model(**one, output_hidden_states=True) for one in inputs]
    return [[layer[0] for layer in out.hidden_states] for out in outs], [out.last_hidden_state[0] for out in outs]


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "clipseg", "align"])
@pytest.mark.parametrize("modality", ["image", "text"])
def test_dual_encoders_give_the_librarys_features_scaled_to_unit_norm(kind, modality, images, request):
    folder = request.getfixturevalue(kind)
    items = images if modality == "image" else TEXTS
    tokens = {"padding": "max_length", "max_length": 12} if kind.startswith("siglip") else {}
    encoder = load_encoder(f"hf:{folder}", modality)
    got = encoder.encode_all(items, batch_size=2)
    want = features(folder, modality, items, **tokens)
    assert_close(got, unit(want))
    assert got.dtype == np.float32
    facts = {"model": f"hf:{folder}", "modality": modality, "dim": got.shape[1], "normalized": True}
    assert encoder.space.to_dict() == {**facts, "revision": encoder.space.revision}
    assert encoder.space.revision.startswith("sha256:")
    raw = load_encoder(f"hf:{folder}", modality, normalize=False)
    assert_close(raw.encode_all(items), want)
    assert raw.space.normalized is False
    assert raw.fingerprint != encoder.fingerprint


@pytest.mark.parametrize("kind", ["cut", "fused"])
def test_clap_gives_the_librarys_features_of_each_sound(kind, claps, sounds, transformers):
    folder = claps[kind]
    model = transformers.AutoModel.from_pretrained(folder).eval()
    extract = transformers.AutoFeatureExtractor.from_pretrained(folder)
    want = []
    for samples, rate in sounds:
        np.random.seed(0)  # noqa: NPY002  # the library draws the part of a long sound from this
        with torch.no_grad():
            given = extract(samples, sampling_rate=rate, return_tensors="pt")
            want.append(model.get_audio_features(**given).pooler_output[0])
    encoder = load_encoder(f"hf:{folder}", "audio")
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    got = encoder.encode_all(sounds, 3)
    assert_close(got, unit(torch.stack(want)))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert_close(encoder.encode_all(sounds[::-1], 4)[::-1], got)
    assert np.abs(got[:-1] - got[1:]).max(1).min() > 1e-3
    assert (encoder.rate, encoder.space.modality, encoder.space.normalized) == (8000, "audio", True)
    texts = load_encoder(f"hf:{folder}", "text")
    assert_close(texts.encode_all(TEXTS), unit(features(folder, "text", TEXTS)))
    assert_close(texts.encode_all([" ".join(["cat"] * 40)]), texts.encode_all([" ".join(["cat"] * 10)]))


def test_xclip_gives_the_librarys_features_of_evenly_spaced_frames(xclip, clips, transformers):
    model = transformers.AutoModel.from_pretrained(xclip).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(xclip, backend="pil")
    places = [[0, 1, 2, 3], [0, 3, 5, 8], [0, 0, 1, 1], [0, 1, 2, 3]]
    with torch.no_grad():
        given = [[clip[k] for k in one] for clip, one in zip(clips, places, strict=True)]
        want = [model.get_video_features(**processor(one, return_tensors="pt")).pooler_output[0] for one in given]
    encoder = load_encoder(f"hf:{xclip}", "video")
    got = encoder.encode_all(clips, 3)
    assert_close(got, unit(torch.stack(want)))
    assert_close(encoder.encode_all(clips, 1), got)
    assert np.abs(got[:-1] - got[1:]).max(1).min() > 1e-3
    assert (encoder.frames, encoder.space.modality) == (4, "video")
    assert_close(load_encoder(f"hf:{xclip}", "text").encode_all(TEXTS), unit(features(xclip, "text", TEXTS)))


def test_what_has_no_one_vector_is_refused(blip2, claps, xclip):
    for modality in ("image", "text"):
        with pytest.raises(ParameterError, match="Blip2Model, has no one vector"):
            load_encoder(f"hf:{blip2}", modality)
    for folder, options in ((claps["cut"], {"layer": 1}), (xclip, {"pooling": "mean"})):
        with pytest.raises(ParameterError, match=next(iter(options))):
            load_encoder(f"hf:{folder}", "video" if folder == xclip else "audio", **options)
    with pytest.raises(ParameterError, match="modality='image'.*'text', 'audio'"):
        load_encoder(f"hf:{claps['cut']}", "image")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tower_may_return_tensors(dtype):
    weight = torch.nn.Parameter(torch.eye(2, dtype=dtype))
    towers = {"text": lambda texts: torch.tensor([[len(text), 1] for text in texts], dtype=dtype) @ weight}
    encoder = load_towers(towers, name="tensors", revision="1")["text"]
    assert_close(encoder.encode_all(["a", "bbb", "cc"]), [[1, 1], [3, 1], [2, 1]])


def test_a_prompt_is_put_before_each_text_and_is_part_of_the_space(bert):
    plain, prompted = load_encoder(f"hf:{bert}"), load_encoder(f"hf:{bert}", prompt="red ")
    assert_close(prompted.encode_all(TEXTS, 3), plain.encode_all([f"red {text}" for text in TEXTS], 3))
    assert (prompted.space.prompt, plain.space.prompt) == ("red ", None)
    assert prompted.fingerprint != plain.fingerprint
    assert prompted.count_tokens(["cat"]) == plain.count_tokens(["red cat"])


@pytest.mark.parametrize("modality", ["image", "text"])
def test_flava_gives_its_projected_cls_token(flava, modality, images):
    items = images if modality == "image" else TEXTS
    assert features(flava, modality, items[:1]).shape == (1, 5 if modality == "image" else 7, 8)
    want = torch.stack([features(flava, modality, [item])[0, 0] for item in items])
    assert_close(load_encoder(f"hf:{flava}", modality).encode_all(items, 3), unit(want))


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls_mean"])
def test_a_tower_can_be_pooled_before_its_projection(clip, images, pooling):
    model, inputs = by_hand(clip, "image", images)
    with torch.no_grad():
        outs = [model.vision_model(**one, output_hidden_states=True) for one in inputs]
    last = torch.stack([out.last_hidden_state[0] for out in outs])
    cls, mean = last[:, 0], last[:, 1:].mean(1)
    want = {"cls": cls, "mean": mean, "cls_mean": torch.cat([cls, mean], 1)}[pooling]
    encoder = load_encoder(f"hf:{clip}", "image", pooling=pooling)
    assert_close(encoder.encode_all(images), want)
    assert encoder.space.model == f"hf:{clip}#pooling={pooling}"
    assert encoder.space.normalized is False
    first = torch.stack([out.hidden_states[1][0, 0] for out in outs])
    assert_close(load_encoder(f"hf:{clip}", "image", layer=1, pooling="cls").encode_all(images), first)


def test_padded_patches_of_siglip2_do_not_count_in_a_mean(siglip2, images):
    model, inputs = by_hand(siglip2, "image", images)
    with torch.no_grad():
        outs = [model.vision_model(**one).last_hidden_state[0] for one in inputs]
    masks = [one["pixel_attention_mask"][0].bool() for one in inputs]
    assert not all(mask.all() for mask in masks)
    want = torch.stack([out[mask].mean(0) for out, mask in zip(outs, masks, strict=True)])
    assert_close(load_encoder(f"hf:{siglip2}", "image", pooling="mean").encode_all(images), want)


@pytest.mark.parametrize(("kind", "prefix"), [("dinov2", 1), ("dinov2_registers", 5), ("bert", 0)])
@pytest.mark.parametrize("pooling", [None, "cls", "mean", "cls_mean"])
def test_a_mean_leaves_out_padding_and_the_tokens_before_the_patches(kind, prefix, pooling, images, request):
    folder, modality = request.getfixturevalue(kind), "text" if kind == "bert" else "image"
    items = TEXTS if kind == "bert" else images
    last = states(folder, modality, items)[1]
    cls, mean = torch.stack([one[0] for one in last]), torch.stack([one[prefix:].mean(0) for one in last])
    assert kind == "bert" or {len(one) for one in last} == {prefix + 4}
    default = mean if kind == "bert" else cls
    want = {None: default, "cls": cls, "mean": mean, "cls_mean": torch.cat([cls, mean], 1)}[pooling]
    encoder = load_encoder(f"hf:{folder}", pooling=pooling)
    assert_close(encoder.encode_all(items, 2), want)
    assert (encoder.space.modality, encoder.space.normalized) == (modality, False)


def test_dinov3_is_prepared_without_torchvision(dinov3, images, transformers):
    encoder = load_encoder(f"hf:{dinov3}")
    model = transformers.AutoModel.from_pretrained(dinov3).eval()
    square = images[0]  # of the model's size, so that resizing changes nothing and the rest has a closed form
    pixels = (np.asarray(square) / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.25, 0.3]
    with torch.no_grad():
        want = model(torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)).pooler_output
    assert_close(encoder.encode_all([square]), want)
    flat = np.full((40, 24, 3), 80, dtype=np.uint8)  # one colour stays one colour whatever its size
    same = encoder.encode_all([Image.fromarray(flat), Image.fromarray(flat[:16, :16])])
    assert_close(same[0], same[1])
    ramp = np.repeat(np.arange(0, 128, 4, dtype=np.uint8)[:, None, None], 32, axis=1).repeat(3, axis=2)
    resized = encoder._prepare([Image.fromarray(ramp)])["pixel_values"][0, 0, :, 0].numpy() * 0.2 + 0.4
    # Halved with antialiasing, a ramp stays a ramp: each row the mean of a triangle of weights 1, 3, 3, 1 around it.
    inner = [(ramp[2 * k - 1 : 2 * k + 3, 0, 0] * [1, 3, 3, 1]).sum() / 8 / 255 for k in range(1, 15)]
    np.testing.assert_allclose(resized[1:15], inner, atol=1e-5)
    assert encoder.encode_all(images, 2).shape == (5, 16)


def test_other_preparations_of_dinov3_are_refused(dinov3, tmp_path):
    folder = shutil.copytree(dinov3, tmp_path / "odd")
    facts = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**facts, "do_normalize": False}))
    with pytest.raises(ParameterError, match="do_normalize"):
        load_encoder(f"hf:{folder}")


def test_language_models_without_a_padding_token_work(llama, bert):
    final = torch.stack([tokens[-1] for tokens in states(bert, "text", TEXTS)[1]])
    assert_close(load_encoder(f"hf:{bert}", pooling="last").encode_all(TEXTS, 4), final)
    every, last = states(llama, "text", TEXTS)
    mean = torch.stack([tokens.mean(0) for tokens in last])
    assert_close(load_encoder(f"hf:{llama}").encode_all(TEXTS, 4), mean)
    final = torch.stack([one[2][-1] for one in every])
    assert_close(load_encoder(f"hf:{llama}", layer=2, pooling="last").encode_all(TEXTS, 4), final)


def test_long_texts_are_cut_where_the_positions_end(bert):
    encoder = load_encoder(f"hf:{bert}")
    texts = [" ".join(["cat"] * 40)], [" ".join(["cat"] * 10)]  # 10 words and two marks fill 12 places
    assert_close(*(encoder.encode_all(one) for one in texts))


@pytest.mark.parametrize("kind", ["bert", "dinov2"])
def test_every_layer_in_one_pass_is_each_layer_alone(kind, images, request):
    folder = request.getfixturevalue(kind)
    items, modality = (TEXTS, "text") if kind == "bert" else (images, "image")
    every, _ = states(folder, modality, items)
    pool = (lambda tokens: tokens.mean(0)) if kind == "bert" else (lambda tokens: tokens[0])
    want = np.array([[pool(layer).numpy() for layer in one] for one in every])
    encoder = load_encoder(f"hf:{folder}", layer="all")
    got = np.concatenate(list(encoder.encode_layers(items, 2)))
    assert encoder.n_layers == 4
    assert encoder.space.dim == 64
    assert_close(got, want)
    for layer in (0, 2, -1):
        alone = load_encoder(f"hf:{folder}", layer=layer)
        assert alone.fingerprint == load_encoder(f"hf:{folder}", layer=layer % 4).fingerprint
        assert_close(alone.encode_all(items), want[:, layer])
        assert alone.space == (encoder.layer_space(layer) if layer >= 0 else alone.space)
    scaled = load_encoder(f"hf:{folder}", layer="all", normalize=True)
    lengths = np.linalg.norm(np.concatenate(list(scaled.encode_layers(items))), axis=2)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    with pytest.raises(ParameterError, match="layer='all'"):
        load_encoder(f"hf:{folder}", layer=1).encode_layers(items)


NEIGHBORS = {
    "text": ["clip", "siglip", "flava", "bert", "llama"],
    "image": ["clip", "siglip2", "flava", "dinov2", "dinov3"],
}


@pytest.mark.parametrize(("modality", "kind"), [(m, kind) for m, kinds in NEIGHBORS.items() for kind in kinds])
def test_an_item_does_not_depend_on_its_neighbors(modality, kind, request, images):
    items = images if modality == "image" else TEXTS
    encoder = load_encoder(f"hf:{request.getfixturevalue(kind)}", modality)
    together = encoder.encode_all(items, batch_size=5)
    assert_close(encoder.encode_all(items, batch_size=1), together)
    assert_close(encoder.encode_all(items[::-1], batch_size=3)[::-1], together)
    np.testing.assert_array_equal(encoder.encode_all(items, batch_size=5), together)
    assert modality == "image" or np.abs(together[0] - together[1]).max() > 1e-3


def test_images_may_be_paths_bytes_or_pictures(clip, images, tmp_path):
    encoder = load_encoder(f"hf:{clip}", "image")
    path = tmp_path / "a.png"
    images[1].save(path)
    want = encoder.encode_all([images[1]])
    for item in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(encoder.encode_all([item]), want)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.004)])
def test_half_precision_is_near_and_known_by_its_fingerprint(clip, images, dtype, tolerance):
    full = load_encoder(f"hf:{clip}", "image", dtype="float32")
    half = load_encoder(f"hf:{clip}", "image", dtype=dtype)
    got, want = half.encode_all(images), full.encode_all(images)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < tolerance
    assert half.fingerprint != full.fingerprint
    assert load_encoder(f"hf:{clip}", "image").fingerprint == full.fingerprint  # what "auto" means on a CPU


def test_the_fingerprint_tells_weights_and_preparation_not_the_place(clip, bert, tmp_path, transformers):
    encoder = load_encoder(f"hf:{clip}", "image")
    copy = shutil.copytree(clip, tmp_path / "copy")
    assert load_encoder(f"hf:{copy}", "image").fingerprint == encoder.fingerprint
    assert load_encoder(f"hf:{copy}", "text").fingerprint != encoder.fingerprint
    facts = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps({**facts, "image_mean": [0.5, 0.5, 0.5]}))
    assert load_encoder(f"hf:{copy}", "image").fingerprint != encoder.fingerprint
    model = transformers.AutoModel.from_pretrained(clip)
    with torch.no_grad():
        model.visual_projection.weight[0, 0] += 1e-3
    other = tmp_path / "other"
    shutil.copytree(clip, other)
    model.save_pretrained(other)
    assert load_encoder(f"hf:{other}", "image").fingerprint != encoder.fingerprint
    texts = shutil.copytree(bert, tmp_path / "texts")
    before = load_encoder(f"hf:{texts}").fingerprint
    make_tokenizer(pad_token="[SEP]").save_pretrained(texts)
    assert load_encoder(f"hf:{texts}").fingerprint != before


def test_the_librarys_own_settings_are_left_as_they_were(bert, transformers):
    log = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    load_encoder(f"hf:{bert}")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "modality=None.*'image', 'text'"),
        ({"modality": "audio"}, "modality='audio'"),
        ({"modality": "image", "device": "tpu"}, "device='tpu'.*'cpu'"),
        ({"modality": "image", "device": "cpu:x"}, "device='cpu:x'"),
        ({"modality": "image", "dtype": "float64"}, "dtype='float64'"),
        ({"modality": "image", "pooling": "max"}, "pooling='max'"),
        ({"modality": "image", "pooling": "last"}, "pooling='last'.*'mean'"),
        ({"modality": "text", "pooling": "cls"}, r"no \[CLS\] token"),
        ({"modality": "image", "layer": 4, "pooling": "cls"}, "layer=4.* 3, the last"),
        ({"modality": "image", "layer": "first"}, "layer='first'"),
        ({"modality": "image", "layer": True}, "layer=True"),
        ({"modality": "image", "prompt": "a "}, "prompt='a '"),
    ],
)
def test_options_that_cannot_be_are_refused(clip, options, message):
    with pytest.raises(ParameterError, match=message):
        load_encoder(f"hf:{clip}", **options)


def test_a_siglip_has_no_cls_token_and_a_bert_no_images(siglip, bert):
    with pytest.raises(ParameterError, match=r"no \[CLS\] token"):
        load_encoder(f"hf:{siglip}", "image", pooling="cls_mean")
    with pytest.raises(ParameterError, match="modality='image'.*'text'"):
        load_encoder(f"hf:{bert}", "image")


def test_items_of_the_wrong_kind_are_refused(bert, clip):
    with pytest.raises(DtypeError, match="int as a text"):
        load_encoder(f"hf:{bert}").encode_all([3])
    encoder = load_encoder(f"hf:{clip}", "image")
    with pytest.raises(DtypeError, match="float as image"):
        encoder.encode_all([3.0])
    with pytest.raises(ParameterError, match="single str"):
        encoder.encode("cat.png")
    with pytest.raises(ParameterError, match="batch_size=0"):
        encoder.encode([], batch_size=0)
    assert encoder.encode_all([]).shape == (0, 8)


def test_missing_and_damaged_images_are_named(clip, images, tmp_path):
    encoder = load_encoder(f"hf:{clip}", "image")
    with pytest.raises(FileError, match=r"No image at .*gone\.png"):
        encoder.encode_all([tmp_path / "gone.png"])
    images[1].save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFileError, match=r"cut\.png"):
        encoder.encode_all([tmp_path / "cut.png"])
    with pytest.raises(CorruptFileError, match="image in memory"):
        encoder.encode_all([b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n"])


def test_a_model_that_gives_nan_is_noticed(bert, tmp_path, transformers):
    folder = shutil.copytree(bert, tmp_path / "broken")
    model = transformers.AutoModel.from_pretrained(bert)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[8] = float("nan")  # the cat
    model.save_pretrained(folder)
    encoder = load_encoder(f"hf:{folder}")
    with pytest.raises(NotFiniteError, match="'2'"):
        encoder.encode_all(["sky", "red bird", "the cat"], 2)


def test_models_that_are_not_there_or_not_safe_are_refused(bert, tmp_path, monkeypatch, transformers):
    with pytest.raises(FileError, match="No folder at"):
        load_encoder(f"hf:{tmp_path / 'nowhere'}")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match="error while loading"):
        load_encoder(f"hf:{empty}")
    # The same weights in torch's own format: only when asked for.
    old = shutil.copytree(bert, tmp_path / "old")
    torch.save(transformers.AutoModel.from_pretrained(bert).state_dict(), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    with pytest.raises(FileError, match="safetensors"):
        load_encoder(f"hf:{old}")
    loose = load_encoder(f"hf:{old}", safetensors_only=False)
    assert loose.fingerprint == load_encoder(f"hf:{bert}").fingerprint
    # A pickle that would run code does not.
    (old / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.")
    with pytest.raises(FileError, match="error while loading"):
        load_encoder(f"hf:{old}", safetensors_only=False)


def test_code_that_comes_with_a_model_is_never_run(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "unheard_of", "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(FileError, match="error while loading"):
        load_encoder(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()
