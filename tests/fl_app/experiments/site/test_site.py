"""A site from experiments and runs made by hand: every link leads somewhere, all text is escaped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import look_at_all, needs_browser
from parsed_page import ParsedPage
from run_folders import write_run
from study_folders import claim, write_study

from fl_app.experiments.site import build_site

HOSTILE = '<script>alert("1")</script>&amp; "x" \'y\' ../../etc'


def unfinished(study):
    study |= {"what": "Figure 4", "title": "Shares", "finished": False, "missing": [], "claims": []}
    study["cells"].append({"folder": "gone", "part": "accuracy", "status": "failed", "overrides": []})


@pytest.fixture(scope="module")
def multirun(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "multirun"
    write_study(folder / "dgp_table1/cpu")
    write_study(folder / "rlg_fig4/cpu", name="rlg_fig4", paper="rlg", change=unfinished)
    alone = write_run(folder / "2026-01-01/run #1 50%", defense="soteria", rounds=2)
    (alone / "report.html").write_text("<!doctype html><title>report</title>")
    return folder


@pytest.fixture(scope="module")
def site(multirun) -> Path:
    return build_site([multirun], multirun.parent / "out/site").parent


def pages_of(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if page.name != "report.html")


def targets(page: Path) -> list[Path]:
    links = [link["href"] for link in ParsedPage(page).named("a")]
    return [page.parent / unquote(link.partition("#")[0]) for link in links]


def test_every_link_leads_to_a_file_of_the_site(site):
    for page in pages_of(site):
        for target in targets(page):
            assert target.is_file(), f"{page.name}: {target}"
            assert target.resolve().is_relative_to(site.resolve())


def test_every_file_of_the_site_can_be_reached_from_the_first_page(site):
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached:
            reached.add(page)
            waiting += targets(page) if page.suffix == ".html" else []
    there = {file.resolve() for file in site.rglob("*") if file.is_file() and not file.name.startswith(".")}
    assert there == reached


def test_pages_hold_their_pictures_load_nothing_and_know_no_absolute_path(site, multirun):
    for page in pages_of(site):
        parsed, markup = ParsedPage(page), page.read_text()
        assert parsed.unbalanced == []
        assert all(image["src"].startswith("data:image/png;base64,") for image in parsed.named("img"))
        assert not any(word in markup for word in ("http://", "https://", "url(", "@import", "file:"))
        assert str(multirun.parent) not in markup
        assert any(meta.get("name") == "viewport" for meta in parsed.named("meta"))
    assert str(multirun.parent) not in (site / "claims.json").read_text()


def test_the_first_page_says_by_paper_what_was_measured_and_what_was_not(site):
    text = ParsedPage(site / "index.html").text
    first, second = text.index("Xue et al., AAAI 2024"), text.index("Dang et al., NeurIPS 2021")
    assert first < second
    assert "Table 1: Defenses under four attacks" in text[first:second]
    assert "✓ 1 holds ✗ 1 refuted ? 1 not decided – 1 not measured" in text[first:second]
    assert re.search(r"scale cpu · measured \d{4}-\d\d-\d\d · 3 of 3 cells", text[first:second])
    assert "Table 1, scale cpu: ATS with trained policies: they take days" in text[first:second]
    assert "no claims" in text[second:]
    assert "3 of 4 cells · not finished" in text[second:]
    assert "2 experiments and 7 runs" in text


def test_an_experiment_shows_ours_beside_the_paper(site):
    page = ParsedPage(site / "studies/dgp_table1-cpu.html")
    header, ssim, accuracy, defends = next(table for table in page.tables if "Baseline" in table[0])
    assert header == ["", "", "Baseline", "Top-k", "DGP"]
    assert ssim == [
        "IG",
        "SSIM ↓",
        "0.900 ± 0.050n = 20 imagespaper 0.954",
        "0.412n = 1 imagepaper 0.981",
        "–",
    ]
    assert accuracy == [
        "accuracy ↑",
        "",
        "50.0 ± 1.0 %n = 3 seedspaper 60.0 %",
        "50.0 ± 1.0 %n = 3 seedspaper diverged",
        "50.0 ± 1.0 %n = 3 seedspaper 55.0 %",
    ]
    assert defends == [
        "defends",
        "",
        "✓ 0.500 ± 0.010n = 20 imagespaper ✗",
        "✗ 0.500 ± 0.010n = 20 imagespaper ✓",
        "0.500 ± 0.010n = 20 images",
    ]
    for words in (
        "LeNet instead of ResNet-18, 20 images.",
        "fl-app -m experiment=dgp_table1",
        "seeds 0",
        "DGP leaks less than top-k ✓ holds",
        "IG SSIM, DGP: no such cell",
        "Accuracy over rounds",
        "ATS with trained policies: they take days",
    ):
        assert words in page.text
    reports = [
        target for target in targets(site / "studies/dgp_table1-cpu.html") if target.name == "report.html"
    ]
    assert {target.parent.name for target in reports} == {f"{d}-s0-1a2b3c4d" for d in ("none", "topk", "dgp")}


def test_the_frontier_and_the_gallery_are_of_all_runs(site):
    frontier = ParsedPage(site / "frontier.html")
    panels = [table for table in frontier.tables if "on the frontier" in table[0]]
    rows = [dict(zip(table[0], row, strict=True)) for table in panels for row in table[1:]]
    assert {row["defense"] for row in rows} == {"none", "topk", "dgp", "soteria"}
    assert (site / "frontier.png").read_bytes().startswith(b"\x89PNG")
    gallery = ParsedPage(site / "gallery.html")
    assert "soteria, lenet on photos" in gallery.text
    assert len(gallery.named("img")) >= 3 * 4


def test_verdicts_do_not_depend_on_the_folders_beside_and_a_repeated_test_counts_once(tmp_path):
    held = [claim(f"c{i}", f"claim {i}", "holds", p=p) for i, p in enumerate((0.001, 0.02))]
    twin = {**held[1], "name": "c2", "role": "repeats another", "repeats": "dgp_table1/c1"}
    write_study(tmp_path / "a/cpu", defenses=(), change=lambda study: study.update(claims=held))
    write_study(tmp_path / "b/cpu", name="b", defenses=(), change=lambda study: study.update(claims=[twin]))
    write_study(tmp_path / "c/cpu", name="c", defenses=())

    def merged(*names):
        site = build_site([tmp_path / name for name in names], tmp_path / "site").parent
        return json.loads((site / "claims.json").read_text())

    alone, among = merged("a", "b"), merged("a", "b", "c")
    assert alone["counts"] == {
        **{"holds": 2, "refuted": 0, "equivalent": 0},
        **{"not decided": 0, "not measured": 0},
    }
    assert among["claims"][: len(alone["claims"])] == alone["claims"]
    assert [c["repeats"] for c in alone["claims"]] == [None, None, "dgp_table1/c1"]


def test_hostile_names_are_text_everywhere(tmp_path):
    def hostile(study):
        for key in ("name", "paper", "what", "title", "scale", "honest", "command"):
            study[key] = HOSTILE
        study["missing"] = study["notes"] = study["seeds"] = [HOSTILE]
        study["versions"] = {HOSTILE: HOSTILE}
        study["table"]["columns"] = [HOSTILE] * 3
        study["table"]["rows"][0] |= {"name": [HOSTILE], "paper": [HOSTILE] * 3}
        study["claims"][0] |= {"text": HOSTILE, "words": HOSTILE, "name": HOSTILE}
        study["figures"][0]["title"] = HOSTILE
        study["figures"].append({"file": "../../secret.png", "title": "outside"})
        study["cells"][0] |= {"part": HOSTILE, "status": HOSTILE, "reason": HOSTILE, "name": HOSTILE}

    (tmp_path / "secret.png").write_bytes(b"secret")
    write_study(tmp_path / "multirun/a/cpu", defenses=["dgp"], change=hostile)
    run = write_run(tmp_path / "multirun/b", defense=HOSTILE, rounds=2)
    (run / "report.html").write_text("<!doctype html>")
    site = build_site([tmp_path / "multirun"], tmp_path / "site").parent
    for page in pages_of(site):
        assert "<script>alert" not in page.read_text()
        assert ParsedPage(page).unbalanced == []
        assert all(target.is_file() for target in targets(page))
    assert {page.parent for page in pages_of(site)} == {site, site / "studies"}
    (study_page,) = (site / "studies").glob("*.html")
    assert HOSTILE in ParsedPage(study_page).text
    assert "outside" not in ParsedPage(study_page).text
    assert HOSTILE in ParsedPage(site / "frontier.html").text


def test_a_study_file_with_holes_still_has_a_page(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/study.json").write_text(
        json.dumps(
            {
                "table": {"columns": ["x", ""], "rows": [{"ours": [{"mean": 1}]}, 7]},
                "claims": [{}],
                "cells": 3,
            }
        )
    )
    site = build_site([tmp_path / "a"], tmp_path / "site").parent
    page = ParsedPage(site / "studies/a.html")
    assert page.unbalanced == []
    assert "– not measured" in page.text
    assert "No frontier yet" in ParsedPage(site / "frontier.html").text
    assert not (site / "comparison.html").exists()


def test_reports_that_are_missing_or_older_than_their_results_are_written(tmp_path):
    run = write_run(tmp_path / "runs/a", rounds=2)
    said: list[str] = []
    site = build_site([tmp_path / "runs"], tmp_path / "site", said.append).parent
    copy = site / "runs/a/report.html"
    assert copy.read_bytes() == (run / "report.html").read_bytes()
    assert said == [f"report: {run / 'report.html'}"]
    build_site([tmp_path / "runs"], tmp_path / "site", said.append)
    assert len(said) == 1


def test_a_site_is_replaced_whole_and_other_folders_are_refused(tmp_path):
    write_study(tmp_path / "multirun/a/cpu", defenses=())
    site = build_site([tmp_path / "multirun"], tmp_path / "site").parent
    (site / "studies/stale.html").touch()
    build_site([tmp_path / "multirun"], site)
    assert not (site / "studies/stale.html").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").touch()
    with pytest.raises(ValueError, match="expected an empty folder or a site to replace"):
        build_site([tmp_path / "multirun"], tmp_path / "mine")
    assert (tmp_path / "mine/letter.txt").exists()
    (tmp_path / "multirun/a/cpu/study.json").write_text("{")
    with pytest.raises(ValueError, match=r"study\.json is not valid JSON"):
        build_site([tmp_path / "multirun"], site)
    assert (site / "index.html").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "multirun", "site"]


def test_a_site_of_nothing_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        build_site([tmp_path / "nowhere"], tmp_path / "site")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected a study\.json or a result\.json below"):
        build_site([tmp_path / "empty"], tmp_path / "site")


@needs_browser
def test_pages_show_all_pictures_and_do_not_scroll_sideways_on_a_phone(multirun, tmp_path):
    site = build_site([multirun], tmp_path / "site").parent
    names = ["index.html", "frontier.html", "claims.html", "gallery.html", "comparison.html"]
    pages = [*(site / name for name in names), *sorted((site / "studies").glob("*.html"))]
    seen = look_at_all(pages, tmp_path / "profile", width=360)
    for page, found in zip(pages, seen, strict=True):
        assert (page.name, found["broken"], found["requests"], found["blocked"]) == (page.name, 0, 0, [])
        assert (page.name, found["width"]) == (page.name, 360)
        assert found["overflow"] <= 0, page.name
        assert found["console"] == []
    assert sum(found["pictures"] for found in seen) > 20


def test_variants_are_labelled_everywhere_and_counted_nowhere(tmp_path):
    write_study(tmp_path / "work/dgp_table1/cpu")
    asked = ["parts=ig", "ig:attack.steps=20"]
    write_study(
        tmp_path / "work/dgp_table1/cpu/variant-12345678", change=lambda study: study.update(asked=asked)
    )
    # of a run before what was asked for was written down
    write_study(tmp_path / "work/dgp_table1/cpu/variant-87654321", scale="paper")
    build_site([tmp_path / "work/dgp_table1/cpu"], tmp_path / "alone")
    site = build_site([tmp_path / "work"], tmp_path / "site").parent
    index = ParsedPage(site / "index.html")
    assert "1 experiment and 9 runs; 2 variants, not counted" in index.text
    assert len(index.with_fact("variant")) == 2
    assert "parts=ig ig:attack.steps=20" in index.text
    counts = json.loads((site / "claims.json").read_text())
    assert sum(counts["counts"].values()) == len(counts["claims"]) == 4
    pages = sorted((site / "studies").glob("*.html"))
    marked = [page for page in pages if ParsedPage(page).with_fact("variant")]
    assert [page.name for page in marked] == ["dgp_table1-cpu-variant.html", "dgp_table1-paper-variant.html"]
    assert len(pages) == 3


def test_the_first_page_leads_with_runs_that_belong_to_no_experiment(site):
    page = ParsedPage(site / "index.html")
    own = page.table_with("best SSIM")
    assert [row["defense"] for row in own] == ["soteria"]
    assert page.text.index("Your runs") < page.text.index("Xue et al., AAAI 2024")
