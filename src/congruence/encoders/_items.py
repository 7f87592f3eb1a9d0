"""Items by modality: what counts as one, how it is decoded, and a digest of its content."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from congruence._utils.optional import require
from congruence.errors import CongruenceError, CorruptFileError, DtypeError, FileError

if TYPE_CHECKING:
    from PIL import Image

#: Kinds of items that are read and decoded; a tower gets items of any other modality as they are.
ENCODED = ("image", "text", "audio", "video")

#: Suffixes of the files that count as items in a folder.
SUFFIXES = {
    "image": (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"),
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".aiff"),
    "video": (".mp4", ".webm", ".mkv", ".mov", ".avi"),
}

#: Raster formats only, since Pillow would pass PostScript to an interpreter; of videos those that hold their frames,
#: since FFmpeg would open the files and addresses that a playlist names.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
VIDEO_FORMATS = ("mov", "matroska", "avi")

#: A text; the path or the bytes of a file; a ``PIL.Image``; samples and their rate; or a list of frames.
Item: TypeAlias = Any


@contextmanager
def _decoding(item: Item, modality: str, *kinds: type) -> Iterator[Any]:
    """Open an item: a stream, or what is in memory already; convert errors of a decoder to one that names the item."""
    named = isinstance(item, (str, os.PathLike))
    if not named and not isinstance(item, (bytes, *kinds)):
        fix = f"Pass a path, bytes{''.join(f' or {kind.__name__}' for kind in kinds)}, or change `modality=…`."
        raise DtypeError(f"Got {type(item).__name__} as {modality}.", fix)
    name = item if named else f"{modality} in memory"
    try:
        with (
            open(item, "rb") if named else io.BytesIO(item) if isinstance(item, bytes) else nullcontext(item) as source
        ):
            yield source
    except FileNotFoundError:
        raise FileError(f"No {modality} at {name}.", "Check the path.") from None
    except CongruenceError:
        raise
    except Exception as error:  # each decoder has its own exceptions
        reason = getattr(error, "error_string", error)  # soundfile's, without the object that was read
        problem = f"{name} cannot be decoded ({reason or 'too large for memory'})."
        raise CorruptFileError(problem, "Replace it, or leave it out.") from error


def open_image(item: Item) -> Image.Image:
    """Decode an image (a path, bytes, array or PIL image) in RGB: the first frame, without EXIF and transparency."""
    pil = require("PIL.Image", extra="images")
    with _decoding(item, "image", pil.Image, np.ndarray) as source:
        if isinstance(source, np.ndarray):
            source = pil.fromarray(source)
        image = source if isinstance(source, pil.Image) else pil.open(source, formats=IMAGE_FORMATS)
        # Convert through RGBA, which avoids a warning for palettes with transparency.
        image = image.convert("RGBA") if image.mode == "P" else image
        return image.convert("RGB")


def open_audio(item: Item, rate: int) -> tuple[np.ndarray, int]:
    """Decode audio (a path, bytes, or samples and their rate) to the mean of its channels, float32, at ``rate``."""
    with _decoding(item, "audio", tuple) as source:
        if isinstance(source, tuple):
            samples, found = np.array(source[0], dtype=np.float32, copy=None), int(source[1])
        else:
            samples, found = require("soundfile", extra="audio").read(source, dtype="float32", always_2d=True)
            samples = samples.mean(axis=1)
        if samples.ndim != 1 or not len(samples) or found <= 0 or not np.isfinite(samples).all():
            raise ValueError(f"samples {samples.shape}, of which one channel is expected, at {found} a second")
        if found != rate:
            from scipy.signal import resample_poly

            common = math.gcd(found, rate)
            samples = resample_poly(samples, rate // common, found // common).astype(np.float32)
        return samples, rate


def open_video(item: Item, frames: int) -> list[Image.Image]:
    """Decode a video (a path, bytes, folder of images, or list of frames): ``frames`` images, evenly spaced in it."""
    if isinstance(item, (str, os.PathLike)) and Path(item).is_dir():
        item = sorted(path for path in Path(item).iterdir() if path.suffix.lower() in SUFFIXES["image"])
    with _decoding(item, "video", list, tuple, np.ndarray) as source:
        if isinstance(source, (list, tuple, np.ndarray)):
            return [open_image(source[k]) for k in _evenly(len(source), frames)]
        only = {"format_whitelist": ",".join(VIDEO_FORMATS)}
        with require("av", extra="video").open(source, options=only) as container:
            wanted = _evenly(sum(1 for packet in container.demux(video=0) if packet.size), frames)
            container.seek(0)
            found = {k: frame.to_image() for k, frame in enumerate(container.decode(video=0)) if k in wanted}
        return [found[min(k, max(found))] for k in wanted]  # the last packets may give no frame


def _evenly(count: int, frames: int) -> list[int]:
    """Return the places of ``frames`` of ``count`` frames, from the first to the last."""
    if not count:
        raise ValueError("no frames")
    return np.linspace(0, count - 1, frames).round().astype(int).tolist()


def item_digest(item: Item) -> str:
    """Return the hexadecimal SHA-256 of a text, of files' bytes, of samples, or of pixels."""
    if isinstance(item, str):
        content = b"text\0" + item.encode("utf-8", "surrogatepass")
    elif isinstance(item, os.PathLike) and Path(item).is_dir():
        return item_digest(sorted(Path(item).iterdir()))
    elif isinstance(item, (os.PathLike, bytes)):
        content = b"file\0" + (item if isinstance(item, bytes) else Path(item).read_bytes())
    elif isinstance(item, (list, tuple)):  # frames, or samples and a rate
        parts = (Path(part) if isinstance(part, str) else part for part in item)
        content = "\0".join(str(part) if isinstance(part, int) else item_digest(part) for part in parts).encode()
    elif isinstance(item, np.ndarray):
        content = f"array\0{item.dtype}\0{item.shape}\0".encode() + item.tobytes()
    elif not hasattr(item, "tobytes"):
        raise DtypeError(f"Got {type(item).__name__}, whose content a cache cannot tell.", "Leave out `cache=…`.")
    else:
        content = f"pixels\0{item.mode}\0{item.size}\0".encode() + item.tobytes()
    return hashlib.sha256(content).hexdigest()
