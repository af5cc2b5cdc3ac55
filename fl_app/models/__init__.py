"""Models by name: ``f(num_classes=…, in_shape=…, …)`` gives a module that ends in ``output``.

Those that torchvision builds keep its names instead.
"""

from fl_app.models.bert import bert_mlm
from fl_app.models.cnn6 import cnn6
from fl_app.models.efficientnet_lite import efficientnet_lite0
from fl_app.models.fcn3 import fcn3
from fl_app.models.fully_connected import mlp
from fl_app.models.imagenet import efficientnet_b0, resnet50_imagenet
from fl_app.models.las import las
from fl_app.models.lenet import lenet_zhu
from fl_app.models.mcmahan import mcmahan_cnn
from fl_app.models.residual import resnet18, resnet20, resnet34, resnet50, resnet56
from fl_app.models.simple_convnet import convnet
from fl_app.models.size import MOST_ENTRIES
from fl_app.models.spec import ModelSpec, build_model, check_size, manipulate_like
from fl_app.models.vgg import vgg11, vgg13

__all__ = [
    "MOST_ENTRIES",
    "ModelSpec",
    "bert_mlm",
    "build_model",
    "check_size",
    "cnn6",
    "convnet",
    "efficientnet_b0",
    "efficientnet_lite0",
    "fcn3",
    "las",
    "lenet_zhu",
    "manipulate_like",
    "mcmahan_cnn",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "resnet50_imagenet",
    "resnet56",
    "vgg11",
    "vgg13",
]
