"""Items by modality: what counts as one, how it is decoded, and a digest of its content."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from congruence._utils.optional import require
from congruence.errors import CongruenceError, CorruptFileError, DtypeError, FileError

if TYPE_CHECKING:
    from PIL import Image

#: Kinds of items that can be decoded; a tower gets items of any other modality as they are.
ENCODED = ("image", "text", "audio", "video")

#: Suffixes of the files that count as items in a folder.
SUFFIXES = {
    "image": (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"),
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".aiff"),
    "video": (".mp4", ".webm", ".mkv", ".mov", ".avi"),
}

#: Raster formats only, since Pillow would pass PostScript to an interpreter.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

#: Containers only, since FFmpeg would open the other files and the addresses that a playlist names.
VIDEO_FORMATS = ("mov", "matroska", "avi")

#: An item to encode: a text; the path or the bytes of a file; an image; samples and their rate; or a list of frames.
Item: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | tuple[np.ndarray, int] | Sequence[Any]"


def read_item(item: Item, modality: str | None, rate: int, frames: int) -> Item:
    """Check one item of a modality and decode it; one that is decoded already is returned as it is."""
    if modality == "image":
        return open_image(item)
    if modality == "audio":
        return open_audio(item, rate)
    if modality == "video":
        return open_video(item, frames)
    if modality == "text" and not isinstance(item, str):
        raise DtypeError(f"Got {type(item).__name__} as a text.", "Pass str, or load the encoder of another modality.")
    return item


def sample_item(modality: str | None) -> Item:
    """Return a small item of a modality."""
    if modality == "audio":
        return np.sin(np.arange(16_000) / 16, dtype=np.float32), 16_000
    if modality not in ("image", "video"):
        return "a text"
    image: Image.Image = require("PIL.Image", extra="images").new("RGB", (256, 224), (120, 130, 140))
    return image if modality == "image" else [image]


@contextmanager
def _decoding(item: Item, modality: str, formats: Sequence[str]) -> Iterator[Any]:
    """Open a file, or return what is in memory, and convert the errors of a decoder to one that names the item."""
    in_file = isinstance(item, (str, os.PathLike))
    name = item if in_file else f"{modality} in memory"
    try:
        if not in_file:
            yield io.BytesIO(item) if isinstance(item, bytes) else item
            return
        with open(item, "rb") as stream:  # type: ignore[arg-type]
            yield stream
    except CongruenceError:
        raise
    except FileNotFoundError:
        raise FileError(f"No {modality} at {name}.", "Check the path.") from None
    except Exception as error:  # each decoder has its own exceptions
        problem = f"{name} cannot be decoded ({error or 'too large for memory'})."
        raise CorruptFileError(problem, f"Replace this file ({', '.join(formats)}), or leave it out.") from error


def _refuse(item: Item, modality: str, expected: str) -> None:
    raise DtypeError(
        f"Got {type(item).__name__} as {modality}.", f"Pass a path, bytes or {expected}, or change `modality=…`."
    )


def open_image(item: Item) -> Image.Image:
    """Decode an image (a path, bytes, array or PIL image) in RGB: the first frame, without EXIF and transparency."""
    pil = require("PIL.Image", extra="images")
    if not isinstance(item, (str, os.PathLike, bytes, np.ndarray, pil.Image)):
        _refuse(item, "an image", "a PIL image")
    with _decoding(item, "image", IMAGE_FORMATS) as source:
        if isinstance(source, np.ndarray):
            image = pil.fromarray(source)
        else:
            image = source if isinstance(source, pil.Image) else pil.open(source, formats=IMAGE_FORMATS)
        # Convert through RGBA, which avoids a warning for palettes with transparency.
        image = image.convert("RGBA") if image.mode == "P" else image
        return image.convert("RGB")


def open_audio(item: Item, rate: int) -> tuple[np.ndarray, int]:
    """Decode audio (a path, bytes, or an array and its rate) to the mean of its channels, float32, at ``rate``."""
    if isinstance(item, (str, os.PathLike, bytes)):
        library = require("soundfile", extra="audio")
        with _decoding(item, "audio", SUFFIXES["audio"]) as stream:
            samples, found = library.read(stream, dtype="float32", always_2d=True)
            samples = samples.mean(axis=1)
    elif isinstance(item, tuple) and len(item) == 2 and np.ndim(item[0]) == 1 and np.ndim(item[1]) == 0:
        samples, found = np.asarray(item[0], dtype=np.float32), int(item[1])
    else:
        _refuse(item, "audio", "(samples of one channel, their rate)")
    if not len(samples) or found <= 0 or not np.isfinite(samples).all():
        problem = f"Got audio with {len(samples)} samples at {found} a second, or with NaN or infinity."
        raise CorruptFileError(problem, "Replace it, or leave it out.")
    if found != rate:
        from scipy.signal import resample_poly

        common = math.gcd(found, rate)
        samples = resample_poly(samples, rate // common, found // common).astype(np.float32)
    return samples, rate


def open_video(item: Item, frames: int) -> list[Image.Image]:
    """Decode a video (a path, bytes, folder of images, or list of frames): ``frames`` images, evenly spaced in it."""
    if isinstance(item, (str, os.PathLike)) and Path(item).is_dir():
        item = sorted(path for path in Path(item).iterdir() if path.suffix.lower() in SUFFIXES["image"])
    if isinstance(item, (str, os.PathLike, bytes)):
        av = require("av", extra="video")
        only = {"format_whitelist": ",".join(VIDEO_FORMATS)}
        with _decoding(item, "video", SUFFIXES["video"]) as stream, av.open(stream, options=only) as container:
            count = sum(1 for packet in container.demux(video=0) if packet.size)
            wanted, found = _evenly(count, frames), {}
            container.seek(0)
            for k, frame in enumerate(container.decode(video=0)):
                if k in wanted:
                    found[k] = frame.to_image()
            return [found[min(k, max(found))] for k in wanted]  # the last packets may give no frame
    if not isinstance(item, (list, tuple, np.ndarray)):
        _refuse(item, "a video", "a list of frames")
    if not len(item):
        raise CorruptFileError("Got a video without frames.", "Replace it, or leave it out.")
    return [open_image(item[k]) for k in _evenly(len(item), frames)]


def _evenly(count: int, frames: int) -> list[int]:
    """Return the places of ``frames`` of ``count`` frames, from the first to the last."""
    return np.linspace(0, count - 1, frames).round().astype(int).tolist()


def item_digest(item: Item) -> str:
    """Return the hexadecimal SHA-256 of a text, of files' bytes, of samples, or of pixels."""
    digest = hashlib.sha256()
    if isinstance(item, str):
        digest.update(b"text\0" + item.encode("utf-8", "surrogatepass"))
    elif isinstance(item, os.PathLike) and Path(item).is_dir():
        digest.update(item_digest(sorted(Path(item).iterdir())).encode())
    elif isinstance(item, os.PathLike):
        digest.update(b"file\0" + Path(item).read_bytes())
    elif isinstance(item, bytes):
        digest.update(b"file\0" + item)
    elif isinstance(item, np.ndarray):
        digest.update(f"array\0{item.dtype}\0{item.shape}\0".encode() + item.tobytes())
    elif isinstance(item, (list, tuple)):
        parts = (Path(part) if isinstance(part, str) else part for part in item)  # frames, or samples and a rate
        digest.update("\0".join(str(part) if isinstance(part, int) else item_digest(part) for part in parts).encode())
    elif hasattr(item, "tobytes"):
        digest.update(f"pixels\0{item.mode}\0{item.size}\0".encode() + item.tobytes())
    else:
        raise DtypeError(f"Got {type(item).__name__}, which a cache cannot tell apart.", "Leave out the cache.")
    return digest.hexdigest()
