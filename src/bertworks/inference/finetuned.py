"""A fine-tuned model as a folder: a module and what was tuned in, a sealed model folder out, and back.

bertworks.json keeps the task's name, window rule, threshold, temperature and scores with the hash of their data; a
folder of transformers without it is read by its architecture. A recurrent head, and a head that
transformers has no class for, have tensors under names of our own; for transformers such a folder is the encoder alone.
"features" says what a recurrent head is built of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bertworks.encoders.families import architecture_of
from bertworks.encoders.stack import Encoder
from bertworks.errors import FolderError
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, read_folder, write_folder
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.tasks.registry import TASKS, task_of


def save_finetuned(path: Path, predictor: Predictor, metadata: Mapping[str, Any]) -> None:
    """Write a fine-tuned model; `told` is what else bertworks.json keeps (scores, recipe, the data's hashes)."""
    module = predictor.module
    sizes, task, recurrent = module.encoder.config, module.task, module.recurrent
    family, kind = module.family, module.transformers_head_kind
    tensors = to_hf_names(module.encoder.state_dict(), family.tensor_names(sizes))
    for here, there in family.prefix_overrides.get(kind, {}).items():
        tensors = {_replace_prefix(name, here, there): values for name, values in tensors.items()}
    tensors |= to_hf_names(module.head.state_dict(), module.head_names)
    config = {**family.config_to_dict(sizes, [architecture_of(sizes, kind)]), **task.config()}
    own = {
        "task": task.name,
        "reads": module.encoder.attention,
        **task.metadata(),
        "window": asdict(predictor.window_rule),
    }
    if recurrent is not None:
        own["features"] = asdict(recurrent)
    write_folder(path, config, tensors, predictor.tokenizer, {**own, **metadata})


def _replace_prefix(name: str, old_prefix: str, new_prefix: str) -> str:
    return new_prefix + name.removeprefix(old_prefix) if name.startswith(old_prefix) else name


def load_predictor(name: str | Path, expected_task: str | None = None, engine: str | None = None) -> Predictor:
    """Load a fine-tuned model, ours, one of transformers or an exported one; `wanted` is the task it must be for."""
    from bertworks.inference.model import load  # here, since a Model is made with what stands below

    model = load(name, engine=engine)
    if model.predictor is None:
        read_task(read_folder(model.folder))  # says why it is none
    assert model.predictor is not None
    task = model.predictor.module.task
    if expected_task is not None and task.name != expected_task:
        raise FolderError(
            f"{model.folder} is a model for '{task.name}', not for '{expected_task}'; choose another folder"
        )
    return model.predictor


def is_finetuned(folder: ModelFolder) -> bool:
    """Whether a folder is fine-tuned for a task."""
    return "task" in folder.metadata or any(_has_task_architecture(folder, task) for task in TASKS.values())


def _has_task_architecture(folder: ModelFolder, task: type[Task]) -> bool:
    """Whether a class of transformers that the folder names has the head of that task."""
    return architecture_of(folder.encoder_config, task.head_kind) in (folder.config.get("architectures") or [])


def build_predictor(folder: ModelFolder, encoder: Encoder, task: Task) -> Predictor:
    """Return what predicts: the folder's encoder with the head of its task."""
    recurrent = RecurrentSettings(**folder.metadata["features"]) if "features" in folder.metadata else None
    module = TaskModule(encoder, task, torch.Generator().manual_seed(0), recurrent=recurrent)
    report = load_into(module.head, folder.tensors, module.head_names)
    if report.missing_keys:
        raise FolderError(
            f"{folder.path} lacks the head of its task ({', '.join(report.missing_keys)}); fine-tune it with "
            f"`bertworks finetune {task.name}`"
        )
    module.eval()
    return Predictor(
        module, folder.tokenizer, read_window_rule(folder.metadata, task, encoder.config.max_position_embeddings)
    )


def read_window_rule(metadata: Mapping[str, Any], task: Task, max_position_embeddings: int) -> WindowRule:
    """Return the window rule of a folder, or the task's own, no longer than the model has positions."""
    rule = WindowRule(**metadata["window"]) if "window" in metadata else task.default_window_rule
    length = min(rule.max_length, max_position_embeddings)
    return replace(rule, max_length=length, overlap=min(rule.overlap, length // 4))


def read_task(folder: ModelFolder) -> Task:
    """Return the task that a folder is fine-tuned for."""
    name = folder.metadata.get("task")
    if name is not None:
        return task_of(str(name)).from_metadata(folder.metadata, folder.config)
    architectures = folder.config.get("architectures") or []
    for task in TASKS.values():
        if _has_task_architecture(folder, task) and _matches_problem_type(task.name, folder.config):
            return task.from_metadata({}, folder.config)
    raise FolderError(
        f"{folder.path} is not fine-tuned for a task ({', '.join(architectures) or 'no architecture is stated'}); make "
        f"one with `bertworks finetune`, or name one of transformers' with: "
        f"{', '.join(sorted({architecture_of(folder.encoder_config, task.head_kind) for task in TASKS.values()}))}"
    )


def _matches_problem_type(name: str, config: Mapping[str, Any]) -> bool:
    """Classes and scores have the same architecture; one label, or the problem's type, tells a score."""
    labels = config.get("id2label")
    is_score = config.get("problem_type") == "regression" or (labels is not None and len(labels) == 1)
    return is_score if name == "regress" else not is_score or name not in ("classify",)
