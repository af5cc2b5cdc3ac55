"""Annex to a data protection impact assessment: what a tool can say of a federated training."""

from fl_app.report.annex.evidence import Evidence, Finding, Flow, evidence_of
from fl_app.report.annex.page import annex_html, annex_markdown, write_annex
from fl_app.report.annex.sections import BLANK, HEADINGS, Entry, Section, annex_sections
from fl_app.report.annex.statements import statements_json, statements_section

__all__ = [
    "BLANK",
    "HEADINGS",
    "Entry",
    "Evidence",
    "Finding",
    "Flow",
    "Section",
    "annex_html",
    "annex_markdown",
    "annex_sections",
    "evidence_of",
    "statements_json",
    "statements_section",
    "write_annex",
]
