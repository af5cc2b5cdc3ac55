"""The short form of the whole, in every `make test`: TLS, keys, three clients, and one that is killed."""

from pathlib import Path

from compose_harness import Harness
from deployed import Training, harness, needs_flower, result_of, rows_of
from disturbed_runs import DGP, model_in
from lossy_history import Losses, model_after, same

OVERRIDES = f"{DGP} rounds=4"


def shown_keys(federation: Harness) -> list[Path]:
    """Return the files that are nobody's secret and hold a line of a private key."""
    secret = ["ca/ca.key", "server/server.key", *(f"node-{i}/key" for i in range(3))]
    lines = {
        line
        for name in secret
        for line in (federation.volume(name.split("/")[0]) / name.split("/")[1]).read_bytes().splitlines()
        if len(line) > 30 and not line.startswith(b"-----")
    }
    assert len(lines) > len(secret)
    places = [federation.folder / "logs", federation.volume("runs"), federation.volume("superlink-state")]
    places += [federation.volume(f"node-{i}-state") for i in range(3)]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if any(line in path.read_bytes() for line in lines)]


@needs_flower
def test_a_run_outlives_a_client_that_is_killed_in_its_midst(tmp_path):
    """Flower misses a dead node after a minute, which is what this test mostly waits for."""
    with harness(tmp_path) as federation:
        federation.up()
        training = Training(federation, f"{OVERRIDES} run_dir=runs/short", patience=900)
        training.until_rows("short", 1)
        federation.kill("supernode-1")  # the SuperLink does not know: it is asked in the next round, too
        code, said = training.end()
        assert code == 0, said
        rows = rows_of(federation, "short")
        assert (rows[0]["clients"], rows[0]["failures"]) == (3, [])
        (failed,) = [row for row in rows if row["failures"]]
        missed = [row["round"] for row in rows if row["clients"] == 2]
        assert missed[0] == failed["round"]
        assert all(row["clients"] == 3 for row in rows if row["round"] not in missed)
        (failure,) = failed["failures"]
        assert failure["client"] == 1
        assert "unavailable" in failure["reason"].lower()
        assert result_of(federation, "short")["status"] == "finished"
        assert federation.starts("supernode-1") > 1
        assert shown_keys(federation) == []
        found = model_in(federation, "short")
    assert same(found, model_after(OVERRIDES, Losses(unheard=frozenset((1, round) for round in missed))))
    assert not same(found, model_after(OVERRIDES, Losses()))
