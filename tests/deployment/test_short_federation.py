"""The short form of the whole, in every `make test`: TLS, keys, three clients, and one that is killed."""

from deployed import SMALL, Training, harness, needs_flower, result_of, rows_of
from lossy_history import Losses, model_after, same
from safetensors.torch import load_file

OVERRIDES = f"clients=3 rounds=2 evaluate_every=1 defense=dgp model=mlp model.hidden=[16] attack=none {SMALL}"


@needs_flower
def test_a_run_outlives_a_client_that_is_killed_in_its_midst(tmp_path):
    """Flower misses a dead node after a minute, which is what this test mostly waits for."""
    with harness(tmp_path) as federation:
        training = Training(federation, f"{OVERRIDES} run_dir=runs/short")
        training.until_order("supernode-1", 2)
        federation.kill("supernode-1")
        code, said = training.end()
        assert code == 0, said
        first, second = rows_of(federation, "short")
        assert (first["clients"], first["failures"]) == (3, [])
        assert second["clients"] == 2
        (failure,) = second["failures"]
        assert failure["client"] == 1
        assert "unavailable" in failure["reason"].lower()
        assert result_of(federation, "short")["status"] == "finished"
        assert federation.starts("supernode-1") > 1
        found = load_file(federation.volume("runs") / "short" / "model.safetensors")
    assert same(found, model_after(OVERRIDES, Losses(unheard=frozenset({(1, 2)}))))
    assert not same(found, model_after(OVERRIDES, Losses()))
