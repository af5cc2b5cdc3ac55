"""Strips of small pictures: N tiles of native size in one row with no gap, as one PNG.

The file itself holds the number of tiles (a PNG text chunk), because width
and height alone do not tell three 4:3 pictures from four square ones.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

_COUNT = "tiles"
_LARGEST = 160


def save_images(images: Tensor, path: Path | str) -> None:
    """Write images (N, C, H, W) in [0, 1], grey or colour, as one strip."""
    if images.ndim != 4 or images.shape[0] == 0 or images.shape[1] not in (1, 3):
        raise ValueError(f"save_images: expected (N, 1 or 3, H, W) with N > 0, got {tuple(images.shape)}")
    # a diverged reconstruction may hold NaN; black says so better than an arbitrary cast
    pixels = torch.nan_to_num(images.detach().float().cpu(), nan=0.0).clamp(0, 1)
    count, channels, height, width = pixels.shape
    strip = pixels.permute(2, 0, 3, 1).reshape(height, count * width, channels)
    array = (strip * 255).round().to(torch.uint8).numpy()
    about = PngImagePlugin.PngInfo()
    about.add_text(_COUNT, str(count))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array[..., 0] if channels == 1 else array).save(
        path, format="PNG", pnginfo=about, optimize=True
    )


def read_tiles(path: Path | None) -> list[Image.Image]:
    """Return the tiles of a strip; none if the file is missing or is no picture."""
    if path is None:
        return []
    try:
        with Image.open(path) as strip:
            strip.load()
            count = _tile_count(strip)
            width = strip.width // count
            return [strip.crop((i * width, 0, (i + 1) * width, strip.height)) for i in range(count)]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        # Pillow raises SyntaxError for a damaged PNG
        return []


def tile_uri(tile: Image.Image) -> str:
    """Return a tile as a data URI, scaled down if it is larger than a page shows it."""
    small = tile.convert("L" if tile.mode in ("1", "L", "I;16") else "RGB")
    small.thumbnail((_LARGEST, _LARGEST))
    buffer = io.BytesIO()
    small.save(buffer, format="PNG", optimize=True)
    return png_uri(buffer.getvalue())


def png_uri(content: bytes) -> str:
    """Return the bytes of a PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _tile_count(strip: Image.Image) -> int:
    stated = str(strip.info.get(_COUNT, ""))
    # written by another tool: take the tiles to be square
    count = int(stated) if stated.isdecimal() else strip.width // strip.height
    return count if 0 < count <= strip.width and strip.width % count == 0 else 1
