"""/cache/explain and /cache/advice: why prompts miss, and what to do about it."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from radixlm.server.body import parse_body, read_body
from radixlm.server.cache.explain import ExplainBody, asked_in, explanation
from radixlm.server.errors import AdminKeyNeededError
from radixlm.server.head import HeadRoute
from radixlm.server.service import service_of, tenant_of

router = APIRouter(route_class=HeadRoute)


@router.post("/cache/explain")
async def explain(request: Request) -> Response:
    """Why a prompt would miss now; it is not run, and leaves no trace.

    Only the request's own namespace is looked into; across_namespaces is for admins.
    """
    service, tenant = service_of(request), tenant_of(request)
    service.check_room(tenant)
    body = parse_body(ExplainBody, await read_body(request))
    everywhere = bool(body.across_namespaces)
    if everywhere and not service.keys.is_admin(tenant):
        raise AdminKeyNeededError("across_namespaces needs one of the keys of --admin-api-key")
    asked = await asyncio.to_thread(asked_in, service, body, tenant)
    shown = service.shows_cached_text(tenant, body.namespace)
    told = await explanation(service, asked, everywhere=everywhere, shows_text=shown)
    return JSONResponse(told)


@router.get("/cache/advice")
async def advice(request: Request) -> Response:
    """What the last prompts had to compute, by cause and place, and what to do about it.

    Of the same key's requests only; with an admin's key, or where there are no keys, of all.
    """
    service, tenant = service_of(request), tenant_of(request)
    keyless = not (service.config.api_key or service.config.admin_api_key)
    owner = None if keyless or service.keys.is_admin(tenant) else tenant
    return JSONResponse(service.misses.advice(service.engine.stats(), owner))
