"""Table 3 of the ADGP paper: megabytes (2**20) per client in one iteration, both ways."""

from __future__ import annotations

PAPER = {
    "resnet18": {
        "none": 85.2506,
        "soteria": 85.2268,
        "precode": 88.1644,
        "ats": 85.2506,
        "gaussian": 85.2506,
        "topk": 43.7979,
        "adgp": 27.3067,
    },
    "vgg13": {
        "none": 71.8385,
        "soteria": 71.7318,
        "precode": 74.8433,
        "ats": 71.8385,
        "gaussian": 71.8385,
        "topk": 34.9625,
        "adgp": 22.9697,
    },
    "lenet": {
        "none": 0.1207,
        "soteria": 0.0764,
        "precode": 1.8624,
        "ats": 0.1207,
        "gaussian": 0.1207,
        "topk": 0.0493,
        "adgp": 0.0424,
    },
}
"""Values by model and method; the paper's DP is our gaussian, its Ours is our adgp."""
