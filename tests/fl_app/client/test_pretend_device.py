"""Everything runs on a second device: the same bits as on the CPU, and a bound on copies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
MLP = "model=mlp model.hidden=[8]"
VECTORS = f"{MLP} training.steps=2 defense.share=0.1"
NOISE = "dp=client dp.epsilon=null dp.noise_multiplier=1"
SECURE = "secagg=on clients=4 secagg.min_clients=3"
GAME = "attack.candidates=16 clients=2 batch_size=8 data.test_per_class=2"
SHORT = {
    "dgp, attacked": "defense=dgp attack=ig attack.steps=3 attack.rounds=[2] attack.clients=[0]",
    "adgp, resumed": f"{MLP} defense=adgp defense.location=vote",
}
SEEN = "attack.rounds=[1] attack.clients=[0]"
DEFENSES = "none topk sign laplace gaussian outpost precode ats dp_sgd graddrop int8 fp16 bf16 prune"
ALL = {
    "fl_top, masked and noisy": f"{VECTORS} defense=fl_top {NOISE} {SECURE}",
    "batch norm": "model=convnet model.width=4 defense=none strategy=fed_avg bn=sync rounds=2 clients=2",
    **{f"defense {name}": f"defense={name}" for name in DEFENSES.split()},
    "soteria": "defense=soteria defense.rate=0.5",
    **{
        f"strategy {name}": f"{MLP} defense=none strategy={name}"
        for name in ("fed_avg", "fed_adam", "fed_yogi", "fed_adagrad", "fed_avgm")
    },
    "prox, resumed": f"{MLP} strategy=fed_prox strategy.proximal_mu=0.1 strategy.momentum=0.5 defense=none",
    **{f"vectors {name}": f"{VECTORS} defense={name}" for name in ("fl_std", "fl_basic", "fl_cs", "fl_top")},
    "vote": f"{VECTORS} defense=fl_top defense.chosen_by=vote {NOISE}",
    "local batch norm": "model=convnet model.width=4 defense=none strategy=fed_avg bn=local",
    **{
        f"attack {name}": f"{MLP} defense=none attack={name} {SEEN}"
        for name in ("idlg_label", "bias_labels", "rlg", "first_linear")
    },
    **{
        f"attack {name}": f"defense=dgp attack={name} attack.steps=3 {SEEN}"
        for name in ("ig", "dlg", "idlg", "gi")
    },
    "attack rob": f"{MLP} defense=dgp attack=rob attack.bins=8 {SEEN}",
    "ftrl": f"{VECTORS} defense=fl_top dp=ftrl dp.epsilon=9 fraction=0.333",
    "ftrl with canaries, resumed": (
        f"{VECTORS} defense=fl_top dp=ftrl dp.epsilon=9 fraction=0.333 dp.canaries=10"
    ),
    "both": (
        f"{MLP} defense=fl_std {NOISE.replace('client', 'both', 1)} dp.clip=1 dp.records.rate=0.5 "
        "dp.records.noise_multiplier=1 training.steps=2 clients=4"
    ),
    "dp_sgd, resumed": f"{MLP} defense=dp_sgd",
    **{
        f"attack {name}": f"{MLP} defense=dgp attack={name} {SEEN}" for name in ("curious", "yin", "low_rank")
    },
    "attack rgap": f"defense=none attack=rgap {SEEN}",
    "members": f"{MLP} defense=none attack=membership attack.shadows=2 {GAME}",
    "members, active": f"{MLP} defense=none attack=membership attack.shadows=0 attack.active=true {GAME}",
    "a property": f"{MLP} defense=topk attack=property attack.examples=20 clients=2",
    **{
        f"{rule}, {lie}": f"{MLP} defense=none aggregate={rule} clients=5 liars=0.2 lie={lie}"
        for rule, lie in (("median", "flip"), ("krum", "scale"), ("trimmed", "backdoor"))
    },
    "attack text": f"data=text model=bert_mlm attack=text_dlg attack.steps=2 {SEEN} clients=2",
}
OTHER_KERNELS = ("attack text",)
"""Runs with other bits there: torch chooses attention's kernel by the device."""
MOST_COPIES = {
    "dgp, attacked": {"up": 70, "down": 150, "read": 165},
    "adgp resume": {"up": 120, "down": 180, "read": 240},
    "fl_top, masked and noisy": {"up": 76, "down": 48, "read": 20},
    "batch norm": {"up": 330, "down": 470, "read": 54},
}
"""Copies between host and device in a round of three or four clients; a GPU user pays for each one."""


def compared(runs: dict[str, str]) -> dict[str, dict]:
    named = {
        name.replace(", resumed", " resume"): text.replace(", resumed", "") for name, text in runs.items()
    }
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "pretend_runs.py"), json.dumps(named)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict[str, dict]) -> None:
    for name, one in found.items():
        assert "error" not in one, (name, one)
        if name not in OTHER_KERNELS:
            assert (one["model"], one["rounds"], one["attacks"]) == (True, True, True), (name, one)
            assert not one["others"], (name, one)
        assert not one["failures"], (name, one)
        assert not one["gave_up"], (name, one)
        assert min(one["counted"]) >= 1, (name, one)
        assert (one["attacked"] > 0) is ("attack" in name), (name, one)
        for kind, most in MOST_COPIES.get(name, {}).items():
            assert 0 < one["copies"][kind] <= most, (name, one)


def test_a_run_on_another_device_has_the_same_bits_and_copies_little():
    found = compared(SHORT)
    check(found)


@pytest.mark.slow
def test_every_defense_strategy_and_attack_runs_on_another_device():
    check(compared(ALL))


@pytest.mark.slow
def test_apps_of_somebody_else_run_on_another_device():
    command = [sys.executable, str(SUPPORT / "pretend_apps.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # masks and noise are new in every run
    assert found.pop("private and masked") is False
    assert set(found.values()) == {True}, found
