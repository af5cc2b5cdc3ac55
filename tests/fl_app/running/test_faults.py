"""Faults at chosen moments of a run: nothing that counted is lost, and no end looks better than it was."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from cut_runs import MLP, assert_same, interrupted, read, without_pictures, words

from fl_app.adversary.sightings import load_sightings
from fl_app.cli.new_attack import attack_again
from fl_app.config.compose import ConfigError
from fl_app.experiments import job
from fl_app.experiments.job import run_job
from fl_app.running import federation, ownership
from fl_app.running import result as result_module
from fl_app.running.checkpoint import read_checkpoint
from fl_app.running.ownership import claim
from fl_app.storage.shortage import shortage
from fl_app.storage.tree_file import read_tree, write_tree
from fl_app.strategies.exchange import NobodyAnswered

DGP = f"{MLP} defense=dgp"
ATTACKED = f"{DGP} attack=idlg_label attack.rounds=[1,3] attack.clients=[0,2] audit.contrast=false"
MASKED = (
    f"{MLP} training.steps=2 dp=client dp.epsilon=null dp.noise_multiplier=1 defense=fl_top "
    "defense.share=0.1 clients=4 secagg=on secagg.min_clients=3"
)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    without_pictures(monkeypatch)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


def break_clients(
    patch: pytest.MonkeyPatch, error: BaseException, clients: range | None = None, at: int = 3
) -> None:
    honest = job.client_app.Client.answer

    def answer(self, parcel, *args, **kwargs):
        if parcel.order.round == at and (clients is None or parcel.order.client in clients):
            raise error
        return honest(self, parcel, *args, **kwargs)

    patch.setattr(job.client_app.Client, "answer", answer)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            marks=pytest.mark.slow,
        ),
        pytest.param(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), marks=pytest.mark.slow),
        ValueError("every client meets this"),
    ],
)
def test_a_round_that_no_client_could_work_in_is_not_counted(error, tmp_path, monkeypatch):
    run_job(words(DGP), folder=tmp_path / "whole")
    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        break_clients(patch, error)
        with pytest.raises(NobodyAnswered if isinstance(error, ValueError) else type(error)):
            run_job(words(DGP), folder=cut)
    assert read(cut)["status"] == "failed"
    assert len(read_tree(cut / "checkpoint" / "state")["rows"]) == 2
    run_job([f"resume={cut}"])
    assert_same(tmp_path / "whole", cut)


def test_lack_of_memory_in_one_client_stops_the_run_and_an_error_of_its_own_does_not(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_clients(patch, MemoryError(), range(1, 2))
        with pytest.raises(MemoryError):
            run_job(words(DGP), folder=tmp_path / "memory")
    with monkeypatch.context() as patch:
        break_clients(patch, ValueError("mine"), range(1, 2))
        run_job(words(DGP), folder=tmp_path / "own")
    rows = read(tmp_path / "own")["rounds"]
    assert [row["clients"] for row in rows] == [3, 3, 2, 3, 3]
    assert [failure["client"] for failure in rows[2]["failures"]] == [1]


@pytest.mark.parametrize("moment", ["before", "state gone"])
def test_a_kill_while_the_checkpoint_is_removed_leaves_the_result(moment, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(federation.LastingRun, "end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        else:
            patch.setattr(ownership.shutil, "rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_job(words(ATTACKED), folder=tmp_path)
    before = contents(tmp_path)
    assert (len(read(tmp_path)["attacks"]), read(tmp_path)["status"]) == (4, "finished")
    (tmp_path / "report.html").unlink()
    if moment == "before":
        assert run_job([f"resume={tmp_path}"]) == tmp_path
        assert not (tmp_path / "checkpoint").exists()
    else:
        with pytest.raises(ConfigError, match="has no checkpoint"):
            run_job([f"resume={tmp_path}"])
    after = contents(tmp_path)
    kept = {name: value for name, value in before.items() if not name.startswith(("checkpoint", "report"))}
    assert {name: after[name] for name in kept} == kept


@pytest.mark.parametrize("checkpoint", ["true", "auto", "false"])
def test_a_folder_belongs_to_one_run_from_before_its_first_file(checkpoint, tmp_path):
    with claim(tmp_path):
        with pytest.raises(ConfigError, match="another process is at work"):
            run_job(words(f"{DGP} checkpoint={checkpoint}"), folder=tmp_path)
        with pytest.raises(ConfigError, match="another process is at work") as refused:
            claim(tmp_path)
        assert shortage(refused.value) is None, "nothing ran out"
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())


def test_runs_without_a_folder_of_their_own_never_share_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Stopped(result_module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 18, 12, 0, 0)

    monkeypatch.setattr(result_module, "datetime", Stopped)
    folders = {result_module.run_folder(None, "dgp") for _ in range(5)}
    assert len(folders) == 5


def test_a_lock_of_a_removed_file_is_no_lock(tmp_path, monkeypatch):
    first = claim(tmp_path)
    opened = os.open(tmp_path / ".lock", os.O_RDWR)
    first.close()
    honest, handles = os.open, [opened]
    monkeypatch.setattr(ownership.os, "open", lambda *args: handles.pop() if handles else honest(*args))
    with claim(tmp_path):
        assert (tmp_path / ".lock").exists()
        with pytest.raises(ConfigError, match="at work"):
            claim(tmp_path)


def test_a_run_that_ended_meanwhile_is_not_resumed_from_what_was_read_before(tmp_path, monkeypatch):
    interrupted(DGP, tmp_path, monkeypatch)
    honest, ended = federation.claim, []

    def late(folder):
        if not ended:  # another process is quicker, and finishes the run
            ended.append(1)
            with monkeypatch.context() as patch:
                patch.setattr(federation, "claim", honest)
                run_job([f"resume={tmp_path}"])
            ended.append(contents(tmp_path))
        return honest(folder)

    monkeypatch.setattr(federation, "claim", late)
    with pytest.raises(ConfigError, match="has no checkpoint"):
        run_job([f"resume={tmp_path}"])
    assert contents(tmp_path) == ended[1]


def test_a_new_run_in_a_used_folder_pairs_its_updates_with_its_own_model(tmp_path):
    run_job(words(f"{ATTACKED} seed=0"), folder=tmp_path / "used")
    (tmp_path / "used" / "observations" / "r9-c9.safetensors").write_bytes(b"of an older run")
    for name in ("used", "fresh"):
        run_job(words(f"{ATTACKED} seed=1"), folder=tmp_path / name)
    assert_same(tmp_path / "fresh", tmp_path / "used")
    assert contents(tmp_path / "fresh").keys() == contents(tmp_path / "used").keys()
    assert len(load_sightings(tmp_path / "used")[0]) == 4


@pytest.mark.parametrize("gone", [1, 2, 3, 5])
def test_a_kill_while_a_used_folder_is_cleared_leaves_nothing_that_looks_finished(
    gone, tmp_path, monkeypatch
):
    run_job(words(f"{ATTACKED} seed=0"), folder=tmp_path)
    (tmp_path / "accuracy.png").mkdir()
    calls, honest = [], ownership._remove

    def kill(path):
        calls.append(path)
        if len(calls) > gone:
            raise KeyboardInterrupt
        honest(path)

    with monkeypatch.context() as patch:
        patch.setattr(ownership, "_remove", kill)
        with pytest.raises(KeyboardInterrupt):
            run_job(words(f"{ATTACKED} seed=1"), folder=tmp_path)
    assert not (tmp_path / "result.json").exists()
    run_job(words(f"{ATTACKED} seed=1"), folder=tmp_path)
    assert read(tmp_path)["status"] == "finished"
    assert not (tmp_path / "accuracy.png").exists()


def test_a_model_of_another_run_beside_the_updates_is_refused(tmp_path):
    for seed in (0, 1):
        run_job(words(f"{ATTACKED} seed={seed}"), folder=tmp_path / f"{seed}")
    mine, other = (tmp_path / f"{seed}" / "observations" / "r1-model.safetensors" for seed in (0, 1))
    shutil.copy(other, mine)
    before = contents(tmp_path / "0")
    with pytest.raises(ValueError, match="not the model that it belongs to"):
        attack_again(tmp_path / "0", ["attack=idlg_label"])
    assert contents(tmp_path / "0") == before


def test_every_flipped_bit_of_an_observation_is_found(tmp_path):
    run_job(words(ATTACKED), folder=tmp_path)
    whole = load_sightings(tmp_path)[0]
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for path in sorted((tmp_path / "observations").iterdir()):
        content = path.read_bytes()
        for at in torch.randint(len(content), (40,), generator=generator).tolist():
            bit = 1 << (at % 8)
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            try:
                found = load_sightings(tmp_path)[0]
            except ValueError:
                refused += 1
                continue
            for one, other in zip(whole, found, strict=True):
                assert all(torch.equal(one.update[n], other.update[n]) for n in one.update)
                assert all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)
                assert (one.order, one.answer) == (other.order, other.answer)
        path.write_bytes(content)
    assert refused > 200


def test_every_flipped_bit_and_every_edit_of_begun_is_found(tmp_path, monkeypatch):
    interrupted(MASKED, tmp_path, monkeypatch)
    path = tmp_path / "checkpoint" / "begun.json"
    content = path.read_bytes()
    _, begun = read_checkpoint(tmp_path)
    refused = 0
    for at in range(len(content)):
        for damaged in (
            content[:at] + bytes([content[at] ^ 1 << (at % 8)]) + content[at + 1 :],
            content[:at],
        ):
            path.write_bytes(damaged)
            try:
                assert read_checkpoint(tmp_path)[1] == begun, "a blank of JSON may be another"
            except ConfigError:
                refused += 1
    assert refused > 1.9 * len(content)
    for change in ({"round": 1}, {"clients": []}, {"attempt": 9}, {"unmasking": True}):
        path.write_text(json.dumps(json.loads(content) | change))
        if json.loads(content)[next(iter(change))] != next(iter(change.values())):
            with pytest.raises(ConfigError):
                read_checkpoint(tmp_path)


def edit_state(change):
    def damage(folder: Path) -> None:
        tree = read_tree(folder / "checkpoint" / "state")
        change(tree)
        write_tree(folder / "checkpoint" / "state", tree)

    return damage


def first(folder: Path, pattern: str) -> Path:
    return sorted((folder / "checkpoint" / "observations").glob(pattern))[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "no history": edit_state(lambda tree: tree.update(strategy={})),
    "weights of another shape": edit_state(
        lambda tree: tree["strategy"].update(
            weights={n: t[:0] for n, t in tree["strategy"]["weights"].items()}
        )
    ),
    "a strange optimiser": edit_state(lambda tree: tree["strategy"].update(downlink=3)),
    "strange records": edit_state(lambda tree: tree["strategy"].update(records=[{"round": "x"}])),
    "a strange memory": edit_state(lambda tree: tree.update(clients={0: {"a": ["array", 5]}})),
    "clients that are none": edit_state(lambda tree: tree.update(clients={77: {}})),
    "a folder for a config": lambda f: ((f / "config.yaml").unlink(), (f / "config.yaml").mkdir()),
    "a folder for a draft": lambda f: (f / "checkpoint" / "state.part").mkdir(),
    "a folder for a state": lambda f: ((f / "checkpoint/state").unlink(), (f / "checkpoint/state").mkdir()),
    "no observations": lambda f: shutil.rmtree(f / "checkpoint" / "observations"),
    "no sighting": lambda f: first(f, "r1-c*").unlink(),
    "half a sighting": lambda f: cut(first(f, "r1-c*")),
    "no model": lambda f: first(f, "r1-model*").unlink(),
    "half a model": lambda f: cut(first(f, "r1-model*")),
    "half the facts": lambda f: cut(first(f, "public.json")),
    "a lock that is a folder": lambda f: (f / ".lock").mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_refused_resume_has_changed_nothing(damage, tmp_path, monkeypatch, once):
    folder = tmp_path / "run"
    shutil.copytree(once(ATTACKED, monkeypatch), folder)
    DAMAGES[damage](folder)
    before = contents(folder)
    with pytest.raises((ConfigError, OSError)):
        run_job([f"resume={folder}"])
    assert contents(folder) == before
    if ".lock" not in [path.name for path in folder.iterdir()]:
        run_job(words(ATTACKED), folder=folder)
        assert read(folder)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    "harmless",
    [
        lambda f: (f / "checkpoint" / "observations" / "r1-c7.safetensors").write_bytes(b"junk"),
        lambda f: (f / "checkpoint" / "state.part").write_bytes(b"junk"),
        lambda f: (f / ".tmpAbCdEf").write_bytes(b"half a model"),
        lambda f: (f / "result.json").write_bytes(bytes(range(256))),
        lambda f: (f / "result.json").unlink(),
        lambda f: (f / "config.yaml").unlink(),
        lambda f: (f / ".lock").write_text("of a dead process"),
    ],
)
def test_what_a_resume_does_not_need_may_be_gone_or_broken(harmless, tmp_path, monkeypatch, once):
    folder = tmp_path / "run"
    shutil.copytree(once(ATTACKED, monkeypatch), folder)
    harmless(folder)
    run_job([f"resume={folder}"])
    run_job(words(ATTACKED), folder=tmp_path / "whole")
    assert_same(tmp_path / "whole", folder)
    assert not [*folder.glob("*.part"), *folder.glob(".tmp*")]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """An interrupted run, made once for all tests that damage a copy of it."""
    made: list[Path] = []

    def make(overrides: str, monkeypatch) -> Path:
        if not made:
            folder = tmp_path_factory.mktemp("once") / "run"
            interrupted(overrides, folder, monkeypatch)
            made.append(folder)
        return made[0]

    return make


def test_a_finished_result_of_another_run_is_not_taken_for_this_runs_end(tmp_path, monkeypatch, once):
    folder = tmp_path / "run"
    shutil.copytree(once(ATTACKED, monkeypatch), folder)
    run_job(words(ATTACKED), folder=tmp_path / "twin")
    shutil.copy(tmp_path / "twin" / "result.json", folder)
    before = contents(folder)
    with pytest.raises(ConfigError, match="not the result of this folder's checkpoint"):
        run_job([f"resume={folder}"])
    assert contents(folder) == before
    (folder / "result.json").unlink()
    run_job([f"resume={folder}"])
    assert_same(tmp_path / "twin", folder)


def test_a_full_disk_is_told_and_the_folder_does_not_look_alive(tmp_path, monkeypatch):
    honest = result_module.write_json

    def full(path, content, **more):
        if len(content["rounds"]) >= 3:
            raise FULL
        honest(path, content, **more)

    with monkeypatch.context() as patch:
        patch.setattr(result_module, "write_json", full)
        patch.setattr(result_module, "_SAVE_EVERY_SECONDS", 0)
        patch.setattr(
            federation, "write_report", lambda *_: (_ for _ in ()).throw(RuntimeError("a second error"))
        )
        with pytest.raises(OSError, match="No space") as error:
            run_job(words(DGP), folder=tmp_path)
        assert error.value.errno == errno.ENOSPC
    found = read(tmp_path)
    assert found["status"] == "failed"
    assert "No space" in found["error"]
    assert len(found["rounds"]) == 2
    run_job([f"resume={tmp_path}"])
    assert read(tmp_path)["status"] == "finished"


def test_a_report_that_cannot_be_written_does_not_undo_the_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(federation, "write_report", lambda *_: (_ for _ in ()).throw(FULL))
        with pytest.raises(OSError, match="No space"):
            run_job(words(DGP), folder=tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    assert read(tmp_path)["status"] == "finished"
    run_job([f"resume={tmp_path}"])
    assert (tmp_path / "result.json").read_bytes() == before
    assert not (tmp_path / "checkpoint").exists()


def test_a_new_attack_that_is_killed_keeps_the_results_of_the_old_ones(tmp_path, monkeypatch):
    run_job(words(ATTACKED), folder=tmp_path)
    before = read(tmp_path)["attacks"]
    with monkeypatch.context() as patch:
        patch.setattr("fl_app.cli.new_attack.write_report", lambda *_: None)
        attack_again(tmp_path, ["attack=bias_labels"])
    after = read(tmp_path)["attacks"]
    assert after[: len(before)] == before
    assert len(after) > len(before)

    calls = []
    honest = result_module.Results.save

    def die(self):
        honest(self)
        calls.append(len(read(tmp_path)["attacks"]))

    with monkeypatch.context() as patch:
        patch.setattr(result_module.Results, "save", die)
        patch.setattr("fl_app.cli.new_attack.write_report", lambda *_: None)
        attack_again(tmp_path, ["attack=bias_labels"])
    assert set(calls) == {len(after)}, "at no moment are there fewer"


def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (["resume=nowhere"], [*words(DGP), "fraction=2"]):
        with pytest.raises(ConfigError):
            run_job(wrong)
    assert not list(tmp_path.glob("runs/*/*"))
