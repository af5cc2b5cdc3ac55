"""Say by the exit code whether a SuperLink or a SuperNode answers: ``python -m fl_app.deploy.health URL``."""

from __future__ import annotations

import argparse
import ssl
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

SECONDS = 4.0


def answers(url: str, root_certificates: Path | None = None) -> str | None:
    """Return None if ``url`` answers, else why not; with certificates, the server must prove who it is."""
    context = None if root_certificates is None else ssl.create_default_context(cafile=root_certificates)
    try:
        with urlopen(url, timeout=SECONDS, context=context):
            return None
    except (URLError, OSError) as error:
        return f"{url}: {error}"


def main() -> None:
    """Ask once."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.health", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--root-certificates", type=Path)
    args = parser.parse_args()
    sys.exit(answers(args.url, args.root_certificates))


if __name__ == "__main__":
    main()
