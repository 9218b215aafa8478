"""What is known of the request being answered, beside its body."""

import time
from collections.abc import Mapping

from msgspec import Struct, field
from starlette.requests import Request

from foreword.server.quotas import Permit
from foreword.server.tenants import Tenant

SCOPE_KEY = "foreword.context"


class RequestContext(Struct):
    """Made by the gate; routes add what the log line should tell."""

    request_id: str
    tenant: Tenant | None = None
    permit: Permit | None = None  # where the tenant has limits
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    names: Mapping[str, str] = field(default_factory=dict)  # the client's, of fields the engine calls otherwise
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def age_s(self) -> float:
        """Seconds since the request's head was read."""
        return time.monotonic() - self.started


class Asker(Struct, frozen=True, kw_only=True):
    """On whose behalf something is generated."""

    tenant: Tenant
    namespace: bytes
    started: float  # monotonic time at which the request came
    permit: Permit | None = None


def context_of(request: Request) -> RequestContext:
    """The context the gate has made."""
    context = request.scope[SCOPE_KEY]
    assert isinstance(context, RequestContext)
    return context


def name_fields(request: Request, **names: str) -> None:
    """Say what the client calls fields that errors of the engine have other names for."""
    context_of(request).names = names


def tenant_of(request: Request) -> Tenant:
    """Who asks; the gate lets nobody through to a route without knowing."""
    tenant = context_of(request).tenant
    assert tenant is not None
    return tenant


def asker_of(request: Request, cache_salt: str | None) -> Asker:
    """Who asks, and where prefixes are shared."""
    context, tenant = context_of(request), tenant_of(request)
    return Asker(tenant=tenant, namespace=tenant.namespace(cache_salt), started=context.started, permit=context.permit)
