"""Adam as in the BERT paper: the gradients of a module and a learning rate in, updated parameters and the norm out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed
from torch import nn

from bertworks.encoders.encoder import Encoder
from bertworks.errors import SettingsError
from bertworks.training.ema import WeightAverage
from bertworks.training.muon import LayerMuon, is_layer_matrix, moment_of
from bertworks.training.sharding import is_sharded, to_local

OPTIMIZERS = ("adam", "muon", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSettings:
    """The paper's Adam; Google's BERT code has no `bias_correction`.

    name             adam; muon: Muon for the weight matrices of layers, Adam for all else; or auto: muon for
                     fine-tuning a model that was pretrained with it on few examples, otherwise adam
    beta1, beta2     decay of the averages of the gradient and of its square
    eps              added to the root of the second average
    weight_decay     decoupled from the gradient; biases and normalization layers have none
    clip             maximal norm of the gradient
    bias_correction  divide the averages by what they lack in the first steps
    momentum         of Muon
    """

    name: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    bias_correction: bool = True
    momentum: float = 0.95

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise SettingsError(f"there is no optimizer '{self.name}'; choose one of: {', '.join(OPTIMIZERS)}")

    def hashed_settings(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed; the keys of Muon came later than checkpoints."""
        ignored = ("name", "momentum") if self.name != "muon" else ()
        return {name: value for name, value in asdict(self).items() if name not in ignored}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerwiseSettings:
    """Learning rates by depth, for any encoder (ULMFiT's discriminative fine-tuning and gradual unfreezing).

    layer_lr_decay      the learning rate of a layer divided by that of the layer above it
    embedding_lr_ratio  the learning rate of the embeddings, beside what layer_lr_decay makes of it
    num_frozen_layers   the embeddings and this many layers above them are not trained; 0: all are trained
    unfreeze_steps      gradual unfreezing: the head is trained from the start, and after every so many steps one more
                        layer, from the top down; 0: all from the start
    unfreeze_ratio      the same as a fraction of the run, after which all layers are trained; 0: see unfreeze_steps
    """

    layer_lr_decay: float = 1.0
    num_frozen_layers: int = 0
    unfreeze_steps: int = 0
    unfreeze_ratio: float = 0.0
    embedding_lr_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.embedding_lr_ratio < math.inf:
            raise SettingsError(f"embedding_lr_ratio is {self.embedding_lr_ratio}; it must be above 0, 1: no change")
        if not 0 < self.layer_lr_decay <= 1 or not 0 <= self.unfreeze_ratio <= 1:
            raise SettingsError(
                f"layer_lr_decay is {self.layer_lr_decay} and unfreeze_ratio {self.unfreeze_ratio}; the first must be "
                f"above 0 and at most 1, the second from 0 to 1"
            )
        if self.unfreeze_steps and self.unfreeze_ratio:
            raise SettingsError("unfreeze_steps and unfreeze_ratio exclude each other; set only one")

    def hashed_settings(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed; embedding_lr_ratio came later than checkpoints."""
        ignored = ("embedding_lr_ratio",) if self.embedding_lr_ratio == 1.0 else ()
        return {name: value for name, value in asdict(self).items() if name not in ignored}

    def resolve(self, num_steps: int, num_layers: int) -> LayerwiseSettings:
        """Return the settings with unfreeze_ratio converted to unfreeze_steps, for a run of `num_steps`."""
        if not self.unfreeze_ratio:
            return self
        steps = max(1, round(num_steps * self.unfreeze_ratio / (num_layers + 1)))
        return replace(self, unfreeze_steps=steps, unfreeze_ratio=0.0)

    @property
    def is_equal_for_layers(self) -> bool:
        """Whether all layers, the embeddings aside, have one learning rate from the first step on."""
        return replace(self, embedding_lr_ratio=1.0) == LayerwiseSettings()

    def factor(self, depth_from_top: int, step: int, is_embedding: bool = False) -> float:
        """Return the learning rate factor of a parameter that is `depth_from_top` layers below the top one."""
        if self.unfreeze_steps and depth_from_top > step // self.unfreeze_steps:
            return 0.0
        return self.layer_lr_decay**depth_from_top * (self.embedding_lr_ratio if is_embedding else 1.0)


def parameter_depths(module: nn.Module) -> dict[str, int]:
    """Return the depth of each parameter: that of `Encoder.layer_depths`, and one above the last layer for heads."""
    names = [name for name, _ in module.named_parameters()]
    encoder = getattr(module, "encoder", None)
    if not isinstance(encoder, Encoder):
        return dict.fromkeys(names, 0)
    depths = {f"encoder.{name}": depth for name, depth in encoder.layer_depths().items()}
    return {name: depths.get(name, encoder.config.depth + 1) for name in names}


def freeze(module: nn.Module, settings: LayerwiseSettings) -> None:
    """Disable gradients of the lowest layers, as the settings say, and of parameters that the loss does not use."""
    depths = parameter_depths(module)
    unused = tuple(getattr(module, "unused_parameters", ()))
    for name, parameter in module.named_parameters():
        is_frozen = settings.num_frozen_layers and depths[name] <= settings.num_frozen_layers
        if is_frozen or name.startswith(unused):
            parameter.requires_grad_(False)


# Devices with torch's fused Adam.
_FUSED_DEVICES = ("cpu", "cuda", "mps")
_MOMENTS = ("exp_avg", "exp_avg_sq")


class BertAdam:
    """AdamW with gradient clipping; biases and norms have no weight decay. Its state is keyed by parameter names.

    Of a sharded module, each process updates its local rows and has moments for those only. With `ema_decay`,
    `weight_average` follows the weights after every step.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: AdamSettings,
        layerwise: LayerwiseSettings = LayerwiseSettings(),
        ema_decay: float = 0.0,
    ) -> None:
        self.settings = settings
        self.layerwise = layerwise
        self.num_steps = 0
        self._is_sharded = is_sharded(module)
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        # A parameter with fewer rows than there are processes has no local rows on some of them.
        self._parameters = {name: parameter for name, parameter in trainable.items() if to_local(parameter).numel()}
        self._local_parameters = {name: to_local(parameter) for name, parameter in self._parameters.items()}
        self.weight_average = WeightAverage(self._local_parameters, ema_decay) if ema_decay else None
        self._muon = self._make_muon() if settings.name == "muon" else None
        groups: dict[tuple[bool, int, bool], list[torch.Tensor]] = {}
        depths = parameter_depths(module)
        top = max((depths[name] for name in trainable), default=0)  # with tied embeddings there may be no head
        for name, parameter in self._adam_parameters.items():
            depth_from_top = 0 if layerwise.is_equal_for_layers else top - depths[name]
            is_embedding = layerwise.embedding_lr_ratio != 1.0 and depths[name] == 0 < top
            # Biases of relative attention have two dimensions.
            has_weight_decay = parameter.ndim > 1 and not name.endswith("bias")
            groups.setdefault((has_weight_decay, depth_from_top, is_embedding), []).append(parameter)
        keys = ("has_weight_decay", "depth_from_top", "is_embedding")
        self._adam = torch.optim.AdamW(
            [{"params": parameters, **dict(zip(keys, values, strict=True))} for values, parameters in groups.items()],
            betas=(settings.beta1, settings.beta2),
            fused=all(values.device.type in _FUSED_DEVICES for values in self._local_parameters.values()),
        )

    @property
    def _adam_parameters(self) -> dict[str, torch.Tensor]:
        return {
            name: parameter
            for name, parameter in self._local_parameters.items()
            if self._muon is None or not is_layer_matrix(name, parameter)
        }

    def _make_muon(self) -> LayerMuon:
        if self._is_sharded or not self.layerwise.is_equal_for_layers:
            raise SettingsError(
                "the optimizer muon needs whole matrices and one learning rate for all layers: use adam"
            )
        matrices = {name: values for name, values in self._local_parameters.items() if is_layer_matrix(name, values)}
        if not matrices:
            raise SettingsError("the optimizer muon is for models with Transformer layers: use adam")
        return LayerMuon(matrices, self.settings.momentum, self.settings.weight_decay)

    def step(self, learning_rate: float, scale: float = 1.0) -> float:
        """Clip the gradients, update the parameters, zero the gradients; return the gradient norm before clipping.

        The gradients are `scale` times too large (loss scaling). If they overflowed, nothing is updated, and the norm
        is not finite.
        """
        grads = self._local_grads()
        norm = self._grad_norm(grads) / scale
        if scale != 1.0 and not math.isfinite(norm):
            self._zero_grad()
            return norm
        should_clip = 0 < self.settings.clip < norm < math.inf
        factor = (self.settings.clip / norm if should_clip else 1.0) / scale
        if factor != 1.0:
            torch._foreach_mul_(grads, factor)
        self.num_steps += 1
        for group in self._adam.param_groups:
            lr_factor = self.layerwise.factor(group["depth_from_top"], self.num_steps - 1, group["is_embedding"])
            group_lr = learning_rate * lr_factor
            weight_decay = self.settings.weight_decay if group["has_weight_decay"] else 0.0
            group |= self._group_settings(group_lr, weight_decay)
        self._adam.step()
        if self._muon is not None:
            self._muon.step(learning_rate)
        # A fused step does not increment tensor versions, by which packed copies of weights are invalidated.
        torch.autograd.graph.increment_version(list(self._local_parameters.values()))
        if self.weight_average is not None:
            self.weight_average.update(self.num_steps)
        self._zero_grad()
        return norm

    def _local_grads(self) -> list[torch.Tensor]:
        """Return the gradients of the local rows, and set them as `grad` of the local parameters."""
        for name, parameter in self._parameters.items():
            if parameter is not self._local_parameters[name]:
                self._local_parameters[name].grad = None if parameter.grad is None else to_local(parameter.grad)
        return [values.grad for values in self._local_parameters.values() if values.grad is not None]

    def _grad_norm(self, grads: list[torch.Tensor]) -> float:
        """Return the norm of all gradients, over all processes if the module is sharded."""
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self._is_sharded:
            square = norm.square()
            torch.distributed.all_reduce(square)
            norm = square.sqrt()
        return float(norm)

    def _zero_grad(self) -> None:
        self._adam.zero_grad(set_to_none=True)
        for parameter in self._parameters.values():
            parameter.grad = None

    def _group_settings(self, learning_rate: float, weight_decay: float) -> dict[str, float]:
        """Return lr, eps and weight_decay for torch's AdamW.

        torch always applies bias correction; without it, the values are chosen so that the correction cancels out.
        """
        if self.settings.bias_correction:
            return {"lr": learning_rate, "eps": self.settings.eps, "weight_decay": weight_decay}
        bias_correction1 = 1 - self.settings.beta1**self.num_steps
        bias_correction2_sqrt = math.sqrt(1 - self.settings.beta2**self.num_steps)
        adjusted_lr = learning_rate * bias_correction1 / bias_correction2_sqrt
        return {
            "lr": adjusted_lr,
            "eps": self.settings.eps / bias_correction2_sqrt,
            "weight_decay": weight_decay * learning_rate / adjusted_lr if adjusted_lr else 0.0,
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments of the local parameters, "exp_avg/NAME" and "exp_avg_sq/NAME" ("momentum_buffer/NAME" of
        Muon), and averages "ema/NAME"."""
        moments = {} if self._muon is None else self._muon.state()
        for name, parameter in self._adam_parameters.items():
            state = self._adam.state.get(parameter)
            if state:
                moments |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS}
            elif self.num_steps:  # never had a gradient, e.g. the pooler when tokens are tagged
                moments |= {f"{moment}/{name}": torch.zeros_like(parameter) for moment in _MOMENTS}
        return moments if self.weight_average is None else moments | self.weight_average.state()

    def restore(self, tensors: Mapping[str, torch.Tensor], num_steps: int) -> None:
        """Restore the state that `state` returned after `num_steps` steps."""
        self.num_steps = num_steps
        if self.weight_average is not None:
            self.weight_average.restore(tensors)
        if self._muon is not None and num_steps:
            self._muon.restore(tensors)
        for name, parameter in self._adam_parameters.items():
            if num_steps:
                state: dict[str, Any] = {"step": torch.tensor(float(num_steps), device=parameter.device)}
                state |= {moment: moment_of(tensors, f"{moment}/{name}", parameter) for moment in _MOMENTS}
                self._adam.state[parameter] = state
