"""Pictures in and out: any file a person has -> upright RGB arrays. numpy + Pillow only."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL import TiffImagePlugin as _tiff  # noqa: F401 (a reader is known once it is imported)
from PIL import WebPImagePlugin as _webp  # noqa: F401

from puzlm.errors import ImageError
from puzlm.files import read_bytes, write_bytes

Pixels = NDArray[np.uint8]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
# What is decoded at all: some of Pillow's other readers start programs (EPS: Ghostscript).
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_SCANS = 64  # of a JPEG: cameras write 1, libjpeg at most 10; a file of 200 kB may hold 10,000
MAX_PIXELS = 89_478_485  # larger ones are refused as bombs; Pillow itself warns from here on


# In the data of a scan 0xFF is followed by 0 or by a restart marker, which begin no segment.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_ALONE = (0x01, 0xD8)  # markers without a length


def read_image(source: str | Path | bytes, *, name: str | None = None) -> Pixels:
    """Read one picture as upright RGB, shape (height, width, 3)."""
    return to_rgb(open_image(source, name=name))


def open_image(source: str | Path | bytes, *, name: str | None = None) -> Image.Image:
    """Open and fully decode one picture, turned upright; its mode is kept."""
    label = name or (str(source) if not isinstance(source, bytes) else "the image data")
    data = source if isinstance(source, bytes) else read_bytes(source, ImageError)
    too_large = f"{label}: more than the {MAX_PIXELS:,} pixels allowed; scale it down first"
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(too_large)
        if image.format in ("JPEG", "MPO") and jpeg_scans(data) > MAX_SCANS:
            raise ImageError(
                f"{label}: a JPEG of more than {MAX_SCANS} scans; save it anew, as any camera does"
            )
        image.load()
        return ImageOps.exif_transpose(image) or image
    except (ImageError, MemoryError):
        raise
    # The warning too: programs may have made errors of warnings. To filter it here would change
    # the filters of other threads.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(too_large) from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{label}: not an image that can be read") from error
    # Pillow's decoders, and its reader of EXIF, raise a dozen kinds on damaged files. Every one
    # means the same to a person.
    except Exception as error:
        raise ImageError(f"{label}: damaged or cut short ({error})") from error


def jpeg_scans(data: bytes) -> int:
    """Count the scans of a JPEG, each of which is one more pass of the decoder over all pixels.

    Segments are stepped over by their length, so that pictures inside them do not count.
    """
    scans, at = 0, 2
    while (found := _MARKER.search(data, at)) is not None:
        marker, at = data[found.end() - 1], found.end()
        if marker == 0xD9:  # the end of the picture; cameras put others behind it
            break
        if marker not in _ALONE:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
        scans += marker == 0xDA
    return scans


def to_rgb(image: Image.Image) -> Pixels:
    """Turn any mode into 8-bit RGB: transparent pixels fall on white, 16-bit is scaled to 8."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        grey = np.asarray(image).astype(np.float64)
        # Only the modes of no fixed range need a guess, which may differ from piece to piece.
        if image.mode.startswith("I;16") or grey.max(initial=0.0) > 255:
            grey = grey / 257.0
        image = Image.fromarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8))
    elif image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(ground, image)
    return np.asarray(image.convert("RGB"))


def write_image(path: str | Path, pixels: Pixels) -> None:
    """Write a picture under a temporary name, then rename: never half a file."""
    write_bytes(path, encode_image(path, pixels))


def check_picture(path: str | Path) -> None:
    """Refuse a name that no picture can be written under."""
    if Path(path).is_dir():
        raise ImageError(f"{path}: is a folder, a file name is needed here")
    if (suffix := Path(path).suffix.lower()) not in IMAGE_SUFFIXES:
        raise ImageError(f"{path}: unknown picture type '{suffix}'; use one of .png .jpg .webp")


def encode_image(path: str | Path, pixels: Pixels) -> bytes:
    """The bytes of a picture, of the type that a file name says."""
    check_picture(path)
    suffix, image = Path(path).suffix.lower(), Image.fromarray(pixels)
    if suffix in (".jpg", ".jpeg", ".bmp", ".ppm") and image.mode == "RGBA":
        image = Image.fromarray(to_rgb(image))
    buffer = io.BytesIO()
    image.save(buffer, format=Image.registered_extensions()[suffix])
    return buffer.getvalue()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def picture_files(folder: Path) -> list[Path]:
    """Every picture of a folder and of the folders in it, in order."""
    return sorted(
        p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file()
    )


def fingerprint(sources: Sequence[str | Path]) -> str:
    """Name what lies in folders and files, by names, sizes and times: another if any changes."""
    found: list[Any] = []
    for path in map(Path, sources):
        if not path.exists():
            raise ImageError(f"{path}: no such file or folder")
        for file in picture_files(path) if path.is_dir() else [path]:
            facts = file.stat()
            found.append([str(file.resolve()), facts.st_size, facts.st_mtime_ns])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def iter_blobs(sources: Sequence[str | Path]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, file bytes) of every image in folders, tar files and image files, in order."""
    for source in sources:
        path = Path(source)
        if path.is_dir():
            for file in picture_files(path):
                yield str(file), read_bytes(file, ImageError)
        elif not path.exists():
            raise ImageError(f"{path}: no such file or folder")
        elif not path.is_file():
            raise ImageError(f"{path}: is no plain file but a pipe or device")
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            yield str(path), read_bytes(path, ImageError)
        else:
            try:
                with tarfile.open(path) as tar:
                    for member in tar:
                        if member.isfile() and member.name.lower().endswith(IMAGE_SUFFIXES):
                            data = tar.extractfile(member)
                            assert data is not None
                            yield f"{path}:{member.name}", data.read()
            except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise ImageError(
                    f"{path}: neither a folder, an image nor a tar file of images"
                ) from error


def iter_images(sources: Sequence[str | Path], limit: int | None = None) -> Iterator[Pixels]:
    """Yield every picture of the sources as RGB; an empty set of sources is an error."""
    count = 0
    for name, blob in iter_blobs(sources):
        if limit is not None and count >= limit:
            return
        yield read_image(blob, name=name)
        count += 1
    if count == 0:
        raise ImageError(f"{', '.join(map(str, sources))}: no images found")
