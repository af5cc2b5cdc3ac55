"""Tags of findings and results, in the words of the lists that auditors use.

- `sok-gia:A` to `H`: threat models of the SoK on gradient inversion (Carletti et al., USENIX Security
  2025), by what the attacker is granted.
- `cosai:…`: risks of the CoSAI Risk Map.
- `owasp-aisvs:…`: sections of the OWASP AI Security Verification Standard, draft of 1.0, by their
  titles, since numbers move between drafts.
"""

from __future__ import annotations

DISCLOSURE = "cosai:riskSensitiveDataDisclosure"
INFERRED = "cosai:riskInferredSensitiveData"
TAMPERING = "cosai:riskModelSourceTampering"
HANDLING = "cosai:riskExcessiveDataHandling"
INVERSION = "owasp-aisvs:model-inversion-resistance"
PRIVACY_BUDGET = "owasp-aisvs:differential-privacy-safeguards"
FEDERATED = "owasp-aisvs:federated-learning-with-privacy-controls"

_ALWAYS = ("privacy", "security")
_LETTERS = {"as sent": "C", "one sample": "C", "malicious server": "F"}
"""Situation to threat model: C knows the model and details of training; F also changes the model."""
_EXITS = ("data-in-exit", "data-dependent-exit", "many-metrics", "update-is-not-what-was-trained")
_MASKS = ("secure-aggregation-has-a-small-seed",)


def tags_of_rule(rule: str) -> tuple[str, ...]:
    """Return the tags of a finding's rule."""
    if rule in _EXITS:
        return (*_ALWAYS, DISCLOSURE, HANDLING, FEDERATED)
    if rule in _MASKS:
        return (*_ALWAYS, DISCLOSURE, FEDERATED)
    return (*_ALWAYS, INFERRED, PRIVACY_BUDGET, FEDERATED)


def tags_of_result(situation: str, target: str) -> tuple[str, ...]:
    """Return the tags of an attack on an update."""
    letter = _LETTERS.get(situation)
    risk = INFERRED if target == "labels" else DISCLOSURE
    own = () if letter is None else (f"sok-gia:{letter}",)
    return (*own, risk, *((TAMPERING,) if situation == "malicious server" else ()), INVERSION)
