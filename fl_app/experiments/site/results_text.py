"""All experiments as one Markdown file: tables, verdicts, commands, and an author's remarks.

Paragraphs that begin with "In words:" are kept, each with its experiment; everything else is
regenerated from `study.json` files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fl_app.experiments.papers import in_order, paper_name
from fl_app.experiments.site.found_studies import find_studies
from fl_app.experiments.site.merged_claims import MergedClaim, merge_claims, verdict_counts
from fl_app.experiments.studies.claims import LEVEL
from fl_app.experiments.studies.protocol import REPEATS
from fl_app.report.markdown import markdown_rows
from fl_app.results.study import ROLES, STUDY, VERDICTS, StudyResult, Verdict
from fl_app.results.units import UNITS

WORDS = "In words: "
_PUBLISHED = (STUDY, "claims.json", UNITS, "table.md", "table.csv")
_MOST_IN_SHORT = 3
_ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)
_OWN_WORDS = re.compile(rf"^{WORDS}.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def write_results(paths: Sequence[Path], file: Path) -> Path:
    """Write the findings of all experiments below ``paths`` to ``file``, figures in a folder beside it."""
    if file.suffix != ".md":
        raise ValueError(f"--results: expected a file that ends in .md, got {file}")
    studies = [study for study in find_studies(paths) if not study.is_variant]
    if not studies:
        raise FileNotFoundError(f"expected a {STUDY} below {', '.join(map(str, paths))}")
    words = _kept_words(file)
    if lost := words.keys() - {_key(study) for study in studies}:
        raise ValueError(
            f"{file}: has words on {', '.join(sorted(lost))}, but no {STUDY} of that was found; remove them"
        )
    claims = merge_claims(studies)
    pictures = file.with_suffix("")
    for old in pictures.glob("*.png"):
        old.unlink()
    for study in studies:
        _publish(study, pictures / _key(study))
    sections = [_opening(claims)]
    for paper in in_order(study.paper for study in studies):
        sections.append(f"## {paper_name(paper)}")
        for study in studies:
            if study.paper == paper:
                mine = [claim for claim in claims if claim.study is study]
                sections.append(_section(study, mine, words.get(_key(study)), pictures))
    file.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return file


def _publish(study: StudyResult, folder: Path) -> None:
    """Copy what `fl-app verify` and readers with programs of their own need; the runs stay where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PUBLISHED:
        (folder / name).unlink(missing_ok=True)
        if (source := study.folder / name).is_file():
            shutil.copyfile(source, folder / name)


def _key(study: StudyResult) -> str:
    return f"{study.name}-{study.scale}"


def _kept_words(file: Path) -> dict[str, str]:
    """Return the hand-written paragraphs of an earlier file, by experiment."""
    if not file.exists():
        return {}
    _, *parts = _ANCHOR.split(file.read_text(encoding="utf-8"))
    found = {key: _OWN_WORDS.findall(text) for key, text in zip(parts[::2], parts[1::2], strict=True)}
    return {key: "\n\n".join(map(str.strip, words)) for key, words in found.items() if words}


def _opening(claims: Sequence[MergedClaim]) -> str:
    counts = verdict_counts(claims)
    return "\n\n".join(
        [
            "# Results",
            "This page shows every table and figure of the papers as we measured it, with the paper's "
            "numbers in brackets. `fl-app-report --results FILE multirun` writes it from the results of the "
            f'commands below; only the paragraphs that begin with "{WORDS.strip()}" are written by hand.',
            f"{sum(counts.values())} claims: {_listed(counts)}. A repeated test counts once. "
            "A claim is decided if its two-sided p, times the number of tests in its family, is at most "
            f"{LEVEL}; the protocol of the paper fixes the families. [studies.md](studies.md) describes the "
            "tests.",
            _in_short(claims),
            "## Counts",
            _by_paper(claims),
        ]
    )


def _in_short(claims: Sequence[MergedClaim]) -> str:
    """Return five lines a paper, one for each verdict, with its primary claims before others."""
    parts = ["## In short"] if claims else []
    for paper in in_order(merged.study.paper for merged in claims):
        mine = [m for m in claims if m.study.paper == paper and m.claim.role != REPEATS]
        ordered = sorted(mine, key=lambda merged: ROLES.index(merged.claim.role))
        lines = [_verdict_line(verdict, ordered) for verdict in VERDICTS]
        parts.append("\n".join([f"**{paper_name(paper)}**", "", *lines]))
    return "\n\n".join(parts)


def _verdict_line(verdict: Verdict, claims: Sequence[MergedClaim]) -> str:
    named = [merged for merged in claims if merged.claim.verdict == verdict]
    primary = sum(merged.claim.role == ROLES[0] for merged in named)
    shown = [
        f"[{m.claim.text}](#{_key(m.study)})" + (f" (n = {m.claim.n} {m.claim.unit}s)" if m.claim.n else "")
        for m in named[:_MOST_IN_SHORT]
    ]
    more = [f"and {len(named) - _MOST_IN_SHORT} more"] if len(named) > _MOST_IN_SHORT else []
    count = f"{len(named)} ({primary} primary)" if named else "none"
    return f"- *{verdict}*: {'; '.join([count, *shown, *more])}"


def _listed(counts: Mapping[Verdict, int]) -> str:
    return ", ".join(f"{count} × {verdict}" for verdict, count in counts.items() if count)


def _by_paper(claims: Sequence[MergedClaim]) -> str:
    """Return a line for each role of each paper's claims."""
    rows = [["paper", "claims", *VERDICTS], ["---", "---", *["---:"] * len(VERDICTS)]]
    for paper in in_order(merged.study.paper for merged in claims):
        for role in ROLES:
            mine = [m for m in claims if m.study.paper == paper and m.claim.role == role]
            if mine and role != REPEATS:
                rows.append([paper_name(paper), role, *map(str, verdict_counts(mine).values())])
    return markdown_rows(rows) if claims else ""


def _section(study: StudyResult, claims: Sequence[MergedClaim], words: str | None, pictures: Path) -> str:
    done = sum(cell.status == "finished" for cell in study.cells)
    facts = [f"`{study.command}`", f"{done} of {len(study.cells)} cells"]
    facts += (
        [f"seed{'s' if len(study.seeds) > 1 else ''} {', '.join(map(str, study.seeds))}"]
        if study.seeds
        else []
    )
    facts.append(f"measured {study.measured}")
    facts += [f"protocol {study.protocol}"] if study.protocol else []
    table = study.folder / "table.md"
    parts = [
        f'<a id="{_key(study)}"></a>\n### {study.heading}',
        " · ".join(facts),
        study.honest,
        *study.notes,
        table.read_text(encoding="utf-8").strip() if table.is_file() and study.table.rows else "",
        *_figures(study, pictures),
        _claims(claims),
        words or "",
        _missing(study),
    ]
    return "\n\n".join(part for part in parts if part)


def _figures(study: StudyResult, pictures: Path) -> list[str]:
    """Copy the figures of a study of a paper's figure, and return the Markdown that shows them."""
    if not study.what.startswith("Fig"):
        return []
    shown = []
    for number, figure in enumerate(study.figures, 1):
        if (picture := study.file(figure.file)) is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            copy = pictures / f"{_key(study)}-{number}.png"
            shutil.copyfile(picture, copy)
            shown.append(f"![{figure.title}]({copy.relative_to(pictures.parent).as_posix()})")
    return shown


def _claims(claims: Sequence[MergedClaim]) -> str:
    rows = [["claim", "verdict", "role", "found"], ["---"] * 4]
    rows += [
        [merged.claim.text, f"**{merged.claim.verdict}**", _role(merged), merged.claim.words]
        for merged in claims
    ]
    return markdown_rows(rows) if claims else ""


def _role(merged: MergedClaim) -> str:
    twin = merged.claim.repeats
    return merged.claim.role if twin is None else f"repeats {twin}"


def _missing(study: StudyResult) -> str:
    return (
        "\n".join(["Not reproduced:", "", *(f"- {line}" for line in study.missing)]) if study.missing else ""
    )
