"""The manifests are what Kubernetes takes, and agree with each other, with the image and with the flags of `serve`."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from proxy import __version__
from proxy.cli import serve_command
from proxy.policy import load_policy
from proxy.policy.units import parse_duration

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS = [
    manifest for name in KUSTOMIZATION["resources"] for manifest in yaml.safe_load_all((FOLDER / name).read_text())
]
# The oldest release whose schemas are to be had, and the newest.
RELEASES = ("1.27", kubernetes_validate.latest_version())
OF_AN_OPERATOR = "monitoring.coreos.com/v1"


def manifest_of(kind, name="mendproxy"):
    [found] = [each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


DEPLOYMENT = manifest_of("Deployment")["spec"]
POD = DEPLOYMENT["template"]["spec"]
LABELS = DEPLOYMENT["template"]["metadata"]["labels"]
[CONTAINER] = POD["containers"]
ENVIRON = {entry["name"]: entry for entry in CONTAINER["env"]}
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
FLAGS = {option.envvar: option for option in serve_command.params if option.envvar}
POLICY = manifest_of("ConfigMap")["data"]["policy.yaml"]


def environ():
    """Return the environment of the container; secrets are made up."""
    return {name: entry.get("value", "made-up") for name, entry in ENVIRON.items()}


def told(name):
    """Return what a flag of `serve` is in the container."""
    return environ().get(name, FLAGS[name].default)


def named():
    return [pytest.param(each, id=f"{each['kind']} {each['metadata']['name']}") for each in MANIFESTS]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("manifest", [each for each in named() if each.values[0]["apiVersion"] != OF_AN_OPERATOR])
def test_kubernetes_takes_a_manifest_as_it_is(manifest, release):
    kubernetes_validate.validate(manifest, release, strict=True)


def test_a_manifest_that_kubernetes_would_refuse_is_found():
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(
            {"apiVersion": "apps/v1", "kind": "Deployment", "spec": DEPLOYMENT | {"replica": 1}},
            RELEASES[-1],
            strict=True,
        )


def test_every_file_is_applied():
    there = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == there


@pytest.mark.parametrize("manifest", named())
def test_a_manifest_goes_into_whichever_namespace_it_is_applied_to(manifest):
    assert "namespace" not in manifest["metadata"]
    assert manifest["metadata"]["labels"].items() >= LABELS.items()


def test_the_image_is_the_release_that_this_is():
    assert KUSTOMIZATION["images"] == [{"name": CONTAINER["image"], "newTag": __version__}]


def test_the_pod_has_no_rights():
    assert POD["automountServiceAccountToken"] is False
    account = manifest_of("ServiceAccount")
    assert account["metadata"]["name"] == POD["serviceAccountName"]
    assert account["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()


def test_the_pod_runs_as_the_user_of_the_image():
    [user] = re.findall(r"^USER (\d+:\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = POD["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    assert context["fsGroup"] == context["runAsGroup"]


def test_the_links_of_a_service_named_as_the_program_are_no_flags_of_it():
    assert "MENDPROXY_PORT" in FLAGS
    assert POD["enableServiceLinks"] is False


def test_the_policy_has_no_fault_and_leaves_no_doubt():
    policy = load_policy("policy.yaml", environ=environ(), text=POLICY)
    assert policy.warnings == ()
    assert policy.auth_keys == {"made-up"}
    assert policy.backends[0].url == ENVIRON["BACKEND_URL"]["value"]


def test_what_the_container_is_told_is_heard():
    heard = set(re.findall(r"\$\{(\w+)", POLICY)) | FLAGS.keys()
    assert ENVIRON.keys() <= heard
    assert set(re.findall(r"\$\{(\w+)", POLICY)) <= ENVIRON.keys()


def test_keys_come_from_a_secret_that_has_to_be_there():
    secret = {name: entry["valueFrom"]["secretKeyRef"] for name, entry in ENVIRON.items() if "valueFrom" in entry}
    assert secret == {name: {"name": "mendproxy", "key": name} for name in ("BACKEND_API_KEY", "MENDPROXY_KEY")}
    make = re.search(r"kubectl create secret generic mendproxy (.*)", (FOLDER / "kustomization.yaml").read_text())[1]
    assert set(re.findall(r"--from-literal=(\w+)=", make)) == set(secret)


def test_ports_are_those_that_are_served():
    assert {"http": told("MENDPROXY_PORT"), "admin": told("MENDPROXY_ADMIN_PORT")} == PORTS
    assert told("MENDPROXY_ADMIN_HOST") == "0.0.0.0"
    assert "MENDPROXY_HOST=0.0.0.0" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")],
)
def test_a_probe_asks_the_admin_port(probe, path):
    assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "admin"}


def test_the_pod_is_given_the_time_to_drain():
    drain_s = parse_duration(told("MENDPROXY_DRAIN_GRACE")) + parse_duration(told("MENDPROXY_DRAIN_TIMEOUT"))
    assert POD["terminationGracePeriodSeconds"] >= drain_s + 20
    assert "lifecycle" not in CONTAINER


def test_the_grace_lasts_until_the_pod_is_known_to_be_unready():
    probe = CONTAINER["readinessProbe"]
    assert parse_duration(told("MENDPROXY_DRAIN_GRACE")) >= probe["periodSeconds"] * probe["failureThreshold"]


def test_the_policy_is_mounted_as_a_folder_so_that_it_can_change():
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert [mount for mount in mounts.values() if "subPath" in mount] == []
    assert volumes["policy"]["configMap"]["name"] == manifest_of("ConfigMap")["metadata"]["name"]
    assert Path(told("MENDPROXY_CONFIG")) == Path(mounts["policy"]["mountPath"], "policy.yaml")
    assert mounts["policy"]["readOnly"] is True


def test_what_is_learned_is_written_where_the_container_may_write():
    writable = {mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {str(Path(told("MENDPROXY_LEARNED")).parent)}


@pytest.mark.parametrize(
    ("name", "port"),
    [pytest.param("mendproxy", "http", id="data"), pytest.param("mendproxy-admin", "admin", id="admin")],
)
def test_a_service_leads_to_one_port_of_the_pods(name, port):
    spec = manifest_of("Service", name)["spec"]
    assert spec["selector"] == LABELS
    assert [(each["name"], each["targetPort"]) for each in spec["ports"]] == [(port, port)]


def test_metrics_are_scraped_of_the_admin_service_under_the_name_that_the_alerts_know():
    monitor = manifest_of("ServiceMonitor")["spec"]
    metadata = manifest_of("Service", "mendproxy-admin")["metadata"]
    assert monitor["selector"]["matchLabels"] == metadata["labels"]
    assert metadata["labels"] != manifest_of("Service")["metadata"]["labels"]
    assert [(each["port"], each["path"]) for each in monitor["endpoints"]] == [("admin", "/metrics")]
    jobs = set(re.findall(r'job="([^"]*)"', (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()))
    assert jobs == {metadata["labels"][monitor["jobLabel"]]}


def test_who_is_not_prometheus_can_not_reach_the_admin_port():
    policy = manifest_of("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == LABELS
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    let_in = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    assert let_in.keys() == PORTS.keys()
    assert let_in["admin"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_the_pods_reach_names_and_their_backend_and_nothing_else():
    rules = manifest_of("NetworkPolicy")["spec"]["egress"]
    assert [rule for rule in rules if not rule.get("to")] == []
    reached = [port["port"] for rule in rules for port in rule["ports"]]
    assert reached == [53, 53, int(ENVIRON["BACKEND_URL"]["value"].rpartition(":")[2])]


def test_what_scales_and_what_protects_are_about_these_pods():
    scaler = manifest_of("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "mendproxy"}
    assert scaler["minReplicas"] > manifest_of("PodDisruptionBudget")["spec"]["maxUnavailable"]
    assert "replicas" not in DEPLOYMENT
    assert "cpu" in CONTAINER["resources"]["requests"]
    assert manifest_of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == LABELS
    for spread in POD["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"] == DEPLOYMENT["selector"]["matchLabels"] == LABELS
