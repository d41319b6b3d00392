"""All kinds of folders: a path in, the FolderInfo by the first kind whose files it has out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertworks.errors import BertworksError, FolderError
from bertworks.folder_info import model_kinds, run_kinds, text_kinds
from bertworks.folder_info.kind import DAMAGED, FolderInfo, FolderKind
from bertworks.folder_lock import find_holder
from bertworks.packages import packaged_model
from bertworks.reading import check_path
from bertworks.serving.run_records import is_run

# In this order: a kind that others contain, or whose files others have too, comes after those.
KINDS = (
    FolderKind("bundle", run_kinds.is_bundle, run_kinds.describe_bundle),
    FolderKind("model package", model_kinds.is_package, model_kinds.describe_package),
    FolderKind("comparison", run_kinds.is_comparison, run_kinds.describe_comparison),
    FolderKind("sweep", run_kinds.is_sweep, run_kinds.describe_sweep),
    FolderKind("training run", is_run, run_kinds.describe_run),
    FolderKind("checkpoint", run_kinds.is_checkpoint, run_kinds.describe_checkpoint),
    FolderKind("corpus", text_kinds.is_corpus, text_kinds.describe_corpus),
    FolderKind("embeddings", text_kinds.is_vectors, text_kinds.describe_vectors),
    FolderKind("exported model", model_kinds.is_export, model_kinds.describe_export),
    FolderKind("word vectors", model_kinds.is_word_vectors, model_kinds.describe_word_vectors),
    FolderKind("fine-tuned model", model_kinds.is_finetuned, model_kinds.describe_finetuned),
    FolderKind("pretrained model", model_kinds.is_ours, model_kinds.describe_pretrained),
    FolderKind(
        "sentence-transformers model",
        model_kinds.is_sentence_transformer,
        model_kinds.describe_sentence_transformer,
    ),
    FolderKind("LoRA adapter", model_kinds.is_adapter, model_kinds.describe_adapter),
    FolderKind("TensorFlow 1 checkpoint", model_kinds.is_tf1_release, model_kinds.describe_tf1_release),
    FolderKind("transformers model", model_kinds.is_model, model_kinds.describe_transformers),
    FolderKind("vocabulary", text_kinds.is_vocabulary, text_kinds.describe_vocabulary),
)


def describe_folder(name: str | Path) -> FolderInfo:
    """Tell what a folder is, or a packaged model by its name; raise a FolderError if it is nothing that we know.

    A damaged folder is described, too: its state is DAMAGED, and `problem` says why.
    """
    path = Path(name)
    check_path(path)
    if not path.exists():
        path = packaged_model(str(name)) or path
    kind = _find_kind(path)
    try:
        info = kind.describe(path)
    except (BertworksError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        is_explained = isinstance(error, BertworksError)
        problem = str(error) if is_explained else f"{path}: a value has another type than expected ({error!r})"
        info = FolderInfo(folder=path, kind=kind.name, state=DAMAGED, problem=problem)
    return replace(info, holder=find_holder(path))


def _find_kind(path: Path) -> FolderKind:
    if not path.exists():
        raise FolderError(f"{path} does not exist; give a folder, or the name of an installed model such as en-small")
    for kind in KINDS:
        try:
            if kind.matches(path):
                return kind
        except BertworksError:  # a file that only this kind has, but damaged
            return kind
    if path.is_file():
        raise FolderError(f"{path} is a file, and not one of `bertworks embed`; give a folder")
    content = ", ".join(sorted(entry.name for entry in path.iterdir())[:3]) or "nothing"
    raise FolderError(
        f"{path} is of no kind that bertworks knows: it holds {content}; give the folder of a model, run, checkpoint, "
        "corpus, vocabulary, export, sweep, comparison or bundle"
    )
