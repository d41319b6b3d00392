"""`make audit`: vulnerabilities are listed; without the tool or a network it says so."""

import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

AUDIT = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "release" / "audit.py")))
REPORT = """{"dependencies": [
  {"name": "a", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1", "2.0"]}]},
  {"name": "b", "version": "2.0", "vulns": []},
  {"name": "c", "skip_reason": "not in the database"}]}"""


def with_tool(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> None:
    monkeypatch.setitem(AUDIT.audit.__globals__, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=str)))
    result = SimpleNamespace(stdout=stdout, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: result)


def test_a_vulnerability_is_named_with_the_versions_that_fix_it(monkeypatch, capsys):
    with_tool(monkeypatch, REPORT)
    assert AUDIT.audit() == 1
    assert capsys.readouterr().out.splitlines() == [
        "a 1.0: vulnerability CVE-1; fixed in 1.1, 2.0",
        "3 packages: 1 vulnerabilities, 1 not looked up (c)",
    ]


def test_no_vulnerability_is_success(monkeypatch):
    with_tool(monkeypatch, '{"dependencies": [{"name": "b", "version": "2.0", "vulns": []}]}')
    assert AUDIT.audit() == 0


def test_if_nothing_could_be_looked_up_it_is_no_success(monkeypatch, capsys):
    with_tool(monkeypatch, '{"dependencies": [{"name": "c", "skip_reason": "not found"}]}')
    assert AUDIT.audit() == 2
    assert capsys.readouterr().err.startswith("audit: none of the versions is in the database, or it cannot be reached")


def test_without_a_network_the_reason_is_one_line(monkeypatch, capsys):
    with_tool(monkeypatch, "", "Traceback\nConnectionError: no route\n")
    assert AUDIT.audit() == 2
    message = "audit: the versions could not be looked up (ConnectionError: no route); run it again with a network\n"
    assert capsys.readouterr().err == message


def test_without_the_tool_its_extra_is_named(monkeypatch, capsys):
    no_tool = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setitem(AUDIT.audit.__globals__, "importlib", no_tool)
    assert AUDIT.audit() == 2
    assert "pip install 'bertworks[release]'" in capsys.readouterr().err
