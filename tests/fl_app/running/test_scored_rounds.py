"""A whole run's scores, computed once more from the model it left; and what its clients train on."""

import json
import logging
from collections import Counter

import pytest
import torch
from federations import SMALL
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch.nn import functional as F

from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.data import normalise, pixels
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation

PATIENTS = "data=support2 data.root={} model=mlp strategy=fed_avg defense=none attack=none threads=1"


def result_of(folder, text, clients):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    text += f" run_dir={folder}"
    run_federation(InlineGrid(app, clients, run_config={"overrides": text}), text)
    return json.loads((folder / "result.json").read_text()), server_parts(text)


def logits_of(parts, folder, samples):
    parts.model.load_state_dict(load_file(folder / "model.safetensors"))
    shown = pixels(samples.inputs, "cpu")
    return parts.model.eval()(normalise(shown, parts.dataset.mean, parts.dataset.std)).detach()


def test_a_row_has_the_scores_of_the_test_samples_that_are_left_and_of_those_set_aside(tmp_path):
    text = f"{SMALL} defense=none rounds=3 evaluate_every=2 validation=0.25"
    result, parts = result_of(tmp_path, text, 5)
    assert (len(parts.dataset.test), len(parts.validation)) == (30, 10)
    unseen, _, last = result["rounds"]
    assert unseen["validation_accuracy"] is unseen["balanced_accuracy"] is None

    def share(samples):
        return float((logits_of(parts, tmp_path, samples).argmax(1) == samples.labels).float().mean())

    test = parts.dataset.test
    logits = logits_of(parts, tmp_path, test)
    assert last["accuracy"] == pytest.approx(share(test))
    assert last["validation_accuracy"] == pytest.approx(share(parts.validation))
    assert last["loss"] == pytest.approx(float(F.cross_entropy(logits, test.labels)), rel=1e-5)
    assert last["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(test.labels, logits.argmax(1)))
    assert last["auroc"] is None
    assert result["summary"]["best_chosen_by"] == "validation"


def test_no_seed_changes_which_samples_are_set_aside_and_without_a_share_none_are():
    one, two = (server_parts(f"{SMALL} validation=0.5 seed={seed}") for seed in (0, 7))
    assert torch.equal(one.validation.inputs, two.validation.inputs)
    assert torch.equal(one.dataset.test.inputs, two.dataset.test.inputs)
    plain = server_parts(SMALL)
    assert plain.validation is None
    assert len(plain.dataset.test) == 40


def test_a_share_that_leaves_no_class_two_samples_is_refused_with_its_key():
    with pytest.raises(ConfigError, match="validation: split_validation: "):
        server_parts(f"{SMALL} data.test_per_class=1 validation=0.5")


def test_patients_have_balanced_accuracy_and_an_area(shared_data, tmp_path):
    result, parts = result_of(tmp_path, f"{PATIENTS.format(shared_data)} clients=4 rounds=2", 4)
    labels, logits = parts.dataset.test.labels, logits_of(parts, tmp_path, parts.dataset.test)
    last, summary = result["rounds"][-1], result["summary"]
    assert last["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)))
    assert last["auroc"] == pytest.approx(roc_auc_score(labels, logits.softmax(1)[:, 1]), abs=1e-4)
    assert summary["auroc"] == last["auroc"] > 0.6
    assert summary["balanced_accuracy"] == last["balanced_accuracy"]


def held(text, clients):
    data_of = client_parts(text, WHOLE).data_of
    return [data_of(client, clients).samples for client in range(clients)]


@pytest.mark.parametrize("partition", ["iid", "dirichlet partition.alpha=0.5"])
def test_clients_train_on_as_many_of_each_class_as_of_their_rarest(partition):
    text = f"{SMALL} partition={partition}"
    plain, balanced = held(text, 5), held(f"{text} balance=true", 5)
    for all_of_them, kept in zip(plain, balanced, strict=True):
        counts = Counter(all_of_them.labels.tolist())
        assert Counter(kept.labels.tolist()) == dict.fromkeys(counts, min(counts.values()))
        own = {row.numpy().tobytes() for row in all_of_them.inputs}
        assert {row.numpy().tobytes() for row in kept.inputs} <= own
    histogram = server_parts(f"{text} balance=true").histogram
    assert histogram.tolist() == [torch.bincount(kept.labels, minlength=10).tolist() for kept in balanced]
    assert len(server_parts(f"{text} balance=true").dataset.test) == 40


def test_a_client_of_one_class_keeps_all():
    text = f"{SMALL} clients=10 partition=shards partition.per_client=1"
    alone = held(f"{text} balance=true", 10)
    assert [set(kept.labels.tolist()) for kept in alone] == [
        set(all_of_them.labels.tolist()) for all_of_them in held(text, 10)
    ]
    assert [len(kept) for kept in alone] == [8] * 10


def test_patients_are_dropped_once_and_the_same_ones_in_every_run_of_a_seed(shared_data):
    text = f"{PATIENTS.format(shared_data)} clients=4 balance=true"
    one, same = (held(f"{text} rounds={rounds}", 4) for rounds in (1, 2))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(one, same, strict=True))
    assert all(int(kept.labels.sum()) * 2 == len(kept) for kept in one)
    deaths = sum(int(samples.labels.sum()) for samples in held(f"{text} balance=false", 4))
    assert sum(map(len, one)) == 2 * deaths
