"""A module spread over processes: each keeps some rows of every parameter, of its gradient and of its moments.

A module and a group of processes in, the same module out, with parameters that are torch's DTensors outside of
`forward`. While a layer computes, its parameters are whole and plain tensors, gathered for that moment (FSDP2), so that
products by hand, tied tables and dropout by seeds need to know nothing of it; the optimizer and checkpoints see only
the rows of their own process, which are plain tensors, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from bertworks.allocator import give_back_large_blocks
from bertworks.encoders.linear import disable_weight_packing
from bertworks.errors import FolderError
from bertworks.training.devices import PRECISIONS, Precision

# By what methods values enter a layer besides `forward`: before each of them, the layer's parameters are gathered.
_FORWARD_METHODS = ("at", "onward", "streams", "second_stream")


def shard(module: nn.Module, layers: nn.ModuleList, precision: Precision) -> None:
    """Spread the parameters of a module over all processes, those of each layer apart.

    In half precision the layers' weights travel in half the bits, and autocast need not keep copies of them; norms,
    tables and heads stay in full, as autocast has them.
    """
    give_back_large_blocks()
    mesh = init_device_mesh(precision.device.type, (torch.distributed.get_world_size(),))
    low = MixedPrecisionPolicy()
    if precision.name != "fp32":
        low = MixedPrecisionPolicy(PRECISIONS[precision.name], torch.float32, cast_forward_inputs=False)
    for layer in layers:
        norms: list[nn.Module] = [part for part in layer.modules() if isinstance(part, nn.LayerNorm)]
        if norms and precision.name != "fp32":
            fully_shard(norms, mesh=mesh)
        fully_shard(layer, mesh=mesh, mp_policy=low)
        for way in _FORWARD_METHODS:
            if hasattr(layer, way):
                register_fsdp_forward_method(layer, way)
    fully_shard(module, mesh=mesh)


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


@contextlib.contextmanager
def gather_parameters(module: nn.Module, precision: Precision) -> Iterator[None]:
    """Have what lies outside of the layers whole, so that parts of a module can be called; all processes do it alike.

    Layers are gathered when they are called, as always: in the precision of the run, and each time anew, so that their
    weights must not be laid out once and for all.
    """
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        with disable_weight_packing(), precision.autocast():
            yield
    finally:
        module.reshard()


@torch.no_grad()
def to_local(values: torch.Tensor) -> torch.Tensor:
    """Return the rows of a tensor that this process keeps, in the memory they lie in; a plain tensor as it is."""
    return values.to_local() if isinstance(values, DTensor) else values


def local_rows(values: torch.Tensor) -> slice:
    """Return which rows of the whole those are."""
    if not isinstance(values, DTensor):
        return slice(None)
    count = -(-values.shape[0] // values.device_mesh.size())  # as torch shares them out: the last may get fewer
    start = min(values.device_mesh.get_rank() * count, values.shape[0])
    return slice(start, start + to_local(values).shape[0])


def local_state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what this process keeps of every tensor of a module; tensors that all have whole are the first one's."""
    is_first = not is_sharded(module) or torch.distributed.get_rank() == 0
    return {
        name: to_local(values)
        for name, values in module.state_dict().items()
        if isinstance(values, DTensor) or is_first
    }


@torch.no_grad()
def load_local_state_dict(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Take up the rows of this process, or whole tensors if it has all of them."""
    state = module.state_dict()
    unlike = sorted(
        name
        for name in {*state, *tensors}
        if name not in state or name not in tensors or to_local(state[name]).shape != tensors[name].shape
    )
    if unlike:
        raise FolderError(f"the checkpoint is of another model: '{unlike[0]}' differs; start anew with --out")
    for name, values in state.items():
        to_local(values).copy_(tensors[name])
