"""Sharding (FSDP2): a module in, the same module with parameters, gradients and moments divided among processes out.

Outside of `forward`, parameters are DTensors, of which each process has some rows. During `forward` of a layer, its
parameters are gathered as plain tensors, so custom kernels, tied embeddings and seeded dropout work unchanged. The
optimizer and checkpoints see only the local rows, as plain tensors, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from bertworks.allocator import release_large_blocks
from bertworks.encoders.linear import disable_weight_cache
from bertworks.encoders.precision import DTYPES
from bertworks.errors import FolderError
from bertworks.training.devices import Precision

# The methods besides `forward` that compute with a layer's parameters: FSDP gathers them before each.
_FORWARD_METHODS = ("forward_at", "forward_with_cache", "forward_streams", "forward_query_stream")


def shard(module: nn.Module, layers: nn.ModuleList, precision: Precision) -> None:
    """Shard the parameters of a module over all processes, each layer as a unit.

    In bf16 and fp16 the weights of layers are gathered in that dtype, so autocast keeps no copies of them; norms,
    embeddings and heads stay in fp32, as with autocast.
    """
    release_large_blocks()
    disable_weight_cache()
    mesh = init_device_mesh(precision.device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if precision.name != "fp32":
        policy = MixedPrecisionPolicy(DTYPES[precision.name], torch.float32, cast_forward_inputs=False)
    for layer in layers:
        norms: list[nn.Module] = [child for child in layer.modules() if isinstance(child, nn.LayerNorm)]
        if norms and precision.name != "fp32":
            fully_shard(norms, mesh=mesh)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        for method in _FORWARD_METHODS:
            if hasattr(layer, method):
                register_fsdp_forward_method(layer, method)
    fully_shard(module, mesh=mesh)


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def reshard(module: nn.Module) -> None:
    """Drop gathered parameters outside of the layers, so that they are gathered again after the local rows change."""
    if isinstance(module, FSDPModule):
        module.reshard()


@contextlib.contextmanager
def gather_parameters(module: nn.Module, precision: Precision) -> Iterator[None]:
    """Gather the parameters outside of the layers, so that submodules can be called; a collective of all processes.

    Layers are still gathered when they are called, in the precision of the run.
    """
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        with precision.autocast():
            yield
    finally:
        module.reshard()


@torch.no_grad()
def to_local(values: torch.Tensor) -> torch.Tensor:
    """Return the local rows of a tensor, sharing its memory; a plain tensor is returned unchanged."""
    return values.to_local() if isinstance(values, DTensor) else values


def local_rows(values: torch.Tensor) -> slice:
    """Return which rows of the full tensor are local."""
    if not isinstance(values, DTensor):
        return slice(None)
    count = -(-values.shape[0] // values.device_mesh.size())  # torch's chunking: the last process may get fewer
    start = min(values.device_mesh.get_rank() * count, values.shape[0])
    return slice(start, start + to_local(values).shape[0])


def local_state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the local rows of every tensor of a module; tensors that are not sharded belong to rank 0."""
    is_main = not is_sharded(module) or torch.distributed.get_rank() == 0
    return {
        name: to_local(values) for name, values in module.state_dict().items() if isinstance(values, DTensor) or is_main
    }


@torch.no_grad()
def load_local_state_dict(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load the local rows of a sharded module, or all tensors of another one."""
    state = module.state_dict()
    mismatched = sorted(
        name
        for name in {*state, *tensors}
        if name not in state or name not in tensors or to_local(state[name]).shape != tensors[name].shape
    )
    if mismatched:
        raise FolderError(
            f"the checkpoint belongs to another model: '{mismatched[0]}' differs; start a new run with --output"
        )
    for name, values in state.items():
        to_local(values).copy_(tensors[name])
