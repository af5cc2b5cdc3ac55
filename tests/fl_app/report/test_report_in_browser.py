from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from run_folders import with_secure_aggregation, write_model

from fl_app.report import compare_runs, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium to open the page")

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
    answer.sorts.push(rows.map(r => r.cells[0].firstChild.textContent));
  }
  window.top.document.documentElement.dataset.answer = JSON.stringify(answer);
});
"""


def look_at(path: Path, profile: Path, *, width: int) -> dict[str, Any]:
    """Open a copy of the page with a script that looks at it, and return what it saw."""
    digest = base64.b64encode(hashlib.sha256(LOOK.encode()).digest()).decode()
    markup = path.read_text()
    markup = re.sub("script-src ('none')?", f"script-src 'sha256-{digest}' ", markup, count=1)
    copy = path.with_name("looked-at.html")
    copy.write_text(markup.replace("</body>", f"<script>{LOOK}</script></body>"))
    # a window has a least width that is wider than a phone; a frame has none
    frame = path.with_name("frame.html")
    frame.write_text(f'<!doctype html><iframe src="looked-at.html" width="{width}" height="900"></iframe>')
    options = ["headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"]
    options += ["disable-background-networking", "disable-component-update", "hide-scrollbars"]
    options += [
        "allow-file-access-from-files",
        f"user-data-dir={profile}",
        "window-size=1600,1000",
        "dump-dom",
    ]
    command = [str(BROWSER), *(f"--{option}" for option in options), frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-answer="([^"]*)"', dom)
    assert found, "the script did not run: the page's policy or the page itself is broken"
    return json.loads(html.unescape(found[1]))


def test_all_pictures_of_a_report_load_and_nothing_is_fetched_or_cut_off_on_a_narrow_screen(
    make_run, tmp_path
):
    def change(result):
        result["rounds"][0]["failures"] = [{"client": 3, "reason": "x" * 300}]
        with_secure_aggregation(result)
        result["attacks"] += [{**result["attacks"][i], "adaptive": True} for i in (0, 2)]
        result["config"]["choices"]["model"] = "a_model_with_a_very_long_name_that_does_not_fit_on_a_phone"

    folder = make_run(change=change)
    write_model(folder)
    seen = look_at(write_report(folder), tmp_path / "profile", width=390)
    assert seen["pictures"] > 10
    assert seen["broken"] == 0
    assert seen["requests"] == 0
    assert seen["blocked"] == []
    assert seen["width"] == 390
    assert seen["overflow"] <= 0


def test_the_comparison_sorts_by_a_click_and_rows_without_a_value_stay_last(make_run, tmp_path):
    def forget(result):
        del result["summary"]["accuracy"]
        for r in result["rounds"]:
            r["accuracy"] = None

    runs = [
        make_run("a", defense="topk", reach=0.5, rounds=2),
        make_run("b", defense="dgp", reach=0.9, rounds=2),
        make_run("c", defense="none", rounds=2, change=forget),
        make_run("d", defense="adgp", reach=0.2, rounds=2),
    ]
    seen = look_at(compare_runs(runs, tmp_path / "comparison.html"), tmp_path / "profile", width=1400)
    up, down, by_name = seen["sorts"]
    assert up == ["adgp", "topk", "dgp", "none"]
    assert down == ["dgp", "topk", "adgp", "none"]
    assert by_name == ["adgp", "dgp", "none", "topk"]
    assert seen["pictures"] == 2
    assert (seen["broken"], seen["requests"], seen["blocked"]) == (0, 0, [])
