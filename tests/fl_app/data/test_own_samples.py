"""A client's own samples: numbered, scaled and encoded by what the server says, all of them for training."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from patients import patient, write_patients
from PIL import Image
from tone_corpus import write_corpus

from fl_app.config.compose import CONF_DIR
from fl_app.data import Facts, facts_of, imagefolder, own_samples, speech, support2, text
from fl_app.data.own_samples import SOURCES
from fl_app.data.row_encoding import RowEncoding

IMAGES = "fl_app.data.imagefolder"


def write_images(root, names, count=3):
    for shade, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4), (40 * shade, i, ord(name[0]))).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def animals(tmp_path) -> Facts:
    return facts_of(imagefolder(write_images(tmp_path / "server", ["ant", "bee", "cow"]), size=4))


def test_a_missing_class_renumbers_no_other(tmp_path, animals):
    root = write_images(tmp_path / "client", ["cow", "ant"])
    samples = own_samples(IMAGES, root, animals, {"size": 4, "limit_per_class": None})
    letters = samples.inputs[:, 2, 0, 0].tolist()
    assert (
        list(zip(letters, samples.labels.tolist(), strict=True)) == [(ord("a"), 0)] * 3 + [(ord("c"), 2)] * 3
    )


def test_only_the_training_folder_counts_where_there_is_one(tmp_path, animals):
    write_images(tmp_path / "client" / "train", ["bee"], count=2)
    write_images(tmp_path / "client" / "test", ["cow"], count=5)
    assert own_samples(IMAGES, tmp_path / "client", animals, {"size": 4}).labels.tolist() == [1, 1]


def test_a_class_that_the_server_does_not_have_is_refused_by_name(tmp_path, animals):
    root = write_images(tmp_path / "client", ["ant", "dog"])
    with pytest.raises(
        ValueError, match="has the classes dog, which the server does not have; it has ant, bee, cow"
    ):
        own_samples(IMAGES, root, animals, {"size": 4})


def test_patients_are_encoded_by_the_rows_of_the_server(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "client").mkdir()
    rows = [patient(i, race="white" if i % 3 else "asian") for i in range(40)]
    server = support2(write_patients(tmp_path / "server", rows))
    # of one race only, and much older: by themselves they would be encoded in another way
    own = [patient(i, race="other", age=90 + i) for i in range(7)] + rows[:5]
    root = write_patients(tmp_path / "client", own)
    samples = own_samples("fl_app.data.support2", root, facts_of(server), {"test_fraction": 0.2, "seed": 0})
    assert len(samples) == 12
    everybody = torch.cat([server.train.inputs, server.test.inputs])
    for row in samples.inputs[7:]:
        assert (everybody == row).all(dim=1).any()
    races = [i for i, name in enumerate(server.feature_names) if name.startswith("race=")]
    assert not samples.inputs[:7, races].any()


def test_utterances_have_the_pieces_and_the_length_of_the_server(tmp_path):
    server = speech(write_corpus(tmp_path / "server", speakers=5), split="utterances")
    own = write_corpus(tmp_path / "client", speakers=2)
    samples = own_samples("fl_app.data.speech", own, facts_of(server), {"pieces": "nowhere", "mels": 40})
    alone = speech(own, split="utterances")
    assert len(samples) == len(alone.train) + len(alone.test)
    assert samples.inputs.shape[1:] == server.in_shape
    assert int(samples.labels.max()) < server.num_classes


def test_utterances_longer_than_the_longest_of_the_server_are_left_out(tmp_path):
    corpus = write_corpus(tmp_path, speakers=3)
    server = speech(corpus, split="utterances")
    short = int(0.7 * server.in_shape[0])
    facts = Facts(server.class_names, (short, 40), (), (), None, server.vocabulary)
    samples = own_samples("fl_app.data.speech", corpus, facts, {"mels": 40})
    assert 0 < len(samples) < len(server.train) + len(server.test)
    assert samples.inputs.shape[1:] == (short, 40)


def test_a_source_without_a_folder_is_refused_with_those_that_have_one(tmp_path, animals):
    with pytest.raises(ValueError, match=r"photos has no folder .* imagefolder, support2, .*speech"):
        own_samples("fl_app.data.photos", tmp_path, animals, {})


def test_images_of_another_size_are_refused(tmp_path, animals):
    facts = Facts(animals.class_names, (1, 4, 4), (0.5,), (0.5,), None, None)
    with pytest.raises(ValueError, match=r"inputs in .* must be \(1, 4, 4\), got \(3, 4, 4\)"):
        own_samples(IMAGES, write_images(tmp_path / "client", ["ant"]), facts, {"size": 4})


def test_sentences_are_cut_into_the_pieces_of_the_server_and_none_is_longer_than_its(tmp_path):
    facts = Facts.from_json(facts_of(text(max_tokens=12, masked=0.3)).to_json())
    assert facts.masked == 0.3
    (tmp_path / "a.txt").write_text(
        "It is a name.\n" + "It is a very long sentence of many words. " * 3 + "\n"
    )
    samples = own_samples("fl_app.data.text", tmp_path, facts, {"max_tokens": 12})
    assert samples.inputs.shape == (1, 12)
    assert facts.vocabulary.decode(t for t in samples.inputs[0].tolist() if t >= 0) == "it is a name ."


def test_every_source_with_a_folder_can_be_a_clients_own():
    with_folder = {path.stem for path in (CONF_DIR / "data").glob("*.yaml") if "\nroot:" in path.read_text()}
    with_folder -= {"federated"}  # its folder holds the parts of all clients
    assert with_folder == {target.rpartition(".")[2] for target in SOURCES}


names = st.text(max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)


@st.composite
def encodings(draw):
    count = draw(st.integers(0, 4))
    column = st.lists(numbers, min_size=count, max_size=count).map(np.array)
    return RowEncoding(
        numbers=tuple(draw(st.lists(names, min_size=count, max_size=count))),
        median=draw(column),
        mean=draw(column),
        std=draw(st.lists(positive, min_size=count, max_size=count).map(np.array)),
        categories=tuple(draw(st.lists(st.tuples(names, names), max_size=4))),
    )


@given(
    st.lists(names, min_size=1, unique=True),
    st.lists(st.integers(1, 999), min_size=1, max_size=3),
    st.lists(st.tuples(numbers, positive), max_size=3),
    st.none() | encodings(),
)
def test_facts_come_back_as_they_were(class_names, in_shape, scales, encoding):
    facts = Facts(
        class_names=tuple(class_names),
        in_shape=tuple(in_shape),
        mean=tuple(mean for mean, _ in scales),
        std=tuple(std for _, std in scales),
        encoding=encoding,
        vocabulary=None,
    )
    again = Facts.from_json(facts.to_json())
    assert again.to_json() == facts.to_json()
    assert (again.class_names, again.in_shape, again.mean, again.std) == (
        facts.class_names,
        facts.in_shape,
        facts.mean,
        facts.std,
    )
    if encoding is not None:
        assert again.encoding.names == encoding.names
        assert np.array_equal(again.encoding.std, encoding.std)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"class_names": ["a"]}', "in_shape"),
        (
            '{"class_names":["a","a"],"in_shape":[1],"mean":[],"std":[],"encoding":null,"vocabulary":null,"masked":null}',
            "must differ",
        ),
        (
            '{"class_names":["a"],"in_shape":[0],"mean":[],"std":[],"encoding":null,"vocabulary":null,"masked":null}',
            "positive",
        ),
        (
            '{"class_names":["a"],"in_shape":[1],"mean":[0],"std":[0],"encoding":null,"vocabulary":null,"masked":null}',
            "positive",
        ),
        (
            '{"class_names":["a"],"in_shape":[1],"mean":[],"std":[],"encoding":null,"vocabulary":{},"masked":null}',
            "Vocabulary",
        ),
    ],
)
def test_facts_that_cannot_be_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        Facts.from_json(text)
