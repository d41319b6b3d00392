"""The public Model: a name or a folder in, a model out whose methods take one text or several.

A string, a tuple (a pair, a question with its context) or a dict is one input and has one result; a list, an array or
an iterator is several and has a list of results, or an array with one row for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bertworks.arguments import check_arguments
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.errors import InputError, SettingsError, show_value
from bertworks.inference.explanation import Explanation
from bertworks.inference.finetuned import predictor_of
from bertworks.inference.model import LoadedModel
from bertworks.inference.model import load as load_folder
from bertworks.models.provenance import display_name
from bertworks.reports.page import format_number
from bertworks.tasks.contract import LabelledTask
from bertworks.tasks.inputs import Input, example_from_input
from bertworks.vocabulary.text_inputs import check_texts

if TYPE_CHECKING:
    import torch

    from bertworks.tasks.beam_search_settings import BeamSearchSettings

Floats = npt.NDArray[np.float32]


def load(
    name: str | Path,
    revision: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    split_special_tokens: bool = True,
) -> Model:
    """Load a model from a folder, by the name of a packaged model (en-small), or by its name on the hub.

    A model of the hub is downloaded once and then cached. `revision` is a branch, tag or commit, which may also stand
    after the name: "owner/name@revision".

    `engine` is torch, onnx or openvino; the default is the engine that the folder was exported for, else torch.
    `precision` is auto, fp32, bf16 or fp16; auto, the default, is bf16 where the processor multiplies it in hardware,
    else fp32. Engines other than torch compute in the precision of their graph.
    With `split_special_tokens=False`, the default of transformers, "[SEP]" in a text is a special token, not text.
    """
    loaded = load_folder(check_name(name), revision, engine, precision, split_special_tokens)
    return Model(**{part.name: getattr(loaded, part.name) for part in fields(loaded)})


def check_name(name: Any) -> str | Path:
    """Return the name or folder of a model; raise InputError if it is something else."""
    if not isinstance(name, str | Path):
        raise InputError(f"the model is {show_value(name)}; give a name, such as 'en-small', or a folder")
    return name


class Model(LoadedModel):
    """A loaded model; `bertworks.load` and `bertworks.finetune` return one.

    Methods that return arrays return torch tensors with `convert_to_tensor=True`.
    """

    __slots__ = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the fine-tuned task predicts, in the order of `predict_proba`; empty if it has none."""
        task = None if self.predictor is None else self.predictor.module.task
        return task.labels if isinstance(task, LabelledTask) else ()

    @property
    def _is_graph(self) -> bool:
        """Whether the model is exported: a graph in an engine, of which neither weights nor device are known."""
        return isinstance(cast(object, self.encoder), GraphEncoder)

    def predict(self, texts: Input | Iterable[Input]) -> Any:
        """Return the prediction of the fine-tuned task, or a list of predictions.

        An input is a text, a tuple of texts, or a dict of the task's input fields, such as {"question": …, "context":
        …} or {"prompt": …, "choices": […]}.
        """
        return _for_each(texts, super().predict)

    def predict_proba(self, texts: Input | Iterable[Input], convert_to_tensor: bool = False) -> Any:
        """Return the probability of each class, (C,) or (N, C), in the order of `labels`; of choices, a list."""
        return _convert(_for_each(texts, self._probabilities), convert_to_tensor)

    def _probabilities(self, texts: Sequence[Input]) -> Any:
        rows = []
        for prediction in super().predict(texts):
            if not hasattr(prediction, "probabilities"):
                name = predictor_of(self).module.task.name
                raise InputError(f"the task '{name}' has no class probabilities of an input; use `predict`")
            values = prediction.probabilities
            rows.append(np.array(list(values.values() if isinstance(values, Mapping) else values)))
        if not rows:
            return np.empty((0, len(self.labels)))
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else rows

    def encode(
        self,
        texts: str | Iterable[str],
        pooling: str | None = None,
        *,
        truncate: bool = False,
        prompt_name: str | None = None,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Return the vector of a text, (D,), or one per text, (N, D), pooled over its tokens.

        The pooling is mean, cls, max, …; by default what the folder states. A text longer than the model's maximum is
        split into overlapping windows, in which each token counts once; with `truncate` its first tokens alone count,
        as in sentence-transformers. `prompt_name` is one of the folder's `prompts`; by default its default prompt.
        """
        encode = super().encode
        vectors = _for_each(
            texts,
            lambda several: encode(check_texts(several), pooling, truncate=truncate, prompt_name=prompt_name),
        )
        return _convert(vectors, convert_to_tensor)

    def similarity(self, first: Any, second: Any, convert_to_tensor: bool = False) -> Any:
        """Return the cosine similarity of texts or vectors: a number of two, (N, M) of N with M others."""
        one, other = (self._unit_vectors(values) for values in (first, second))
        if one.shape[-1] != other.shape[-1]:
            raise InputError(
                f"the vectors have {one.shape[-1]} and {other.shape[-1]} components; give vectors of the same model"
            )
        similarities = one @ other.T
        return float(similarities) if np.ndim(similarities) == 0 else _convert(similarities, convert_to_tensor)

    def _unit_vectors(self, values: Any) -> Floats:
        is_vectors = hasattr(values, "ndim") and np.asarray(values).dtype.kind == "f"  # an array or a tensor
        vectors = np.asarray(values) if is_vectors else self.encode(values)
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)

    def translate(self, texts: str | Iterable[str], search_settings: BeamSearchSettings | None = None) -> Any:
        """Return the translation of a text or of each, by the folder's beam search settings unless others are given."""
        translate = super().translate
        return _for_each(texts, lambda several: translate(check_texts(several), search_settings))

    def fill_mask(self, text: str | Iterable[str], top_k: int = 5) -> Any:
        """Return the `top_k` candidates for each [MASK] in a text, and the best ways to fill all of them."""
        fill_mask = super().fill_mask
        return _for_each(text, lambda texts: [fill_mask(one, top_k) for one in check_texts(texts)])

    def tokenize(self, text: Input | Iterable[Input]) -> Any:
        """Return the Encoding of a text or a pair: tokens, input_ids, token_type_ids, offsets."""
        return _for_each(text, lambda texts: [self.tokenizer.encode(*_text_and_pair(one)) for one in texts])

    def hidden_states(self, text: Input | Iterable[Input], convert_to_tensor: bool = False) -> Any:
        """Return the embeddings of the tokens and the output of each layer, (T, D) each, of a text or a pair."""
        from bertworks.inference.internals import hidden_states_of

        return _for_each(
            text,
            lambda texts: [
                tuple(
                    _convert(layer, convert_to_tensor)
                    for layer in hidden_states_of(self.encoder, self.tokenizer, *_text_and_pair(one))
                )
                for one in texts
            ],
        )

    def attention(self, text: Input | Iterable[Input]) -> Any:
        """Return the TextAttention of a text or a pair: its tokens, and the weights of all layers and heads."""
        from bertworks.inference.internals import attention_of

        return _for_each(
            text, lambda texts: [attention_of(self.encoder, self.tokenizer, *_text_and_pair(one)) for one in texts]
        )

    def explain(self, text: Input | Iterable[Input], target: str | None = None) -> Any:
        """Return the Explanation of a prediction: the weight of every word, by integrated gradients.

        `target` is another class, ending, word or answer to explain than the predicted one.
        """
        return _for_each(text, lambda texts: [self._explain(one, target) for one in texts])

    def _explain(self, value: Input, target: str | None) -> Explanation:
        from bertworks.inference.attribution import explain

        predictor = predictor_of(self)
        return explain(predictor, example_from_input(predictor.module.task, value, "the text", "1"), target)

    @check_arguments
    def evaluate(self, data: Any, *, columns: Mapping[str, str] | None = None) -> dict[str, float]:
        """Return the metrics on labelled data, in memory or in a file; see `bertworks.finetune`."""
        from bertworks.commands.evaluate import evaluate_data

        return dict(evaluate_data(predictor_of(self), data, columns or {}).scores.metrics)

    def to(self, device: str | torch.device) -> Model:
        """Move the model to a device, cpu or cuda, or auto for the first that there is; return it."""
        from bertworks.training.devices import device_of

        if self._is_graph:
            raise SettingsError(f"{self.folder} is an exported graph, which its engine runs on the CPU; load the model")
        resolved = device_of(str(device).partition(":")[0])
        head = None if self.predictor is None else self.predictor.module.head
        for module in (self.encoder, self.mlm_head, self.bilm_head, head):
            if module is not None:
                cast("torch.nn.Module", module).to(resolved)
        return self

    @check_arguments
    def save(self, folder: str | Path) -> Path:
        """Copy the model folder to another one, with a model card if it has none, and return the path."""
        from bertworks.exporters.copy import copy_model

        return copy_model(self, Path(folder))

    @check_arguments
    def push_to_hub(
        self, name: str, *, private: bool = False, branch: str | None = None, message: str | None = None
    ) -> str:
        """Upload the model with its card to the hub as OWNER/NAME, and return the commit.

        The token is that of `hf auth login` or HF_TOKEN. `load(f"{name}@{commit}")` loads exactly this version.
        """
        from bertworks.exporters.copy import copy_files
        from bertworks.models.hub_upload import Upload, push_folder

        text = message or f"Upload {display_name(self.folder)}"
        with tempfile.TemporaryDirectory() as folder:
            copy_files(self, Path(folder))
            return push_folder(Path(folder), Upload(name=name, private=private, branch=branch, message=text))

    @check_arguments
    def export(self, to: str, output: str | Path, *, data: str | Path | None = None) -> dict[str, Any]:
        """Export the model to onnx, openvino, safetensors-fp16 or int8, and return its certificate of parity.

        `data` is a labelled file of the task, or texts, to compare both models on.
        """
        from bertworks.exporters.export import ExportRequest, export

        data = None if data is None else Path(data)
        return export(ExportRequest(model=str(self.folder), target=to, output=Path(output), data=data)).certificate

    def __repr__(self) -> str:
        config = self.encoder.config
        num_layers = config.num_hidden_layers
        layers = f"{num_layers} layer{'' if num_layers == 1 else 's'} of {config.hidden_size}"
        parts = [f"{config.model_type}, {layers}"]
        if not self._is_graph:
            num_parameters = sum(parameter.numel() for parameter in self.encoder.parameters())
            parts.append(f"{format_number(num_parameters)} parameters")
        parts.append(self.precision)
        if self.predictor is not None:
            parts.append(f"{self.predictor.module.task.name}{': ' if self.labels else ''}{' | '.join(self.labels[:8])}")
            parts[-1] += f" and {len(self.labels) - 8} more" if len(self.labels) > 8 else ""
        return f"Model({display_name(self.folder)!r}: {', '.join(parts)})"


def _for_each(values: Any, function: Callable[[list[Any]], Any]) -> Any:
    """Return the results of a function of a list for several values, or the one result for a single value."""
    if isinstance(values, str | tuple | Mapping):
        return function([values])[0]
    if hasattr(values, "itertuples") or hasattr(values, "iter_rows"):  # iterating a frame of pandas gives its names
        raise InputError("the input is a table; give its column of texts, such as table['text']")
    if not isinstance(values, Iterable) or isinstance(values, bytes) or getattr(values, "ndim", 1) == 0:
        raise InputError(f"the input is {show_value(values)}; give a text or a list of texts")
    return function([value.tolist() if isinstance(value, np.ndarray) else value for value in values])


def _text_and_pair(value: Any) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else list(value.values() if isinstance(value, Mapping) else value)
    if len(texts) > 2:
        raise InputError(f"the input is {show_value(value)}; give a text or a pair of texts")
    return check_texts(texts)


def _convert(values: Any, to_tensor: bool) -> Any:
    """Return arrays as torch tensors, if that is asked for."""
    if not to_tensor:
        return values
    import torch

    return [_convert(item, to_tensor) for item in values] if isinstance(values, list) else torch.from_numpy(values)
