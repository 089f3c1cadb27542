"""What lies at a local output location."""

from pathlib import Path


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def unpublished(folder: Path) -> bool:
    """Whether there is nothing of a publication, whoever claimed the place."""
    return all(name.startswith(".cosmos3-claims/") for name in files_of(folder))
