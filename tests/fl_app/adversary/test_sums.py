"""What an honest-but-curious server sees under secure aggregation: noise from each client, and the sum."""

import torch
from federations import SMALL

from fl_app.adversary.passive import SUM, PassiveServer, observe
from fl_app.adversary.sightings import load_sightings, save_sightings
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.sketches import flatten

STEP = 2.0**-20


def audited(overrides: str, *, allow: bool = True, rounds=(2,), clients=(3,), masked: bool = True):
    text = f"{SMALL} training.steps=1 secagg={'on' if masked else 'off'} {overrides}"
    parts = server_parts(text)
    strategy = parts.strategy
    auditor = PassiveServer(
        rounds=rounds,
        clients=clients,
        model=lambda: (strategy.weights, strategy.buffers),
        read=strategy.see,
        public=parts.public,
        batch_size=2,
        masked=masked,
    )
    strategy.on_sum = auditor.remember_sum
    grid = InlineGrid(app, 5, run_config={"overrides": text}, node_config={"allow-audit": allow})
    strategy.start(
        grid=TappedGrid(grid, auditor),
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=2,
    )
    return parts, auditor


def test_one_client_is_noise_and_the_sum_is_the_mean_of_what_all_would_have_sent():
    _, auditor = audited("defense=fl_std")
    masked, summed = sorted(auditor.sightings, key=lambda sighting: sighting.summed)
    assert (masked.order.client, masked.masked, masked.summed) == (3, True, 0)
    assert (summed.order.client, summed.masked, summed.summed) == (SUM, False, 5)
    _, unmasked = audited("defense=fl_std", clients="all", masked=False)
    open_vectors = torch.stack([flatten(sighting.update) for sighting in unmasked.sightings])
    # two rounds of sums were rounded: the first moved the weights by up to half a step a client
    assert float((flatten(summed.update) - open_vectors.mean(0)).abs().max()) < 40 * STEP
    hidden, own = flatten(masked.update).double(), open_vectors[3].double()
    assert float(torch.corrcoef(torch.stack([hidden, own]))[0, 1].abs()) < 5 / len(own) ** 0.5
    assert float(hidden.abs().median()) > 100 * float(own.abs().max())


def test_the_truth_of_the_sum_is_that_of_all_its_clients():
    parts, auditor = audited("defense=fl_std")
    masked, summed = sorted(auditor.sightings, key=lambda sighting: sighting.summed)
    assert len(summed.truth.labels) == summed.samples == 5 * 2
    assert masked.samples == 2  # although the client does not tell how many it has
    assert masked.answer.samples == 0
    assert torch.equal(summed.truth.inputs[6:8], masked.truth.inputs)  # clients come in their order
    seen = observe(summed, parts.model, parts.public, grant_labels=True)
    assert (seen.batch_size, seen.same_batch) == (10, None)


def test_rounds_that_are_not_attacked_are_not_remembered():
    _, auditor = audited("defense=fl_top defense.share=0.5", rounds=(1,))
    assert [sighting.order.round for sighting in auditor.sightings] == [1, 1]


def test_the_sum_of_clients_that_do_not_allow_audits_is_not_kept():
    _, auditor = audited("defense=fl_std", allow=False)
    assert [sighting.summed for sighting in auditor.sightings] == [0]
    assert auditor.sightings[0].truth is None


def test_sums_are_stored_and_read_like_others(tmp_path):
    parts, auditor = audited("defense=fl_std")
    save_sightings(tmp_path, auditor.sightings, parts.spec, parts.public)
    again, _, _ = load_sightings(tmp_path)
    kept = {sighting.order.client: sighting for sighting in again}
    assert kept.keys() == {SUM, 3}
    for sighting in auditor.sightings:
        twin = kept[sighting.order.client]
        assert (twin.masked, twin.summed, twin.samples) == (
            sighting.masked,
            sighting.summed,
            sighting.samples,
        )
        assert torch.equal(flatten(twin.update), flatten(sighting.update))
