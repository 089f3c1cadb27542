"""`cosmos3 batch …`: batches that a service keeps, and publications made of what it kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosmos3_serve.cli import output
from cosmos3_serve.cli.audit import audit
from cosmos3_serve.cli.group import command_group
from cosmos3_serve.cli.info import JsonOption
from cosmos3_serve.cli.recover import recover
from cosmos3_serve.contract.views import BatchEvent, BatchState, BatchView
from cosmos3_serve.settings import TOKEN_ENV

if TYPE_CHECKING:
    from cosmos3_serve.client.batches import BatchLedger, ServiceAddress

Endpoint = Annotated[str, typer.Option("--endpoint", help="Address of the service (env: NPA_COSMOS3_RAY_ENDPOINT).")]
TokenEnv = Annotated[str, typer.Option("--token-env", help="Variable that holds the bearer token.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds for the whole command.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Request id of the batch.")]
FOREVER_S = 365 * 86400.0


def register(app: typer.Typer) -> None:
    commands: dict[str, Callable[..., Any]] = {
        "list": list_batches,
        "show": show,
        "logs": logs,
        "cancel": cancel,
        "recover": recover,
        "audit": audit,
    }
    text = "Batches that a service keeps (list, follow, cancel, recover), and publications (audit)."
    app.add_typer(command_group("batch", text, **commands))


def list_batches(
    endpoint: Endpoint = "",
    token_env: TokenEnv = TOKEN_ENV,
    state: Annotated[BatchState | None, typer.Option("--state", help="Only batches in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    timeout: Timeout = 60,
    json: JsonOption = False,
) -> None:
    """List the batches of this token, the newest first."""

    async def find(ledger: BatchLedger) -> list[BatchView]:
        found: list[BatchView] = []
        async for page in ledger.pages():
            found += [view for view in page if state is None or view.state is state]
            if len(found) >= limit:
                break
        return found[:limit]

    found = _service(endpoint, token_env, timeout).ask(find)
    if json:
        output.emit({"batches": [view.model_dump(mode="json", exclude={"samples"}) for view in found]})
        return
    _table(("request", "state", "created"), [(view.request_id, _state(view), _age(view)) for view in found])


def show(
    request_id: RequestId,
    endpoint: Endpoint = "",
    token_env: TokenEnv = TOKEN_ENV,
    timeout: Timeout = 60,
    json: JsonOption = False,
) -> None:
    """Show one batch with the state of each sample."""
    view = _service(endpoint, token_env, timeout).ask(lambda ledger: ledger.view(request_id))
    if json:
        output.emit(view.model_dump(mode="json"))
        return
    print(f"{view.request_id}: {_state(view)}, model {view.model}, created {view.created_at:%Y-%m-%d %H:%M:%S} UTC")
    rows = [
        (
            sample.name,
            sample.state.value + (" (finishing)" if sample.finishing else ""),
            f"{sample.step}/{sample.total_steps}" if sample.step is not None else "",
            sample.code or "",
            sample.message or "",
        )
        for sample in view.samples
    ]
    _table(("sample", "state", "step", "code", "message"), rows)


def logs(
    request_id: RequestId,
    endpoint: Endpoint = "",
    token_env: TokenEnv = TOKEN_ENV,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Until the batch ends.")] = True,
    steps: Annotated[bool, typer.Option("--steps", help="Denoising steps, too.")] = False,
    timeout: Timeout = FOREVER_S,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print what happened in a batch, and what happens, until it ends."""

    async def tell(ledger: BatchLedger) -> None:
        async for event in ledger.events(request_id, follow=follow):
            if steps or event.type != "progress":
                print(event.model_dump_json(exclude_none=True) if json else _line(event), flush=True)

    _service(endpoint, token_env, timeout).ask(tell)


def cancel(
    request_ids: Annotated[list[str], typer.Argument(metavar="REQUEST_ID...", help="Request ids of batches.")],
    endpoint: Endpoint = "",
    token_env: TokenEnv = TOKEN_ENV,
    wait: Annotated[bool, typer.Option("--wait", help="Until what runs has ended.")] = False,
    timeout: Timeout = 600,
    json: JsonOption = False,
) -> None:
    """Stop the work on batches: queued samples end at once, running ones where the engine can stop them.

    Finished samples stay, and a publication is not touched. A batch that has ended already is left as it is.
    """

    async def stop(ledger: BatchLedger) -> list[BatchView]:
        views = [await ledger.cancel(one) for one in request_ids]
        return [await ledger.wait(one) for one in request_ids] if wait else views

    views = _service(endpoint, token_env, timeout).ask(stop)
    if json:
        output.emit({"batches": [view.model_dump(mode="json") for view in views]})
        return
    for view in views:
        print(f"{view.request_id}: {_state(view)}; " + ", ".join(f"{n} {k}" for k, n in _counts(view).items() if n))


def _service(endpoint: str, token_env: str, timeout_s: float) -> ServiceAddress:
    from cosmos3_serve.client.batches import ServiceAddress

    return ServiceAddress(endpoint, token_env, timeout_s)


def _counts(view: BatchView) -> dict[str, int]:
    return dict(sorted(Counter(sample.state.value for sample in view.samples).items()))


def _state(view: BatchView) -> str:
    return f"{view.state.value} (partial)" if view.partial else view.state.value


def _age(view: BatchView) -> str:
    created = view.created_at if view.created_at.tzinfo else view.created_at.replace(tzinfo=UTC)
    minutes = max(0, int((datetime.now(UTC) - created).total_seconds() // 60))
    days, hours = divmod(minutes // 60, 24)
    return f"{days} d ago" if days else f"{hours} h ago" if hours else f"{minutes} min ago"


def _line(event: BatchEvent) -> str:
    step = f" step {event.step}/{event.total_steps}" if event.step is not None else ""
    what = f"{event.sample or 'batch'}: {event.state or event.type}{step}"
    return f"{event.at:%Y-%m-%d %H:%M:%S}Z  {what}" + (f"  {event.code}" if event.code else "")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """For people; in a pipe nothing is cut to a terminal's width. Text of a service is printed as it is."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=10_000)
    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
