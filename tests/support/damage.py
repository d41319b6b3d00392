"""Damage to files: bits flipped, bytes zeroed, ends cut off; and model folders whose hashes are removed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path


def flip_bit(path: Path, position: int) -> None:
    """Flip the lowest bit of one byte; a negative position counts from the end."""
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 1]))


def zero_bytes(path: Path, position: int, count: int) -> None:
    """Overwrite bytes with ones that are zero, or 255 where they are zero already."""
    with path.open("r+b") as file:
        file.seek(position)
        is_zero = not any(file.read(count))
        file.seek(position)
        file.write((b"\xff" if is_zero else b"\0") * count)


def positions_in(path: Path, count: int) -> list[int]:
    """Return evenly spaced positions in a file, the first and the last byte among them."""
    size = path.stat().st_size
    return [number * (size - 1) // (count - 1) for number in range(count)]


def forget_hashes(folder: Path) -> Path:
    """Remove the hashes from bertworks.json, as in a folder that an older version or another program wrote."""
    path = folder / "bertworks.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({key: metadata[key] for key in metadata if key not in ("files", "content_sha256")}))
    return folder


def truncate(path: Path, size: int) -> None:
    """Cut a file off at a size."""
    os.truncate(path, size)


def damage_randomly(path: Path, rng: random.Random) -> str:
    """Flip a bit, overwrite a block, or cut off the end of a file, at a random place; return what was done."""
    size = path.stat().st_size
    kind, position = rng.choice(("flipped bit", "zeroed block", "lost end")), rng.randrange(size)
    if kind == "flipped bit":
        flip_bit(path, position)
    elif kind == "zeroed block":
        zero_bytes(path, position, min(size - position, 512))
    else:
        truncate(path, position)
    return f"{kind} at {position:,} of {size:,} in {path.name}"
