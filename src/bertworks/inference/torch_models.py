"""Models with weights: a model folder in, a LoadedModel out that runs in PyTorch or in a graph built from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import family_of
from bertworks.encoders.precision import resolve_precision
from bertworks.encoders.tensor_names import NameTable
from bertworks.engines.runtimes import RUNTIMES
from bertworks.errors import FolderError, SettingsError
from bertworks.inference.finetuned import build_predictor, is_finetuned, read_task
from bertworks.inference.graph_heads import HEAD_KINDS, graph_head
from bertworks.inference.model import LoadedModel, model_of_runtime, try_pooling
from bertworks.models.folder import ModelFolder, load_encoder, read_folder, with_special_token_rows
from bertworks.models.load_report import LoadReport
from bertworks.models.metadata import read_config
from bertworks.models.next_sentence import as_classifier_config
from bertworks.models.tensor_names import load_into
from bertworks.models.weights import untied_output
from bertworks.objectives.bilm import create_bilm_head
from bertworks.objectives.heads import MlmHead
from bertworks.vocabulary.special_tokens import PLAIN

H = TypeVar("H", bound=nn.Module)


def open_older_export(path: Path, metadata: dict[str, Any], split_special_tokens: bool) -> tuple[ModelFolder, str]:
    """Return an exported folder that does not record its graph, and the kind of its head: both by its config.json."""
    config = read_config(path / "config.json")
    try:
        family = family_of(config.get("model_type"))
        family.config_from_dict(config)
    except SettingsError as error:
        raise FolderError(f"{path / 'config.json'}: {error}") from None
    config = as_classifier_config(config, family)
    folder = ModelFolder(path, config, metadata, {}, split_special_tokens=split_special_tokens)
    folder = _with_trained_template(with_special_token_rows(folder) if family.can_lack_special_tokens else folder)
    if not is_finetuned(folder):
        return folder, ""
    with torch.device("meta"):
        return folder, HEAD_KINDS[type(read_task(folder).head(folder.encoder_config))]


def read_model_folder(path: Path, split_special_tokens: bool) -> ModelFolder:
    """Open a model folder with that setting of its tokenizer."""
    return replace(_with_trained_template(read_folder(path)), split_special_tokens=split_special_tokens)


def _with_trained_template(folder: ModelFolder) -> ModelFolder:
    """Return the folder without a layout of special tokens if its head was trained, by transformers, without them."""
    return replace(folder, template=PLAIN) if folder.has_untrained_specials and is_finetuned(folder) else folder


def load_with_engine(folder: ModelFolder, engine: str) -> LoadedModel:
    """Load a folder in another engine than torch: its graph is built in memory."""
    model = load_in_torch(folder, "fp32")
    head = graph_head(model.mlm_head, model.predictor)
    runtime = RUNTIMES[engine].from_encoder(model.encoder, head, model.has_pooler)
    return model_of_runtime(runtime, folder, "" if head is None else head.kind, model.report)


def load_in_torch(folder: ModelFolder, precision: str) -> LoadedModel:
    """Load the weights of a folder; `precision` is auto, fp32, bf16 or fp16."""
    precision = resolve_precision(precision)
    encoder, report = load_encoder(folder)
    encoder.eval()
    encoder.set_precision(precision, cast_weights=True)
    mlm_head, report = _load_mlm_head(folder, report)
    bilm_head, report = _load_head(folder, "bilm", create_bilm_head, report)
    if bilm_head is None:
        bilm_head, report = _load_head(folder, "bilm-table", create_bilm_head, report)
    predictor = None
    if is_finetuned(folder):
        predictor = build_predictor(folder, encoder, read_task(folder))
        head_report = load_into(predictor.module.head, folder.tensors, predictor.module.head_names)
        report = _merge_reports(report, head_report)
    return LoadedModel(
        folder=folder.path,
        encoder=encoder,
        tokenizer=folder.tokenizer,
        mlm_head=mlm_head,
        report=report,
        metadata=folder.metadata,
        precision=precision,
        predictor=predictor,
        bilm_head=bilm_head,
        stored_pooling=try_pooling(folder),
    )


def _load_mlm_head(folder: ModelFolder, report: LoadReport) -> tuple[MlmHead | None, LoadReport]:
    """Return the masked-LM head, with its own output embeddings if they are not tied, and the report so far."""
    names, output = folder.family.heads.get("mlm"), untied_output(folder.family, folder.tensors)
    if names is None or output is None:
        return _load_head(folder, "mlm", MlmHead, report)
    return _load_head(folder, "mlm", partial(MlmHead, untied=True), report, {**names, "output": (output,)})


def _load_head(
    folder: ModelFolder,
    kind: str,
    make: Callable[[EncoderConfig], H],
    report: LoadReport,
    names: NameTable | None = None,
) -> tuple[H | None, LoadReport]:
    """Return the pretraining head of a kind if the folder has all its tensors, and the report of all tensors so far."""
    names = names or folder.family.heads.get(kind)
    if names is None or not all(name in folder.tensors for hf_names in names.values() for name in hf_names):
        return None, report
    with torch.device("meta"):
        head = make(folder.encoder_config)
    report = _merge_reports(report, load_into(head, folder.tensors, names))
    return head.eval(), report


def _merge_reports(encoder: LoadReport, head: LoadReport) -> LoadReport:
    """Add a head's tensors to an encoder's report: keys that the head loaded are no longer unexpected."""
    unexpected = tuple(name for name in encoder.unexpected_keys if name not in head.loaded_keys)
    return replace(encoder, loaded_keys=encoder.loaded_keys + head.loaded_keys, unexpected_keys=unexpected)
