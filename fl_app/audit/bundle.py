"""Flower app bundle as an app's folder, with the hash that a report is bound to."""

from __future__ import annotations

import hashlib
import io
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

MOST_BYTES = 1 << 28
"""Unpacked size of a bundle, at most."""
_MANIFEST = ".info/CONTENT"
_PROJECT = "pyproject.toml"


@contextmanager
def opened(app: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of an app and the SHA-256 of its bundle; "" for a folder.

    A bundle is unpacked into a temporary folder, and refused if its files are not those of its manifest.
    """
    if not app.is_file():
        yield app, ""
        return
    content = app.read_bytes()
    files = _files(app, content)
    with tempfile.TemporaryDirectory(prefix="fl-app-bundle-") as scratch:
        root = Path(scratch) / _name(files)
        for name, data in files.items():
            place = root / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        yield root, hashlib.sha256(content).hexdigest()


def _files(app: Path, content: bytes) -> dict[str, bytes]:
    """Return the files of a bundle, as its manifest lists them."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            entries = [entry for entry in bundle.infolist() if not entry.is_dir()]
            names = [entry.filename for entry in entries]
            if len(set(names)) < len(names):
                raise ValueError(f"--app: {app}: a name stands in the bundle twice")
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise ValueError(f"--app: {app}: the bundle unpacks to more than {MOST_BYTES} bytes")
            found = {entry.filename: bundle.read(entry) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"--app: {app}: expected a folder or a bundle of flwr build: {error}") from error
    manifest = found.get(_MANIFEST)
    if manifest is None:
        raise ValueError(f"--app: {app}: expected a bundle of flwr build, which has {_MANIFEST}")
    files = {name: data for name, data in found.items() if not name.startswith(".info/")}
    listed = dict(_listed(app, manifest))
    wrong = sorted(
        name
        for name in files.keys() | listed.keys()
        if name not in files or hashlib.sha256(files[name]).hexdigest() != listed.get(name)
    )
    if wrong:
        raise ValueError(f"--app: {app}: {wrong[0]!r} is not what the bundle's manifest says")
    if any(_leads_out(name) for name in files):
        raise ValueError(f"--app: {app}: a name in the bundle leads out of it")
    if _PROJECT not in files:
        raise ValueError(f"--app: {app}: no {_PROJECT} in the bundle")
    return files


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def _listed(app: Path, manifest: bytes) -> Iterator[tuple[str, str]]:
    for line in manifest.decode("utf-8", "replace").splitlines():
        parts = line.rsplit(",", 2)
        if len(parts) != 3:
            raise ValueError(f"--app: {app}: a line of the bundle's manifest cannot be read")
        yield parts[0], parts[1]


def _name(files: dict[str, bytes]) -> str:
    """Return the project's name, which reports give the app."""
    try:
        name = tomllib.loads(files[_PROJECT].decode())["project"]["name"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return "app"
    return name if isinstance(name, str) and name.replace("-", "").replace("_", "").isalnum() else "app"
