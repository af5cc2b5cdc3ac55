"""Open pages in headless Chromium and return what is to be seen there."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium to open the page")

# Every picture of both colour schemes joins the page, under the page's own content policy: the load event
# waits for all of them. What was seen goes to the page around the frame, before that one has loaded.
LOOK = """
const answer = {blocked: []};
document.addEventListener("securitypolicyviolation", event => answer.blocked.push(event.violatedDirective));
for (const source of document.querySelectorAll("source")) {
  const image = new Image();
  image.src = source.srcset;
  image.hidden = true;
  document.body.append(image);
}
window.addEventListener("load", () => {
  const root = document.documentElement;
  answer.pictures = document.images.length;
  answer.broken = [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length;
  answer.requests = performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length;
  answer.overflow = root.scrollWidth - root.clientWidth;
  answer.width = root.clientWidth;
  answer.sorts = [];
  for (const column of ["4", "4", "0"]) {
    const button = document.querySelector(`th button[data-column="${column}"]`);
    if (!button) break;
    button.click();
    const rows = [...button.closest("table").tBodies[0].rows];
    answer.sorts.push(rows.map(r => r.cells[0].firstChild?.textContent));
  }
  window.top.document.documentElement.dataset[window.name] = JSON.stringify(answer);
});
"""


def look_at(path: Path, profile: Path, *, width: int) -> dict[str, Any]:
    """Open a copy of the page with a script that looks at it, and return what it saw."""
    return look_at_all([path], profile, width=width)[0]


def look_at_all(paths: Sequence[Path], profile: Path, *, width: int) -> list[dict[str, Any]]:
    """Open several pages at once; the messages of the browser's console are those of all of them."""
    # a window has a least width that is wider than a phone; a frame has none
    frames = [
        f'<iframe src="{_with_look(path).as_uri()}" name="page{i}" width="{width}" height="900"></iframe>'
        for i, path in enumerate(paths)
    ]
    profile.mkdir(parents=True, exist_ok=True)
    around = profile / "frames.html"
    around.write_text(f"<!doctype html>{''.join(frames)}")
    options = ["headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"]
    options += ["disable-background-networking", "disable-component-update", "hide-scrollbars"]
    options += ["allow-file-access-from-files", f"user-data-dir={profile}", "window-size=1600,1000"]
    options += ["enable-logging=stderr", "dump-dom"]
    command = [str(BROWSER), *(f"--{option}" for option in options), around.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    seen = []
    for i, path in enumerate(paths):
        found = re.search(rf'data-page{i}="([^"]*)"', done.stdout)
        assert found, f"the script did not run: the policy of {path} or the page itself is broken"
        seen.append(json.loads(html.unescape(found[1])) | {"console": console})
    return seen


def _with_look(path: Path) -> Path:
    digest = base64.b64encode(hashlib.sha256(LOOK.encode()).digest()).decode()
    markup = path.read_text()
    markup = re.sub("script-src ('none')?", f"script-src 'sha256-{digest}' ", markup, count=1)
    copy = path.with_name(f"looked-at-{path.name}")
    copy.write_text(markup.replace("</body>", f"<script>{LOOK}</script></body>"))
    return copy
