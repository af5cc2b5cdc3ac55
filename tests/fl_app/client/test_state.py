import pickle

import torch
from flwr.app import RecordDict

from fl_app.client import state as client_state
from fl_app.client.state import ClientState
from fl_app.privacy import Release
from fl_app.transforms import chain, error_feedback, identity, keep_topk
from fl_app.wire.messages import Answer, Reply

CPU = torch.device("cpu")


def example() -> ClientState:
    update = {"a.weight": torch.randn(3, 2), "a.bias": torch.randn(3)}
    transform = chain(first=error_feedback(keep_topk(0.5)), second=identity())
    sent = Reply(Answer(5, 1, 8, 2), b"blob", b"", {"loss": 0.5}, Release(0.5, 1.0, 2, 1e-5))
    return ClientState(4, update, {"n": torch.tensor(3)}, transform.init(update), 5, "digest", sent)


def test_nothing_is_remembered_at_first():
    assert client_state.load(RecordDict(), "hash", CPU) == ClientState()


def test_what_is_saved_is_loaded_in_the_same_shape_also_across_processes():
    records, state = RecordDict(), example()
    client_state.save(records, "hash", state)
    for found in (records, pickle.loads(pickle.dumps(records))):
        loaded = client_state.load(found, "hash", CPU)
        told, expected = vars(loaded), vars(state)
        assert told.pop("sent") == expected["sent"]
        for text in ("sent_order", "plan"):
            assert told.pop(text) == expected[text]
        rest = {name: value for name, value in expected.items() if name in told}
        torch.testing.assert_close(told, rest, rtol=0, atol=0)


def test_in_process_tensors_are_kept_by_reference():
    records, state = RecordDict(), example()
    client_state.save(records, "hash", state)
    loaded = client_state.load(records, "hash", CPU)
    assert loaded.weights["a.weight"].data_ptr() == state.weights["a.weight"].data_ptr()


def test_another_model_starts_from_nothing_and_leaves_the_first_alone():
    records, state = RecordDict(), example()
    client_state.save(records, "honest", state)
    assert client_state.load(records, "manipulated", CPU) == ClientState()
    client_state.save(records, "manipulated", ClientState(version=9))
    assert client_state.load(records, "honest", CPU).version == state.version
