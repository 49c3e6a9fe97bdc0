"""A wheel's bill of materials in CycloneDX, read from the wheel: what it contains, and what it loads when it runs."""

from __future__ import annotations

import hashlib
import re
import uuid
import zipfile
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PathDistribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

SCHEMA = SchemaVersion.V1_6


def library(
    name: str, version: str | None, description: str, *, license: str | None = None, kind: str = "pypi",
    loaded: bool = False, digest: str | None = None,
) -> Component:  # fmt: skip
    """Something that the wheel contains, or that it loads if it is installed beside it."""
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version, description=description,
        bom_ref=f"{name}@{version}" if version else name, purl=PackageURL(kind, None, name, version),
        scope=ComponentScope.OPTIONAL if loaded else ComponentScope.REQUIRED,
        licenses=[LicenseFactory().make_from_string(license)] if license else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else None,
    )  # fmt: skip


class Contents:
    """What can be read from a wheel."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as opened:
            names = opened.namelist()
            (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
            distribution = PathDistribution(zipfile.Path(opened, f"{info}/"))
            self.metadata, self.requires = distribution.metadata, distribution.requires or []
            built = opened.read("ringreduce/_built.txt").decode()
            self.facts = dict(line.split(": ", 1) for line in built.splitlines())
            self.objects = {
                name: hashlib.sha256(opened.read(name)).hexdigest()
                for name in names
                if re.search(r"\.so(\.\d+)*$", name)
            }

    def files(self) -> list[Component]:
        return [
            Component(
                type=ComponentType.FILE, name=name, bom_ref=name,
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
            for name, digest in self.objects.items()
        ]  # fmt: skip

    def libraries(self) -> Iterator[Component]:
        """Of others: linked statically, copied into the wheel, or loaded."""
        extension = next(name for name in self.objects if "/_engine." in name)
        inside = f"linked into {extension}"
        yield library("nanobind", self.facts["nanobind"], inside, license="BSD-3-Clause")
        yield library("robin-map", None, f"a header of nanobind's, {inside}", license="MIT", kind="generic")
        if (cuda := "ringreduce/libringreduce_cuda.so") in self.objects:
            release = self.facts["CUDA"].partition(" ")[0]
            eula = "NVIDIA CUDA Toolkit EULA"
            yield library(
                "cuda-runtime", release, f"the static one, linked into {cuda}", license=eula, kind="generic"
            )
        for name, digest in self.objects.items():
            if name.partition("/")[0].endswith(".libs"):
                described = "a shared library, which auditwheel has copied"
                yield library(Path(name).name, None, described, kind="generic", digest=digest)
        for wanted in map(Requirement, self.requires):
            if wanted.marker is None:
                described = f"loaded; needs {wanted.specifier}" if wanted.specifier else "loaded"
                yield library(wanted.name, None, described)
        torches = {name.split("-")[1] for name in self.objects if "/_torch-" in name}
        for version in sorted(torches):
            yield library("torch", version, "loads the backend that was built for it", loaded=True)


def of(wheel: Path, when: int) -> str:
    """The bill as JSON, the same for the same wheel.

    Args:
        wheel: the file.
        when: the time of its sources, in seconds since 1970.
    """
    read = Contents(wheel)
    name, version = read.metadata["Name"], read.metadata["Version"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest))
    bom.metadata.timestamp = datetime.fromtimestamp(when, timezone.utc)
    whole = library(name, version, wheel.name, license=read.metadata["License-Expression"], digest=digest)
    whole.components.update(read.files())
    bom.metadata.component = whole
    parts = list(read.libraries())
    bom.components.update(parts)
    bom.register_dependency(whole, parts)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)
    if problem := JsonStrictValidator(SCHEMA).validate_str(text):
        raise ValueError(f"{wheel.name}: its bill of materials is no CycloneDX: {problem}")
    return text + "\n"
