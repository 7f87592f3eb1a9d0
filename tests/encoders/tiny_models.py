"""Parts of tiny models with random weights."""

WORDS = ["a", "photo", "of", "the", "cat", "dog", "bird", "red", "blue", "big", "small", "on", "grass", "and", "sky"]
TEXTS = ["a photo of the cat", "red bird", "the big dog and the small cat on blue grass", "sky"]
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
VISION = {**SMALL, "image_size": 16, "patch_size": 8}


def word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: k for k, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def make_tokenizer(**special):
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", **special}
    given = {key: value for key, value in names.items() if value is not None}
    return PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(), model_max_length=12, **given)


def text_config(**more):
    return {**SMALL, "vocab_size": 30, "max_position_embeddings": 12, "pad_token_id": 0, **more}


def make(folder, model, processor=None, tokenizer=None):
    """Save a model with random weights, scaled up so that every part of the model affects the vectors."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    for part in (model, processor, tokenizer):
        if part is not None:
            part.save_pretrained(folder)
    return folder
