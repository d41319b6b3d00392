"""The table of model types: a model type of transformers in, a row of measured differences out.

Each type is built by transformers with a small config and random weights, and saved with a tokenizer of its own class.
Loading, outputs, gradients, fine-tuning, exports and HTTP answers are then compared with transformers.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers.models.auto import modeling_auto

import bertworks
from bertworks.datasets.files import Record
from bertworks.encoders.families import ENCODERS
from bertworks.inference.predictor import Predictor
from bertworks.models.tensor_names import to_hf_names
from bertworks.sampling.batch import Batch
from bertworks.serving.server import ServeRequest, load_app
from bertworks.tasks.contract import InputSequence
from bertworks.tasks.inputs import fields_from_input
from bertworks.vocabulary.tokenizer import Tokenizer
from compatibility_cells import Cell, Figure, Part, Row, difference, largest, measure
from compatibility_vocabularies import LINES, tokenizer_for

HEADER = ("model type", "load", "parity", "fine-tune", "export", "serve")
NOT_REACHED = Cell("–")
SIZES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96,
    "max_position_embeddings": 96,
}  # fmt: skip
# What a type calls otherwise, or has beside these.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "distilbert": {"hidden_dim": 96},
    "xlnet": {"d_inner": 96, "d_head": 8, "max_position_embeddings": None},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "ernie": {"use_task_id": True},
    "deberta-v2": {
        "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "position_biased_input": False, "type_vocab_size": 0,
    },
}  # fmt: skip
TEXTS = [line for line in LINES if line.isascii()]
INPUTS: dict[str, Any] = {
    "tag": [*TEXTS],
    "answer": [{"question": "Where was it?", "context": text} for text in TEXTS],
    "choose": [{"prompt": text, "choices": ["in Paris", "over the lazy dog"]} for text in TEXTS],
}
HEADS = {
    "tag": transformers.AutoModelForTokenClassification,
    "answer": transformers.AutoModelForQuestionAnswering,
    "choose": transformers.AutoModelForMultipleChoice,
}


def model_types() -> list[str]:
    """Return the model types that are encoders of texts here and in transformers."""
    return [name for name in ENCODERS if name in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES]


def measure_model_type(model_type: str, folder: Path) -> Row:
    """Return the row of a model type; folders are written below `folder`. What cannot be loaded has no other cell."""
    models = PeerModels(model_type, folder)
    loading = measure(lambda: measure_loading(models))
    others = (measure_parity, measure_finetuning, measure_exports, measure_serving)
    cells = [NOT_REACHED if loading.has_failed else measure(functools.partial(other, models)) for other in others]
    return Row(f"`{model_type}`", (loading, *cells))


class PeerModels:
    """The models of transformers of one type, and their folders."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type, self.folder = model_type, folder
        self.tokenizer = tokenizer_for(model_type)
        self._models: dict[Any, Any] = {}

    def config(self, num_labels: int = 3) -> Any:
        """Return a small config without dropout."""
        ids = {f"{name}_token_id": getattr(self.tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        sizes = {**SIZES, **OWN_SIZES.get(self.model_type, {}), "vocab_size": len(self.tokenizer), **ids}
        settings = {name: value for name, value in sizes.items() if value is not None}
        config = transformers.AutoConfig.for_model(self.model_type, **settings, num_labels=num_labels)
        for name in vars(config):
            if name.endswith(("dropout", "dropout_prob", "_pdrop")) and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        return config

    def model(self, auto_class: Any) -> Any:
        """Return a model with random weights, saved at `path`: norms near 1, everything else near 0."""
        if auto_class in self._models:
            return self._models[auto_class]
        num_labels = 2 if auto_class is transformers.AutoModelForQuestionAnswering else 3  # start and end
        model = auto_class.from_config(self.config(num_labels), attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = "norm" in name.lower() and name.endswith("weight")
                parameter.normal_(1.0 if is_norm else 0.0, 0.2, generator=generator)
        model.save_pretrained(self.path(auto_class))
        self.tokenizer.save_pretrained(self.path(auto_class))
        self._models[auto_class] = model
        return model

    def path(self, auto_class: Any) -> Path:
        return self.folder / str(auto_class.__name__)

    @property
    def classifier(self) -> Any:
        return self.model(transformers.AutoModelForSequenceClassification)

    @property
    def classifier_path(self) -> Path:
        return self.path(transformers.AutoModelForSequenceClassification)

    def has(self, auto_class: Any) -> bool:
        return type(self.config()) in auto_class._model_mapping

    def inputs(self, text: str) -> dict[str, torch.Tensor]:
        """Return the inputs of a model of transformers, with token types if the family has them: the tokenizers of
        transformers 5 give ALBERT and XLNet none, although both were trained with them."""
        inputs = {"input_ids": torch.tensor([self.tokenizer(text)["input_ids"]])}
        if ENCODERS[self.model_type].has_token_types:
            token_type_ids = self.our_tokenizer.encode(text, parse_masks=True).token_type_ids
            inputs["token_type_ids"] = torch.tensor([token_type_ids])
        return inputs

    @functools.cached_property
    def our_tokenizer(self) -> Tokenizer:
        self.model(transformers.AutoModel)
        return Tokenizer.load(self.path(transformers.AutoModel))

    def logits(self, model: Any, texts: Sequence[str]) -> list[Any]:
        """Return the logits of a classifier of transformers for each text."""
        with torch.no_grad():
            return [model(**self.inputs(text)).logits[0].numpy() for text in texts]

    def mean_vectors(self, texts: Sequence[str]) -> list[Any]:
        """Return the mean of the last hidden states of the classifier's encoder for each text."""
        encoder = self.classifier.base_model
        with torch.no_grad():
            return [encoder(**self.inputs(text)).last_hidden_state[0].mean(0).numpy() for text in texts]


def measure_loading(models: PeerModels) -> Iterator[Part]:
    """Load the model with transformers' pretraining heads, or with its masked-LM head: how many tensors are used."""
    pretraining_class = transformers.AutoModelForPreTraining
    auto_class = pretraining_class if models.has(pretraining_class) else transformers.AutoModelForMaskedLM
    name = type(models.model(auto_class)).__name__
    model = bertworks.load(models.path(auto_class), precision="fp32")
    with safe_open(models.path(auto_class) / "model.safetensors", "pt") as file:
        num_stored = len(file.keys())
    num_unused = len(model.report.unexpected_keys)
    yield f"`{name}`: {num_stored - num_unused} of {num_stored} tensors"
    if num_unused:
        yield "without " + ", ".join(f"`{key}`" for key in model.report.unexpected_keys)


def measure_parity(models: PeerModels) -> Iterator[Part]:
    """Compare hidden states, the outputs of all heads that transformers has, and the gradients of a classifier."""
    encoder = models.model(transformers.AutoModel)
    model = bertworks.load(models.path(transformers.AutoModel), precision="fp32")
    with torch.no_grad():
        theirs = [encoder(**models.inputs(text)).last_hidden_state[0] for text in TEXTS]
        ours = [model.encoder(_batch(models.inputs(text))).last_hidden_state for text in TEXTS]
    yield largest("hidden states", zip(ours, theirs, strict=True))
    logits = models.logits(models.classifier, TEXTS)
    predictions = bertworks.load(models.classifier_path, precision="fp32").predict(TEXTS)
    yield largest("classes", zip([prediction.logits for prediction in predictions], logits, strict=True))
    for task, auto_class in HEADS.items():
        if models.has(auto_class):
            yield _head_figure(models, task, auto_class)
    if models.has(transformers.AutoModelForMaskedLM):
        yield _mask_figure(models)
    yield _gradient_figure(models)


def _batch(inputs: Mapping[str, torch.Tensor], **labels: torch.Tensor) -> Batch:
    """Return our batch of transformers' inputs of one text."""
    input_ids = inputs["input_ids"]
    return Batch(
        input_ids=input_ids,
        token_type_ids=inputs.get("token_type_ids", torch.zeros_like(input_ids)),
        lengths=torch.tensor([input_ids.shape[1]]),
        labels=labels,
    )


def _head_figure(models: PeerModels, task: str, auto_class: Any) -> Figure:
    """Return the largest difference of the outputs of a head for the same sequences."""
    peer = models.model(auto_class)
    predictor = bertworks.load(models.path(auto_class), precision="fp32").predictor
    assert predictor is not None
    pairs = []
    for text in INPUTS[task]:
        features = predictor.module.task.featurize(
            _example(predictor, text), predictor.tokenizer, predictor.window_rule
        )
        (outputs,) = predictor.outputs([features])
        ours = np.concatenate(outputs) if task == "choose" else outputs[0]
        pairs.append((ours, _peer_outputs(peer, models, task, list(features.sequences))))
    return largest({"tag": "tags", "answer": "spans", "choose": "choices"}[task], pairs)


def _example(predictor: Predictor, text: Any) -> Any:
    task = predictor.module.task
    (example,) = task.read_unlabelled([Record(fields_from_input(task, text), "text")], {})
    return example


def _peer_outputs(peer: Any, models: PeerModels, task: str, sequences: list[InputSequence]) -> Any:
    """Return transformers' output for one sequence, or for those of a choice, padded on the tokenizer's side."""
    length, side = max(map(len, sequences)), models.tokenizer.padding_side
    columns: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "token_type_ids": []}
    for sequence in sequences:
        padding = length - len(sequence)
        before, after = (padding, 0) if side == "left" else (0, padding)
        rows = (sequence.input_ids.tolist(), [1] * len(sequence), sequence.token_type_ids.tolist())
        for name, row in zip(columns, rows, strict=True):
            fill = models.tokenizer.pad_token_id if name == "input_ids" else 0
            columns[name].append([fill] * before + row + [fill] * after)
    has_types = ENCODERS[models.model_type].has_token_types
    inputs = {name: torch.tensor(rows) for name, rows in columns.items() if has_types or name != "token_type_ids"}
    if task == "choose":
        inputs = {name: values[None] for name, values in inputs.items()}
    with torch.no_grad():
        outputs = peer(**inputs)
    if task == "answer":
        return torch.stack([outputs.start_logits, outputs.end_logits], -1)[0].numpy()
    return outputs.logits[0, sequences[0].positions].numpy() if task == "tag" else outputs.logits[0].numpy()


def _mask_figure(models: PeerModels) -> Figure:
    """Return the largest difference of the probabilities of all tokens for a masked one; special tokens have none."""
    auto_class = transformers.AutoModelForMaskedLM
    peer, tokenizer = models.model(auto_class), models.tokenizer
    text = f"The film was {tokenizer.mask_token}."
    inputs = models.inputs(text)
    (position,) = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    with torch.no_grad():
        logits = peer(**inputs).logits[0, position]
    model = bertworks.load(models.path(auto_class), precision="fp32")
    result = model.fill_mask(text, len(tokenizer))
    logits[list(model.tokenizer.specials.ids)] = float("-inf")
    probabilities = logits.softmax(0)
    ours = torch.zeros_like(probabilities)
    for candidate in result.mask_candidates[0]:
        ours[tokenizer.convert_tokens_to_ids(candidate.token)] = candidate.probability
    return Figure("masked tokens", difference(ours, probabilities))


def _gradient_figure(models: PeerModels) -> Figure:
    """Return the largest difference of a gradient of the classifier's loss."""
    predictor = bertworks.load(models.classifier_path, precision="fp32").predictor
    assert predictor is not None
    module, peer = predictor.module, models.classifier
    inputs, labels = models.inputs(TEXTS[0]), torch.tensor([1])
    module(_batch(inputs, **{"class": labels}), {"task": 1.0}).value.backward()
    peer.zero_grad()
    peer(**inputs, labels=labels).loss.backward()
    pairs, overrides = [], module.family.prefix_overrides.get("sequence", {})
    tables = ((module.encoder, module.family.tensor_names(module.encoder.config)), (module.head, module.head_names))
    for part, names in tables:
        gradients = {name: value.grad for name, value in part.named_parameters() if value.grad is not None}
        written = to_hf_names(gradients, {name: theirs for name, theirs in names.items() if name in gradients})
        theirs = {name: peer.get_parameter(_with_override(name, overrides)).grad for name in written}
        # Ours may have rows for special tokens that the model was released without.
        pairs += [(values[: len(theirs[name])], theirs[name]) for name, values in written.items()]
    return largest("gradients", pairs)


def _with_override(name: str, overrides: Mapping[str, str]) -> str:
    """Return the name of a tensor of the encoder in a model with a head, where it has another one there."""
    prefix = next((old for old in overrides if name.startswith(old)), None)
    return name if prefix is None else overrides[prefix] + name.removeprefix(prefix)


def measure_finetuning(models: PeerModels) -> Iterator[Part]:
    """Fine-tune transformers' encoder here, and compare the result with transformers, which loads the folder."""
    models.model(transformers.AutoModel)
    labelled, output = models.folder / "labelled.tsv", models.folder / "run"
    rows = [f"{text}\t{'has' if 'the' in text else 'lacks'}" for text in (*TEXTS, "It was good.", "Who wrote?") * 4]
    labelled.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    losses: list[float] = []
    model = bertworks.finetune(
        "classify",
        model=models.path(transformers.AutoModel),
        train=labelled,
        output=output,
        learning_rate=1e-2,
        epochs=4,
        batch_size=4,
        precision="fp32",
        settings={"max_restarts": 0},
        on_event=lambda event: losses.append(event.step.losses["task"]) if event.step else None,
    )
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(output / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(output / "model")
    with torch.no_grad():
        logits = [peer(**tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    predictions = bertworks.load(model.folder, precision="fp32").predict(TEXTS)
    num_steps = len(losses) // 4
    first, last = (sum(part) / num_steps for part in (losses[:num_steps], losses[-num_steps:]))
    yield f"loss {first:.2f} → {last:.2f}"
    if last >= first:
        raise ValueError(f"the loss of an epoch was {first:.3f} first, and {last:.3f} at the end")
    yield largest("logits", zip([prediction.logits for prediction in predictions], logits, strict=True))


def measure_exports(models: PeerModels) -> Iterator[Part]:
    """Export transformers' classifier, and compare the logits of each export with those of transformers."""
    logits = models.logits(models.classifier, TEXTS)
    for name, target in (("ONNX", "onnx"), ("OpenVINO", "openvino")):
        output = models.folder / target
        bertworks.export(models.classifier_path, target, output)
        predictions = bertworks.load(output).predict(TEXTS)
        yield largest(name, zip([prediction.logits for prediction in predictions], logits, strict=True), 1e-4)


def measure_serving(models: PeerModels) -> Iterator[Part]:
    """Serve transformers' classifier: the probabilities and vectors of an HTTP answer against transformers."""
    probabilities = [torch.tensor(logits).softmax(0) for logits in models.logits(models.classifier, TEXTS)]
    vectors = models.mean_vectors(TEXTS)
    predicted = serve_once(models.classifier_path, "/v1/models/model/predict", {"inputs": TEXTS})
    embedded = serve_once(models.classifier_path, "/v1/models/model/embed", {"inputs": TEXTS})
    ours = [list(prediction["probabilities"].values()) for prediction in predicted["predictions"]]
    yield largest("probabilities", zip(ours, probabilities, strict=True))
    yield largest("vectors", zip(embedded["vectors"], vectors, strict=True))


def serve_once(folder: Path, path: str, body: Any) -> Any:
    """Serve a folder as "model" in this process, send a request, and return the body of the answer."""
    serving = load_app(ServeRequest(models=(f"model={folder}",), precision="fp32"))

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(serving.app), base_url="http://localhost") as client:
            return await client.post(path, json=body, timeout=60)

    try:
        serving.service.state.is_ready = True
        answer = asyncio.run(post())
    finally:
        serving.close()
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"{path} answers with status {answer.status_code}: {answer.text}")
    return answer.json()
