from __future__ import annotations

import io
import tarfile
import warnings

import numpy as np
import pytest
from PIL import Image

from puzlm import images
from puzlm.errors import ImageError, PuzlmError
from puzlm.images import iter_images, read_image, write_image


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_every_mode_a_person_has_becomes_rgb(photo):
    rgb = Image.fromarray(photo[200:240, 200:260])
    wide = np.asarray(rgb.convert("L")).astype(np.uint16) * 257
    cases = {
        "grey": encoded(rgb.convert("L")),
        "palette": encoded(rgb.convert("P")),
        "16-bit": encoded(Image.fromarray(wide)),
        "cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "rgba": encoded(rgb.convert("RGBA")),
        "1-bit": encoded(rgb.convert("1")),
        "webp": encoded(rgb, "WEBP"),
    }
    for name, blob in cases.items():
        pixels = read_image(blob)
        assert pixels.shape == (40, 60, 3) and pixels.dtype == np.uint8, name
        if name not in ("1-bit",):  # the picture is the same one, not just any picture
            same = np.corrcoef(pixels.mean(2).ravel(), photo[200:240, 200:260].mean(2).ravel())[
                0, 1
            ]
            assert same > 0.9, name
    assert np.abs(read_image(cases["16-bit"]).astype(int)[..., 0] - wide // 257).max() <= 1


def test_all_16_bit_pictures_are_scaled_alike():
    """Pieces of one puzzle: the darkest must not come out brighter than the next."""
    levels = [0, 200, 255, 256, 600, 65535]
    flat = [encoded(Image.fromarray(np.full((4, 4), level, np.uint16))) for level in levels]
    assert [read_image(blob)[0, 0, 0] for blob in flat] == [0, 1, 1, 1, 2, 255]
    wide = Image.fromarray(np.full((4, 4), 200, np.int32))  # 8-bit data in a wide mode
    assert read_image(encoded(wide, "TIFF"))[0, 0, 0] == 200


def test_transparent_pixels_fall_on_white():
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert (read_image(encoded(clear)) == 255).all()


def test_rotated_photo_is_upright(photo):
    lying = Image.fromarray(photo[:30, :50]).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me clockwise"
    assert np.array_equal(read_image(encoded(lying, exif=exif)), photo[:30, :50])


@pytest.mark.parametrize("blob", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_no_image(blob, tmp_path):
    (tmp_path / "x.png").write_bytes(blob)
    with pytest.raises(ImageError, match="x.png: (not an image|damaged)"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_truncated_image(kind, photo, tmp_path):
    blob = encoded(Image.fromarray(photo[:100, :100]), kind)
    (tmp_path / "x.bin").write_bytes(blob[: len(blob) // 2])
    with pytest.raises(ImageError, match="x.bin"):
        read_image(tmp_path / "x.bin")


@pytest.mark.parametrize(
    "facts",  # struct.error, TypeError and AttributeError of Pillow, when it turns the picture
    [
        "000002000000010001117001120003000000010006"
        "0000011a0005000000011300004a88270003000000010064"
        "00009205000c00000001000000520000000000000005000000023ff80000e3000000",
        "000004000000010001117001120003000000010006"
        "0000011a0007000000010000004a88270003000000010064"
        "00009205000c00000001000000520000000000000005000000023ff8000000000000",
        "000004000000010001117001120003000000010006"
        "000001510005000000010000004a88270003000000010064"
        "00009205000c00000001000000520000000000000005000000023ff8000000000000",
    ],
)
def test_damaged_exif_is_one_line(refused, here, photo, facts):
    exif = bytes.fromhex("4578696600004d4d002a00000008000501" + facts)
    (here / "x.jpg").write_bytes(encoded(Image.fromarray(photo[:60, :60]), "JPEG", exif=exif))
    assert "x.jpg: damaged or cut short" in refused("solve", "x.jpg", "--grid", "2")


def test_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    Image.new("1", (100, 100)).save(tmp_path / "bomb.png")
    with pytest.raises(ImageError, match="more than the 1,000 pixels"):
        read_image(tmp_path / "bomb.png")


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_one_limit_whatever_is_done_with_warnings(action, tmp_path):
    """Pillow warns of 90 million pixels; the answer is ours."""
    (tmp_path / "large.ppm").write_bytes(b"P5 9500 9500 255\n")  # refused by its head alone
    said = "large.ppm: (9500 x 9500 pixels, )?more than the 89,478,485 (pixels )?allowed"
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(ImageError, match=said):
            read_image(tmp_path / "large.ppm")


def test_a_real_bomb(tmp_path):
    Image.MAX_IMAGE_PIXELS, kept = None, Image.MAX_IMAGE_PIXELS
    try:
        Image.new("1", (40_000, 40_000)).save(tmp_path / "bomb.png")
    finally:
        Image.MAX_IMAGE_PIXELS = kept
    with pytest.raises(ImageError, match="bomb.png"):
        read_image(tmp_path / "bomb.png")


def test_writing_is_all_or_nothing(tmp_path, photo):
    with pytest.raises(ImageError, match="unknown picture type"):
        write_image(tmp_path / "a.txt", photo)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(PuzlmError, match="is a folder"):
        write_image(tmp_path / "folder.png", photo)
    (tmp_path / "file").write_text("x")
    with pytest.raises(PuzlmError, match="cannot be written"):
        write_image(tmp_path / "file" / "a.png", photo)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]


def test_folders_tars_and_files_give_the_same_images(tmp_path, crops):
    folder = tmp_path / "images"
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for i, crop in enumerate(crops[:4]):
            write_image(folder / f"{i}.png", crop)
            tar.add(folder / f"{i}.png", f"{i}.png")
    (folder / "named.png").mkdir()  # a folder, whatever it is called
    one = list(iter_images([folder]))
    two = list(iter_images([tmp_path / "all.tar"]))
    three = list(iter_images([folder / f"{i}.png" for i in range(4)]))
    for a, b, c, d in zip(one, two, three, crops[:4], strict=True):
        assert np.array_equal(a, d) and np.array_equal(b, d) and np.array_equal(c, d)
    assert len(list(iter_images([folder], limit=2))) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="no images found"):
        list(iter_images([tmp_path / "empty"]))
    (tmp_path / "no.tar").write_text("not a tar")
    with pytest.raises(ImageError, match="neither a folder"):
        list(iter_images([tmp_path / "no.tar"]))
