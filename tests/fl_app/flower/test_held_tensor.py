import pickle

import pytest
import torch
from flwr.app import Array, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fl_app.flower.held_tensor import HeldTensor, hold, release


@pytest.fixture(params=[torch.float32, torch.float64, torch.int64, torch.bool])
def tensor(request):
    return torch.randn(3, 4).mul(10).to(request.param)


def test_in_process_it_is_the_tensor_itself(tensor):
    (name, released), *_ = release(hold({"w": tensor})).items()
    assert name == "w"
    assert released.data_ptr() == tensor.data_ptr()


def test_its_bytes_are_those_of_a_plain_array(tensor):
    plain, held = Array(tensor), HeldTensor(tensor)
    assert (held.dtype, held.shape, held.stype, held.data) == (
        plain.dtype,
        plain.shape,
        plain.stype,
        plain.data,
    )


def test_pickling_gives_a_plain_array_with_the_same_values(tensor):
    copied = pickle.loads(pickle.dumps(hold({"w": tensor})))
    assert type(copied["w"]) is Array
    assert torch.equal(release(copied)["w"], tensor)


def test_it_survives_flowers_own_serialisation(tensor):
    content = RecordDict({"state": hold({"w": tensor})})
    again = recorddict_from_proto(recorddict_to_proto(content))
    assert torch.equal(release(again.array_records["state"])["w"], tensor)
