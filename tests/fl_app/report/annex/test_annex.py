"""The annex: its headings, what is measured, declared or left blank, and both of its forms."""

import json
import re

import pytest
from hypothesis import given, settings
from result_rows import rows

from fl_app.cli.reports import main
from fl_app.report.annex import HEADINGS, annex_html, annex_markdown, annex_sections, evidence_of
from fl_app.results import MemberPoint, Membership, Round, Run, Statistic, Summary

MEMBERS = Membership(
    viewpoint="server",
    best="loss",
    best_auc=0.81,
    best_auc_low=0.7,
    best_auc_high=0.9,
    reporting_members=40,
    reporting_strangers=41,
    statistics={
        "loss": Statistic(
            auc=0.8, auc_low=0.7, auc_high=0.9, points=[MemberPoint(rate=0.1, tpr=0.5, fpr=0.08)]
        )
    },
)


def run(**more):
    config = {"choices": {"data": "pneumonia", "model": "lenet", "defense": "dgp"}, "clients": 5}
    rounds = [Round(round=1, clients=5, uplink_bytes=1000, downlink_bytes=4000)]
    return Run(config=config, rounds=rounds, **more)


def entries(evidence):
    return {entry.name: entry for section in annex_sections(evidence) for entry in section.entries}


def test_it_has_the_headings_of_the_template_in_their_order():
    evidence = evidence_of(run())
    assert re.findall("^## (.*)$", annex_markdown(evidence), re.M) == list(HEADINGS)
    assert re.findall("<h2>(.*?)</h2>", annex_html(evidence)) == list(HEADINGS)
    assert len(HEADINGS) == 8


def test_flows_have_bytes_and_recipients():
    flows = [(flow.sender, flow.recipient, flow.volume) for flow in evidence_of(run()).flows]
    assert flows[0] == ("each client", "the server", "1.00 kB in all, 200 B an answer")
    assert flows[1][2] == "4.00 kB"


def test_legal_fields_are_blank_and_measured_ones_are_not():
    found = entries(evidence_of(run(membership=[MEMBERS])))
    blank = [name for name, entry in found.items() if entry.is_blank]
    for word in ("Purpose", "Legal basis", "Decision", "Advice", "severity", "Residual risk, as judged"):
        assert any(word in name for name in blank), word
    (members,) = [e.content for name, e in found.items() if "given person" in name and "measured" in name]
    for figure in ("0.810", "0.700 to 0.900", "50.0 %", "40 members", "attacker:", "granted:"):
        assert figure in members
    assert "membership" in found["Residual risk, measured with these measures"].content


def test_what_was_not_measured_is_said_and_no_success_is_no_proof():
    nothing = entries(evidence_of(run()))
    assert nothing["Residual risk, measured with these measures"].content.startswith("nothing was measured")
    guess = MEMBERS.model_copy(update={"best_auc_low": 0.4})
    failed = entries(evidence_of(run(membership=[guess])))
    assert "does not prove" in failed["Residual risk, measured with these measures"].content


def test_epsilon_is_declared_and_its_hazards_are_asked():
    private = evidence_of(run(summary=Summary(epsilon=3.0, epsilon_unit="record"), membership=[MEMBERS]))
    found = entries(private)
    assert any(name.startswith("Declared, not measured: ε") for name in found)
    hazards = [entry for name, entry in found.items() if name.startswith("Hazard")]
    assert len(hazards) >= 10
    assert 3 <= sum(not entry.is_blank for entry in hazards) < len(hazards)


@settings(max_examples=20, deadline=None)
@given(rows(Run))
def test_any_result_makes_an_annex(result):
    evidence = evidence_of(result)
    lines = annex_markdown(evidence).splitlines()
    assert [line for line in lines if line.startswith("## ")] == [f"## {heading}" for heading in HEADINGS]
    assert annex_html(evidence).count("data-annex=") == len(HEADINGS)


def test_the_command_writes_both_forms(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(run(membership=[MEMBERS]).as_json()))
    main([str(folder), "--dpia", str(tmp_path / "annex")])
    assert (tmp_path / "annex.md").is_file()
    assert "data-blank" in (tmp_path / "annex.html").read_text()
    assert capsys.readouterr().out.count("annex: ") == 2
    with pytest.raises(ValueError, match="one run"):
        main([str(folder), str(_second(tmp_path)), "--dpia", str(tmp_path / "two.md")])


def _second(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(run().as_json()))
    return folder
