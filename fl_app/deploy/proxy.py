"""Run nginx before a SuperLink, so that each of its APIs has its own users.

A SuperLink serves everything on one port. It listens on the loopback address alone, and the proxy passes on

- ``/v1/fleet/…``, which nodes need and sign with their keys,
- ``/v1/control/…``, by which runs are started and nodes registered, only with an operator's certificate,
- ``/health``,

and nothing else: not ``/v1/runtime/…``, by which processes of the SuperLink's own machine fetch their work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

MOST_BYTES = 1 << 30
"""Most bytes of one request: a model's objects are sent one by one."""

_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size {most};
    client_header_timeout 30s;
    client_body_timeout 60s;
    large_client_header_buffers 4 16k;
    # a log that is followed may be silent for long
    proxy_read_timeout 1h;
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    # on the loopback address there is nobody in between
    proxy_ssl_verify off;
    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_client_certificate {authority};
        ssl_verify_client optional;
        ssl_verify_depth 1;
        location ~ ^/v1/fleet/[a-z-]+$ {{
            proxy_pass https://{superlink};
        }}
        location ~ ^/v1/control/[a-z-]+$ {{
            if ($ssl_client_verify != SUCCESS) {{
                return 403;
            }}
            proxy_pass https://{superlink};
        }}
        location = /health {{
            proxy_pass https://{superlink};
        }}
        location / {{
            return 404;
        }}
    }}
}}
"""


def write_config(
    folder: Path, *, listen: str, superlink: str, certificate: Path, key: Path, authority: Path
) -> Path:
    """Write nginx' configuration, and make the folders that it names, below ``folder``; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "nginx.conf"
    file.write_text(
        _CONFIG.format(
            folder=_quoted(folder),
            listen=listen,
            superlink=superlink,
            certificate=_quoted(certificate),
            key=_quoted(key),
            authority=_quoted(authority),
            most=MOST_BYTES,
        )
    )
    return file


def command(file: Path) -> list[str]:
    """Return the words that run nginx with a configuration; a FileNotFoundError if there is none."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError("proxy: there is no nginx")
    return [found, "-e", "stderr", "-c", str(file.resolve())]


def _quoted(path: Path) -> str:
    text = str(path.resolve())
    if any(sign in text for sign in " \t\n\"'\\;{}$"):
        raise ValueError(f"proxy: nginx cannot be told of a path with such signs: {text!r}")
    return text


def main() -> None:
    """Write the configuration and become nginx."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.proxy", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for nginx' own files")
    parser.add_argument("--listen", required=True, help="address:port for nodes and operators")
    parser.add_argument("--superlink", required=True, help="address:port of the SuperLink, on loopback")
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--authority", type=Path, required=True, help="who certifies operators")
    args = vars(parser.parse_args())
    try:
        words = command(write_config(args.pop("folder"), **args))
    except (ValueError, OSError) as error:
        sys.exit(f"{error}")
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
