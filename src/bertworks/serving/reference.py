"""The API reference: an OpenAPI description in, a self-contained HTML page out."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Mapping
from typing import Any

_STYLE = """
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 3rem; font-size: 1.1rem; overflow-wrap: anywhere }
h2 b { display: inline-block; min-width: 4rem }
pre { background: rgba(127, 127, 127, 0.12); padding: 0.75rem; overflow-x: auto; border-radius: 0.3rem }
table { border-collapse: collapse; margin: 0.5rem 0 }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 1rem 0.2rem 0; font-size: 0.9rem }
"""


def reference_page(spec: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page, and a Content-Security-Policy that allows only its style sheet."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    info = spec["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_escape(info['title'])} {_escape(info['version'])}</h1><p>{_escape(info.get('description', ''))}</p>",
        '<p>As data: <a href="/openapi.json">openapi.json</a></p>',
        *_render_operations(spec),
        "</body></html>",
    ]
    return "\n".join(parts), f"default-src 'none'; style-src 'sha256-{digest}'"


def _render_operations(spec: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><b>{_escape(method.upper())}</b> <code>{_escape(path)}</code></h2>"
            yield f"<p>{_escape(operation.get('description', operation.get('summary', '')))}</p>"
            yield from _render_parameters(operation.get("parameters", []))
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content:
                yield from _render_schema("Request body", content["schema"], spec)
            response = operation["responses"].get("200", {}).get("content", {}).get("application/json")
            if response:
                yield from _render_schema("Response", response["schema"], spec)


def _render_parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        rows = "".join(
            f"<tr><td><code>{_escape(parameter['name'])}</code></td><td>{_escape(parameter['in'])}</td></tr>"
            for parameter in parameters
        )
        yield f"<table><caption>Parameters</caption>{rows}</table>"


def _render_schema(title: str, schema: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    resolved = _resolve(schema, spec)
    rows = [
        f"<tr><td><code>{_escape(name)}</code></td><td>{_escape(_type_name(field))}</td>"
        f"<td>{_escape(field.get('description', ''))}</td></tr>"
        for name, field in resolved.get("properties", {}).items()
    ]
    content = f"<table>{''.join(rows)}</table>" if rows else f"<p>{_escape(_type_name(resolved))}</p>"
    yield f"<h3>{title}</h3>{content}"
    for example in resolved.get("examples", []):
        yield f"<pre>{_escape(json.dumps(example, ensure_ascii=False, indent=2))}</pre>"


def _resolve(schema: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    resolved: Mapping[str, Any] = spec["components"]["schemas"][name] if name else schema
    return resolved


def _type_name(schema: Mapping[str, Any]) -> str:
    """Return the type of a field in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(map(_type_name, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type_name(schema['items'])}" if "items" in schema else "list"
    return str(schema.get("type", "anything"))


def _escape(value: object) -> str:
    return html.escape(str(value))
