"""Data sets in memory, from several sources, and ways to deal them to clients."""

from fl_app.data.cifar import cifar10, cifar100
from fl_app.data.dataset import Dataset, Samples, channel_statistics, normalise, pixels
from fl_app.data.fashion import fashion_mnist
from fl_app.data.handwritten_digits import mnist
from fl_app.data.hospital import support2
from fl_app.data.image_folder import imagefolder
from fl_app.data.partition import Partitioner, dirichlet, fixed, iid, label_histogram, shards
from fl_app.data.photographs import photos
from fl_app.data.places import DataUnavailable
from fl_app.data.shares import split_validation

__all__ = [
    "DataUnavailable",
    "Dataset",
    "Partitioner",
    "Samples",
    "channel_statistics",
    "cifar10",
    "cifar100",
    "dirichlet",
    "fashion_mnist",
    "fixed",
    "iid",
    "imagefolder",
    "label_histogram",
    "mnist",
    "normalise",
    "photos",
    "pixels",
    "shards",
    "split_validation",
    "support2",
]
