"""Fetch a checkpoint from the Hub at run time, with each way it can fail under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cosmos3_serve.errors import CheckpointUnavailable, StartRefused
from cosmos3_serve.settings import TRUE_WORDS

# Weights as safetensors only: pickled weights would run code on loading.
PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]


def fetch_snapshot(repo: str, revision: str | None, *, environ: Mapping[str, str]) -> tuple[Path, str]:
    """(directory, commit) of `repo` at `revision` (None: the Hub's current main) in huggingface_hub's own cache.

    Raises:
        CheckpointUnavailable: code `checkpoint_access_denied`, `checkpoint_not_found` or `checkpoint_offline`.
        StartRefused: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import errors as hub
        from huggingface_hub import snapshot_download
    except ImportError:
        raise StartRefused(
            "fetching from the Hub needs huggingface_hub, which is not installed",
            remedy="install the extra: pip install 'cosmos3-serve[diffusers]', or name a local directory",
            code="dependency_missing",
        ) from None
    offline = environ.get("HF_HUB_OFFLINE", "").strip().lower() in TRUE_WORDS
    where = f"{repo}@{revision}" if revision else repo
    try:
        path = Path(snapshot_download(repo, revision=revision, allow_patterns=PATTERNS, local_files_only=offline))
    except hub.GatedRepoError:
        raise CheckpointUnavailable(
            f"access to {repo} is denied: it is gated and this token has no entitlement",
            code="checkpoint_access_denied",
            remedy=f"accept the licence at https://huggingface.co/{repo} and set HF_TOKEN of that account",
        ) from None
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError):
        # The Hub answers a private repository as if it did not exist.
        raise CheckpointUnavailable(
            f"{where} does not exist on the Hub, or this token may not see it",
            code="checkpoint_not_found",
            remedy="check the spelling and the revision, and set HF_TOKEN if the repository is private",
        ) from None
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError):
        why = "HF_HUB_OFFLINE is set" if offline else "the Hub cannot be reached"
        raise CheckpointUnavailable(
            f"{where} is not in the local cache and {why}",
            code="checkpoint_offline",
            remedy="fetch it once with access (hf download) and point HF_HOME at that cache, or name a local directory",
        ) from None
    except hub.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise CheckpointUnavailable(
                f"access to {repo} is denied (HTTP {status})",
                code="checkpoint_access_denied",
                remedy=f"accept the licence at https://huggingface.co/{repo} and set HF_TOKEN of that account",
            ) from None
        raise CheckpointUnavailable(
            f"the Hub answered HTTP {status} for {where}", remedy="try again later, or name a local directory"
        ) from None
    except OSError as error:
        raise CheckpointUnavailable(
            f"{where} cannot be written to the Hub cache: {error.strerror or type(error).__name__}",
            remedy="set HF_HOME to a writable folder with enough space",
        ) from None
    return path, path.name
