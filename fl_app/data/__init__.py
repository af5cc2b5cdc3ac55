"""Data sets in memory, from several sources, and ways to deal them to clients."""

from fl_app.data.album import album
from fl_app.data.cifar import cifar10, cifar100
from fl_app.data.dataset import (
    PADDING,
    UNASKED,
    Dataset,
    Samples,
    channel_statistics,
    normalise,
    pixels,
)
from fl_app.data.face_crops import faces
from fl_app.data.facts import Facts, facts_of
from fl_app.data.fashion import fashion_mnist
from fl_app.data.federated import federated, from_federated
from fl_app.data.handwritten_digits import mnist
from fl_app.data.hospital import support2
from fl_app.data.image_folder import imagefolder
from fl_app.data.librispeech import speech
from fl_app.data.own_samples import own_samples
from fl_app.data.partition import Partitioner, dirichlet, fixed, iid, label_histogram, natural, shards
from fl_app.data.photographs import photos
from fl_app.data.places import DataUnavailable
from fl_app.data.prose import text
from fl_app.data.random_pixels import random
from fl_app.data.shares import split_validation
from fl_app.data.word_pieces import Vocabulary

__all__ = [
    "PADDING",
    "UNASKED",
    "DataUnavailable",
    "Dataset",
    "Facts",
    "Partitioner",
    "Samples",
    "Vocabulary",
    "album",
    "channel_statistics",
    "cifar10",
    "cifar100",
    "dirichlet",
    "faces",
    "facts_of",
    "fashion_mnist",
    "federated",
    "fixed",
    "from_federated",
    "iid",
    "imagefolder",
    "label_histogram",
    "mnist",
    "natural",
    "normalise",
    "own_samples",
    "photos",
    "pixels",
    "random",
    "shards",
    "speech",
    "split_validation",
    "support2",
    "text",
]
