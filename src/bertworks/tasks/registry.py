"""The tasks by name: a name in, the task's class out. A new task is one line here."""

from __future__ import annotations

from bertworks.errors import SettingsError
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.regress import Regress
from bertworks.tasks.tag import Tag
from bertworks.tasks.translate import Translate

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classify, Regress, Choose, Tag, Answer, Translate)}


def task_of(name: str) -> type[Task]:
    """Return the task of that name."""
    if name not in TASKS:
        raise SettingsError(f"there is no task '{name}'; choose one of: {', '.join(TASKS)}")
    return TASKS[name]
