"""Flower's wrappers, mods and workflows beside the library: each works, or is refused when it is put there.

`docs/library.md` has the table of them.
"""

import inspect
import logging
import re

import flwr.client.mod as legacy_mods
import flwr.clientapp.mod as mods
import flwr.server.workflow as workflows
import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.server import LegacyContext, ServerConfig
from own_apps import CLIENTS, evaluate, net, rows, started, train

from fl_app.client import SecureSettings, app
from fl_app.defenses import fl_std, fl_top
from fl_app.flower import InlineGrid
from fl_app.strategies import ADGP, FedAvg, FLStd, FLTop, SecureAggregation
from fl_app.transforms import error_feedback, prune_aligned

WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": {"clipping_norm": 0.1, "num_sampled_clients": CLIENTS},
    "DifferentialPrivacyServerSideAdaptiveClipping": {"num_sampled_clients": CLIENTS},
    "DifferentialPrivacyClientSideFixedClipping": {"clipping_norm": 0.1, "num_sampled_clients": CLIENTS},
    "DifferentialPrivacyClientSideAdaptiveClipping": {"num_sampled_clients": CLIENTS},
}
REFUSED = {
    "LocalDpMod": mods.LocalDpMod(1.0, 1.0, 1.0, 1e-5),
    "adaptiveclipping_mod": mods.adaptiveclipping_mod,
    "fixedclipping_mod": mods.fixedclipping_mod,
    "secagg_mod": legacy_mods.secagg_mod,
    "secaggplus_mod": legacy_mods.secaggplus_mod,
}
COUNTING = {"message_size_mod": mods.message_size_mod, "arrays_size_mod": mods.arrays_size_mod}
FEDERATIONS = {
    "fed_avg": (lambda: FedAvg(net(), 0.1, fraction_evaluate=1.0), {"evaluate": evaluate}),
    "adgp": (lambda: ADGP(net(), 0.1, k=0.3), {"defense": error_feedback(prune_aligned(0.3, 0.1))}),
    "fl_top": (lambda: FLTop(net(), 0.1, share=0.3, public=rows(50)), {"defense": fl_top(0.3)}),
    "secagg": (
        lambda: FLStd(net(), 0.1, aggregation=SecureAggregation(min_clients=2)),
        {"defense": fl_std(), "secagg": SecureSettings(2)},
    ),
}


def start(strategy, client_app, rounds=2):
    return strategy.start(
        grid=InlineGrid(client_app, CLIENTS),
        initial_arrays=ArrayRecord(started().state_dict()),
        num_rounds=rounds,
    )


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_for_differential_privacy_is_refused_with_what_to_use(name):
    wrapped = getattr(flower, name)(FedAvg(net(), 0.1), noise_multiplier=0.0, **WRAPPERS[name])
    with pytest.raises(RuntimeError, match="ClientLevel"):
        start(wrapped, app(net, train))


def test_a_strategy_that_was_wrapped_once_still_starts_by_itself():
    strategy = FedAvg(net(), 0.1)
    wrapped = flower.DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 0.1, CLIENTS)
    with pytest.raises(RuntimeError):
        start(wrapped, app(net, train))
    start(strategy, app(net, train))
    assert [record.clients for record in strategy.records] == [CLIENTS] * 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_mod_that_reads_weights_is_refused_when_the_app_is_made(name):
    with pytest.raises(ValueError, match=f"app: {name}"):
        app(net, train, mods=[REFUSED[name]])


@pytest.mark.parametrize("mod", COUNTING)
@pytest.mark.parametrize("name", FEDERATIONS)
def test_mods_that_count_bytes_change_nothing_and_see_the_updates(name, mod, caplog):
    make, settings = FEDERATIONS[name]
    counted, plain = make(), make()
    with caplog.at_level(logging.INFO, logger="flwr"):
        first = start(counted, app(net, train, mods=[COUNTING[mod]], **settings))
    second = start(plain, app(net, train, **settings))
    assert not [failure for record in counted.records for failure in record.failures]
    sizes = [int(size) for size in re.findall(r"(?:sent|Outgoing message size): (\d+) bytes", caplog.text)]
    blobs = sum(record.uplink_blob_bytes for record in counted.records)
    assert sum(sizes) >= blobs > 0
    got, expected = (
        torch.cat([torch.from_numpy(array.numpy()).flatten() for array in result.arrays.values()])
        for result in (first, second)
    )
    torch.testing.assert_close(got, expected)


def test_a_legacy_workflow_has_no_use_for_these_strategies():
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=1), strategy=FedAvg(net(), 0.1)
    )
    workflow = workflows.DefaultWorkflow(fit_workflow=workflows.SecAggPlusWorkflow(3, 2))
    with pytest.raises(AttributeError):
        workflow(InlineGrid(app(net, train), CLIENTS), context)


def test_flowers_own_strategy_is_told_whose_messages_these_clients_answer(caplog):
    theirs = flower.FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    with caplog.at_level(logging.INFO, logger="flwr"):
        start(theirs, app(net, train), rounds=1)
    assert "fl_app.strategies" in caplog.text


def test_the_table_names_every_wrapper_mod_and_workflow_of_flower(repository):
    page = (repository / "docs" / "library.md").read_text()
    table = page.split("## Beside Flower's own parts")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE))
    wrappers = {
        name for name in flower.__all__ if "strategy" in inspect.signature(getattr(flower, name)).parameters
    }
    assert wrappers == set(WRAPPERS)
    every_mod = {*mods.__all__, *legacy_mods.__all__} - {"make_ffn"}
    assert every_mod == {*REFUSED, *COUNTING}
    assert named == wrappers | every_mod | set(workflows.__all__)
