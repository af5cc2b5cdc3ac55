"""Files of observations that somebody made up with right checksums: what is wrong with them lies deeper."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from fl_app.storage.fingerprint import hash_json, hash_named


def write_facts(path: Path, facts: dict) -> None:
    """Write public facts with their checksum."""
    content = {name: value for name, value in facts.items() if name != "checksum"}
    path.write_text(json.dumps(content | {"checksum": hash_json(content)}))


def write_seen(path: Path, told: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Write a file of tensors and texts with its checksum."""
    texts = {name: text for name, text in told.items() if name != "checksum"}
    save_file(tensors, path, metadata=texts | {"checksum": json.dumps(hash_named(texts, tensors))})
