"""Runs that are cut short and resumed: the same result, bit for bit, or a new attempt that is charged."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from cut_runs import MLP, assert_same, interrupted, read, strike, without_pictures, words
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.config.compose import ConfigError, compose, join_overrides
from fl_app.experiments import job, sweep
from fl_app.experiments.job import run_job
from fl_app.flower import InlineGrid
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.running import checkpoint as checkpoints
from fl_app.running import federation
from fl_app.running import resume as lasting_run
from fl_app.running.checkpoint import Checkpoint
from fl_app.running.ownership import claim
from fl_app.strategies import FLStd

VECTORS = f"{MLP} training.steps=2"
PRIVATE = f"{VECTORS} dp=client dp.epsilon=null dp.noise_multiplier=1"
FAMILIES = {
    "none": f"{MLP} defense=none",
    "adam": f"{MLP} defense=none strategy=fed_adam",
    "prox": f"{MLP} defense=none strategy=fed_prox strategy.proximal_mu=0.1 strategy.momentum=0.5",
    "momentum": f"{MLP} defense=none strategy.momentum=0.9 strategy.weight_decay=0.01",
    "dgp": f"{MLP} defense=dgp",
    "partial": f"{MLP} defense=dgp fraction=0.6",
    "adgp": f"{MLP} defense=adgp defense.location=vote",
    "outpost": f"{MLP} defense=outpost",
    "fl_top": f"{PRIVATE} defense=fl_top defense.share=0.1 fraction=0.8",
    "vote": f"{PRIVATE} defense=fl_top defense.chosen_by=vote defense.share=0.1 fraction=0.8",
    "fl_basic": f"{VECTORS} defense=fl_basic defense.share=0.1",
    "ftrl": f"{VECTORS} dp=ftrl dp.epsilon=9 defense=fl_top defense.share=0.1 fraction=0.333",
    "sync": "model=convnet model.width=4 defense=none strategy=fed_avg bn=sync",
    "local": "model=convnet model.width=4 defense=none strategy=fed_avg bn=local",
    "dp_sgd": f"{MLP} defense=dp_sgd",
    "attacked": f"{MLP} defense=dgp attack=ig attack.steps=3 attack.rounds=[1,3,5] attack.clients=[0,2]",
    "active": f"{MLP} defense=dgp attack=rob attack.bins=8 attack.rounds=[2,4] attack.clients=[1]",
}


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    without_pictures(monkeypatch)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_is_the_same_as_one_that_was_never_cut_short(family, tmp_path, monkeypatch):
    overrides = FAMILIES[family]
    run_job(words(overrides), folder=tmp_path / "whole")
    interrupted(overrides, tmp_path / "cut", monkeypatch)
    assert read(tmp_path / "cut")["status"] == "failed"
    job.client_app.client_parts.cache_clear()  # as in a new process

    assert run_job([f"resume={tmp_path / 'cut'}"]) == tmp_path / "cut"

    assert_same(tmp_path / "whole", tmp_path / "cut")
    (entry,) = read(tmp_path / "cut")["resumed"]
    assert (entry["round"], entry["reason"]) == (3, "RuntimeError: power cut")
    assert not (tmp_path / "cut" / "checkpoint").exists()


@pytest.mark.parametrize("at", [2, 5])
def test_a_run_may_be_cut_short_again_and_in_any_round(at, tmp_path, monkeypatch):
    overrides = FAMILIES["dgp"]
    run_job(words(overrides), folder=tmp_path / "whole")
    interrupted(overrides, tmp_path / "cut", monkeypatch, at=2)
    with monkeypatch.context() as patch:
        strike(patch, at, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run_job([f"resume={tmp_path / 'cut'}"])
    run_job([f"resume={tmp_path / 'cut'}"])
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert [entry["round"] for entry in read(tmp_path / "cut")["resumed"]] == [1, at - 1]


def test_a_run_that_was_cut_short_in_its_attacks_does_not_train_again(tmp_path, monkeypatch):
    overrides = FAMILIES["attacked"]
    run_job(words(overrides), folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(federation, "attack_sightings", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_job(words(overrides), folder=tmp_path / "cut")
    with monkeypatch.context() as patch:
        patch.setattr(job.client_app.Client, "answer", lambda *_: pytest.fail("a client trained"))
        run_job([f"resume={tmp_path / 'cut'}"])
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    "overrides", [FAMILIES["dgp"], pytest.param(FAMILIES["attacked"], marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_goes_on_to_the_same_result(overrides, tmp_path):
    """SIGKILL, at whatever point the process is by then."""
    run_job(words(f"{overrides} rounds=12"), folder=tmp_path / "whole")
    cut = tmp_path / "cut"
    command = [sys.executable, "-m", "fl_app", *words(f"{overrides} rounds=12"), f"hydra.run.dir={cut}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while not (cut / "checkpoint" / "state").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert read(cut)["status"] == "running"
    subprocess.run(
        [sys.executable, "-m", "fl_app", f"resume={cut}"], check=True, cwd=tmp_path, capture_output=True
    )
    assert_same(tmp_path / "whole", cut)
    (entry,) = read(cut)["resumed"]
    assert entry["reason"] == "killed"
    # the folder that Hydra had made for another run is gone
    assert not list((tmp_path / "runs").glob("*/*"))


def test_another_config_is_refused_and_the_difference_is_named(tmp_path, monkeypatch):
    interrupted(FAMILIES["dgp"], tmp_path, monkeypatch)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(ConfigError, match=r"lr was 0\.1 and is 0\.3"):
        run_job([f"resume={tmp_path}", "lr=0.3"])
    with pytest.raises(ConfigError, match="rounds was 5 and is 9"):
        run_job([f"resume={tmp_path}", "rounds=9"])
    with pytest.raises(ConfigError, match="expected auto or true"):
        run_job([f"resume={tmp_path}", "checkpoint=false"])
    assert (tmp_path / "result.json").read_bytes() == before
    run_job([f"resume={tmp_path}", "wait=1", "timeout=1000", "checkpoint=auto"])
    assert read(tmp_path)["status"] == "finished"


def test_a_damaged_checkpoint_is_named_and_nothing_is_touched(tmp_path, monkeypatch):
    interrupted(FAMILIES["none"], tmp_path, monkeypatch)
    state = tmp_path / "checkpoint" / "state"
    whole = state.read_bytes()
    before = (tmp_path / "result.json").read_bytes()
    for damaged in (whole[:-7], whole[:100] + b"?" + whole[101:], b"", b"something else"):
        state.write_bytes(damaged)
        with pytest.raises(ConfigError, match="nothing was changed"):
            run_job([f"resume={tmp_path}"])
    assert (tmp_path / "result.json").read_bytes() == before
    state.write_bytes(whole)
    run_job([f"resume={tmp_path}"])
    assert read(tmp_path)["status"] == "finished"


def test_what_has_no_checkpoint_cannot_be_resumed(tmp_path):
    run_job(words(f"{MLP} defense=none rounds=1"), folder=tmp_path)
    with pytest.raises(ConfigError, match="has no checkpoint: the run is finished"):
        run_job([f"resume={tmp_path}"])


def test_a_new_run_in_the_same_folder_has_nothing_of_the_old_one(tmp_path, monkeypatch):
    interrupted(FAMILIES["attacked"], tmp_path, monkeypatch)
    run_job(words(f"{FAMILIES['none']} checkpoint=auto"), folder=tmp_path)
    assert not (tmp_path / "checkpoint").exists()


def test_a_run_that_somebody_is_at_work_on_is_left_to_them(tmp_path, monkeypatch):
    interrupted(FAMILIES["none"], tmp_path, monkeypatch)
    lock = claim(tmp_path)
    with pytest.raises(ConfigError, match="another process is at work"):
        run_job([f"resume={tmp_path}"])
    lock.close()
    run_job([f"resume={tmp_path}"])


def test_other_versions_are_noted(tmp_path, monkeypatch):
    interrupted(FAMILIES["none"], tmp_path, monkeypatch)
    monkeypatch.setattr(lasting_run, "versions", lambda: {"torch": "9.9"})
    run_job([f"resume={tmp_path}"])
    assert any("torch" in note and "is 9.9" in note for note in read(tmp_path)["notes"])


def test_short_simulations_make_one_checkpoint_and_long_ones_more(tmp_path, monkeypatch):
    saved = []
    honest = Checkpoint.save

    def save(self, state, seen):
        saved.append(state.rows[-1]["round"])
        honest(self, state, seen)

    monkeypatch.setattr(Checkpoint, "save", save)
    run_job(words(f"{FAMILIES['dgp']} checkpoint=auto"), folder=tmp_path / "short")
    assert saved == [1]
    saved.clear()
    for module in (lasting_run, checkpoints):
        monkeypatch.setattr(module, "SECONDS_BETWEEN", 1e-9)
    monkeypatch.setattr(checkpoints, "_SHARE_OF_TIME", 1e9)
    run_job(words(f"{FAMILIES['dgp']} checkpoint=auto"), folder=tmp_path / "long")
    assert saved == [1, 2, 3, 4, 5]


def test_ctrl_c_in_a_round_leaves_a_checkpoint_and_no_pages_and_goes_on_to_the_same_bits(
    tmp_path, monkeypatch
):
    overrides = f"{FAMILIES['attacked']} checkpoint=auto"
    run_job(words(overrides), folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        strike(patch, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt, match="fl-app resume="):
            run_job(words(overrides), folder=tmp_path / "cut")
    assert read(tmp_path / "cut")["status"] == "interrupted"
    assert (tmp_path / "cut" / "checkpoint" / "state").is_file()
    assert not (tmp_path / "cut" / "report.html").exists()
    run_job([f"resume={tmp_path / 'cut'}"])
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert (tmp_path / "cut" / "report.html").is_file()


def test_ctrl_c_in_an_attack_keeps_the_training(tmp_path, monkeypatch):
    overrides = f"{FAMILIES['attacked']} checkpoint=auto"
    run_job(words(overrides), folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(federation, "attack_sightings", interrupt)
        with pytest.raises(KeyboardInterrupt, match="fl-app resume="):
            run_job(words(overrides), folder=tmp_path / "cut")
    with monkeypatch.context() as patch:
        patch.setattr(federation._RoundEnd, "_evaluate", interrupt)  # no round is trained again
        run_job([f"resume={tmp_path / 'cut'}"])
    assert_same(tmp_path / "whole", tmp_path / "cut")


def interrupt(*_, **__):
    raise KeyboardInterrupt


SECURE = f"{PRIVATE} defense=fl_top defense.share=0.1 clients=4 secagg=on secagg.min_clients=3"


def epsilons(folder: Path) -> list[float]:
    return [row["epsilon"] for row in read(folder)["rounds"]]


@pytest.mark.parametrize("unmasked", [True, False])
def test_a_secure_round_that_was_cut_short_is_charged_if_unmasking_had_begun(unmasked, tmp_path, monkeypatch):
    run_job(words(SECURE), folder=tmp_path / "whole")
    cut = tmp_path / "cut"
    seen: list = []
    honest = FLStd._ask

    def ask(self, kind, blobs):
        if self.records[-1].round == 4 and kind == ("query.unmask" if unmasked else "query.share"):
            raise RuntimeError("power cut")
        return honest(self, kind, blobs)

    with monkeypatch.context() as patch:
        patch.setattr(FLStd, "_ask", ask)
        with pytest.raises(RuntimeError, match="power cut"):
            run_job(words(SECURE), folder=cut)

    def note_attempt(self, kind, blobs):
        if kind == "query.unmask":
            terms = self.aggregation.terms
            seen.append((terms.round, terms.attempt))
        return honest(self, kind, blobs)

    monkeypatch.setattr(FLStd, "_ask", note_attempt)
    run_job([f"resume={cut}"])
    # the numbers of the attempts that were lost are not used again
    assert seen == [(4, 2), (5, 0)]
    whole, resumed = epsilons(tmp_path / "whole"), epsilons(cut)
    assert resumed[:3] == whole[:3]
    assert (resumed[3] == whole[4]) if unmasked else (resumed[3:] == whole[3:])
    assert (resumed[4] > whole[4]) is unmasked
    assert "attempt 2" in read(cut)["rounds"][3]["notes"][0]


def test_noise_of_the_operating_system_makes_a_new_release_of_a_round(tmp_path, monkeypatch):
    overrides = f"{PRIVATE} defense=fl_std dp.secure=true dp.sampling=fixed"
    run_job(words(overrides), folder=tmp_path / "whole")
    interrupted(overrides, tmp_path / "cut", monkeypatch)
    run_job([f"resume={tmp_path / 'cut'}"])
    whole, resumed = epsilons(tmp_path / "whole"), epsilons(tmp_path / "cut")
    assert resumed[:3] == whole[:3]
    assert resumed[3] == whole[4]


def test_a_sweep_goes_on_with_a_cell_after_its_checkpoint(tmp_path, monkeypatch):
    cell = sweep.Cell(words(FAMILIES["dgp"]), tmp_path)
    config = OmegaConf.to_container(compose(join_overrides(cell.overrides)))
    folder = tmp_path / sweep.cell_name(config)
    with monkeypatch.context() as patch:
        strike(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            sweep.run_sweep([cell], lambda line: None)
    end = sweep.run_sweep([cell], lambda line: None)
    assert end.finished == [folder]
    assert read(folder)["resumed"][0]["round"] == 3
    run_job(words(FAMILIES["dgp"]), folder=tmp_path / "whole")
    assert_same(tmp_path / "whole", folder)


def run_apart(overrides: list[str], state: Path | None) -> None:
    """Run with clients that the server does not hold: a new run has new nodes, as in a deployment."""
    text = join_overrides(overrides)
    node = {} if state is None else {"state-dir": str(state)}
    grid = InlineGrid(client_app.app, compose(text).clients, run_config={"overrides": text}, node_config=node)
    federation.run_federation(ForwardingGrid(grid), text)


def cut_apart(overrides: list[str], state: Path | None, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        strike(patch, 4, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            run_apart(overrides, state)


@pytest.mark.parametrize("family", ["dgp", "adgp", "local", "fl_basic"])
def test_clients_with_a_disk_of_their_own_go_on_with_a_resumed_server(family, tmp_path, monkeypatch):
    overrides, cut = words(FAMILIES[family]), tmp_path / "cut"
    run_job(overrides, folder=tmp_path / "whole")
    cut_apart([*overrides, f"run_dir={cut}"], tmp_path / "state", monkeypatch)
    key = read(cut)["run"]
    run_apart([*overrides, f"resume={cut}"], tmp_path / "state")
    assert (cut / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert read(cut)["run"] == key
    assert any("keep no memory on their disks" in note for note in read(cut)["notes"])
    assert "attempt 2" in read(cut)["rounds"][3]["notes"][0]


def test_a_deployment_is_resumed_with_the_overrides_of_its_clients(tmp_path, monkeypatch):
    overrides = words(FAMILIES["dgp"])
    cut_apart([*overrides, f"run_dir={tmp_path}"], None, monkeypatch)
    with pytest.raises(ConfigError, match="clients was 3 and is 10"):
        run_apart([f"resume={tmp_path}"], None)
    run_apart([*overrides, f"resume={tmp_path}"], None)
    assert read(tmp_path)["status"] == "finished"
    assert not any(row["failures"] for row in read(tmp_path)["rounds"])


def test_what_ordered_clients_may_have_released_is_charged_where_it_may_have_left(tmp_path, monkeypatch):
    overrides = words(f"{MLP} defense=dp_sgd defense.noise_multiplier=1")
    run_job(overrides, folder=tmp_path / "whole")
    cut_apart([*overrides, f"run_dir={tmp_path / 'cut'}"], None, monkeypatch)
    run_apart([*overrides, f"resume={tmp_path / 'cut'}"], None)
    whole, resumed = epsilons(tmp_path / "whole"), epsilons(tmp_path / "cut")
    assert resumed[:3] == whole[:3]
    assert resumed[3] == whole[4]
