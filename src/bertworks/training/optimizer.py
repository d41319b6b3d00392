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
from bertworks.training.sharding import is_sharded, own


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
class DepthSettings:
    """How the rate depends on the depth of a parameter: ULMFiT's ideas, for any encoder.

    layer_rate       a layer learns at this share of the rate of the one above it
    frozen_layers    the embeddings and so many layers above them do not learn at all; 0: all learn
    unfreeze_every   gradual unfreezing: the head learns from the beginning, and every so many steps one layer more,
                     from the top down; 0: all from the beginning
    unfreeze_rate    the same as a share of the run, by whose end all learn; 0: as `unfreeze_every` says
    """

    layer_rate: float = 1.0
    frozen_layers: int = 0
    unfreeze_every: int = 0
    unfreeze_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.layer_rate <= 1 or not 0 <= self.unfreeze_rate <= 1:
            raise SettingsError(
                f"layer_rate is {self.layer_rate} and unfreeze_rate {self.unfreeze_rate}; the first lies above 0 and "
                f"up to 1, the second from 0 to 1"
            )
        if self.unfreeze_every and self.unfreeze_rate:
            raise SettingsError("unfreeze_every and unfreeze_rate both say when layers begin to learn; leave one out")

    def over(self, num_steps: int, num_layers: int) -> DepthSettings:
        """Return the same in steps, for a run of so many on a model of so many layers above the embeddings."""
        if not self.unfreeze_rate:
            return self
        every = max(1, round(num_steps * self.unfreeze_rate / (num_layers + 1)))
        return replace(self, unfreeze_every=every, unfreeze_rate=0.0)

    def factor(self, below: int, step: int) -> float:
        """Return by what the rate of a parameter is multiplied that lies so many layers below the top."""
        if self.unfreeze_every and below > step // self.unfreeze_every:
            return 0.0
        return self.layer_rate**below


def depths_of(module: nn.Module, num_layers: int) -> dict[str, int]:
    """Return how deep each parameter lies: 0 for what pieces are embedded by, 1 for the first layer, …, num_layers + 1
    for heads. The last layer that there is lies below the head however often it is passed: ALBERT's is its only one."""
    names = [name for name, _ in module.named_parameters()]
    numbers = {name: int(found[1]) for name in names if (found := _LAYER.match(name))}
    last = max(numbers.values(), default=0)
    inside = {name: num_layers if number == last else number + 1 for name, number in numbers.items()}
    return {name: inside.get(name, 0 if _EMBEDDED.match(name) else num_layers + 1) for name in names}


_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
_EMBEDDED = re.compile(r"encoder\.(?!pooler\.)")


def freeze(module: nn.Module, settings: DepthSettings, num_layers: int) -> None:
    """Have the lowest layers not learn, if the settings say so."""
    depths = depths_of(module, num_layers)
    for name, one in module.named_parameters():
        if settings.frozen_layers and depths[name] <= settings.frozen_layers:
            one.requires_grad_(False)


# Where torch has one pass for a whole step of Adam.
_FUSED = ("cpu", "cuda", "mps")


class PaperAdam:
    """AdamW with clipping; biases and norms do not decay. Its state is kept by the names of the parameters.

    Of a module that is spread over processes, each changes the rows of its own, and has moments for those alone.
    """

    def __init__(
        self, module: nn.Module, settings: AdamSettings, depths: DepthSettings = DepthSettings(), num_layers: int = 0
    ) -> None:
        self.settings = settings
        self.depths = depths
        self.num_steps = 0
        self._is_sharded = is_sharded(module)
        named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._named = {name: one for name, one in named.items() if own(one).numel()}  # few rows do not reach for all
        self._own = {name: own(one) for name, one in self._named.items()}
        groups: dict[tuple[bool, int], list[torch.Tensor]] = {}
        lying = depths_of(module, num_layers)
        top = max((lying[name] for name in named), default=0)  # a model that tells pieces by their table has no head
        for name, one in self._own.items():
            below = top - lying[name] if depths != DepthSettings() else 0
            decays = one.ndim > 1 and not name.endswith("bias")  # the biases of relative attention are tables by head
            groups.setdefault((decays, below), []).append(one)
        self._adam = torch.optim.AdamW(
            [{"params": params, "decays": decays, "below": below} for (decays, below), params in groups.items()],
            betas=(settings.beta1, settings.beta2),
            fused=all(one.device.type in _FUSED for one in self._own.values()),
        )

    def step(self, rate: float, scale: float = 1.0) -> float:
        """Clip, change the parameters, forget the gradients; return the norm the gradients had before.

        The gradients were multiplied by `scale`. If that made them overflow, the parameters stay as they are, and the
        norm says so.
        """
        grads = self._own_grads()
        found = self._norm(grads) / scale
        if scale != 1.0 and not math.isfinite(found):
            self._forget()
            return found
        clips = 0 < self.settings.clip < found < math.inf
        factor = (self.settings.clip / found if clips else 1.0) / scale
        if factor != 1.0:
            torch._foreach_mul_(grads, factor)
        self.num_steps += 1
        for group in self._adam.param_groups:
            own_rate = rate * self.depths.factor(group["below"], self.num_steps - 1)
            group |= self._numbers(own_rate, self.settings.weight_decay if group["decays"] else 0.0)
        self._adam.step()
        # A fused step does not say that it changed them, and what others made of the old ones would be taken for new.
        torch.autograd.graph.increment_version(list(self._own.values()))
        self._forget()
        return found

    def _own_grads(self) -> list[torch.Tensor]:
        """Return the gradients of what this process changes, and give them to whom they belong."""
        for name, one in self._named.items():
            if one is not self._own[name]:
                self._own[name].grad = None if one.grad is None else own(one.grad)
        return [one.grad for one in self._own.values() if one.grad is not None]

    def _norm(self, grads: list[torch.Tensor]) -> float:
        """Return the norm of all gradients, of every process."""
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self._is_sharded:
            square = norm.square()
            torch.distributed.all_reduce(square)
            norm = square.sqrt()
        return float(norm)

    def _forget(self) -> None:
        self._adam.zero_grad(set_to_none=True)
        for one in self._named.values():
            one.grad = None

    def _numbers(self, rate: float, decay: float) -> dict[str, float]:
        """Return rate, eps and decay for torch. Without bias correction they are chosen so that torch's cancels out."""
        if self.settings.bias_correction:
            return {"lr": rate, "eps": self.settings.eps, "weight_decay": decay}
        first = 1 - self.settings.beta1**self.num_steps
        root = math.sqrt(1 - self.settings.beta2**self.num_steps)
        lifted = rate * first / root
        return {
            "lr": lifted,
            "eps": self.settings.eps / root,
            "weight_decay": decay * rate / lifted if lifted else 0.0,
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments of what this process changes, as flat names: "mean/NAME" and "square/NAME"."""
        found = {}
        for name, one in self._own.items():
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
        for name, one in self._own.items():
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
