"""Images, audio and videos as files, bytes, folders and arrays."""

import sys
import wave

import numpy as np
import pytest
from PIL import Image

from congruence.embed import embed, open_items
from congruence.encoders import item_digest, load_towers
from congruence.encoders._items import open_audio, open_image, open_video
from congruence.errors import CorruptFileError, DtypeError, FileError, MissingExtraError

RATE = 16_000


def tone(frequency, seconds=0.5, rate=RATE):
    return np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def wav(path, *channels, rate=RATE):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.stack(channels, 1) * 32_767).astype("<i2").tobytes())
    return path


def frames(count, size=(16, 32)):
    """Return gray images, each lighter than the one before."""
    return [Image.new("RGB", size, (20 * k + 10,) * 3) for k in range(count)]


def film(path, count, codec="mpeg4"):
    av = pytest.importorskip("av", reason="needs PyAV")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for image in frames(count, (32, 16)):
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return path


def gray(images):
    return [round(float(np.asarray(image).mean())) for image in images]


def test_a_wav_file_is_the_mean_of_its_channels(tmp_path):
    pytest.importorskip("soundfile", reason="needs soundfile")
    low, high = 0.5 * tone(300), 0.25 * tone(1000)
    path = wav(tmp_path / "a.wav", low, high)
    for item in (path, str(path), path.read_bytes()):
        samples, rate = open_audio(item, RATE)
        assert rate == RATE
        np.testing.assert_allclose(samples, (low + high) / 2, atol=1e-4)
    again, _ = open_audio((samples, rate), RATE)
    assert again is samples


def test_another_rate_is_resampled():
    samples, rate = open_audio((tone(300, rate=44_100), 44_100), RATE)
    assert (len(samples), rate, samples.dtype) == (8000, RATE, np.float32)
    np.testing.assert_allclose(samples[200:-200], tone(300)[200:-200], atol=0.01)
    higher, _ = open_audio((tone(7000, rate=16_000), 16_000), 8000)  # above what the new rate can hold
    assert np.abs(higher[200:-200]).max() < 0.02


@pytest.mark.parametrize(
    "item", [(np.zeros((2, 50)), RATE), (np.zeros(0), RATE), (np.array([1, np.nan]), RATE), (np.zeros(9), 0)]
)
def test_samples_that_are_no_sound_are_refused(item):
    with pytest.raises(CorruptFileError, match="audio in memory cannot be decoded"):
        open_audio(item, RATE)


def test_an_array_may_be_an_image():
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    np.testing.assert_array_equal(np.asarray(open_image(pixels)), pixels)


def test_a_video_is_a_list_or_a_folder_of_frames(tmp_path):
    shown = frames(9)
    for k, image in enumerate(shown):
        image.save(tmp_path / f"{k}.png")
    (tmp_path / "notes.txt").write_text("no frame")
    for item in (shown, tmp_path, str(tmp_path), np.stack([np.asarray(image) for image in shown])):
        assert gray(open_video(item, 4)) == [10, 70, 110, 170]
        assert gray(open_video(open_video(item, 5), 5)) == [10, 50, 90, 130, 170]
    assert gray(open_video(shown[:1], 3)) == [10, 10, 10]


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "mpeg4"), ("a.mkv", "mpeg4"), ("a.avi", "mpeg4")])
def test_a_video_file_gives_evenly_spaced_frames(tmp_path, name, codec):
    path = film(tmp_path / name, 12, codec)
    for item in (path, path.read_bytes()):
        np.testing.assert_allclose(gray(open_video(item, 4)), [10, 90, 150, 230], atol=12)


def test_a_playlist_opens_no_other_file(tmp_path):
    film(tmp_path / "a.mp4", 4)
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.mp4\n#EXT-X-ENDLIST\n")
    with pytest.raises(CorruptFileError, match="cannot be decoded"):
        open_video(tmp_path / "list.m3u8", 2)


def test_what_cannot_be_read_is_named(tmp_path):
    pytest.importorskip("soundfile", reason="needs soundfile")
    pytest.importorskip("av", reason="needs PyAV")
    (tmp_path / "x.wav").write_bytes(b"no sound")
    (tmp_path / "empty").mkdir()
    for read, modality in ((lambda item: open_audio(item, 8000), "audio"), (lambda item: open_video(item, 2), "video")):
        with pytest.raises(FileError, match=rf"No {modality} at .*gone\.wav"):
            read(tmp_path / "gone.wav")
        with pytest.raises(CorruptFileError, match=r"x\.wav cannot be decoded"):
            read(tmp_path / "x.wav")
        with pytest.raises(DtypeError, match=f"float as {modality}"):
            read(3.0)
    with pytest.raises(CorruptFileError, match="no frames"):
        open_video(tmp_path / "empty", 2)


def test_without_the_library_its_extra_is_named(tmp_path, monkeypatch):
    path = wav(tmp_path / "a.wav", tone(300))
    for library, extra, read in (("soundfile", "audio", open_audio), ("av", "video", open_video)):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtraError, match=rf"congruence\[{extra}\]"):
            read(path, 8000)


def test_a_digest_tells_the_content(tmp_path):
    shown = frames(3)
    for k, image in enumerate(shown):
        image.save(tmp_path / f"{k}.png")
    sound = tone(300)
    different = [
        sound.tobytes(), (sound, RATE), (sound, 8000), (sound * 2, RATE), shown, shown[:2], shown[::-1],
        tmp_path, tmp_path / "0.png", "text",
    ]  # fmt: skip
    assert len({item_digest(item) for item in different}) == len(different)
    listed = [str(tmp_path / f"{k}.png") for k in range(3)]
    assert item_digest(listed) == item_digest(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "1.png")
    assert item_digest(listed) != item_digest(shown) != item_digest(tmp_path)
    with pytest.raises(DtypeError, match="cache"):
        item_digest(object())


def loudest(sounds):
    """Return the strength of three tones in each sound."""
    waves = np.exp(2j * np.pi * np.outer([300, 1000, 3000], np.arange(4000)) / RATE)
    return np.array([np.abs(waves @ samples[:4000]) for samples, _ in sounds])


def test_folders_and_tables_of_sounds_and_videos(tmp_path):
    pytest.importorskip("soundfile", reason="needs soundfile")
    (tmp_path / "sounds").mkdir()
    for name, frequency in (("a", 300), ("b", 1000), ("c", 3000)):
        wav(tmp_path / "sounds" / f"{name}.wav", tone(frequency))
    ears = load_towers({"audio": loudest}, name="tones", revision="1", rate=RATE)["audio"]
    items = open_items(tmp_path / "sounds")
    assert (items.modality, items.ids.tolist()) == ("audio", ["a.wav", "b.wav", "c.wav"])
    (tmp_path / "t.csv").write_text("id,path\n1,sounds/a.wav\n2,sounds/c.wav\n")
    report = embed(ears, items, tmp_path / "o.parquet", cache=tmp_path / "cache")
    assert (report.rows, report.encoded) == (3, 3)
    again = embed(
        ears, open_items(tmp_path / "t.csv", modality="audio"), tmp_path / "p.parquet", cache=tmp_path / "cache"
    )
    assert (again.rows, again.cached) == (2, 2)
    (tmp_path / "sounds" / "b.wav").write_bytes(b"broken")
    left = embed(ears, open_items(tmp_path / "sounds"), tmp_path / "q.parquet", on_error="skip")
    assert [one["id"] for one in left.failures] == ["b.wav"]
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        for k, image in enumerate(frames(3 if name == "x" else 6)):
            image.save(tmp_path / name / f"{k}.png")
    (tmp_path / "v.csv").write_text("video\nx\ny\n")
    lights = load_towers({"video": lambda clips: [gray(clip) for clip in clips]}, name="l", revision="1", frames=3)
    videos = open_items(tmp_path / "v.csv")
    report = embed(lights["video"], videos, tmp_path / "v.parquet", cache=tmp_path / "cache")
    assert (videos.modality, report.rows, report.dim) == ("video", 2, 3)
    np.testing.assert_array_equal(lights["video"].encode_all([videos.fetch(1)]), [[10, 50, 110]])


def test_bytes_of_sounds_are_encoded(tmp_path):
    pytest.importorskip("soundfile", reason="needs soundfile")
    ears = load_towers({"audio": loudest}, name="tones", revision="1", rate=RATE)["audio"]
    content = wav(tmp_path / "a.wav", tone(300)).read_bytes()
    np.testing.assert_allclose(ears.encode_all([content]), ears.encode_all([(tone(300), RATE)]), atol=1)
