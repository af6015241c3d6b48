"""What a later OpenAPI document has lost is found, whatever its schemas are called."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from scripts.compare_openapi import Comparison


def document(name: str = "Body") -> dict[str, Any]:
    body = {
        "type": "object",
        "properties": {
            "n": {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}], "default": None},
            "kind": {"enum": ["a", "b"]},
            "inner": {"$ref": f"#/components/schemas/{name}"},
        },
        "required": ["kind"],
        "patternProperties": {"^(x|y)$": {"enum": [None]}},
    }
    answer = {"application/json": {"schema": {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}}}
    operation = {
        "operationId": name,
        "parameters": [{"name": "q", "in": "query", "schema": {"type": "string"}}],
        "requestBody": {"required": True, "content": copy.deepcopy(answer)},
        "responses": {
            "200": {"content": answer, "headers": {"x-request-id": {}}},
            "404": {"content": {}},
        },
    }
    return {"paths": {"/a": {"post": operation}}, "components": {"schemas": {name: body}}}


def lost(after: dict[str, Any]) -> list[str]:
    return list(Comparison(document(), after).lost())


def test_other_names_and_more_are_no_loss():
    after = document("Other")
    after["components"]["schemas"]["Other"]["properties"]["more"] = {"type": "string"}
    after["components"]["schemas"]["Other"]["properties"]["kind"]["enum"].append("c")
    after["paths"]["/b"] = {}
    assert lost(after) == []


def operation(after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = after["paths"]["/a"]["post"]
    return found


def schema(after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = after["components"]["schemas"]["Body"]
    return found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda after: after["paths"].clear(), "POST /a is gone"),
        (lambda after: operation(after).pop("parameters"), "query q is gone"),
        (lambda after: operation(after).pop("requestBody"), "requestBody is gone"),
        (lambda after: operation(after)["requestBody"].pop("required"), "required differs"),
        (lambda after: operation(after)["responses"].pop("404"), "404 is gone"),
        (lambda after: operation(after)["responses"]["200"].pop("headers"), "x-request-id"),
        (lambda after: operation(after)["responses"]["200"].pop("content"), "json is gone"),
        (lambda after: schema(after)["properties"].pop("n"), "the field n is gone"),
        (lambda after: schema(after)["properties"]["n"]["anyOf"].pop(), "alternative"),
        (lambda after: schema(after)["properties"]["n"]["anyOf"][0].pop("maximum"), "maximum"),
        (lambda after: schema(after)["properties"]["kind"]["enum"].pop(), "enum"),
        (lambda after: schema(after)["required"].clear(), "kind is not required"),
        (lambda after: schema(after)["patternProperties"].clear(), "the field x is gone"),
        (lambda after: schema(after).update(type="array"), "'object' became 'array'"),
    ],
)
def test_each_loss_is_found(change, text):
    after = document()
    change(after)
    assert any(text in line for line in lost(after))
