"""Every protocol names claims that exist, gives each one role, and joins tests that are the same."""

import json

import pytest
import yaml

from fl_app.config.compose import CONF_DIR, ConfigError
from fl_app.experiments.papers import PAPERS
from fl_app.experiments.studies import plan_cells, protocol, read_study
from fl_app.experiments.studies.plan import matching
from fl_app.experiments.studies.protocol import Protocol, family_size, read_protocol
from fl_app.experiments.sweep import cell_name

EXPERIMENTS = sorted((CONF_DIR / "experiment").glob("*.yaml"))


@pytest.fixture(scope="module")
def claims():
    """All claims by STUDY/NAME, with their study."""
    files = {path.stem: yaml.safe_load(path.read_text()) for path in EXPERIMENTS}
    studies = [read_study(name, file["study"]) for name, file in files.items() if "study" in file]
    return {f"{study.name}/{claim.name}": (study, claim) for study in studies for claim in study.claims}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_protocol_names_claims_of_its_own_paper_and_twins_with_a_fixed_family(paper, claims):
    own, digest = read_protocol(paper)
    assert own.paper == paper
    assert len(digest) == 12
    named = [*(entry.claim for entry in own.primary), *own.secondary, *own.checks, *own.repeats]
    assert all(claims[name][0].paper == paper for name in named)
    assert all(family_size(own, *name.split("/")) for name in named)
    assert not set(own.repeats) & set(own.repeats.values())
    metrics = {claim.left.metric.name for study, claim in claims.values() if study.paper == paper}
    assert set(own.margins) <= metrics


@pytest.mark.parametrize("paper", PAPERS)
def test_primary_claims_say_the_unit_that_is_counted(paper, claims):
    for entry in read_protocol(paper)[0].primary:
        metric = claims[entry.claim][1].left.metric
        assert entry.unit == ("seed" if metric.unit == "seed" else "update")
        assert (entry.attackers == "none") == (entry.unit == "seed")


@pytest.mark.slow
def test_claims_that_are_the_same_test_on_the_same_cells_are_counted_once(claims):
    tests = {}
    for name, (study, claim) in claims.items():
        cells = plan_cells(study)
        sides = [
            [sorted(cell_name(cell.config) for cell in matching(cells, side)), *_asked(side)]
            for side in (claim.left, claim.right)
            if side is not None
        ]
        turned = claim.comparison == "more"
        key = json.dumps(
            ["less" if turned else claim.comparison, claim.bound, sides[::-1] if turned else sides]
        )
        tests.setdefault(key, set()).add(name)
    repeats = {name: twin for paper in PAPERS for name, twin in read_protocol(paper)[0].repeats.items()}
    for same in tests.values():
        counted = [name for name in same if name not in repeats]
        assert len(counted) == 1
        assert {repeats[name] for name in same - set(counted)} <= set(counted)


def _asked(side):
    return [str(value) for key, value in vars(side).items() if key not in ("parts", "where")]


def test_a_claim_with_two_roles_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "FOLDER", tmp_path)
    content = {"paper": "own", "written": "now", "secondary": ["s/a"], "checks": ["s/a"]}
    (tmp_path / "own.yaml").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="s/a has two"):
        read_protocol("own")
    (tmp_path / "odd.yaml").write_text(json.dumps({"paper": "odd", "written": "now", "tertiary": []}))
    with pytest.raises(ConfigError, match="tertiary"):
        read_protocol("odd")


def test_a_claim_that_no_protocol_names_is_exploratory():
    empty = Protocol(paper="dgp", written="now")
    assert empty.role_of("s", "a") == "exploratory"
    assert family_size(empty, "s", "a") is None
