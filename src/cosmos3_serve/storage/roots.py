"""The bucket/prefix roots that sample inputs may come from (docs/contract.md 5)."""

from __future__ import annotations

from dataclasses import dataclass

from cosmos3_serve.errors import FieldError, StorageAuthorizationError, UsageError
from cosmos3_serve.storage.uri import S3Uri, parse_s3

ROOTS_ENV = "NPA_COSMOS3_RAY_ALLOWED_S3_ROOTS"
OUTSIDE = "read S3 URI is outside the configured bucket/prefix roots"


@dataclass(frozen=True, slots=True)
class AllowedRoots:
    """Which objects may be read. Without a root nothing may; a text-only batch needs none.

    Args:
        env: the variable that the service's operator sets them with, for what refusals say.
    """

    roots: tuple[S3Uri, ...] = ()
    env: str = ROOTS_ENV

    @classmethod
    def parse(cls, text: str, env: str = ROOTS_ENV) -> AllowedRoots:
        """Read a comma list of `s3://bucket[/prefix]`; blanks are dropped (a comma inside a prefix is written %2C).

        Raises:
            UsageError: a root is malformed, so the service must not start; the error names every one and the variable.
        """
        roots: list[S3Uri] = []
        wrong: list[FieldError] = []
        for position, item in enumerate(text.split(",")):
            if not item.strip():
                continue
            try:
                roots.append(parse_s3(item))
            except StorageAuthorizationError as error:
                wrong.append(FieldError(f"{env}[{position}]", error.detail, error.remedy))
        if wrong:
            found = "; ".join(f"{e.field}: {e.message}" for e in wrong)
            raise UsageError(
                f"{env} is malformed: {found}",
                remedy=f"set {env} to a comma list of s3://bucket or s3://bucket/prefix, or leave it empty",
                errors=wrong,
                code="malformed_s3_roots",
            )
        return cls(tuple(dict.fromkeys(roots)), env)

    def allows(self, uri: S3Uri) -> bool:
        """Same bucket, and the key is the prefix or lies below it: `s3://b/in` allows `in/x`, never `inner/x`."""
        return any(
            uri.bucket == root.bucket and (not root.key or uri.key == root.key or uri.key.startswith(root.key + "/"))
            for root in self.roots
        )

    def authorize(self, uri: S3Uri) -> None:
        """Raises StorageAuthorizationError (code `outside_s3_roots`) unless the URI may be read."""
        if not self.allows(uri):
            remedy = (
                f"use an object below one of the service's roots ({self.env})"
                if self.roots
                else f"this service allows no inputs: its operator must set {self.env}"
            )
            raise StorageAuthorizationError(OUTSIDE, remedy=remedy, code="outside_s3_roots")
