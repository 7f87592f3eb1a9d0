"""A simulated GPU, for machines without one: it counts bytes that would go to the host, and refuses what CUDA refuses.

Its tensors compute on the CPU but report the device ``cuda:0``. Mixing them with a CPU tensor is an error, unless that
is a single number or an index; so is using one as a NumPy array without copying it to the host first.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
_NUMBERS = {getattr(torch.Tensor, name) for name in ("__float__", "__bool__", "__int__", "__index__", "item", "tolist")}
_INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
_NUMPY = {torch.Tensor.numpy, torch.Tensor.__array__}


class There(torch.Tensor):
    """A tensor on the simulated GPU."""


class PretendGPU(TorchFunctionMode):
    """Use as a context manager around the calls under test.

    Attributes
    ----------
    fetched : int
        Bytes copied from the GPU to the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    @staticmethod
    def put(array) -> There:
        return torch.as_tensor(array).detach().as_subclass(There)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = any(isinstance(leaf, There) for leaf in leaves)
        if func == torch.Tensor.device.__get__:
            return GPU if there else torch.device("cpu")
        if func in _NUMPY and there:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        with torch._C.DisableTorchFunctionSubclass():
            target = self._target(func, args, kwargs)
            if target is not None:
                return self._move(func, args, kwargs, target)
            if there:
                if func in _NUMBERS:
                    self.fetched += args[0].nbytes
                self._refuse_strangers(leaves if func not in _INDEXING else [args[0], *args[2:]])
            out = func(*args, **kwargs)
            return tree_map(self._mark, out) if there else out

    @staticmethod
    def _target(func, args, kwargs) -> torch.device | None:
        if func is torch.Tensor.cpu:
            return torch.device("cpu")
        named = [kwargs.get("device")] + (list(args[1:2]) if func is torch.Tensor.to else [])
        return next((torch.device(d) for d in named if isinstance(d, (torch.device, str))), None)

    def _move(self, func, args, kwargs, target):
        kwargs.pop("device", None)
        if func is torch.Tensor.to and args[1:] and isinstance(args[1], (torch.device, str)):
            args = (args[0], *args[2:])
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        only_moves = func in (torch.Tensor.to, torch.Tensor.cpu) and len(args) == 1 and not kwargs
        out = source if only_moves else func(*args, **kwargs)
        if source is not None and isinstance(source, There) and target.type == "cpu":
            self.fetched += source.nbytes
        return out.as_subclass(There if target.type == "cuda" else torch.Tensor)

    @staticmethod
    def _mark(value):
        return value.as_subclass(There) if isinstance(value, torch.Tensor) else value

    @staticmethod
    def _refuse_strangers(leaves) -> None:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, There) and leaf.ndim:
                raise RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!")
