"""From flags and config files to an application, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.aside import Aside

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
ROOT = Path(__file__).parents[3]
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}


def part(*required: str, **properties: object) -> dict[str, object]:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


POD = part("spec", spec=part("containers", containers={"type": "array", "minItems": 1}, volumes={}))
# What we use of KubeRay's RayService: a name that it does not know is dropped in silence.
RAY_SERVICE = part(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=part("name", name={"type": "string"}),
    spec=part(
        "rayClusterConfig",
        serveConfigV2={"type": "string"},
        rayClusterConfig=part(
            "headGroupSpec",
            rayVersion={"type": "string"},
            headGroupSpec=part("template", rayStartParams=TEXTS, template=POD),
            workerGroupSpecs={
                "type": "array",
                "items": part(
                    "groupName",
                    "template",
                    "minReplicas",
                    "maxReplicas",
                    groupName={"type": "string"},
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    rayStartParams=TEXTS,
                    template=POD,
                ),
            },
        ),
    ),
)


def ports(container: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_the_manifest_is_a_ray_service() -> None:
    manifest = yaml.safe_load((ROOT / "deploy/kuberay.yaml").read_text())
    jsonschema.validate(manifest, RAY_SERVICE)
    cluster = manifest["spec"]["rayClusterConfig"]
    served = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    [application] = served["applications"]
    [group] = cluster["workerGroupSpecs"]
    assert application["args"]["replicas"] == group["replicas"] <= group["maxReplicas"]
    [container] = group["template"]["spec"]["containers"]
    [head] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"serve", "dashboard"} <= ports(head).keys(), "by which it deploys, and asks for health"
    assert served["proxy_location"] == "EveryNode", "a pod without a proxy is never ready"
    assert ports(head)["serve"] == ports(container)["serve"] == served["http_options"]["port"]
    assert application["args"]["cpus"] == int(container["resources"]["limits"]["cpu"])
    cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(jsonschema.ValidationError, match="0 is not of type 'string'"):
        jsonschema.validate(manifest, RAY_SERVICE)


CONFIGS = """
import sys, yaml
from ray.serve.schema import ServeDeploySchema
from radixlm.ray import app

for text in sys.argv[1:]:
    config = yaml.safe_load(text)
    ServeDeploySchema(**config)
    [application] = config["applications"]
    app(application["args"])
"""


@pytest.mark.slow
def test_config_files_are_ray_serves_and_ours(aside: Aside) -> None:
    manifest = yaml.safe_load((ROOT / "deploy/kuberay.yaml").read_text())
    config = (ROOT / "deploy/replicas.yaml").read_text()
    assert aside.run(CONFIGS, config, manifest["spec"]["serveConfigV2"]) == ""


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"replicas": "two"}, "replicas is a whole number, got 'two'"),
    ({"replicas": 2.7}, "replicas is a whole number, got 2.7"),
    ({"replicas": 0}, "--replicas 0, --max-replicas 0: "),
    ({"replicas": 4, "max_replicas": 2}, "the second must not be less than the first"),
    ({"max_replicas": 0}, "--replicas 1, --max-replicas 0: "),
    ({"cpus": -1}, "cpus and gpus are 0 or more, got -1 and 0"),
    ({"cpus": "nan"}, "cpus is a number, got 'nan'"),
    ({"gpus": "inf"}, "cpus and gpus are 0 or more, got 1 and inf"),
    ({"gpus": 1.5}, "gpus is a part of one, or a whole number of them, got 1.5"),
    ({"gpus": 1, "tp_size": 2}, "each of 2 ranks needs a GPU, and gpus is 1"),
    ({"model": 5}, "model names a folder or a file, got 5"),
    ({"uds": "/run/x"}, "--uds is of one server"),
    ({"ollama_port": 11434}, "--ollama-port is of one server"),
    ({"disable_radix_cache": True}, "leaves nothing to route by"),
    ({"kv_token": 5}, "unknown flag 'kv_token'"),
    ({"port": 80}, "port belongs to Ray Serve's http_options"),
    ({"ssl_certfile": "cert.pem"}, "ssl_certfile belongs to Ray Serve's http_options"),
    ({"header_timeout": 5.0}, "--header-timeout has no use with replicas"),
    ({"device": "cuda:1"}, "Ray gives each replica GPUs of its own"),
]
REFUSALS = """
import json, sys
from radixlm.core.errors import ConfigError
from radixlm.ray import app

for args in json.loads(sys.argv[1]):
    try:
        app(args)
    except ConfigError as error:
        print(str(error).splitlines()[0])
    else:
        print("taken")
"""


@pytest.mark.slow
def test_what_cannot_be_is_refused(aside: Aside) -> None:
    refused = aside.run(REFUSALS, json.dumps([args for args, _ in REFUSED]))
    for (args, message), said in zip(REFUSED, refused.splitlines(), strict=True):
        assert message in said, args


RESOURCES = """
import json, sys
from radixlm.ray import app

for args in json.loads(sys.argv[1]):
    replica = app(args)._bound_deployment.init_args[0]._bound_deployment
    print(replica.init_args[0].device, replica.ray_actor_options["num_gpus"])
"""


@pytest.mark.slow
def test_each_rank_has_a_gpu(aside: Aside) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({}, "cpu 0.0"),  # those that others were given are not taken
        ({"gpus": 1}, "cuda 1.0"),
        ({"gpus": 0.5}, "cuda 0.5"),
        ({"device": "cuda"}, "cuda 1.0"),
        ({"device": "cuda", "tp_size": 4}, "cuda 4.0"),
    ]
    made = aside.run(RESOURCES, json.dumps([args for args, _ in cases]))
    assert made.splitlines() == [wanted for _, wanted in cases]


THREADS = (
    "from radixlm.core.config import EngineConfig; "
    "from radixlm.ray.deployment import on_one_machine; "
    "print(on_one_machine(EngineConfig(tp_size=2), 3, 20.5).threads,"
    " on_one_machine(EngineConfig(threads=5), 3, 20.5).threads,"
    " on_one_machine(EngineConfig(), 3, 1.5).threads)"
)


@pytest.mark.slow
def test_ranks_share_the_processors_of_one_machine(aside: Aside) -> None:
    assert aside.run(THREADS).split() == ["3", "5", "1"]


WANTED = """
import json, sys
from types import SimpleNamespace
from ray.serve.config import AutoscalingConfig
from radixlm.ray.autoscaling import by_queues

state = {}
for running, waiting in json.loads(sys.argv[1]):
    metrics = {}
    for name, counts in (("running", running), ("waiting", waiting)):
        metrics[name] = dict(enumerate(counts))
    context = SimpleNamespace(
        aggregated_metrics=metrics if running else None,
        policy_state=state,
        target_num_replicas=7,
        config=AutoscalingConfig(target_ongoing_requests=16),
    )
    wanted, state = by_queues(context)
    print(round(wanted, 2))
"""


@pytest.mark.slow
def test_replicas_are_wanted_by_what_runs_and_waits_in_them(aside: Aside) -> None:
    seen = [
        ((), ()),  # nobody has reported
        ((4, 4), (0, 0)),  # half of the room of one
        ((4, 6), (0, 10)),  # six run where ten wait: so twenty are work for more than three
        ((4, 2), (0, 0)),  # one has been seen to be enough
    ]
    wanted = aside.run(WANTED, json.dumps(seen))
    assert [float(line) for line in wanted.split()] == [7, 0.5, 3.33, 1]


VERSIONS = """
import sys
from pathlib import Path
from radixlm.ray import app

folder = Path(sys.argv[1])
weights = folder / "shards" / "one.safetensors"
weights.parent.mkdir()
(folder / "config.json").write_text("{}")
index = '{"weight_map": {"weight": "shards/one.safetensors"}}'
(folder / "model.safetensors.index.json").write_text(index)
weights.write_bytes(b"1")


def version(**args):
    return app({"model": str(folder), **args})._bound_deployment.init_args[-1]


print(version(), version(replicas=3), version(page_size=16))
weights.write_bytes(b"22")
print(version())
"""


@pytest.mark.slow
def test_replaced_weights_are_another_version(aside: Aside, tmp_path: Path) -> None:
    versions = aside.run(VERSIONS, str(tmp_path)).split()
    first, of_more_replicas, of_other_flags, replaced = versions
    assert first == of_more_replicas
    assert len({first, of_other_flags, replaced}) == 3
