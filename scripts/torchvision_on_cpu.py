"""Makes a torchvision that was built for CUDA importable beside a torch that was built for CPU.

On import torchvision registers shape rules for operators of its compiled library. Built for CUDA, that library cannot
be loaded here, so the operators do not exist and the import fails. Declaring the ones it asks for is enough: what the
reasoner uses of torchvision (resizing and the like) is plain torch.

Installed as an import hook through a .pth file, because vLLM starts several processes of its own.
"""

import sys
from importlib.abc import MetaPathFinder

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")
_kept = []  # a declaration ends with the object that made it


class DeclareOperators(MetaPathFinder):
    """Finds nothing; acts once, when torchvision is about to be looked for."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare()
        return


def declare():
    import torch

    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(name + SIGNATURE)
    _kept.append(library)


sys.meta_path.insert(0, DeclareOperators())
