"""/cache/explain and /cache/advice: why prompts miss, and what to do about it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from radixlm.server.cache.explain import explanation
from radixlm.server.cache.explain_body import explain_body
from radixlm.server.errors import AdminKeyNeededError
from radixlm.server.head import HeadRoute
from radixlm.server.reading import read_body
from radixlm.server.service import service_of, tenant_of

router = APIRouter(route_class=HeadRoute)


@router.post("/cache/explain")
async def explain(request: Request) -> Response:
    """Why a prompt would miss now; it is not run, and leaves no trace.

    The body is that of a request to any route that computes a prompt. Only the request's own
    namespace is looked into; across_namespaces is for admins.
    """
    service, tenant = service_of(request), tenant_of(request)
    service.check_room(tenant)
    body = explain_body(await read_body(request), strict=service.config.strict_fields)
    if body.across_namespaces and not service.keys.is_admin(tenant):
        raise AdminKeyNeededError("across_namespaces needs one of the keys of --admin-api-key")
    return JSONResponse(await explanation(service, body, tenant))


@router.get("/cache/advice")
async def advice(request: Request) -> Response:
    """What the last prompts had to compute, by cause and place, and what to do about it.

    Of the same key's requests only; with an admin's key, or where there are no keys, of all.
    """
    service, tenant = service_of(request), tenant_of(request)
    keyless = not (service.config.api_key or service.config.admin_api_key)
    owner = None if keyless or service.keys.is_admin(tenant) else tenant
    return JSONResponse(service.misses.advice(service.engine.stats(), owner))
