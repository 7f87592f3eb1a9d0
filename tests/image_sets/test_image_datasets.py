"""The paper's data sets, read from small copies of their layouts."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL.Image")

from layouts import LAYOUTS, caltech101, cifar100, colour, dtd, gradient, pets, picture, stl10

from congruence.errors import CorruptFileError, FileError, IdError, InputError, MissingExtraError, ParameterError
from congruence_papers.image_sets import DATASETS, ImageDataset, open_dataset
from congruence_papers.image_sets.sets import read_coop

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """All five side by side, as ``congruence lab datasets --root`` has them."""
    root = tmp_path_factory.mktemp("data")
    for build, folder in LAYOUTS.values():
        build(root / folder)
    return root


def part(name, root, split="test"):
    return open_dataset(name, root, split, complete=False)


def test_splits_are_those_of_table_1_but_for_its_misprint():
    def sizes(name):
        entry = DATASETS[name]
        return entry.classes, *(entry.splits.get(split) for split in ("train", "val", "test"))

    assert sizes("caltech101") == (100, 4128, 1649, 2465)
    assert sizes("pets") == (37, 2944, 736, 3669)
    assert sizes("cifar100") == (100, 50_000, None, 10_000)
    assert sizes("stl10") == (10, 5_000, None, 8_000)  # Table 1 prints 50,000
    assert sizes("dtd") == (47, 2820, 1128, 1692)
    assert DATASETS["caltech101"].splits["all"] == 4128 + 1649 + 2465
    assert DATASETS["pets"].splits["trainval"] == 2944 + 736
    assert sum(DATASETS["dtd"].splits[f"{p}7"] for p in ("train", "val", "test")) == 2820 + 1128 + 1692


def test_templates_are_those_of_table_2():
    paper = SHARED / "papers" / "canonical.txt"
    if not paper.is_file():
        pytest.skip("needs the text of the paper, which is not beside this checkout")
    text = paper.read_text(encoding="utf-8")
    titles = {"pets": "Oxford Pets", "cifar100": "CIFAR-100", "caltech101": "Caltech-101"}
    titles |= {"stl10": "STL-10", "dtd": "DTD"}
    for name, title in titles.items():
        (row,) = re.findall(rf"^{title}\t(.*{{class}}.*)$", text, flags=re.M)
        assert " ".join(DATASETS[name].templates).replace("{}", "{class}") == row


@pytest.mark.long
def test_caltechs_classes_and_templates_agree_with_the_embeddings_made_elsewhere(tmp_path):
    path = SHARED / "data" / "caltech101_unimodal.npz"
    if not path.is_file():
        pytest.skip("needs caltech101_unimodal.npz of the shared test data, which is not beside this checkout")
    with np.load(path, allow_pickle=False) as data:
        folders, labels, files, templates = (data[k] for k in ("classes", "label", "image_file", "templates"))
    assert tuple(templates.tolist()) == DATASETS["caltech101"].templates
    for name in ("BACKGROUND_Google", "Faces_easy"):
        (tmp_path / "101_ObjectCategories" / name).mkdir(parents=True)
    for file in files.tolist():  # every name of the real archive; the listing looks at names only
        place = tmp_path / "101_ObjectCategories" / file
        place.parent.mkdir(exist_ok=True)
        place.touch()
    found = open_dataset("caltech101", tmp_path, "all")  # complete: 8,242 images of 100 classes
    label_of, wanted = (dict(zip(*map(list, s), strict=True)) for s in ((found.ids, found.labels), (files, labels)))
    assert label_of == wanted
    renamed = {"Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike", "airplanes": "airplane"}
    assert list(found.classes) == [renamed.get(f, f.replace("_", " ")) for f in folders.tolist()]


@pytest.mark.parametrize("name", LAYOUTS)
def test_splits_share_no_image_and_labels_keep_their_meaning(name, root):
    splits = [split for split in ("train", "val", "test") if split in DATASETS[name].splits]
    data = {split: part(name, root, split) for split in splits}
    ids = [i for d in data.values() for i in d.ids.tolist()]
    assert len(ids) == len(set(ids)) == sum(len(d) for d in data.values())
    assert len({d.classes for d in data.values()}) == 1
    for d in data.values():
        assert d.labels.dtype == np.int64
        assert set(d.labels.tolist()) == set(range(len(d.classes)))
        assert (d.name, d.templates) == (name, DATASETS[name].templates)
        image = d.image(len(d) - 1)
        assert image.mode == "RGB"


def test_pets_from_coops_split(root):
    data = {split: part("pets", root, split) for split in ("train", "val", "test")}
    assert {split: len(d) for split, d in data.items()} == {"train": 6, "val": 3, "test": 6}
    assert data["test"].classes == ("abyssinian", "american bulldog", "maine coon")
    assert data["val"].ids.tolist() == ["Maine_Coon_3.jpg", "american_bulldog_3.jpg", "Abyssinian_3.jpg"]  # as listed
    assert data["val"].labels.tolist() == [2, 1, 0]
    assert data["val"].image(1).getpixel((0, 0)) == colour(5 + 3)
    assert data["val"].path(1) == root / "oxford_pets" / "images" / "american_bulldog_3.jpg"


def test_pets_from_the_official_lists(tmp_path):
    home = pets(tmp_path / "oxford-iiit-pet")
    listed = part("pets", tmp_path)
    (home / "split_zhou_OxfordPets.json").unlink()
    official = part("pets", tmp_path)
    assert official.classes == listed.classes
    one, other = (sorted(zip(d.ids.tolist(), d.labels.tolist(), strict=True)) for d in (official, listed))
    assert one == other
    assert len(part("pets", tmp_path, "trainval")) == 9
    with pytest.raises(FileError, match=r"split_zhou_OxfordPets\.json.*--download.*'trainval'"):
        part("pets", tmp_path, "train")


def test_caltech_leaves_out_the_background_and_the_cropped_faces(root):
    test, every = part("caltech101", root), part("caltech101", root, "all")
    assert test.classes == every.classes == ("face", "airplane", "car side")
    assert test.ids.tolist() == [f"{f}/image_0004.jpg" for f in ("Faces", "airplanes", "car_side")]
    assert np.bincount(every.labels).tolist() == [4, 4, 4]
    assert not any("easy" in i or "Google" in i for i in every.ids.tolist())
    assert test.image(2).getpixel((5, 3)) == colour(4 * 4 + 4)


def test_dtd_by_coop_and_by_its_own_partitions(root):
    assert [len(part("dtd", root, split)) for split in ("train", "val", "test")] == [6, 2, 4]
    first, second = part("dtd", root, "test1"), part("dtd", root, "test2")
    assert first.classes == second.classes == ("banded", "polka-dotted")
    assert len(first) == len(second) == 4
    assert first.ids.tolist() != second.ids.tolist()
    assert first.labels.tolist() == [0, 0, 1, 1]


def test_cifars_pixels_are_where_they_belong(root):
    data = part("cifar100", root, "train")
    assert data.classes == ("apple", "aquarium fish", "baby")
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.ids[5] == "train/00005"
    np.testing.assert_array_equal(np.asarray(data.image(5)), gradient(32, 32, 5))


def test_stls_pixels_are_stored_by_column(root):
    data = part("stl10", root)
    assert data.classes == ("airplane", "bird")
    assert data.labels.tolist() == [0, 1]
    np.testing.assert_array_equal(np.asarray(data.image(1)), gradient(96, 96, 1))


def test_folders_of_classes(tmp_path):
    for k, file in enumerate(("a_cat/2.png", "a_cat/10.jpg", "dog/inner/1.webp", "dog/notes.txt", ".cache/1.png")):
        picture(tmp_path / "val" / file, k)
    data = open_dataset("folder", tmp_path, "val")
    assert data.classes == ("a cat", "dog")
    assert data.ids.tolist() == ["val/a_cat/10.jpg", "val/a_cat/2.png", "val/dog/inner/1.webp"]
    assert data.labels.tolist() == [0, 0, 1]
    assert data.image(0).getpixel((0, 0)) == colour(1)
    every = open_dataset("folder", tmp_path / "val", "all")
    assert [f"val/{i}" for i in every.ids.tolist()] == data.ids.tolist()


def test_folders_that_are_none(tmp_path):
    with pytest.raises(FileError, match="Check the path"):
        open_dataset("folder", tmp_path / "nowhere", "all")
    with pytest.raises(FileError, match="'all'"):
        open_dataset("folder", tmp_path)
    with pytest.raises(FileError, match="no folders"):
        open_dataset("folder", tmp_path, "all")
    (tmp_path / "cat").mkdir()
    with pytest.raises(FileError, match=r"no image in .*cat"):
        open_dataset("folder", tmp_path, "all")
    for split in ("..", ".", "", "a/b", "a\\b"):
        with pytest.raises(ParameterError, match="name of a folder"):
            open_dataset("folder", tmp_path, split)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_root_may_be_the_folder_itself_or_hold_it(name, tmp_path):
    build, _ = LAYOUTS[name]
    for folder in (".", *DATASETS[name].folders):
        root = tmp_path / f"root-{folder.replace('/', '-')}"
        build(root / folder)
        assert DATASETS[name].locate(root) == root / folder
        assert len(part(name, root)) > 0
        for other in set(LAYOUTS) - {name}:
            assert DATASETS[other].locate(root) is None


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_missing_and_where_it_goes_is_said(name, tmp_path):
    entry = DATASETS[name]
    with pytest.raises(FileError) as caught:
        open_dataset(name, tmp_path, "test")
    message = str(caught.value)
    assert str(tmp_path / entry.folders[0]) in message
    assert f"congruence lab datasets {name} --root {tmp_path} --download" in message
    assert all(resource.url in message for resource in entry.resources)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_part_is_no_data_set_unless_asked_for(name, root):
    with pytest.raises(CorruptFileError, match=rf"expected {DATASETS[name].splits['test']} of .*complete=False"):
        open_dataset(name, root)


def test_images_of_the_list_that_are_missing_are_counted(tmp_path):
    pets(tmp_path)
    (tmp_path / "images" / "Abyssinian_4.jpg").unlink()
    (tmp_path / "images" / "Maine_Coon_5.jpg").unlink()
    with pytest.raises(FileError, match=r"2 of 6 images .*Maine_Coon_5\.jpg"):
        part("pets", tmp_path)


def test_a_listed_name_that_no_file_can_have_is_missing(tmp_path):
    home = dtd(tmp_path / "d")
    listed = home / "labels" / "test1.txt"
    listed.write_text(f"banded/{'a' * 300}.jpg\n" + listed.read_text())
    with pytest.raises(FileError, match=r"1 of 5 images .*banded/a{50,}"):
        part("dtd", home, "test1")


def test_binary_files_that_are_cut_or_mislabelled(tmp_path):
    home = cifar100(tmp_path / "c")
    whole = (home / "test.bin").read_bytes()
    mislabelled = whole[:1] + b"\x03" + whole[2:], "label 3 .*0 to 2"
    for content, said in ((whole[:-1], "records of 3074"), (b"", "0 bytes"), mislabelled):
        (home / "test.bin").write_bytes(content)
        with pytest.raises(CorruptFileError, match=said):
            part("cifar100", home)
    (home / "test.bin").unlink()
    with pytest.raises(FileError, match="pickle"):
        part("cifar100", home)

    home = stl10(tmp_path / "s")
    labels = (home / "test_y.bin").read_bytes()
    outside, size = "expected 1 to 2", "27648 bytes per image"
    for odd, said in ((b"\0\1", outside), (b"\1\3", outside), (labels[:1], size), (b"", size)):
        (home / "test_y.bin").write_bytes(odd)
        with pytest.raises(CorruptFileError, match=said):
            part("stl10", home)
    (home / "test_y.bin").unlink()
    with pytest.raises(FileError, match=r"no test_y\.bin"):
        part("stl10", home)


def official_pets(home):
    pets(home)
    (home / "split_zhou_OxfordPets.json").unlink()


PETS = ("Abyssinian_1 1 1", "Abyssinian_1 1 1 1 1", "Abyssinian 1 1 1", "Abyssinian_1 one 1 1", "Bengal_1 1 1 1")
LISTS = [
    *(("pets", official_pets, "test", "annotations/test.txt", line.encode(), "test") for line in PETS),
    ("pets", official_pets, "test", "annotations/test.txt", b"Maine_Coon_6 5 1 1", "run from 1 to 4"),
    *(
        ("dtd", dtd, "val1", "labels/val1.txt", line, "val1")
        for line in (b"../secret.jpg", b"/etc/passwd", b"a/b/c.jpg", b"banded.jpg")
    ),
    ("cifar100", cifar100, "test", "fine_label_names.txt", b"\xff\xfe\xfa", "fine_label_names"),
    *(("cifar100", cifar100, "test", "fine_label_names.txt", empty, "fine_label_names") for empty in (b"", b"\n\n")),
]


@pytest.mark.parametrize(("name", "build", "split", "file", "content", "words"), LISTS)
def test_a_list_that_is_damaged_or_leads_elsewhere_is_named(name, build, split, file, content, words, tmp_path):
    build(tmp_path)
    path = tmp_path / file
    path.write_bytes((path.read_bytes() if content.strip() and name == "pets" else b"") + content)
    with pytest.raises(CorruptFileError, match=words):
        part(name, tmp_path, split)


GOOD = {"train": [["a.jpg", 0, "x"]], "val": [["b.jpg", 1, "y"]], "test": [["c.jpg", 0, "x"]]}
BAD = {
    "no JSON": b"{",
    "a sign-in page": b"<!DOCTYPE html><html>Google Drive</html>",
    "deep": b"[" * 100_000,
    "a list": [],
    "without val": {k: v for k, v in GOOD.items() if k != "val"},
    "a split that is no list": {**GOOD, "val": {}},
    "a short entry": {**GOOD, "val": [["b.jpg", 1]]},
    "a text label": {**GOOD, "val": [["b.jpg", "1", "y"]]},
    "true is no label": {**GOOD, "val": [["b.jpg", True, "y"]]},
    "outside": {**GOOD, "val": [["../b.jpg", 1, "y"]]},
    "absolute": {**GOOD, "val": [["/b.jpg", 1, "y"]]},
    "a drive": {**GOOD, "val": [["C:/b.jpg", 1, "y"]]},
    "backslashes": {**GOOD, "val": [["..\\b.jpg", 1, "y"]]},
    "no path": {**GOOD, "val": [["", 1, "y"]]},
    "in two splits": {**GOOD, "val": [["a.jpg", 0, "x"], ["b.jpg", 1, "y"]]},
    "twice in one": {**GOOD, "val": [["b.jpg", 1, "y"], ["b.jpg", 1, "y"]]},
    "two names": {**GOOD, "val": [["b.jpg", 1, "y"], ["d.jpg", 1, "z"]]},
    "a gap": {**GOOD, "val": [["b.jpg", 2, "y"]]},
    "a negative label": {**GOOD, "val": [["b.jpg", -1, "y"]]},
    "nothing": {"train": [], "val": [], "test": []},
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_splits_are_refused(what, tmp_path):
    path = tmp_path / "split.json"
    path.write_bytes(BAD[what] if isinstance(BAD[what], bytes) else json.dumps(BAD[what]).encode())
    with pytest.raises(CorruptFileError, match=r"split\.json.*Download it again"):
        read_coop(path)


def test_pictures_that_are_none_are_named(tmp_path):
    pets(tmp_path)
    data = part("pets", tmp_path)
    path = data.path(0)
    whole = path.read_bytes()
    for content in (b"", b"no picture", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=re.escape(str(path))):
            data.image(0)
    path.unlink()
    with pytest.raises(FileError, match="Restore it"):
        data.image(0)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_pictures_of_every_kind_come_out_in_rgb(mode, tmp_path):
    from PIL import Image

    (tmp_path / "x").mkdir()
    Image.new(mode, (3, 2)).save(tmp_path / "x" / "a.tif", format="TIFF")
    image = open_dataset("folder", tmp_path, "all").image(0)
    assert (image.mode, image.size) == ("RGB", (3, 2))


def test_only_images_that_exist_are_opened(root):
    data = part("stl10", root)
    for i in (-1, 2, 1.0, "0", None):
        with pytest.raises(ParameterError, match="expected 0 to 1"):
            data.image(i)
    assert data.image(np.int64(1)).size == (96, 96)


@pytest.mark.parametrize("name", ["pets", "cifar100"])
def test_without_pillow_the_extra_is_named(name, root, monkeypatch):
    data = part(name, root)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"congruence\[images\]"):
        data.image(0)


def test_prompts_go_class_by_class(root):
    data = part("stl10", root)
    first = [(0, 0, "a photo of a airplane."), (1, 0, "a photo of a bird.")]
    second = [(0, 1, "a photo of the airplane."), (1, 1, "a photo of the bird.")]
    assert data.prompts() == sorted(first + second)
    assert data.prompts(single=True) == first


def test_names_with_braces_stay_as_they_are():
    data = ImageDataset("x", "all", ["{0}", "{}"], ["a {}."], ["1", "2"], [0, 1], np.zeros((2, 1, 1, 3), np.uint8))
    assert [text for _, _, text in data.prompts()] == ["a {0}.", "a {}."]


def test_labels_and_ids_are_checked(tmp_path):
    def make(ids, labels, templates=("{}",), classes=("x", "y")):
        return ImageDataset("x", "all", classes, templates, ids, labels, np.zeros((len(ids), 1, 1, 3), np.uint8))

    for ids, labels, error, said in (
        (["a", "b"], [0, 2], InputError, "label 2 .*b.*0 to 1"),
        (["a", "b"], [0, -1], InputError, "label -1"),
        (["a", "b"], [0], InputError, "2 ids and 1 labels"),
        ([], [], InputError, "0 ids"),
        (["a", "a"], [0, 1], IdError, "'a' twice"),
    ):
        with pytest.raises(error, match=said):
            make(ids, labels)
    for template in ("none", "{} and {}"):
        with pytest.raises(InputError, match="one {}"):
            make(["a"], [0], templates=(template,))
    with pytest.raises(FileError, match="1 of 1"):
        ImageDataset("x", "all", ["x"], ["{}"], ["a.png"], [0], tmp_path)


def test_coops_layout_as_its_instructions_draw_it(tmp_path):
    """All of CoOp's folders below one ``$DATA``, without annotations and labels, which it does not need."""
    for build, folder in ((pets, "oxford_pets"), (caltech101, "caltech-101"), (dtd, "dtd")):
        build(tmp_path / folder)
    shutil.rmtree(tmp_path / "oxford_pets" / "annotations")
    shutil.rmtree(tmp_path / "dtd" / "labels")
    for name in ("pets", "caltech101", "dtd"):
        assert len(part(name, tmp_path, "val")) > 0
    with pytest.raises(FileError, match=r"trainval\.txt"):
        part("pets", tmp_path, "trainval")
