"""Save and load fine-tuned models: a Predictor in, a model folder out, and back.

bertworks.json keeps the task, window rule, null threshold, temperature, and the scores with hashes of their data. A
folder of transformers without it is read by its architecture. A recurrent head, and a head that transformers has no
class for, keep our tensor names; transformers loads only the encoder of such a folder.

An exported folder is read without PyTorch: what needs it is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertworks.engines.runtimes import find_export_engine
from bertworks.errors import FolderError
from bertworks.inference.predictor import Predictor
from bertworks.integrity.model_files import METADATA_FILE
from bertworks.sampling.windows import WindowRule
from bertworks.settings import from_table
from bertworks.tasks.contract import Task
from bertworks.tasks.registry import TASKS, task_of

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder
    from bertworks.inference.model import LoadedModel
    from bertworks.models.exported_folder import ExportedFolder
    from bertworks.models.folder import ModelFolder


def save_finetuned(
    path: str | Path, predictor: Predictor, metadata: Mapping[str, Any], other_files: Mapping[str, bytes] | None = None
) -> None:
    """Write a fine-tuned model folder; `metadata` is added to bertworks.json (scores, recipe, hashes of the data).

    `other_files` are those of a sentence-transformers base, by name.
    """
    from bertworks.encoders.families import architecture_of
    from bertworks.models.folder import write_folder
    from bertworks.models.tensor_names import to_hf_names

    module = predictor.module
    encoder_config, task, recurrent = module.encoder.config, module.task, module.recurrent
    family, kind = module.family, module.transformers_head_kind
    tensors = to_hf_names(module.encoder.state_dict(), family.tensor_names(encoder_config))
    for prefix, hf_prefix in family.prefix_overrides.get(kind, {}).items():
        tensors = {_replace_prefix(name, prefix, hf_prefix): values for name, values in tensors.items()}
    tensors |= to_hf_names(module.head.state_dict(), module.head_names)
    architectures = [architecture_of(encoder_config, kind)]
    config = {**family.config_to_dict(encoder_config, architectures), **task.config()}
    task_metadata = {
        "task": task.name,
        "attention": module.encoder.attention,
        **task.metadata(),
        "window": asdict(predictor.window_rule),
    }
    if recurrent is not None:
        task_metadata["recurrent_head"] = asdict(recurrent)
    write_folder(path, config, tensors, predictor.tokenizer, {**task_metadata, **metadata}, other_files)


def _replace_prefix(name: str, old_prefix: str, new_prefix: str) -> str:
    return new_prefix + name.removeprefix(old_prefix) if name.startswith(old_prefix) else name


def load_predictor(
    name: str | Path, expected_task: str | None = None, engine: str | None = None, precision: str | None = None
) -> Predictor:
    """Load a fine-tuned model: ours, one of transformers, or an exported one; refuse another task than expected."""
    from bertworks.inference.model import load  # a circular import at module level

    model = load(name, engine=engine, precision=precision)
    predictor = predictor_of(model)
    task = predictor.module.task
    if expected_task is not None and task.name != expected_task:
        raise FolderError(
            f"{model.folder} is fine-tuned for '{task.name}', not for '{expected_task}'; choose another folder"
        )
    return predictor


def predictor_of(model: LoadedModel) -> Predictor:
    """Return the predictor of a loaded model; raise FolderError if it is not fine-tuned."""
    if model.predictor is None:
        _refuse_pretrained(model.folder)
    assert model.predictor is not None
    return model.predictor


def _refuse_pretrained(folder: Path) -> None:
    """Raise an error that says why a folder has no task."""
    if find_export_engine(folder) is not None:
        raise FolderError(f"{folder} is not fine-tuned for a task; export a model that `bertworks finetune` wrote")
    from bertworks.models.folder import read_folder

    read_task(read_folder(folder))


def is_finetuned(folder: ModelFolder) -> bool:
    """Whether a folder is fine-tuned for a task."""
    return "task" in folder.metadata or any(_has_task_architecture(folder, task) for task in TASKS.values())


def _has_task_architecture(folder: ModelFolder, task: type[Task]) -> bool:
    """Whether one of the folder's transformers architectures has the head of a task."""
    from bertworks.encoders.families import architecture_of

    if task.head_kind not in folder.family.heads:
        return False
    return architecture_of(folder.encoder_config, task.head_kind) in (folder.config.get("architectures") or [])


def build_predictor(folder: ModelFolder, encoder: Encoder, task: Task) -> Predictor:
    """Return a predictor: the folder's encoder with the head of its task."""
    import torch

    from bertworks.models.tensor_names import load_into
    from bertworks.tasks.module import TaskModule
    from bertworks.tasks.recurrent_head import RecurrentSettings

    recurrent_settings = folder.metadata.get("recurrent_head")
    recurrent = None
    if recurrent_settings is not None:
        location = f"{folder.path / METADATA_FILE}, recurrent_head"
        recurrent = from_table(RecurrentSettings, recurrent_settings, location)
    with torch.device("meta"):  # all weights are loaded; a size that they contradict must not be allocated
        module = TaskModule(encoder, task, recurrent=recurrent)
    report = load_into(module.head, folder.tensors, module.head_names)
    if report.missing_keys:
        raise FolderError(
            f"{folder.path} has no weights for the task head ({', '.join(report.missing_keys)}); fine-tune it with "
            f"`bertworks finetune {task.name}`"
        )
    module.eval()
    window_rule = task_window_rule(folder.metadata, task, encoder.config.max_length)
    return Predictor(module, folder.tokenizer, window_rule, folder.metadata.get("columns", {}))


def task_window_rule(metadata: Mapping[str, Any], task: Task, model_max_length: int) -> WindowRule:
    """Return the window rule of a folder, or the task's default, limited to the model's positions."""
    rule = WindowRule(**metadata["window"]) if "window" in metadata else task.default_window_rule
    max_length = min(rule.max_length, model_max_length)
    return replace(rule, max_length=max_length, overlap=min(rule.overlap, max_length // 4))


def read_task(folder: ModelFolder | ExportedFolder) -> Task:
    """Return the task that a folder is fine-tuned for."""
    name = folder.metadata.get("task")
    if name is not None:
        return task_of(str(name)).from_metadata(folder.metadata, folder.config)
    return _read_task_of_config(cast("ModelFolder", folder))  # an exported folder states its task


def _read_task_of_config(folder: ModelFolder) -> Task:
    """Return the task of a folder of transformers, by its architecture."""
    from bertworks.encoders.families import architecture_of

    architectures = folder.config.get("architectures") or []
    for task in TASKS.values():
        if _has_task_architecture(folder, task) and task.matches_config(folder.config):
            return task.from_metadata({}, folder.config)
    head_kinds = {task.head_kind for task in TASKS.values()} & folder.family.heads.keys()
    raise FolderError(
        f"{folder.path} is not fine-tuned for a task ({', '.join(architectures) or 'no architectures'}); "
        f"fine-tune it with `bertworks finetune`, or choose a model with one of these architectures: "
        f"{', '.join(sorted({architecture_of(folder.encoder_config, kind) for kind in head_kinds}))}"
    )
