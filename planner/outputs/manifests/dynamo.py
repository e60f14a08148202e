"""Write a plan for NVIDIA Dynamo: a graph and a KEDA ScaledObject for each scaling adapter.

The graph holds the replicas and the adapter of each component.
"""

from planner.outputs.manifests import common, keda
from planner.outputs.manifests.groups import Service, services
from planner.outputs.object_names import name_of
from planner.outputs.plans import Rule, pool_text
from planner.outputs.pools import Pool
from planner.policies.builtin.dynamo_planner import DynamoPlanner
from simulation.policies.dynamo_planner import POWER_BUDGET, TBT_LIMIT, TTFT_LIMIT

API, KIND = "nvidia.com/v1beta1", "DynamoGraphDeployment"
ADAPTER = "DynamoGraphDeploymentScalingAdapter"
ROLES = {"mixed": "worker", "both": "worker"}  # other roles keep their name: prefill, decode


def documents(export: common.Export) -> list[common.Document]:
    """Return the Dynamo graph of each service, and the ScaledObjects of its pools."""
    plan = export.plan
    if plan.rule and isinstance(plan.rule.policy, DynamoPlanner):
        return _with_planner(export, plan.rule, plan.rule.policy)
    documents: list[common.Document] = []
    for service in services(plan.pools, "dynamo"):
        documents.append(_graph(export, service))
        documents += [_scaled_object(export, service, pool) for pool in service.pools]
    notes = [
        "Merge the components into your graph by name. Pods and the frontend are not included.",
        "A component with a scalingAdapter gets its count from the adapter. Until KEDA writes it, "
        "replicas applies.",
        *keda.trigger_notes(plan),
    ]
    if not all(pool.min_replicas for pool in plan.pools):
        notes.append("Without any worker, Dynamo's frontend forgets the model (404).")
    return common.with_file_comment(export, documents, *notes)


def _with_planner(
    export: common.Export, rule: Rule, policy: DynamoPlanner
) -> list[common.Document]:
    """Return the Dynamo graph of each service, and its PlannerConfig in a ConfigMap."""
    documents = []
    for service in services(export.plan.pools, "dynamo"):
        documents.append(_graph(export, service))
        config = planner_config(rule, policy, service)
        text = common.yaml_text([common.Document(config, schema="")])
        planner = common.metadata(export, service.decode, name_of([service.name, "planner"]))
        body = common.kubernetes_object("v1", "ConfigMap", planner, data={"planner.yaml": text})
        documents.append(common.Document(body, "dynamo-planner", (f"Planner of {service.name}",)))
    notes = (
        "Mount the ConfigMap into the Planner of the graph, and start it with --config "
        "PATH/planner.yaml.",
        "backend is assumed. A power budget needs prefill and decode pools with power caps.",
    )
    return common.with_file_comment(export, documents, *notes)


def planner_config(rule: Rule, policy: DynamoPlanner, service: Service) -> common.Fields:
    """Return the fields of PlannerConfig (ai-dynamo 1.6) for the parameters of the policy."""
    target = policy.name.removeprefix("dynamo-")
    is_disaggregated = service.prefill is not None
    by_sla = target == "sla"  # scale by throughput and latency limits, not by load
    interval_field = f"{'throughput' if by_sla else 'load'}_adjustment_interval_seconds"
    config: common.Fields = {
        "environment": "kubernetes",
        "backend": "vllm",
        "mode": "disagg" if is_disaggregated else "agg",
        "model_name": service.decode.model,
        "optimization_target": target,
        "enable_throughput_scaling": by_sla,
        "enable_load_scaling": not by_sla,
        interval_field: round(policy.decision_interval_s),
        "min_endpoint": policy.min_replicas,
        "max_gpu_budget": -1 if policy.max_gpus is None else policy.max_gpus,
    }
    if by_sla:
        config["load_predictor"] = policy.predictor
        config["max_throughput_scaling_replicas"] = policy.max_step
        config |= _latency_limits(rule, policy, service)
    if target == "load":
        config |= _load_limits(policy, is_disaggregated)
    power_w = policy.power_w or rule.simulated_value(service.decode, POWER_BUDGET)
    if power_w is not None and is_disaggregated:
        config["enable_power_awareness"] = True
        config["total_gpu_power_limit"] = int(power_w)
    return config


def _latency_limits(rule: Rule, policy: DynamoPlanner, service: Service) -> common.Fields:
    """Return the latency limits in milliseconds: as simulated, else as the policy gives them."""
    limits: common.Fields = {}
    for field, value_name, own_limit_ms in (("ttft_ms", TTFT_LIMIT, policy.ttft_ms),
                                            ("itl_ms", TBT_LIMIT, policy.itl_ms)):  # fmt: skip
        limit_ms = rule.simulated_value(service.decode, value_name)
        if not limit_ms:
            limit_ms = (own_limit_ms or 0.0) * policy.target_factor
        if limit_ms:
            limits[field] = float(f"{limit_ms:.6g}")
    return limits


def _load_limits(policy: DynamoPlanner, is_disaggregated: bool) -> common.Fields:
    """Return the loads at which to scale: KV memory in percent, prompt tokens that wait."""
    factor = policy.target_factor
    limits: common.Fields = {
        "decode_scale_up_kv_rate": min(100 * policy.decode_out_kv * factor, 100.0),
        "decode_scale_down_kv_rate": 100 * policy.decode_in_kv * factor,
    }
    if is_disaggregated:
        limits["prefill_scale_up_queue_tokens"] = round(policy.prefill_out_tokens * factor)
        limits["prefill_scale_down_queue_tokens"] = round(policy.prefill_in_tokens * factor)
    return limits


def component_of(pool: Pool) -> str:
    """Return the name of a pool's component in the graph."""
    return ROLES.get(pool.role, pool.role)


def _graph(export: common.Export, service: Service) -> common.Document:
    """Return the graph of a service."""
    components = [
        {
            "name": component_of(pool),
            "type": component_of(pool),
            "replicas": export.replicas(pool),
            "scalingAdapter": {},
        }
        for pool in service.pools
    ]
    graph = common.metadata(export, service.decode, service.name)
    body = common.kubernetes_object(API, KIND, graph, spec={"components": components})
    return common.Document(body, "dynamo", tuple(map(pool_text, service.pools)))


def _scaled_object(export: common.Export, service: Service, pool: Pool) -> common.Document:
    """Return the ScaledObject of a pool's scaling adapter, named after graph and component."""
    adapter = f"{service.name}-{component_of(pool)}"
    target = common.Target(ADAPTER, adapter, API)
    return keda.scaled_object(export, pool, target, name=name_of([adapter]))
