"""A bundle is unpacked only if it is what its manifest says, and its hash is the report's."""

import hashlib
import io
import zipfile

import pytest
from bundles import bundle_of

from fl_app.audit.bundle import opened

PROJECT = b'[project]\nname = "patients"\n'


def packed(files, *, listed=None, extra=()):
    """Return a bundle; ``listed`` are the files that the manifest tells of."""
    lines = [
        f"{name},{hashlib.sha256(data).hexdigest()},{8 * len(data)}"
        for name, data in (files if listed is None else listed).items()
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, data in [*files.items(), (".info/CONTENT", "\n".join(lines).encode()), *extra]:
            bundle.writestr(name, data)
    return buffer.getvalue()


def unpacked(tmp_path, content):
    file = tmp_path / "app.fab"
    file.write_bytes(content)
    with opened(file) as (folder, digest):
        found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        return folder.name, found, digest


def test_files_and_hash_are_those_of_the_bundle(tmp_path):
    files = {"pyproject.toml": PROJECT, "app/client, of one.py": b"x = 1\n"}
    content = packed(files)
    assert unpacked(tmp_path, content) == ("patients", files, hashlib.sha256(content).hexdigest())


def test_a_folder_is_taken_as_it_is(tmp_path):
    with opened(tmp_path) as (folder, digest):
        assert (folder, digest) == (tmp_path, "")


FILES = {"pyproject.toml": PROJECT, "a.py": b"x = 1\n"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a zip", "expected a folder or a bundle"),
        (packed(FILES, listed=FILES | {"a.py": b"x = 2\n"}), "manifest"),
        (packed(FILES, listed={"pyproject.toml": PROJECT}), "manifest"),
        (packed(FILES, listed=FILES | {"b.py": b""}), "manifest"),
        (packed(FILES, extra=[("pyproject.toml", PROJECT)]), "twice"),
        (packed(FILES | {"../outside.py": b""}), "leads out"),
        (packed(FILES | {"/tmp/outside.py": b""}), "leads out"),
        (packed({"a.py": b""}), "pyproject"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bundle_that_is_not_its_manifest_is_refused(tmp_path, content, said):
    with pytest.raises(ValueError, match=said):
        unpacked(tmp_path, content)
    assert {path.name for path in tmp_path.iterdir()} == {"app.fab"}


def test_a_bundle_of_flower_has_the_hash_that_its_name_begins_with(tmp_path):
    bundle = bundle_of("local_dp", tmp_path)
    with opened(bundle) as (folder, digest):
        assert bundle.stem.split(".")[-1] == digest[:8]
        assert (folder / "pyproject.toml").is_file()
