"""Adam as the paper used it: a module's gradients and a rate in, changed parameters and the gradients' norm out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed
from torch import nn

from bertworks.errors import FolderError, SettingsError
from bertworks.training.sharding import is_sharded, to_local


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """The paper's Adam. `bias_correction` is the textbook's; BERT's own code had none."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    bias_correction: bool = True


@dataclass(frozen=True, slots=True)
class LayerwiseSettings:
    """How the rate depends on the depth of a parameter: ULMFiT's ideas, for any encoder.

    layer_rate       a layer learns at this share of the rate of the one above it
    frozen_layers    the embeddings and so many layers above them do not learn at all; 0: all learn
    unfreeze_every   gradual unfreezing: the head learns from the beginning, and every so many steps one layer more,
                     from the top down; 0: all from the beginning
    unfreeze_rate    the same as a share of the run, by whose end all learn; 0: as `unfreeze_every` says
    """

    layer_lr_decay: float = 1.0
    num_frozen_layers: int = 0
    unfreeze_steps: int = 0
    unfreeze_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.layer_lr_decay <= 1 or not 0 <= self.unfreeze_ratio <= 1:
            raise SettingsError(
                f"layer_rate is {self.layer_lr_decay} and unfreeze_rate {self.unfreeze_ratio}; the first lies above 0 and "
                f"up to 1, the second from 0 to 1"
            )
        if self.unfreeze_steps and self.unfreeze_ratio:
            raise SettingsError("unfreeze_every and unfreeze_rate both say when layers begin to learn; leave one out")

    def resolve(self, num_steps: int, num_layers: int) -> LayerwiseSettings:
        """Return the same in steps, for a run of so many on a model of so many layers above the embeddings."""
        if not self.unfreeze_ratio:
            return self
        every = max(1, round(num_steps * self.unfreeze_ratio / (num_layers + 1)))
        return replace(self, unfreeze_steps=every, unfreeze_ratio=0.0)

    def factor(self, depth_from_top: int, step: int) -> float:
        """Return by what the rate of a parameter is multiplied that lies so many layers below the top."""
        if self.unfreeze_steps and depth_from_top > step // self.unfreeze_steps:
            return 0.0
        return self.layer_lr_decay**depth_from_top


def parameter_depths(module: nn.Module, num_layers: int) -> dict[str, int]:
    """Return how deep each parameter lies: 0 for what pieces are embedded by, 1 for the first layer, …, num_layers + 1
    for heads. The last layer that there is lies below the head however often it is passed: ALBERT's is its only one."""
    names = [name for name, _ in module.named_parameters()]
    numbers = {name: int(found[1]) for name in names if (found := _LAYER.match(name))}
    last = max(numbers.values(), default=0)
    inside = {name: num_layers if number == last else number + 1 for name, number in numbers.items()}
    return {name: inside.get(name, 0 if _EMBEDDING.match(name) else num_layers + 1) for name in names}


_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
_EMBEDDING = re.compile(r"encoder\.(?!pooler\.)")


def freeze(module: nn.Module, settings: LayerwiseSettings, num_layers: int) -> None:
    """Have the lowest layers not learn, if the settings say so."""
    depths = parameter_depths(module, num_layers)
    for name, one in module.named_parameters():
        if settings.num_frozen_layers and depths[name] <= settings.num_frozen_layers:
            one.requires_grad_(False)


# Where torch has one pass for a whole step of Adam.
_FUSED_DEVICES = ("cpu", "cuda", "mps")


class BertAdam:
    """AdamW with clipping; biases and norms do not decay. Its state is kept by the names of the parameters.

    Of a module that is spread over processes, each changes the rows of its own, and has moments for those alone.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: AdamSettings,
        layerwise: LayerwiseSettings = LayerwiseSettings(),
        num_layers: int = 0,
    ) -> None:
        self.settings = settings
        self.layerwise = layerwise
        self.num_steps = 0
        self._is_sharded = is_sharded(module)
        named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._parameters = {
            name: one for name, one in named.items() if to_local(one).numel()
        }  # few rows do not reach for all
        self._local_parameters = {name: to_local(one) for name, one in self._parameters.items()}
        groups: dict[tuple[bool, int], list[torch.Tensor]] = {}
        lying = parameter_depths(module, num_layers)
        top = max((lying[name] for name in named), default=0)  # a model that tells pieces by their table has no head
        for name, one in self._local_parameters.items():
            below = top - lying[name] if layerwise != LayerwiseSettings() else 0
            decays = one.ndim > 1 and not name.endswith("bias")  # the biases of relative attention are tables by head
            groups.setdefault((decays, below), []).append(one)
        self._adam = torch.optim.AdamW(
            [{"params": params, "decays": decays, "below": below} for (decays, below), params in groups.items()],
            betas=(settings.beta1, settings.beta2),
            fused=all(one.device.type in _FUSED_DEVICES for one in self._local_parameters.values()),
        )

    def step(self, learning_rate: float, scale: float = 1.0) -> float:
        """Clip, change the parameters, forget the gradients; return the norm the gradients had before.

        The gradients were multiplied by `scale`. If that made them overflow, the parameters stay as they are, and the
        norm says so.
        """
        grads = self._local_grads()
        found = self._grad_norm(grads) / scale
        if scale != 1.0 and not math.isfinite(found):
            self._zero_grad()
            return found
        clips = 0 < self.settings.clip < found < math.inf
        factor = (self.settings.clip / found if clips else 1.0) / scale
        if factor != 1.0:
            torch._foreach_mul_(grads, factor)
        self.num_steps += 1
        for group in self._adam.param_groups:
            own_rate = learning_rate * self.layerwise.factor(group["below"], self.num_steps - 1)
            group |= self._group_settings(own_rate, self.settings.weight_decay if group["decays"] else 0.0)
        self._adam.step()
        # A fused step does not say that it changed them, and what others made of the old ones would be taken for new.
        torch.autograd.graph.increment_version(list(self._local_parameters.values()))
        self._zero_grad()
        return found

    def _local_grads(self) -> list[torch.Tensor]:
        """Return the gradients of what this process changes, and give them to whom they belong."""
        for name, one in self._parameters.items():
            if one is not self._local_parameters[name]:
                self._local_parameters[name].grad = None if one.grad is None else to_local(one.grad)
        return [one.grad for one in self._local_parameters.values() if one.grad is not None]

    def _grad_norm(self, grads: list[torch.Tensor]) -> float:
        """Return the norm of all gradients, of every process."""
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self._is_sharded:
            square = norm.square()
            torch.distributed.all_reduce(square)
            norm = square.sqrt()
        return float(norm)

    def _zero_grad(self) -> None:
        self._adam.zero_grad(set_to_none=True)
        for one in self._parameters.values():
            one.grad = None

    def _group_settings(self, learning_rate: float, weight_decay: float) -> dict[str, float]:
        """Return rate, eps and decay for torch. Without bias correction they are chosen so that torch's cancels out."""
        if self.settings.bias_correction:
            return {"lr": learning_rate, "eps": self.settings.eps, "weight_decay": weight_decay}
        first = 1 - self.settings.beta1**self.num_steps
        root = math.sqrt(1 - self.settings.beta2**self.num_steps)
        lifted = learning_rate * first / root
        return {
            "lr": lifted,
            "eps": self.settings.eps / root,
            "weight_decay": weight_decay * learning_rate / lifted if lifted else 0.0,
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments of what this process changes, as flat names: "mean/NAME" and "square/NAME"."""
        found = {}
        for name, one in self._local_parameters.items():
            kept = self._adam.state.get(one)
            if kept:
                found[f"mean/{name}"] = kept["exp_avg"]
                found[f"square/{name}"] = kept["exp_avg_sq"]
            elif self.num_steps:  # no gradient has come: nobody asks it, as a pooler where words are tagged
                found |= {f"{moment}/{name}": torch.zeros_like(one) for moment in ("mean", "square")}
        return found

    def restore(self, tensors: Mapping[str, torch.Tensor], num_steps: int) -> None:
        """Take up the state that `state` returned after so many steps."""
        self.num_steps = num_steps
        for name, one in self._local_parameters.items():
            if num_steps:
                kept: dict[str, Any] = {
                    "step": torch.tensor(float(num_steps), device=one.device),
                    "exp_avg": _moment(tensors, f"mean/{name}", one),
                    "exp_avg_sq": _moment(tensors, f"square/{name}", one),
                }
                self._adam.state[one] = kept


def _moment(tensors: Mapping[str, torch.Tensor], name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return a copy of one moment of a parameter, or say why it does not fit."""
    found = tensors.get(name)
    if found is None or found.shape != parameter.shape:
        lack = "no" if found is None else f"{tuple(found.shape)} instead of {tuple(parameter.shape)} as"
        raise FolderError(
            f"the checkpoint has {lack} optimizer state '{name}'; it is of another recipe, so start anew with --out"
        )
    return found.to(parameter.device).clone()
