"""Report of an audit as one self-contained page for readers who do not program."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fl_app.audit.annex import evidence_of_audit
from fl_app.audit.findings import Finding
from fl_app.audit.ladder import Result
from fl_app.audit.report import AuditReport
from fl_app.audit.what_if import frontier
from fl_app.report.annex import statements_section
from fl_app.report.charts.tiles import png_uri
from fl_app.report.markup import Child, Html, details, element, page, table

_WIDTH = 96
_LOOKS = {"A": "shut", "B": "half", "C": "half", "D": "open", "E": "open"}
_SITUATIONS = {
    "as sent": "an ordinary update, exactly as this app sends it",
    "one sample": "the update of a client that holds a single sample",
    "malicious server": "a server that manipulates the model it sends",
}


def write_page(report: AuditReport, path: Path) -> None:
    """Write the page."""
    path.write_text(render(report), encoding="utf-8")


def render(report: AuditReport) -> Html:
    """Return the page; its first sentence is the verdict."""
    letter = "–" if report.grade is None else report.grade.letter
    look = _LOOKS.get(letter, "unknown")
    body: list[Child] = [
        element("p", "Privacy audit of a federated app", class_="eyebrow"),
        element("h1", report.app),
        element("p", f"Bundle with SHA-256 {report.bundle}", class_="muted", data_fact="bundle")
        if report.bundle
        else None,
        element(
            "p",
            element("span", letter, class_=f"verdict {look}"),
            " ",
            report.verdict(),
            class_="lead",
            data_fact="verdict",
            data_value=letter,
        ),
        *_evidence(report),
        *statements_section(evidence_of_audit(report)),
        *_worst(report),
        *_claims(report),
        *_findings(report),
        *_exits(report),
        *_what_if(report),
        *_attacks(report),
        *_understanding(report),
        *_untested(report),
    ]
    return page(f"Audit of {report.app}", body)


def _evidence(report: AuditReport) -> list[Child]:
    if report.grade is None:
        return [element("p", "No grade: a grade without understanding would be a guess.", class_="banner")]
    evidence = report.grade.evidence or (
        "No attack of this audit read anything, and no finding speaks against it.",
    )
    return [element("h2", "Why this grade"), element("ul", [element("li", text) for text in evidence])]


def _worst(report: AuditReport) -> list[Child]:
    shown = [
        r
        for r in report.ladder.results
        if r.target == "pictures" and r.images is not None and r.score is not None
    ]
    if not shown:
        return []
    order = list(_SITUATIONS)
    worst = max(shown, key=lambda r: (r.score or 0.0, -order.index(r.situation)))
    return [
        element("h2", "Worst reconstruction"),
        element(
            "p",
            f"Left in each pair: the client's picture. Right: the attacker's copy, from "
            f"{_SITUATIONS[worst.situation]} ({worst.attack}, SSIM {worst.score:.2f}). The attacker knew: "
            f"{worst.granted}.",
        ),
        element("div", [_pair(worst, i) for i in range(_number(worst))], data_fact="worst"),
    ]


def _number(result: Result) -> int:
    return 0 if result.images is None else min(4, len(result.images))


def _pair(result: Result, row: int) -> Html:
    assert result.images is not None
    assert result.truth is not None
    pictures = [
        _img(_array(part[row]), name) for part, name in ((result.truth, "true"), (result.images, "recovered"))
    ]
    return element("span", pictures, style="margin-right:1.5rem; white-space:nowrap")


def _claims(report: AuditReport) -> list[Child]:
    if not report.claims:
        return [element("h2", "Privacy claims"), element("p", "The app declares no privacy mechanism.")]
    rows = [
        (claim.mechanism, claim.file, _values(claim.declared), _values(claim.computed))
        for claim in report.claims
    ]
    return [
        element("h2", "Privacy claims"),
        table(("Mechanism", "Where", "Declared", "Computed over all rounds"), rows, words=4),
    ]


def _findings(report: AuditReport) -> list[Child]:
    if not report.findings:
        return [element("h2", "Findings"), element("p", "None.", data_fact="findings", data_value="0")]
    return [
        element("h2", "Findings"),
        element(
            "div",
            [_finding(f) for f in report.findings],
            data_fact="findings",
            data_value=str(len(report.findings)),
        ),
    ]


def _finding(finding: Finding) -> Html:
    look = {"high": "open", "medium": "half", "low": "shut"}[finding.severity]
    facts = [
        f"{label}: {value}"
        for label, value in (("found", finding.found), ("should be", finding.computed), ("in", finding.file))
        if value
    ]
    return element(
        "div",
        element("p", element("strong", f"{finding.severity}: "), finding.sentence),
        element("p", "; ".join(facts), class_="muted"),
        class_=f"card {look}",
        data_rule=finding.rule,
        data_severity=finding.severity,
    )


def _exits(report: AuditReport) -> list[Child]:
    head = element("h2", "Exits")
    if report.exits is None:
        return [head, element("p", "Not tested; see below.")]
    rows = [
        (
            e.name,
            "yes" if e.changes else "by itself" if not e.repeats else "no",
            str(e.bits),
            f"{e.capacity:.0f}" if e.changes else "0",
        )
        for e in report.exits.exits
        if e.changes or not e.repeats
    ]
    text = (
        f"Known black and white patterns were put into the client's data {report.exits.runs} times "
        f"({', '.join(report.exits.places)}), and everything that left the client beside the update was "
        "compared. A channel may change with the data, as a loss does; bits that can be read off "
        "it without knowing the data are a leak."
    )
    parts: list[Child] = [head, element("p", text)]
    if rows:
        header = ("Channel", "Changes with the data", "Bits read", "Bits it could carry")
        parts.append(table(header, rows, words=2))
    if report.picture is not None:
        parts += [
            element("p", "Picture that an ordinary round's exits show:"),
            _img(report.picture, "hidden picture", fact="hidden-picture"),
        ]
    return parts


def _what_if(report: AuditReport) -> list[Child]:
    if not report.variants:
        return []
    best = frontier(report.variants)
    rows = [
        (
            f"{v.name} (frontier)" if v.name in best else v.name,
            "–" if v.leak is None else f"{v.leak:.2f}",
            "–" if v.value is None else f"{v.metric} {v.value:.3f}",
            str(v.bytes),
            v.error,
        )
        for v in report.variants
    ]
    return [
        element("h2", "With a defense"),
        table(("Defense", "Leak", "The app's own measure", "Bytes sent", "Error"), rows, words=1),
    ]


def _attacks(report: AuditReport) -> list[Child]:
    rows = [
        (
            r.attack + (" (adaptive)" if r.adaptive else ""),
            r.situation,
            r.target,
            "nothing" if r.score is None else f"{r.measure} {r.score:.2f}",
            r.granted,
            f"{r.seconds:.1f}",
        )
        for r in report.ladder.results
    ]
    parts: list[Child] = [element("h2", "Attacks that were tried")]
    if rows:
        parts.append(
            table(("Attack", "On", "Reads", "Result", "The attacker knew", "Seconds"), rows, words=5)
        )
    else:
        parts.append(element("p", "None."))
    if report.ladder.declined:
        parts.append(
            details(
                "Attacks that were not tried, and why",
                element(
                    "ul",
                    [element("li", f"{d.attack}, {d.situation}: {d.reason}") for d in report.ladder.declined],
                ),
            )
        )
    return parts


def _understanding(report: AuditReport) -> list[Child]:
    rows = [(name, _text(value)) for name, value in report.facts.items()]
    return [
        element("h2", "How the app was understood"),
        element(
            "ul",
            [element("li", text) for text in report.tried],
            data_fact="understood",
            data_value=str(report.understood),
        ),
        element(
            "p", f"{report.rounds} rounds with {report.supernodes} clients in {report.seconds:.0f} seconds."
        ),
        details("Facts", table(("Fact", "Value"), rows, words=2)),
    ]


def _untested(report: AuditReport) -> list[Child]:
    return [element("h2", "Not tested"), element("ul", [element("li", text) for text in report.untested])]


def _values(values: dict[str, object]) -> str:
    return "; ".join(f"{name}: {_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _array(picture: Tensor) -> np.ndarray:
    pixels = torch.nan_to_num(picture.detach().float().cpu()).clamp(0, 1)
    return pixels.permute(1, 2, 0).numpy() if pixels.shape[0] == 3 else pixels[0].numpy()


def _img(pixels: np.ndarray, name: str, fact: str | None = None) -> Html:
    picture = Image.fromarray((255 * pixels).round().astype(np.uint8))
    height = max(1, round(_WIDTH * picture.height / picture.width))
    buffer = io.BytesIO()
    picture.resize((_WIDTH, height), Image.Resampling.NEAREST).save(buffer, format="PNG", optimize=True)
    return element("img", src=png_uri(buffer.getvalue()), alt=name, data_fact=fact)
