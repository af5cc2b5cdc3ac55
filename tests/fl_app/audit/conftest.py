"""Small Flower apps and their audits."""

from pathlib import Path

import pytest

from fl_app.audit import AuditOptions, audit_app

APPS = Path(__file__).parents[2] / "apps"


@pytest.fixture(scope="session")
def audit(tmp_path_factory):
    """Audit an app of `tests/apps`; each audit is made once."""
    made = {}

    def run(name, *run_config, exits=0, rounds=2, nodes=None, seconds=1.0, **options):
        key = name, run_config, exits, rounds, nodes, seconds, repr(options)
        if key not in made:
            with (tmp_path_factory.mktemp("audit") / "app.log").open("w") as log:
                chosen = AuditOptions(
                    supernodes=nodes,
                    rounds=rounds,
                    run_config=run_config,
                    attack_seconds=seconds,
                    planted_runs=exits,
                    **options,
                )
                made[key] = audit_app(APPS / name, chosen, log=log)
        return made[key]

    return run
