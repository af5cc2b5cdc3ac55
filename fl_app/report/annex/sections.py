"""Sections of the annex, in the order of the EDPB's template for impact assessments (2026, version 1.0)."""

from __future__ import annotations

from dataclasses import dataclass

from fl_app.report.annex.evidence import Evidence, Finding

BLANK = "to be completed by the controller"
HEADINGS = (
    "Overview of the processing",
    "Systematic description of the processing",
    "Analysis of compliance",
    "Necessity and proportionality",
    "Risks to rights and freedoms",
    "Measures and residual risk",
    "Advice and views",
    "Decision",
)
HAZARDS = (
    ("unit of privacy", "Does the promise cover a person, or only one record of several?"),
    ("privacy parameters", "Is ε that of all releases together, and is it small?"),
    ("neighbouring data", "Add or remove, or replace: which data sets does ε compare?"),
    ("sensitivity", "Is the sensitivity used for the noise the clipping bound that is at work?"),
    ("composition", "Does the account hold all rounds, retries and tuned runs?"),
    ("floating point", "Can rounding of the noise be seen in the released numbers?"),
    ("randomness", "Is the noise unpredictable to the observer?"),
    ("side channels", "Do times, sizes or metrics leave beside the noisy values?"),
    ("trust model", "Who sees values before the noise: nobody, the server, each client?"),
    ("measured bound on membership", "Does a measured attack stay within what ε allows?"),
    ("data collection and access", "Who can read the data where it lies, whatever is released?"),
)
"""Hazards after NIST SP 800-226, with the question to each."""

_BY_DESIGN = {
    "reconstruction": "Somebody who receives an update rebuilds a record of the training data",
    "membership": "Somebody tells whether a given person is in the training data",
    "property": "Somebody tells what the persons of one party have in common",
}
_BY_ACCIDENT = (
    ("Updates or models are sent to, or kept by, somebody who should not have them", "unlawful access"),
    ("A model is manipulated before it is sent to a party, and its update gives records away", "attack"),
    ("Answers get lost or are counted twice", "loss of integrity"),
)


@dataclass(frozen=True)
class Entry:
    """One field: its name, and what is known; None is a blank field for the controller."""

    name: str
    content: str | None = None

    @property
    def is_blank(self) -> bool:
        """Whether the controller must fill it in."""
        return self.content is None


@dataclass(frozen=True)
class Section:
    """One heading with its fields."""

    heading: str
    entries: tuple[Entry, ...]


def annex_sections(evidence: Evidence) -> list[Section]:
    """Return all sections, filled as far as the evidence goes."""
    parts = (
        _overview(evidence),
        _description(evidence),
        [
            Entry("Legal basis (Article 6, and Article 9 for health data)"),
            Entry("Data minimisation", f"records stay with their party; what leaves: {_leaves(evidence)}"),
            Entry("Retention of data, updates and models"),
            Entry("Rights of the data subjects, erasure from a trained model among them"),
        ],
        [
            Entry("Necessity of the processing for its purpose"),
            Entry("Proportionality, and alternatives that were considered"),
        ],
        _risks(evidence),
        _measures(evidence),
        [
            Entry("Advice of the data protection officer"),
            Entry("Views of data subjects or their representatives"),
        ],
        [
            Entry("Decision: approve, approve on conditions, reject, or consult the authority"),
            Entry("Date, name"),
        ],
    )
    return [Section(heading, tuple(entries)) for heading, entries in zip(HEADINGS, parts, strict=True)]


def _overview(evidence: Evidence) -> list[Entry]:
    return [
        Entry("Processing", evidence.title),
        Entry("Controller, joint controllers, processors"),
        Entry("Parties of the training", evidence.parties),
        Entry("Evidence", evidence.source or None),
    ]


def _description(evidence: Evidence) -> list[Entry]:
    flows = [
        Entry(f"Data flow: {flow.sender} → {flow.recipient}", f"{flow.what}; {flow.volume}")
        for flow in evidence.flows
    ]
    return [
        Entry("Purpose"),
        Entry("Categories of data", evidence.categories),
        Entry("Categories and number of data subjects"),
        Entry("Model that is trained", evidence.model),
        *flows,
        Entry("Places and transfers outside the Union"),
    ]


def _risks(evidence: Evidence) -> list[Entry]:
    entries = []
    for threat, words in _BY_DESIGN.items():
        own = [finding for finding in evidence.findings if finding.threat == threat]
        known = "; ".join(_figure(finding) for finding in own)
        entries += [
            Entry(f"By design: {words}: likelihood, measured", known or "not measured"),
            Entry(f"By design: {words}: severity for the persons"),
        ]
    lost = f"{evidence.failures} answers did not count" if evidence.failures else "none was seen in this run"
    for words, kind in _BY_ACCIDENT:
        seen = lost if kind == "loss of integrity" else None
        entries.append(Entry(f"By accident ({kind}): {words}: likelihood", seen))
        entries.append(Entry(f"By accident ({kind}): {words}: severity for the persons"))
    return entries


def _measures(evidence: Evidence) -> list[Entry]:
    known = dict(evidence.checks)
    succeeded = [finding for finding in evidence.findings if finding.succeeded]
    open_ones = "; ".join(f"{one.threat}: {one.figure}" for one in succeeded)
    if not evidence.findings:
        residual = "nothing was measured: the residual risk is not known"
    else:
        residual = open_ones or "no attack that was tried succeeded, which does not prove that none can"
    return [
        *(Entry(f"Measure at work: {name}", content) for name, content in evidence.measures),
        *([] if evidence.measures else [Entry("Measure at work", "none")]),
        *(Entry(f"Declared, not measured: {name}", content) for name, content in evidence.declared),
        *(Entry(f"Follows from both: {name}", content) for name, content in evidence.follows),
        *(
            Entry(f"Hazard of differential privacy: {name}. {asks}", known.get(name))
            for name, asks in HAZARDS
        ),
        Entry("Residual risk, measured with these measures", residual),
        Entry("Further measures, who takes them, and when"),
        Entry("Residual risk, as judged"),
    ]


def _leaves(evidence: Evidence) -> str:
    return "; ".join(flow.what for flow in evidence.flows) or "not known"


def _figure(finding: Finding) -> str:
    interval = f" [{finding.interval}]" if finding.interval else ""
    judged = {True: "succeeded", False: "did not succeed", None: "not decided"}[finding.succeeded]
    by = f"attacker: {finding.attacker}; granted: {finding.granted}"
    threshold = f" by {finding.threshold}" if finding.threshold else ""
    return f"{finding.figure}{interval} ({by}; {judged}{threshold})"
