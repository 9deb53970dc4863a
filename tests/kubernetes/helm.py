"""The charts: linted, judged by an API server, installed, upgraded, and their pods run as their manifests say. tests/kubernetes/helm starts this."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from cluster import POD, ApiError, ApiServer, Backend, endpoints, ingress, namespace, service, wait
from containers import Containers

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHARTS = ROOT / "packaging/helm"
SPACE = "helm-test"
MONITOR = {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
SCALED = {"autoscaling": {"enabled": True, "minReplicas": 3}}
ADMISSION = {"admission": {"enabled": True, "secretName": "weir-admission", "caBundle": "YQ=="}}
ACME = {"enabled": True, "acceptTermsOfService": True, "claim": "weir-acme"}
PLACED = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "edge", "operator": "Exists"}], "podAnnotations": {"a": "b"},
          "affinity": {"nodeAffinity": {}}, "imagePullSecrets": [{"name": "registry"}]}
SPREAD = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
           "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "weir-ingress"}}}]

# Each switch of each chart.
CASES = {
    "weir-ingress": {
        "defaults": {},
        "one pod": {"replicaCount": 1},
        "five pods": {"replicaCount": 5, "podDisruptionBudget": {"minAvailable": "50%"}},
        "a pod for each node": {"kind": "DaemonSet"},
        "as many as needed": SCALED,
        "no disruption budget": {"podDisruptionBudget": {"enabled": False}},
        "figures": MONITOR,
        "no network policy": {"networkPolicy": {"enabled": False}},
        "figures for one namespace": {"networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}},
        "admission": ADMISSION,
        "admission by cert-manager": {"admission": {"enabled": True, "secretName": "x", "failurePolicy": "Fail",
                                                    "annotations": {"cert-manager.io/inject-ca-from": "weir/weir"}}},
        "gateways": {"gateway": {"class": "weir", "ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "db", "port": 5432}]}},
        "gateways of a second release": {"gateway": {"class": "second", "controller": "example.com/second"}},
        "a service for each gateway": {"gateway": {"services": {"enabled": True, "type": "LoadBalancer", "selector": {"app": "weir"}}}},
        "an address for each gateway": {"gateway": {"addresses": ["10.0.0.0/24"]}},
        "the class of ingress-nginx": {"ingressClass": {"name": "nginx", "default": True, "controllers": ["k8s.io/ingress-nginx", "weir.internal/ingress"]}},
        "in the cluster alone": {"service": {"type": "ClusterIP"}},
        "ports of nodes": {"service": {"type": "NodePort", "externalTrafficPolicy": "Cluster", "annotations": {"a": "b"}}},
        "a balancer of its own kind": {"service": {"labels": {"team": "edge"}, "loadBalancerClass": "service.k8s.aws/nlb", "loadBalancerIP": "192.0.2.7",
                                                   "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/32"], "ipFamilyPolicy": "PreferDualStack"}},
        "chosen ports of nodes": {"service": {"type": "NodePort", "nodePorts": {"http": 30080, "https": 30443}, "externalIPs": ["192.0.2.8"], "ipFamilies": ["IPv4"]}},
        "HTTP/3": {"http3": {"enabled": True, "hostKeySecret": "quic"}, "service": {"nodePorts": {"https": 30443}}},
        "ports of the machine": {"kind": "DaemonSet", "http3": {"enabled": True}, "hostPorts": {"enabled": True}, "service": {"type": "ClusterIP"}},
        "ports of Services": {"tcp": {"5432": "default/postgres:5432", "6379": "default/redis:redis:PROXY"}, "udp": {"5353": "dns/dns:53"}},
        "no IPv6": {"ports": {"ipv6": False}, **ADMISSION},
        "other ports": {"ports": {"http": 8000, "https": 8001}},
        "defaults for Ingresses": {"config": {"proxy-body-size": "8m", "keep-alive-requests": 10000000, "use-gzip": True, "hsts": "false"}},
        "another file": {"base": "  # begins with spaces\nevents { }\nhttp { }\n"},
        "placed": {**PLACED, "topologySpreadConstraints": SPREAD, "podLabels": {"team": "edge"}, "priorityClassName": "system-cluster-critical"},
        "ends at once": {"drainSeconds": 0, "terminationGracePeriodSeconds": 30},
        "pods near by": {"nearPods": True},
        "certificates": {"acme": ACME},
        "one namespace": {"scope": {"enabled": True}, "tcp": {"5432": f"{SPACE}/postgres:5432"}},
        "another namespace": {"scope": {"enabled": True, "namespace": "site"}},
        "arguments": {"extraArgs": ["--allow-snippet-directive=add_header", "--resolver=10.0.0.10 valid=5s"]},
        "all at once": {**SCALED, **MONITOR, **ADMISSION, "acme": {**ACME, "contact": "admin@example.org", "lines": "profile shortlived;\nchallenge http-01;\n"}, "nearPods": True, "gateway": {"class": "weir", "services": {"enabled": True}}},
    },
    "weir": {
        "defaults": {},
        "one pod": {"replicaCount": 1},
        "as many as needed": SCALED,
        "figures": MONITOR,
        "no disruption budget": {"podDisruptionBudget": {"enabled": False}},
        "an nginx.conf": {"config": "  # begins with spaces\nevents { }\nhttp { include /etc/weir/conf.d/*.conf; }\n"},
        "sites": {"sites": {"default.conf": "", "shop.conf": "\tserver { listen 8080; }\n\n\n"}},
        "ports of nodes": {"service": {"type": "NodePort", "port": 8000, "annotations": {"a": "b"}}},
        "placed": PLACED,
        "volumes": {"extraVolumes": [{"name": "site", "emptyDir": {}}], "extraVolumeMounts": [{"name": "site", "mountPath": "/srv/site"}]},
    },
}

# Values that make no sense, and a word of what helm says.
MISTAKES = {
    "weir-ingress": [
        ({"replicaCuont": 3}, "replicaCuont"),
        ({"kind": "StatefulSet"}, "kind"),
        ({"replicaCount": "two"}, "replicaCount"),
        ({"service": {"type": "ExternalName"}}, "type"),
        ({"ports": {"http": 70000}}, "http"),
        ({"ports": {"http": 8443}}, "must differ"),
        ({"ports": {"https": 10254}}, "must differ"),
        ({"ingressClass": {"controllers": []}}, "controllers"),
        ({"gateway": {"ports": [{"name": "a-name-that-is-too-long", "port": 1000}]}}, "name"),
        ({"gateway": {"controller": "second"}}, "controller"),
        ({"gateway": {"ports": [{"name": "other", "port": 8080}]}}, "port TCP 8080 is taken"),
        ({"gateway": {"ports": [{"name": "dns", "port": 53}, {"name": "dns", "port": 54}]}}, "the name dns is taken"),
        ({"autoscaling": {"enabled": True, "minReplicas": 11}}, "more than autoscaling.maxReplicas"),
        ({"autoscaling": {"enabled": True}, "kind": "DaemonSet"}, "needs kind: Deployment"),
        ({"autoscaling": {"enabled": True}, "resources": {"weir": {"requests": None}}}, "resources.weir.requests.cpu"),
        ({"podDisruptionBudget": {"minAvailable": 2}}, "no pod to evict"),
        ({"admission": {"enabled": True, "caBundle": "YQ=="}}, "admission.secretName"),
        ({"admission": {"enabled": True, "secretName": "x"}}, "admission.caBundle"),
        ({"admission": {"enabled": True, "secretName": "x", "caBundle": "-----BEGIN"}}, "caBundle"),
        ({"acme": {"enabled": True}}, "acme.claim"),
        ({"acme": {**ACME, "uri": "http://acme.test/dir"}}, "uri"),
        ({"acme": {**ACME, "contact": "a; load_module x"}}, "contact"),
        ({"acme": ACME, "base": "events { }"}, "exclude each other"),
        ({"http3": {"hostKeySecret": "quic"}, "base": "events { }"}, "exclude each other"),
        ({"tcp": {"8080": "default/web:80"}}, "port 8080 is taken"),
        ({"udp": {"53": "dns:53"}}, "udp"),
        ({"udp": {"8443": "dns/dns:53"}, "http3": {"enabled": True}}, "port 8443 is taken"),
        ({"hostPorts": {"enabled": True, "https": 80}}, "hostPorts"),
        ({"service": {"loadBalancerSourceRanges": ["192.0.2.7"]}}, "loadBalancerSourceRanges"),
        ({"drainSeconds": 400}, "drainSeconds is more"),
        ({"scope": {"namespace": "shop"}}, "scope.namespace needs scope.enabled"),
        ({"scope": {"enabled": True}, "gateway": {"class": "weir"}}, "scope.enabled and gateway exclude each other"),
        ({"scope": {"enabled": True}, **ADMISSION}, "scope.enabled and admission.enabled exclude each other"),
        ({"scope": {"enabled": True, "namespace": "shop"}, "tcp": {"5432": "default/postgres:5432"}}, "outside of the namespace"),
        ({"extraArgs": "--resolver=1.1.1.1"}, "extraArgs"),
        ({"config": {"headers": {"a": "b"}}}, "headers"),
    ],
    "weir": [
        ({"sites": {"a/b.conf": ""}}, "a/b.conf"),
        ({"replicas": 3}, "replicas"),
        ({"health": {"path": "healthz"}}, "path"),
        ({"containerPort": 8081}, "must differ"),
        ({"podDisruptionBudget": {"minAvailable": 2}}, "no pod to evict"),
        ({"autoscaling": {"enabled": True}, "resources": {"requests": None}}, "resources.requests.cpu"),
    ],
}


class World:
    """An API server, and helm."""

    def __init__(self, dir, server, binaries):
        self.dir, self.binaries = dir, pathlib.Path(binaries)
        self.api = ApiServer(dir, server)
        self.files = 0
        config = dir / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self.api.port}", "certificate-authority": str(self.api.authority)}}],
            "users": [{"name": "test", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": SPACE}}]}))
        self.env = {**os.environ, "KUBECONFIG": str(config), "HELM_CACHE_HOME": str(dir / "cache"), "HELM_CONFIG_HOME": str(dir / "config"),
                    "HELM_DATA_HOME": str(dir / "data")}
        wait("namespaces", 30, lambda: self.api.put(namespace(SPACE)))
        self.api.put(namespace("site"))
        # Pods here must keep to the strictest of the standards for pods.
        strict = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
        self.api.put({**namespace("restricted"), "metadata": {"name": "restricted", "labels": strict}})
        kinds = pathlib.Path(os.environ["WEIR_GATEWAY_CRDS"])
        for file in (kinds / "gateway.networking.k8s.io_gatewayclasses.yaml", pathlib.Path(os.environ["WEIR_MONITOR_CRD"])):
            self.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", file.read_text(), "application/yaml")
        for group in ("gateway.networking.k8s.io/v1", "monitoring.coreos.com/v1"):
            wait(group, 30, lambda group=group: self.api.call("GET", f"/apis/{group}"))

    def upgrade(self, *args):
        """An upgrade, with what the chart asks for before."""
        done = self.helm("upgrade", *args, good=False)
        found = re.search(r"kubectl --namespace (\S+) patch service (\S+) --type json --patch '(.*)'", done.stderr)
        if found:
            space, name, patch = found.groups()
            self.api.call("PATCH", f"/api/v1/namespaces/{space}/services/{name}", patch, "application/json-patch+json")
        if done.returncode:
            self.helm("upgrade", *args)
        return bool(found)

    def ports(self):
        """The ports of the Service of weir-ingress, and those of its pods."""
        service = self.api.call("GET", f"/api/v1/namespaces/{SPACE}/services/weir-weir-ingress")
        pods = self.api.call("GET", f"/apis/apps/v1/namespaces/{SPACE}/deployments/weir-weir-ingress")["spec"]["template"]["spec"]["containers"][0]
        return ({(port["name"], port["port"], port["protocol"]) for port in service["spec"]["ports"]},
                {(port["name"], port["containerPort"], port["protocol"]) for port in pods["ports"]})

    def values(self, values):
        self.files += 1
        file = self.dir / f"values-{self.files}.json"
        file.write_text(json.dumps(values))
        return ["--values", str(file)]

    def helm(self, *args, good=True):
        done = subprocess.run([os.environ["HELM"], *map(str, args)], env=self.env, capture_output=True, text=True, check=False)
        assert not good or done.returncode == 0, f"helm {' '.join(map(str, args[:3]))}: {done.stderr}"
        return done if not good else done.stdout

    def judged(self, chart, values):
        """The objects of a chart as the API server would store them; it refuses unknown fields."""
        text = self.helm("template", "weir", CHARTS / chart, "--namespace", SPACE, *self.values(values))
        objects = []
        for part in re.split(r"^---\n", text, flags=re.M):
            kind, version = (re.search(rf"^{key}: (\S+)$", part, re.M) for key in ("kind", "apiVersion"))
            if not kind:
                continue
            whole = kind[1] in ("ClusterRole", "ClusterRoleBinding", "IngressClass", "GatewayClass", "ValidatingWebhookConfiguration")
            space = re.search(r"^metadata:\n(?:  .*\n)*?  namespace: (\S+)$", part, re.M)
            meta = {} if whole else {"namespace": space[1] if space else SPACE}
            path = self.api.path({"apiVersion": version[1], "kind": kind[1], "metadata": meta})
            objects.append(self.api.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", part, "application/yaml"))
        return objects

    def stored(self, release="weir"):
        """What the release has in the cluster: an object's kind and name, and what changes with each write."""
        found = {}
        for path in ("api/v1", "apis/apps/v1", "apis/autoscaling/v2", "apis/policy/v1", "apis/networking.k8s.io/v1", "apis/rbac.authorization.k8s.io/v1",
                     "apis/admissionregistration.k8s.io/v1", "apis/monitoring.coreos.com/v1", "apis/gateway.networking.k8s.io/v1"):
            for kind in self.api.call("GET", f"/{path}")["resources"]:
                if "/" in kind["name"] or "list" not in kind["verbs"]:
                    continue
                items = self.api.call("GET", f"/{path}/{kind['name']}?labelSelector=app.kubernetes.io/instance%3D{release}")["items"]
                found.update({(kind["kind"], item["metadata"]["name"]): item["metadata"]["resourceVersion"] for item in items})
        return found

    def welcome(self):
        """A status for each GatewayClass, as its controller writes it: until then the API server stores a default with the next write."""
        classes = "/apis/gateway.networking.k8s.io/v1/gatewayclasses"
        condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for item in self.api.call("GET", classes)["items"]:
            status = {"status": {"conditions": [condition]}}
            self.api.call("PATCH", f"{classes}/{item['metadata']['name']}/status", status, "application/merge-patch+json")

    def end(self):
        self.api.end()


def template(objects):
    return next(o["spec"]["template"] for o in objects if o["kind"] in ("Deployment", "DaemonSet"))


def charts_have_no_mistakes_that_helm_knows(w):
    for chart, cases in CASES.items():
        for name, values in cases.items():
            said = w.helm("lint", "--strict", CHARTS / chart, *w.values(values))
            assert "[WARNING]" not in said and "[ERROR]" not in said, (chart, name, said)
    return f"{sum(map(len, CASES.values()))} sets of values"


def an_api_server_takes_all_objects_without_unknown_fields(w):
    count = 0
    for chart, cases in CASES.items():
        for name, values in cases.items():
            try:
                objects = w.judged(chart, values)
            except ApiError as error:
                raise AssertionError(f"{chart}, {name}: {error}") from error
            count += len(objects)
            kinds = {o["kind"] for o in objects}
            for kind, key in (("HorizontalPodAutoscaler", "autoscaling"), ("ServiceMonitor", "serviceMonitor"), ("ValidatingWebhookConfiguration", "admission")):
                assert (kind in kinds) == bool(values.get(key, {}).get("enabled")), (chart, name, kind)
            if name == "defaults for Ingresses":
                data = next(o["data"] for o in objects if o["kind"] == "ConfigMap" and "ingress.conf" not in o["data"])
                assert data["keep-alive-requests"] == "10000000" and data["use-gzip"] == "true", data
    return f"{count} objects"


def values_without_sense_are_refused_with_their_name(w):
    for chart, mistakes in MISTAKES.items():
        for values, word in mistakes:
            done = w.helm("template", "weir", CHARTS / chart, *w.values(values), good=False)
            assert done.returncode and word in done.stderr, (chart, values, done.stderr or "taken")
    return f"{sum(map(len, MISTAKES.values()))} mistakes"


def pods_have_no_rights_that_they_do_not_need(w):
    pods = 0
    for chart, cases in CASES.items():
        for name, values in cases.items():
            if values.get("hostPorts", {}).get("enabled"):
                # No standard lets pods have ports of the machine.
                continue
            found = template(w.judged(chart, values))
            spec = found["spec"]
            # The API server refuses what is not of the standard "restricted": root, capabilities, no seccomp profile, paths of the host.
            w.api.call("POST", "/api/v1/namespaces/restricted/pods?dryRun=All", {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "labels": found["metadata"]["labels"]}, "spec": {**spec, "restartPolicy": "Always"}})
            assert spec["automountServiceAccountToken"] is False, (chart, name)
            assert spec["securityContext"]["runAsUser"] == 10001, (chart, name)
            for container in spec["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, (chart, name)
                assert "memory" in container["resources"].get("limits", {}), (chart, name)
                token = any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
                assert token == (container["name"] == "controller"), (chart, name, container["name"])
            pods += 1
    return f"{pods} pods of the standard \"restricted\""


def an_upgrade_that_changes_nothing_writes_nothing(w):
    begin = time.monotonic()
    for chart, cases in CASES.items():
        for name, values in cases.items():
            if "loadBalancerClass" in values.get("service", {}):
                # Kubernetes lets it not change once it is set.
                continue
            args = ["weir", CHARTS / chart, "--namespace", SPACE]
            w.helm("install", *args)
            changed = w.values(values)
            w.upgrade(*args, *changed)
            w.welcome()
            before = w.stored()
            assert len(before) >= 3, before
            w.helm("upgrade", *args, *changed)
            after = w.stored()
            assert after == before, (chart, name, set(after.items()) ^ set(before.items()))
            # And back to the defaults, which removes what they do not have.
            w.helm("upgrade", *args, "--reset-values")
            w.helm("uninstall", "weir", "--namespace", SPACE)
            assert not w.stored(), (chart, name, w.stored())
    return f"{sum(map(len, CASES.values()))} sets of values in {time.monotonic() - begin:.0f} s"


def a_second_protocol_of_a_port_takes_the_first_from_nobody(w):
    args = ["weir", CHARTS / "weir-ingress", "--namespace", SPACE]
    changes = [{"http3": {"enabled": True}}, {"tcp": {"5353": "dns/dns:53"}}, {"tcp": {"5353": "dns/dns:53"}, "udp": {"5353": "dns/dns:53"}},
               {"http3": {"enabled": True}, "tcp": {"5353": "dns/dns:53"}, "udp": {"5353": "dns/dns:53"}, "service": {"labels": {"team": "edge"}}}, {}]
    w.helm("install", *args)
    asked = []
    try:
        for values in changes:
            asked.append(w.upgrade(*args, "--reset-values", *w.values(values)))
            service, pods = w.ports()
            wanted = {("http", 80, "TCP"), ("https", 443, "TCP")}
            wanted |= {("http3", 443, "UDP")} if "http3" in values else set()
            wanted |= {(f"{kind}-{port}", int(port), kind.upper()) for kind in ("tcp", "udp") for port in values.get(kind, {})}
            assert service == wanted, (values, service)
            assert {("http", 8080, "TCP"), ("https", 8443, "TCP")} <= pods, (values, pods)
    finally:
        w.helm("uninstall", "weir", "--namespace", SPACE)
    assert asked == [True, False, True, True, False], asked


def another_version_of_the_chart_alone_makes_no_new_pods(w):
    for chart in CASES:
        other = w.dir / f"other-{chart}"
        shutil.copytree(CHARTS / chart, other)
        file = other / "Chart.yaml"
        file.write_text(re.sub(r"^version: .*$", "version: 9.9.9", file.read_text(), flags=re.M))
        args = ["--namespace", SPACE]
        one = w.helm("template", "weir", CHARTS / chart, *args, "--show-only", f"templates/{'workload' if chart == 'weir-ingress' else 'deployment'}.yaml")
        two = w.helm("template", "weir", other, *args, "--show-only", f"templates/{'workload' if chart == 'weir-ingress' else 'deployment'}.yaml")
        assert one != two and one[one.index("  template:"):] == two[two.index("  template:"):], chart


def a_pod_of_the_ingress_chart_runs_as_its_manifest_says(w):
    w.helm("install", "weir", CHARTS / "weir-ingress", "--namespace", SPACE, *w.values({"config": {"proxy-body-size": "8m"}}))
    pods = None
    try:
        pods = Containers(w.api, w.dir, w.binaries, SPACE, "weir-weir-ingress")
        pods.start()
        wait("ready", 60, lambda: pods.get(10254, "/readyz")[0] == 200)
        one = Backend("one")
        w.api.put(namespace("site"))
        w.api.put(service("site", "site"))
        for slice in endpoints("site", "site", [one]):
            w.api.put(slice)
        w.api.put(ingress("site", "site", "site.test", [("/", "Prefix", "site")]))
        wait("traffic", 20, lambda: pods.get(8080, "/", "site.test")[0] == 200)
        # A body that does not fit in memory.
        assert pods.get(8080, "/", "site.test", b"x" * (4 << 20))[0] == 200
        assert pods.get(8081, "/healthz")[0] == 200 and pods.get(8081, "/healthz", address="::1")[0] == 200
        assert pods.get(10254, "/healthz", address="::1")[0] == 200
        said = pods.end()
    finally:
        if pods:
            pods.kill()
        w.helm("uninstall", "weir", "--namespace", SPACE)
    return said


def a_pod_for_one_namespace_has_no_rights_elsewhere(w):
    """The release is in one namespace, and another one is watched: both have Roles, and the cluster has nothing."""
    w.helm("install", "alone", CHARTS / "weir-ingress", "--namespace", SPACE,
           *w.values({"scope": {"enabled": True, "namespace": "site"}, "config": {"server-snippet": "location = /said { return 204; }", "no-such-key": "x"},
                      "service": {"type": "ClusterIP", "externalIPs": ["192.0.2.8"]}}))
    pods = None
    try:
        whole = {kind for kind, _ in w.stored("alone")} & {"ClusterRole", "ClusterRoleBinding", "IngressClass", "GatewayClass"}
        assert not whole, whole
        pods = Containers(w.api, w.dir, w.binaries, SPACE, "alone-weir-ingress")
        pods.start()
        wait("ready", 60, lambda: pods.get(10254, "/readyz")[0] == 200)
        one = Backend("one")
        for space in ("site", "strange"):
            w.api.put(namespace(space))
            w.api.put(service(space, "alone"))
            for slice in endpoints(space, "alone", [one]):
                w.api.put(slice)
            w.api.put(ingress(space, "alone", f"{space}.test", [("/", "Prefix", "alone"), ("/lost", "Prefix", "lost")]))
        wait("traffic", 20, lambda: pods.get(8080, "/", "site.test")[0] == 200)
        assert pods.get(8080, "/said", "site.test")[0] == 204
        shown = lambda: w.api.get(ingress("site", "alone", "", []))["status"]["loadBalancer"].get("ingress")
        wait("a status", 20, lambda: shown() == [{"ip": "192.0.2.8"}])
        reasons = lambda space, name: {reason for reason, _ in w.api.events(space, name)}
        wait("an Event", 20, lambda: "NoService" in reasons("site", "alone"))
        wait("an Event about the map", 20, lambda: reasons(SPACE, "alone-weir-ingress"))
        assert pods.get(8080, "/", "strange.test")[0] == 404
        text = pods.processes["controller"].text()
        assert "forbidden" not in text and "right" not in text, text
        failures = re.search(r"^weir_ingress_watch_failures_total (\d+)$", pods.get(10254, "/metrics")[1].decode(), re.M)
        assert failures[1] == "0", failures
        pods.end()
    finally:
        if pods:
            pods.kill()
        w.helm("uninstall", "alone", "--namespace", SPACE)


def a_pod_of_the_server_chart_runs_as_its_manifest_says(w):
    site = lambda word: {"sites": {"default.conf": f"server {{ listen 8080; location / {{ return 200 {word}; }} location /up {{ proxy_pass http://{POD}:%d; }} }}"}}
    one = Backend("one")
    text = lambda word: w.values({"sites": {"default.conf": site(word)["sites"]["default.conf"] % one.port}})
    w.helm("install", "weir", CHARTS / "weir", "--namespace", SPACE, *text("first"))
    pods = None
    try:
        pods = Containers(w.api, w.dir, w.binaries, SPACE, "weir")
        pods.start()
        wait("traffic", 60, lambda: pods.get(8080, "/")[1] == b"first")
        assert pods.get(8080, "/up", body=b"x" * (1 << 19))[0] == 200
        assert pods.get(8081, "/healthz")[0] == 200
        # A changed ConfigMap is taken by a reload.
        w.helm("upgrade", "weir", CHARTS / "weir", "--namespace", SPACE, *text("second"))
        pods.refresh()
        took = wait("the new site", 30, lambda: pods.get(8080, "/")[1] == b"second")
        said = pods.end()
    finally:
        if pods:
            pods.kill()
        w.helm("uninstall", "weir", "--namespace", SPACE)
    return f"{said}; a changed site within {took:.0f} s"


TESTS = [charts_have_no_mistakes_that_helm_knows, values_without_sense_are_refused_with_their_name,
         an_api_server_takes_all_objects_without_unknown_fields, pods_have_no_rights_that_they_do_not_need,
         a_second_protocol_of_a_port_takes_the_first_from_nobody,
         another_version_of_the_chart_alone_makes_no_new_pods, an_upgrade_that_changes_nothing_writes_nothing,
         a_pod_of_the_ingress_chart_runs_as_its_manifest_says, a_pod_for_one_namespace_has_no_rights_elsewhere, a_pod_of_the_server_chart_runs_as_its_manifest_says]


def main():
    server, binaries, *words = sys.argv[1:]
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-helm-"))
    passed = failed = 0
    world = World(dir, server, binaries)
    try:
        for test in TESTS:
            if words and not any(word in test.__name__ for word in words):
                continue
            begin = time.monotonic()
            try:
                said = test(world) or ""
                passed += 1
                print(f"ok   {test.__name__} ({time.monotonic() - begin:.1f} s) {said}", flush=True)
            except (AssertionError, ApiError, OSError, KeyError, StopIteration) as error:
                failed += 1
                print(f"FAIL {test.__name__} ({time.monotonic() - begin:.1f} s) {error}", flush=True)
    finally:
        world.end()
    print(f"{passed} passed, {failed} failed")
    if failed:
        print(f"logs: {dir}")
        sys.exit(1)
    shutil.rmtree(dir)


if __name__ == "__main__":
    main()
