"""Everything that is neither an annotation nor a key of the ConfigMap."""

from words import *

area("admission")
A = "admission-test"
FIRST = ing(A, name="first")
cannot("a very large Ingress", "needs the webhook of a running controller")
spec("a path that another Ingress has", FIRST, ing(A, name="second"), refused())
spec("one of several paths that another Ingress has", ing(A, ["/safe-1", "/conflict"], name="first"), ing(A, ["/safe-2", "/conflict"], name="second"), refused())
spec("a canary may have the path of another Ingress", FIRST, ing(A, service="slow-echo", name="second", canary="true", canary_by_header="CanaryByHeader"),
     refused(taken=True))
spec("a path that is not taken", ing("invalid-path", "/mypage", name="first"), ing("invalid-path", "/etc/nginx", name="second"), refused(),
     known="weir makes words of paths, and no text")
spec("a value that is none", cm(annotation_value_word_blocklist="}"), ing(A, name="first", connection_proxy_header="a;}"), refused())
spec("a word that is forbidden", cm(annotation_value_word_blocklist="set_by_lua"), ing(A, name="first", connection_proxy_header="set_by_lua"), refused())
V = "path-validation"
STRICT = cm(strict_validate_path_type="true")
spec("a pattern where the kind of the path takes none", STRICT, ing(V, "/foo/bar/[a-z]{3}", name="first", kind="Exact"), refused(),
     ing(V, "/foo/bar/[a-z]{3}", name="first"), refused(), drop("Ingress", "first"),
     ing(V, "/foo/bar/[a-z]{3}", name="specific", kind="ImplementationSpecific", use_regex="true", rewrite_target="/new/backend"), refused(taken=True),
     ing(V, "/bloblo", name="second"), refused(taken=True))
spec("a good Ingress with a class", ing("extensions"), refused(taken=True), get("extensions"))
spec("a good Ingress with the annotation of a class", ing("extensions-class", klass=None, full={"kubernetes.io/ingress.class": "nginx"}), refused(taken=True),
     get("extensions-class"))
spec("a wrong Ingress of another class", klass("nginx-other", "example.com/other"), ing("other", klass="nginx-other", configuration_snippet="invalid directive"),
     refused(taken=True), snippets=True)

area("cgroups")
for version in (1, 2):
    cannot(f"version {version}", "tests a function of ingress-nginx in Go, not the controller")

area("debug tool")
cannot("the list of backends", "weir has no such tool in the pod; `weir-ingress print` and weir's status show them")
cannot("one backend", "weir has no such tool in the pod")
cannot("general data", "weir has no such tool in the pod")

area("defaultbackend")
spec("a Service of the administrator's", get("", has="Hostname: echo-two-1"), flags=["--default-backend-service=t/echo-two"])
spec("404 for what nobody has", *(get(host, path, 404, method=method, tls="any.test" if tls else None) for host in ("", "foo.bar.com") for tls in (False, True)
                                 for method in ("GET", "POST") for path in ("/", "/demo")))
spec("a log of it", cm(enable_access_log_for_default_backend="true"), get("foo", "/somethingOne", 404), log("/somethingOne"))
spec("no log of it", cm(enable_access_log_for_default_backend="false"), get("bar", "/somethingTwo", 404), log(lacks="/somethingTwo"))
spec("a certificate of its own making", get("", status=404, tls="any.test", issuer="Ingress Controller"),
     get("foo.bar.com", status=404, tls=True, issuer="Ingress Controller"))
spec("annotations of an Ingress with a default backend", ing("foo.com", rules=[{"host": "foo.com"}], default="echo", proxy_buffer_size="8k"),
     get("foo.com", has="Hostname: echo-1"), conf("proxy_buffer_size 8192;"))

area("disableleaderelection")
L1, L2 = "leader.disabled.com", "leader.disabled2.com"
spec("routes of several hosts", ing(L1, "/foo"), ing(L2, "/ping"),
     *(get(h, p, s) for h, p, s in ((L1, "/foo", 200), (L1, "/bar", 404), (L2, "/foo", 404), (L2, "/ping", 200), (L2, "/pong", 404), (L1, "/ping", 404))))

LONG = "long-name-foobar-foobar-foobar-foobar-foobar-bar-foo-bar-foobuz"
area("endpointslices")
spec("a name of a Service of 63 characters", svc(LONG), pods(LONG, ["10.99.1.1"]), ing("long.foo.com", service=LONG), get("long.foo.com"))
spec("a Service with topology hints whose pods have none", pods("echo", ["10.99.1.1", "10.99.1.2"], zone="zone-a"), ing("topology.foo.com"),
     spread("topology.foo.com", count=20, servers=2))

area("gracefulshutdown")
cannot("/healthz while the grace period lasts", "told by tests/kubernetes/run: each_pod_serves_and_one_writes")
spec("an end without waiting connections", cm(worker_shutdown_timeout="600s"), ing("shutdown", service="slow-echo"), get("shutdown", "/sleep/1"), do("ends", 60))

area("ingress/paths")
D = "inspection123.com"
spec("an Ingress with a path that is none is left out", ing(D, "/bla{alias /var/run/secrets/;}location ~* ^/abcd", name="wrong"), ing(D, "/xpto", name="good"),
     get(D, "/xpto"), get(D, "/bla", 404), get(D, "/abcd/", 404))
spec("$service_name of several hosts", ing("first.host", service="first-service", more=[("second.host", "/", "second-service")],
                                           configuration_snippet='more_set_input_headers "service-name: $service_name";'),
     get("first.host", "/exact", has="service-name=first-service"), get("second.host", "/exact", has="service-name=second-service"), snippets=True)


def marked(kind, path, name, mark, **more):
    return ing("kinds.path", path, kind=kind, name=name, configuration_snippet=f'more_set_input_headers "pathType: {mark}";', **more)


def is_of(path, mark, *others):
    return get("kinds.path", path, has=f"pathtype={mark}\n", lacks=[f"pathtype={o}\n" for o in others])


spec("Exact", marked("Exact", "/exact", "exact", "exact"), marked("Prefix", "/exact", "suffix", "prefix"), is_of("/exact", "exact"),
     is_of("/exact/suffix", "prefix"), marked("Prefix", "/exact", "x-duplicated", "duplicated"), is_of("/exact/suffix", "prefix", "exact", "duplicated"),
     snippets=True)
spec("Exact and Prefix", marked("Exact", "/", "exact-root", "exact"), marked("Prefix", "/", "prefix-root", "prefix"), is_of("/", "exact"), is_of("/bar", "prefix"),
     marked("Exact", "/foo", "exact-foo", "exact-foo"), marked("Prefix", "/foo", "prefix-foo", "prefix-foo"), is_of("/foo", "exact-foo"),
     is_of("/foo/bar", "prefix-foo"), is_of("/foobar", "prefix"), snippets=True)
spec("Prefix ends at a slash", ing("prefix.path", "/aaa"), *(get("prefix.path", p, s) for p, s in (("/aaa", 200), ("/aaacccc", 404), ("/aaa/cccc", 200), ("/aaa/", 200))))


def pattern(name, path, *cases):
    spec(name, ing("re.br", path, use_regex="true"), *(get("re.br", p, s) for s, list in cases for p in list))


pattern("a simple pattern", "/id/[0-9]+", (200, ["/id/1", "/id/12", "/id/123", "/id/123a"]), (404, ["/id/aaa"]))
pattern("a pattern with an end", "/id/[0-9]+$", (200, ["/id/1"]), (404, ["/id/aaa", "/id/123a"]))
pattern("a pattern with a size", "/id/[0-9]{3}$", (200, ["/id/123"]), (404, ["/id/99", "/id/9999", "/id/123a"]))
pattern("a pattern with several parts", "/id/[0-9]+/post/[a-zA-Z]+$", (200, ["/id/123/post/abc"]), (404, ["/id/123/post/abc123", "/id/abc/post/abc"]))
spec("no host", ing("", name="default-host", configuration_snippet='more_set_headers "Names: $namespace $ingress_name $service_name $service_port $location_path";'),
     get("", headers={"Names": "t default-host echo 80 /"}), snippets=True)
spec("a host without paths", ing("only-backend", rules=[{"host": "only-backend"}], default="echo"), get("only-backend"), get("other-backend", status=404))

area("leaks")
cannot("a thousand certificates ten times", "takes ten minutes; tests/kubernetes/run has no_request_is_lost_while_pods_and_sites_change")

area("lua/certificates")
F = "foo.com"
PLAIN, TLS, CERT = ing(F), ing(F, tls=True), pair(F)
MINE = get(F, tls=True, names=F)
OWN_MAKING = get(F, tls=True, names="ingress.local")
spec("TLS is added", PLAIN, get(F), CERT, TLS, MINE)
spec("the Secret comes later", TLS, OWN_MAKING, CERT, MINE)
spec("a dot after the name", TLS, CERT, get(F + ".", tls=F, names=F))
spec("another certificate", TLS, CERT, MINE, pair(F, [F, "second.test"]), get(F, tls=True, names="second.test"))
spec("the Secret goes", TLS, CERT, MINE, drop("Secret", F), OWN_MAKING)
spec("another host", TLS, CERT, MINE, ing("foo2.com", name=F, tls=[F]), get("foo2.com", tls=True, names="ingress.local"))
spec("TLS is removed", TLS, CERT, MINE, PLAIN, get(F))

area("lua/configuration")
EWMA = ing(F, load_balance="ewma")
cannot("a balancer in Lua", "weir balances itself")
spec("more pods", EWMA, get(F), replicas(2), spread(F, count=40, servers=2, within=10))
spec("fewer pods, and none", EWMA, replicas(2), get(F), replicas(0), get(F, status=503))
spec("no pods, two, and none", EWMA, replicas(0), get(F, status=503), replicas(2), get(F), replicas(0), get(F, status=503))
spec("an annotation", EWMA, get(F), ing(F, load_balance="round_robin"), get(F), conf(lacks="least_time", http=True))

area("metrics")
cannot("a metric that is excluded", "the names of metrics are weir's; a scrape configuration excludes them")
cannot("metrics that are not excluded", "the names of metrics are weir's")
cannot("metrics of hosts that nobody has", "the names of metrics are weir's")
cannot("no metrics of hosts that nobody has", "the names of metrics are weir's")

area("nginx")
spec("weir with a configuration of its own", do("plain", "return 200 ok;", "ok"))
cannot("no alias", "weir serves files; a tenant cannot ask for it")
cannot("no root", "weir serves files; a tenant cannot ask for it")

area("security")
spec("a request in a request's body", ing("foo.bar.com", auth_url="http://10.99.2.1/basic-auth/user/passwd", auth_signin="https://httpbun.test/bearer"),
     cm(http_snippet="server { listen 127.0.0.1:80; server_name notlocalhost; location /_hidden/index.html { return 200 'This should be hidden!'; } }"), get("foo.bar.com", status=302),
     do("raw", "GET /echo HTTP/1.1\r\nHost: foo.bar.com\r\nContent-Length: 56\r\n\r\nGET /_hidden/index.html HTTP/1.1\r\nHost: notlocalhost\r\n\r\n",
        "This should be hidden!", "302"))

area("servicebackend")
spec("503 without the Service", ing("gone.svc.com", service="nonexistent-svc"), get("gone.svc.com", status=503))
spec("503 without pods", svc("empty"), ing("empty.svc.com", service="empty"), get("empty.svc.com", status=503))
spec("404 for what is no Service", ing("valid.svc.com"),
     ing("", name="nil", rules=[{"host": "nil.svc.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {
         "resource": {"kind": "Anything", "name": "mytest", "apiGroup": "otherobj.testingress.com"}}}]}}]), get("valid.svc.com"), get("nil.svc.com", status=404))
BUN = do("name", "bun.test", "10.99.2.1")
EXTERNAL = svc("outside", external="bun.test", ports=())
NAMED = svc("outside", external="bun.test", ports=(("echo", 80),))
VHOST = {"upstream_vhost": "bun.test"}
area("servicebackend/externalname")
spec("a name without dots", do("name", "echo", "10.99.1.1"), svc("outside", external="echo", ports=()), ing("echo", service="outside"), get("echo", "/get"))
spec("no port", BUN, EXTERNAL, ing("echo", service="outside", **VHOST), get("echo", "/get", has='"httpbun-1"'))
spec("a port", BUN, NAMED, ing("echo", service="outside", **VHOST), get("echo", "/get", has='"httpbun-1"'))
spec("a name that is not there", svc("outside", external="invalid.hostname", ports=()), ing("echo", service="outside"), get("echo", "/get", range(500, 600)))
spec("the name of a port", BUN, NAMED, ing("echo", service="outside", port="echo", **VHOST), get("echo", "/get", has='"httpbun-1"'))
spec("a dot after the name", BUN, svc("outside", external="bun.test.", ports=()), ing("echo", service="outside"), get("echo", "/get", has='"httpbun-1"'))
spec("another name", BUN, do("name", "bun-two.test", "10.99.2.2"), NAMED, ing("echo", service="outside", port="echo", **VHOST),
     get("echo", "/get", has=['"httpbun-1"', '"X-Forwarded-Host": "echo"']), svc("outside", external="bun-two.test", ports=(("echo", 80),)),
     get("echo", "/get", has=['"httpbun-2"', '"X-Forwarded-Host": "echo"']))
spec("it comes and goes", BUN, ing("echo", service="outside"), get("echo", "/get", 503), NAMED, get("echo", "/get"), drop("Service", "outside"),
     get("echo", "/get", 503))

area("ssl")
spec("to https without the Secret", ing("redirect.com", tls=True), get("redirect.com", status=308, headers={"Location": "https://redirect.com"}))
spec("Secrets that nobody names are not read", secret("dummy", {"key": "value"}), ing("ssl-update", tls=True), pair("ssl-update"), get("ssl-update", tls=True),
     secret("dummy", {"key": "value", "some-key": "x"}), get("ssl-update", tls=True), do("silent", "dummy"))
spec("a wrong Secret", secret("invalid-ssl", {}), ing("invalid-ssl", tls=True),
     get("invalid-ssl", tls=True, names=["ingress.local"], issuer="Ingress Controller"), says("invalid-ssl"))

area("status")
cannot("the status after the API server was away", "told by tests/kubernetes/run: status_and_events_are_written, traffic_goes_on_without_the_api_server")

area("tcpudp")
spec("a TCP service", cm({"8080": "t/echo:80"}, name="tcp"), get("", port=8080, has="Hostname: echo-1"), flags=["--tcp-services-configmap=t/tcp"])
spec("a TCP service outside of the cluster", BUN, NAMED, cm({"8080": "t/outside:80"}, name="tcp"), get("", "/get", port=8080, has='"httpbun-1"'),
     flags=["--tcp-services-configmap=t/tcp"])
spec("another TCP service", cm({"8080": "t/first-service:80"}, name="tcp"), get("", port=8080, has="Hostname: first-service-1"),
     cm({"8080": "t/second-service:80"}, name="tcp"), get("", port=8080, has="Hostname: second-service-1"), flags=["--tcp-services-configmap=t/tcp"])
