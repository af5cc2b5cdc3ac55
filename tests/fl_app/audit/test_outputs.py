"""Page, JSON and SARIF of an audit."""

import json

import jsonschema
import pytest
from parsed_page import ParsedPage

from fl_app.audit.annex import evidence_of_audit
from fl_app.audit.page import render, write_page
from fl_app.audit.sarif import as_sarif
from fl_app.report.annex import HEADINGS, annex_markdown
from fl_app.report.annex.sections import HAZARDS

SARIF = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "shortDescription"],
                                            "properties": {
                                                "defaultConfiguration": {
                                                    "properties": {
                                                        "level": {"enum": ["error", "warning", "note"]}
                                                    }
                                                }
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {
                                "level": {"enum": ["error", "warning", "note"]},
                                "message": {"type": "object", "required": ["text"]},
                                "locations": {
                                    "type": "array",
                                    "minItems": 1,
                                    "items": {
                                        "type": "object",
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation", "region"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "required": ["uri"],
                                                        "properties": {"uri": {"pattern": "^[^/]"}},
                                                    },
                                                    "region": {
                                                        "required": ["startLine"],
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1}
                                                        },
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The part of the published schema that code hosts need."""

APPS = [("local_dp",), ("legacy",), ("numpy_only",), ("smuggler", "way='metrics'")]


def report_of(audit, app):
    return audit(*app, exits=24 if app[0] == "smuggler" else 0)


@pytest.mark.parametrize("app", APPS)
def test_sarif_has_the_structure_of_its_schema(audit, app):
    report = report_of(audit, app)
    sarif = as_sarif(report)
    jsonschema.validate(sarif, SARIF)
    (run,) = sarif["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [f.rule for f in report.findings]
    assert len(rules) == len(set(rules))


@pytest.mark.parametrize("app", APPS)
def test_json_is_plain(audit, app):
    report = report_of(audit, app)
    assert json.loads(json.dumps(report.as_json(), allow_nan=False)) == report.as_json()


@pytest.mark.parametrize("app", APPS)
def test_the_page_begins_with_the_verdict(audit, app, tmp_path):
    report = report_of(audit, app)
    write_page(report, tmp_path / "audit.html")
    page = ParsedPage(tmp_path / "audit.html")
    assert not page.unbalanced
    assert page.values["verdict"] == ("–" if report.grade is None else report.grade.letter)
    assert page.facts["verdict"].endswith(" ".join(report.verdict().split()))
    assert page.values["findings"] == str(len(report.findings))
    text = (tmp_path / "audit.html").read_text()
    assert text.count('data-rule="') == len(report.findings)
    assert "http://" not in text
    assert "https://" not in text


def test_the_page_shows_the_hidden_picture_and_the_worst_reconstruction(audit):
    assert 'data-fact="hidden-picture"' in render(report_of(audit, APPS[3]))
    assert 'data-fact="worst"' in render(report_of(audit, APPS[1]))


def test_a_grade_stands_beside_what_was_measured_declared_and_follows(audit, tmp_path):
    report = audit("local_dp")
    said = report.as_json()["statements"]
    assert len(said["measured"]) == len(report.ladder.results)
    for one in said["measured"]:
        assert one["attacker"]
        assert one["granted"]
        assert one["interval"]
        assert one["threshold"] or one["succeeded"] is None
    assert {"LocalDpMod: epsilon", "LocalDpMod: sensitivity"} <= {one["what"] for one in said["declared"]}
    assert any("epsilon of all rounds" in one["what"] for one in said["follows"])
    write_page(report, tmp_path / "audit.html")
    page = ParsedPage(tmp_path / "audit.html")
    for name in ("measured", "declared", "follows"):
        assert page.values[name] == str(len(said[name]))


def test_findings_and_results_carry_tags(audit):
    report = audit("smuggler", "way='metrics'", exits=24)
    content = report.as_json()
    for finding in content["findings"]:
        assert any(tag.startswith("cosai:") for tag in finding["tags"])
        assert any(tag.startswith("owasp-aisvs:") for tag in finding["tags"])
    letters = {r["situation"]: [t for t in r["tags"] if t.startswith("sok-gia:")] for r in content["results"]}
    assert letters["as sent"] == ["sok-gia:C"]
    (run,) = as_sarif(report)["runs"]
    assert all("privacy" in rule["properties"]["tags"] for rule in run["tool"]["driver"]["rules"])
    assert run["properties"]["bundle"] is None


def test_the_annex_of_an_audit_has_the_headings_and_names_the_exit(audit):
    report = audit("smuggler", "way='metrics'", exits=24)
    evidence = evidence_of_audit(report)
    text = annex_markdown(evidence)
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(HEADINGS)
    assert "planted bits were read off" in text
    assert "bound to no bundle" in text
    checks = dict(evidence.checks)
    assert "bits were read off" in checks["side channels"]


def test_hazards_of_an_audit_follow_from_its_findings(audit):
    checks = dict(evidence_of_audit(audit("local_dp")).checks)
    assert checks["sensitivity"] == "sensitivity-is-not-the-clipping-norm"
    assert checks["privacy parameters"].startswith("ε = ")
    assert set(checks) <= {name for name, _ in HAZARDS}
