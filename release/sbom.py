"""The software bill of materials of a release: the requirements of `make lock` in, CycloneDX JSON out.

`make release` runs it: python release/sbom.py dist/requirements.lock dist/bertworks.cdx.json. The name of the
distribution is that of the output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from bertworks import __version__
from lock import read_lock


def write_sbom(lock: Path, output: Path) -> None:
    """Write the bill of materials: the distribution and every locked package with its version and hash."""
    root = _component(output.name.removesuffix(".cdx.json"), __version__)
    bom = Bom()
    bom.metadata.component = root
    components = [_component(*package) for package in read_lock(lock)]
    bom.components.update(components)
    bom.register_dependency(root, components)
    make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_to_file(
        str(output), allow_overwrite=True, indent=2
    )


def _component(name: str, version: str, digest: str = "") -> Component:
    purl = PackageURL("pypi", name=name.lower(), version=version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else []
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl), hashes=hashes
    )


if __name__ == "__main__":
    write_sbom(Path(sys.argv[1]), Path(sys.argv[2]))
