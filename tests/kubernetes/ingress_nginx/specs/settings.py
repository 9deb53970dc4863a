"""Keys of the ConfigMap, and flags of the program."""

from words import *

S = "settings.test"
SITE = ing(S)
area("settings/access-log")
spec("the default", SITE, get(S, "/here"), log("/here"))
PATHS = "logs/one.log"
spec("access-log-path", SITE, cm(access_log_path=PATHS), get(S, "/here"), log("/here", file=PATHS))
spec("http-access-log-path", SITE, cm(http_access_log_path=PATHS), get(S, "/here"), log("/here", file=PATHS))
spec("stream-access-log-path", SITE, cm(stream_access_log_path="logs/two.log"), cm({"8080": "t/echo:80"}, name="tcp"), get("", port=8080), get(S, "/here"),
     log("/here"), log("TCP", file="logs/two.log"), flags=["--tcp-services-configmap=t/tcp"])
spec("both", SITE, cm(http_access_log_path=PATHS, stream_access_log_path="logs/two.log"), cm({"8080": "t/echo:80"}, name="tcp"), get("", port=8080), get(S, "/here"),
     log("/here", file=PATHS), log("TCP", file="logs/two.log"), flags=["--tcp-services-configmap=t/tcp"])

area("settings/aio-write")
for title, data in (("the default", {}), ("on", {"enable_aio_write": "true"}), ("off", {"enable_aio_write": "false"})):
    spec(title, SITE, cm(**data), get(S, method="POST", body="x" * 100000), *([says("no event loop waits")] if data else []))

area("settings/annotation-value-word-blocklist")
B = "blocked"
for title, text, forbidden in (("a character", "# abc { }", "something_forbidden,otherthing_forbidden,{"),
                            ("a word", 'content_by_lua_block { ngx.say("Hello World") }', "something_forbidden,content_by_lua_block"),
                            ("a word of a list", "# something_forbidden", "something_forbidden,otherthing_forbidden")):
    spec(f"{title} that is forbidden", ing(B, configuration_snippet=text), cm(annotation_value_word_blocklist=forbidden), get(B, status=404), snippets=True)
spec("nothing is forbidden", ing(B, configuration_snippet="# bla_by_lua"), get(B), snippets=True)

BUN = ing(S, service="httpbun")


def coded(path, code, encoding="gzip", **more):
    headers = {"Content-Encoding": code, **more.pop("headers", {})}
    return get(S, path, send={"Accept-Encoding": encoding, **more}, headers=headers)


OCTETS = {"Content-Type": "application/octet-stream"}
area("settings/brotli")
spec("from the length on", BUN, cm(enable_brotli="true", brotli_types="application/octet-stream", brotli_min_length=24), coded("/bytes/24", "br", "br", headers=OCTETS),
     coded("/bytes/23", None, "br", headers=OCTETS))
area("settings/change")
spec("a change is served", SITE, get(S), cm(whitelist_source_range="1.1.1.1"), get(S, status=403), conf("allow 1.1.1.1;"),
     cm(whitelist_source_range="1.1.1.1", error_log_level="debug"), get(S, status=403), conf("error_log stderr debug;", http=True))
area("settings/add-headers")
spec("one", SITE, cm({"X-A-Custom-Header": "value"}, name="sent"), cm(add_headers="t/sent"), get(S, headers={"X-A-Custom-Header": "value"}))
spec("two", SITE, cm({"X-First": "Prepare for trouble!", "X-Second": "And make it double!"}, name="sent"), cm(add_headers="t/sent"),
     get(S, headers={"X-First": "Prepare for trouble!", "X-Second": "And make it double!"}))

DEFAULT = ["--default-ssl-certificate=t/custom"]
area("settings/default-ssl-certificate")
spec("for all hosts", pair("custom", ["custom.test"]), ing("", name="all", rules=[], default="echo"), get("", tls="x.test", names="custom.test"), flags=DEFAULT)
spec("for a certificate that is not for the host", pair("custom", ["custom.test"]), ing("foo", tls=True), pair("foo", ["not.foo"]),
     get("foo", tls=True, names="custom.test"), flags=DEFAULT)

ALL = ing("", name="all", rules=[], default="echo")
area("settings/disable-catch-all")
NO_ALL = ["--disable-catch-all"]
spec("a default backend", ALL, ing("foo"), get("foo"), get("other", status=404), flags=NO_ALL)
spec("a default backend beside rules", ing("foo", default="echo"), get("foo"), get("other", status=404), flags=NO_ALL)
spec("an Ingress that becomes one", ing("foo", name="x"), get("foo"), ing("foo", name="x", rules=[], default="echo"), get("foo", status=404), flags=NO_ALL)
spec("an Ingress with a host", ing("foo", name="x"), get("foo"), flags=NO_ALL)

area("settings/disable-svc-external-name")
spec("no name outside of the cluster", do("name", "bun.test", "10.99.2.1"), svc("outside", external="bun.test"), ing("echo-svc.com"),
     ing("external-svc.com", service="outside"), get("echo-svc.com"), get("external-svc.com", status=range(500, 600)), flags=["--disable-svc-external-name"])
area("settings/disable-sync-events")
for title in ("the default", "on", "off"):
    cannot(title, "weir-ingress writes events where something is wrong, told by tests/kubernetes/run")

FORWARDED = {"X-Forwarded-Port": "1234", "X-Forwarded-Proto": "myproto", "X-Forwarded-For": "1.2.3.4", "X-Forwarded-Host": "myhost"}
SCHEME = {"X-Forwarded-Scheme": "myproto"}
area("settings/enable-real-ip")
spec("the address alone is trusted", SITE, cm(enable_real_ip="true"),
     get(S, send=FORWARDED, has=[f"\nhost={S}\n", f"x-forwarded-host={S}", "x-forwarded-proto=http\n", "x-forwarded-port=80", "\nx-forwarded-for=1.2.3.4\n"]))
UNTRUSTED = {"has": [f"\nhost={S}\n", f"x-forwarded-host={S}", "x-forwarded-proto=http\n", "x-forwarded-port=80", "x-original-forwarded-for=1.2.3.4",
                     "x-original-forwarded-host=myhost"], "lacks": ["\nx-forwarded-for=1.2.3.4", "\nx-forwarded-host=myhost", "=myproto", "x-forwarded-port=1234"]}
spec("nothing is trusted", SITE, cm(enable_real_ip="false"), get(S, send=FORWARDED, **UNTRUSTED))
area("settings/use-forwarded-headers")
spec("all is trusted", SITE, cm(use_forwarded_headers="true"),
     get(S, send=FORWARDED | SCHEME, has=["\nhost=myhost\n", "x-forwarded-host=myhost", "x-forwarded-proto=myproto", "x-forwarded-scheme=myproto", "x-forwarded-port=1234",
                                          "\nx-forwarded-for=1.2.3.4"]),
     get(S, send=FORWARDED | {"X-Forwarded-Host": "myhost.com, another.host,example.net"}, has=["\nhost=myhost.com\n", "x-forwarded-host=myhost.com\n"]))
spec("nothing is trusted", SITE, cm(use_forwarded_headers="false"), get(S, send=FORWARDED | SCHEME, **UNTRUSTED))

area("settings/geoip2")
for title in ("a data base", "countries", "a data base that is read anew"):
    cannot(title, "the data base of MaxMind is not at hand; weir has geoip2 in the file that it starts with")

area("settings/block")
spec("block-cidrs", SITE, cm(block_cidrs="172.16.0.0/12,192.168.0.0/16,127.0.0.0/8"), get(S, status=403))
spec("block-user-agents", SITE, cm(block_user_agents="~*chrome\\/68\\.0\\.3440\\.106\\ safari\\/537\\.36,AlphaBot"),
     *(get(S, status=s, send={"User-Agent": a}) for a, s in (("Mozilla/5.0 Chrome/68.0.3440.106 Safari/537.36", 403), ("AlphaBot", 403), ("Mozilla/5.0 Mobile", 200))))
spec("block-referers", SITE, cm(block_referers="~*example\\.com,qwerty"),
     *(get(S, status=s, send={"Referer": a}) for a, s in (("example.com", 403), ("qwerty", 403), ("qwerty123", 200))))

area("settings/global-options")
cannot("a limit of files", "the file that weir starts with says so")
spec("workers", SITE, cm(worker_processes=11), get(S), conf("worker_processes 11;", http=True))

area("settings/grpc")
spec("grpc-buffer-size-kb", ing("echo", service="grpcbin", port=9000, tls=True, backend_protocol="GRPC"), cm(grpc_buffer_size_kb=8),
     get("echo", grpc=True, tls=True, has=["content-type=application/grpc", ":authority=echo"]), conf("grpc_buffer_size 8k;", http=True))

area("settings/gzip")
spec("off by default", BUN, coded("/xml", None))
spec("on", BUN, cm(use_gzip="true"), coded("/xml", "gzip", headers={"Vary": has("Accept-Encoding")}), conf("gzip_proxied any;", http=True))
spec("the level", BUN, cm(use_gzip="true", gzip_level=4), coded("/xml", "gzip"), conf("gzip_comp_level 4;", http=True))
spec("gzip-disable", BUN, cm(use_gzip="true", gzip_disable="msie6"), coded("/xml", "gzip", **{"User-Agent": "Mozilla/4.8 [en] (Windows NT 5.1; U)"}),
     coded("/xml", None, **{"User-Agent": "Mozilla/45.0 (compatible; MSIE 6.0; Windows NT 5.1)"}))
spec("the length", BUN, cm(use_gzip="true", gzip_min_length=100, gzip_types="application/octet-stream"), coded("/bytes/99", None, headers=OCTETS),
     coded("/bytes/100", "gzip", headers=OCTETS))
spec("the types", BUN, cm(use_gzip="true", gzip_types="text/html"), coded("/xml", None), coded("/html", "gzip"))

area("settings/hash-size")
for key in ("server-name-hash-bucket-size", "server-name-hash-max-size", "proxy-headers-hash-bucket-size", "proxy-headers-hash-max-size",
            "variables-hash-bucket-size", "variables-hash-max-size", "map-hash-bucket-size"):
    spec(f"{key} is taken, and tables grow as they must", SITE, cm({key: "512"}), get(S), says(key, "tables grow"))

OTHER = klass("other", "k8s.io/other-class")
OLD = "kubernetes.io/ingress.class"


def classed(host, of=None, **more):
    return ing(host, klass=None, full={OLD: of} if of else {}, **more)


area("settings/ingress-class")
spec("another class by the annotation", classed("foo", "testclass"), classed("bar", "nginx"), get("bar"), get("foo", status=404))
spec("a class of another controller", OTHER, ing("foo", klass="other"), ing("bar"), get("bar"), get("foo", status=404))
spec("the class, and the annotation", classed("foo", "nginx"), ing("bar"), get("foo"), get("bar"))
spec("no class", classed("foo"), ing("bar"), get("bar"), get("foo", status=404))
spec("a class that is removed", classed("foo", "nginx"), ing("bar"), get("foo"), get("bar"), classed("foo"), classed("bar"), get("foo", status=404), get("bar", status=404))
spec("a class that is added", classed("foo"), classed("bar"), get("foo", status=404), get("bar", status=404), classed("foo", "nginx"), ing("bar"), get("foo"), get("bar"))
spec("a class that moves", classed("foo", "nginx"), ing("bar"), get("foo"), get("bar"), ing("foo"), classed("bar", "nginx"), get("foo"), get("bar"))
spec("other classes by flags", OTHER, classed("bar"), classed("foo", "testclass"), ing("foobar", klass="other"), get("foo"), get("foobar"), get("bar", status=404),
     flags=["--controller-class=k8s.io/other-class", "--ingress-class=testclass"])
spec("Ingresses without a class by a flag", classed("bar"), classed("foo", "testclass123"), get("bar"), get("foo", status=404), flags=["--watch-ingress-without-class"])
spec("a class by its name", OTHER, ing("name", klass="other"), ing("spec"), classed("wrong", "testclass123"), get("name"), get("spec"), get("wrong", status=404),
     flags=["--ingress-class=other", "--ingress-class-by-name"])
spec("the annotation, without the right to read classes", drop("IngressClass", "nginx"), OTHER, classed("foo", "testclass"), get("foo"), flags=["--ingress-class=testclass"])
spec("a class, without the right to read classes", drop("IngressClass", "nginx"), OTHER, ing("foo"), get("foo", status=404), flags=["--ingress-class=testclass"])

area("settings/keep-alive")
KEPT = ("upstream-keepalive-connections", "upstream-keepalive-timeout", "upstream-keepalive-time", "upstream-keepalive-requests")
spec("keep-alive", SITE, cm(keep_alive=140), get(S), conf("keepalive_timeout 140s;", http=True))
spec("keep-alive-requests", SITE, cm(keep_alive_requests=200), get(S), conf("keepalive_requests 200;", http=True))
for key, value, wanted in zip(KEPT, ("128", "120", "75s", "200"), ("keepalive 128;", "keepalive_timeout 120s;", "keepalive_time 75s;", "keepalive_requests 200;")):
    spec(key, SITE, cm({key: value}), get(S), conf(wanted, http=True))

area("settings/limit-rate")
BUFFERED = ing(S, proxy_buffering="on")
spec("kilobytes a second", BUFFERED, cm(limit_rate=1), get(S), conf("limit_rate 1k;"), cm(limit_rate=90), get(S), conf("limit_rate 90k;"))

area("settings/ports")
PORTS = ["--http=127.0.0.1:1080", "--https=127.0.0.1:1443"]
spec("http", SITE, get(S, port=1080, has="x-forwarded-port=1080"), flags=PORTS)
spec("https", pair(S), ing(S, tls=True), get(S, tls=True, port=1443, has="x-forwarded-port=443"), flags=PORTS)
spec("https, with an authentication service", pair(S), ing(S, tls=True, auth_url="http://10.99.2.1/basic-auth/user/password", auth_signin="http://$host/auth/start"),
     get(S, tls=True, port=1443, login=("user", "password"), has="x-forwarded-port=443"), flags=PORTS)

area("settings/log-format")
spec("no escape by default", SITE, get(S, "/here"), conf(lacks=["escape=json", "escape=none"], http=True))
for kind in ("json", "none"):
    for on in ("true", "false"):
        text = f"escape={kind}"
        spec(f"{text} {on}", SITE, cm({f"log-format-escape-{kind}": on}), get(S, "/here"), conf(text, http=True) if on == "true" else conf(lacks=text, http=True))
FORMAT = '"{"my_header1":"$http_header1", "my_header2":"$http_header2"}"'
HEADER = {"header1": 'Here is "header1"'}
for kind, data, wanted in (("json", {"log_format_escape_json": "true"}, '{"my_header1":"Here is \\"header1\\"", "my_header2":""}'),
                           ("default", {"log_format_escape_json": "false"}, '{"my_header1":"Here is \\x22header1\\x22", "my_header2":"-"}'),
                           ("none", {"log_format_escape_none": "true"}, '{"my_header1":"Here is "header1"", "my_header2":""}')):
    spec(f"a format with the escape {kind}", SITE, cm(log_format_upstream=FORMAT, **data), get(S, send=HEADER), log(wanted))

area("settings/lua-shared-dicts")
cannot("sizes", "weir-ingress has no plugins in Lua")
area("settings/main-snippet")
spec("text of the administrator's", SITE, cm(main_snippet="# main snippet\nworker_shutdown_timeout 77s;"), get(S), do("silent", "main-snippet"),
     conf("worker_shutdown_timeout 77s;", http=True))
area("settings/modsecurity-snippet")
cannot("text of the administrator's", "weir has no web application firewall")
area("settings/enable-multi-accept")
for title, data in (("the default", {}), ("on", {"enable_multi_accept": "true"}), ("off", {"enable_multi_accept": "false"})):
    spec(title, SITE, cm(**data), get(S), *([says("accept_balance")] if data else []))
area("settings/watch-namespace-selector")
TWO = [namespace("bar"), namespace("foo", foo="bar"), *(o for n in ("bar", "foo") for o in (svc("echo", namespace=n), pods("echo", ["10.99.1.1"], namespace=n),
                                                                                        ing(n, namespace=n)))]
spec("by labels of namespaces", *TWO, get("foo"), get("bar", status=404), namespace("bar", foo="bar"), get("bar"), flags=["--watch-namespace-selector=foo=bar"])
area("settings/no-tls-redirect-locations")
spec("a location without the redirect", pair(S), ing(S, "/check-no-tls", tls=True), get(S, "/check-no-tls", 308), cm(no_tls_redirect_locations="/check-no-tls"),
     get(S, "/check-no-tls"))
area("settings/ocsp")
cannot("a stapled answer", "the spec needs cfssl; weir staples with ssl_stapling in the file that it starts with")
area("settings/opentelemetry")
spec("off", ing(S), cm(enable_opentelemetry="false"), get(S), conf(lacks="otel", http=True))
for title in ("on", "spans of clients", "the name of an operation"):
    cannot(title, "tracing is set for the whole server, in the file that it starts with")
spec("no name of an operation", ing(S), cm(enable_opentelemetry="true", opentelemetry_operation_name=""), get(S), conf(lacks="span_name", http=True))

for key, directive in (("proxy-connect-timeout", "proxy_connect_timeout"), ("proxy-read-timeout", "proxy_read_timeout"), ("proxy-send-timeout", "proxy_send_timeout")):
    area(f"settings/{key}")
    spec("a time", SITE, cm({key: "20"}), get(S), conf(f"{directive} 20s;"))
    spec("a wrong time", SITE, cm({key: "20k"}), get(S), conf(lacks=f"{directive} 20"))
area("settings/proxy-host")
for title, more in (("$proxy_host", {}), ("$proxy_host beside upstream-vhost", {"upstream_vhost": "different.host"})):
    spec(title, ing(S, configuration_snippet='more_set_headers "Custom-Header: $proxy_host";', **more), get(S, headers={"Custom-Header": has("echo", "80")}), snippets=True)
area("settings/proxy-next-upstream")
spec("another server", SITE, cm(proxy_next_upstream="timeout http_502", proxy_next_upstream_timeout=999999, proxy_next_upstream_tries=888888), get(S),
     conf("proxy_next_upstream timeout http_502;", "proxy_next_upstream_timeout 999999", "proxy_next_upstream_tries 888888;"))

area("settings/use-proxy-protocol")
PROXY = cm(use_proxy_protocol="true")


def line(port):
    return f"PROXY TCP4 192.168.0.1 192.168.0.11 56324 {port}"


OF = [f"host={S}", "\nx-forwarded-for=192.168.0.1\n"]
spec("the port", SITE, PROXY, get(S, proxy=line(1234), has=[*OF, "x-forwarded-port=1234", "x-forwarded-proto=http\n"]))
spec("443 is https", SITE, PROXY, get(S, proxy=line(443), has=[*OF, "x-forwarded-port=443", "x-forwarded-proto=https\n"]))
spec("over TLS", pair(S), ing(S, tls=True), PROXY, get(S, tls=True, proxy=line(1234), has=[*OF, "x-forwarded-port=1234", "x-forwarded-proto=https\n", "x-scheme=https\n"]))
spec("TCP services", cm(use_proxy_protocol="true", enable_real_ip="true", stream_access_log_path="/dev/stdout"), cm({"8080": "t/echo:80:PROXY"}, name="tcp"), get("", port=8080, proxy=line(8080), has="Hostname"),
     log("192.168.0.1"), flags=["--tcp-services-configmap=t/tcp"])
spec("an address that is not trusted", SITE, cm(use_proxy_protocol="true", use_forwarded_headers="true"),
     get(S, proxy=line(1234), send={"X-Forwarded-For": "192.168.0.111"}, has=[f"host={S}", "\nx-forwarded-for=192.168.0.1", "x-forwarded-port=1234", "x-forwarded-proto=http\n"]))
spec("an address that is trusted", SITE, cm(use_proxy_protocol="true", use_forwarded_headers="true", proxy_real_ip_cidr="127.0.0.0/8,192.168.0.1/32"),
     get(S, proxy=line(1234), send={"X-Forwarded-For": "192.168.0.111"}, has=["x-forwarded-port=1234", "x-forwarded-proto=http\n", "\nx-forwarded-for=192.168.0.111\n"]))

area("settings/reuse-port")
for title, data in (("the default", {}), ("off", {"reuse_port": "false"}), ("on", {"reuse_port": "true"})):
    spec(title, SITE, cm(**data), get(S), *([says("workers share")] if data else []))

SNIP = 'more_set_headers "Foo: Bar";\nmore_set_headers "Xpto: Lalala";'
GLOBAL = cm(server_snippet='more_set_headers "Globalfoo: Foooo";')
NOT = {"Foo": None, "Xpto": None}
area("settings/server-snippet")
spec("beside those of Ingresses", ing("one.foo.com"), ing("two.foo.com", server_snippet=SNIP), GLOBAL, get("one.foo.com", headers={"Globalfoo": "Foooo", **NOT}),
     get("two.foo.com", headers={"Globalfoo": "Foooo", "Foo": "Bar", "Xpto": "Lalala"}), snippets=True)
spec("where those of Ingresses are not allowed", ing("one.foo.com"), ing("two.foo.com", server_snippet=SNIP), GLOBAL,
     *(get(h, headers={"Globalfoo": "Foooo", **NOT}) for h in ("one.foo.com", "two.foo.com")))
area("settings/server-tokens")
spec("no Server header", SITE, cm(server_tokens="false"), get(S, headers={"Server": None}))
spec("a Server header", SITE, cm(server_tokens="true"), get(S, headers={"Server": has("weir/")}))
area("settings/ssl-ciphers")
LIST = "ALL:!aNULL:!EXPORT56:RC4+RSA:+HIGH:+MEDIUM:+LOW:+SSLv2:+EXP"
spec("a list", pair(S), ing(S, tls=True), cm(ssl_ciphers=LIST), get(S, tls=True), conf(f"ssl_ciphers {LIST};", http=True))
area("settings/ssl-passthrough")
cannot("another port", "connections are handed over inside of the process: there is no port")
cannot("known and other hosts", "no server behind ends TLS here; a test of weir-ingress has both")
area("settings/ssl-session-cache")
SECURE = [pair(S), ing(S, tls=True)]
spec("the default", *SECURE, get(S, tls=True), conf("ssl_session_cache shared:SSL:10m;", "ssl_session_timeout 10m;", http=True))
spec("off", *SECURE, cm(ssl_session_cache="false"), get(S, tls=True), conf("ssl_session_cache off;", http=True))
spec("the size", *SECURE, cm(ssl_session_cache_size="20m"), get(S, tls=True), conf("ssl_session_cache shared:SSL:20m;", http=True))
spec("the time", *SECURE, cm(ssl_session_timeout="30m"), get(S, tls=True), conf("ssl_session_timeout 30m;", http=True))
area("settings/ssl-session-tickets")
spec("the default", *SECURE, get(S, tls=True), conf("ssl_session_tickets off;", http=True))
spec("on", *SECURE, cm(ssl_session_tickets="true"), get(S, tls=True), conf("ssl_session_tickets on;", http=True))
KEY = "WW9gcPHgfcrw6DNqY5VE2NjM6gtgUhJ4Vn6ZwRGi/7+A9TNFa4Fvfe1cmlPec9bxDoenN70aMBeZBlcrKshnKT4WJxFNLCuTHhfn4loTOEo="
spec("a key", *SECURE, cm(ssl_session_tickets="true", ssl_session_ticket_key=KEY), get(S, tls=True),
     conf("ssl_session_tickets on;", "ssl_session_ticket_key", http=True))
area("settings/stream-snippet")
spec("a server", SITE, cm(stream_snippet="server { listen 127.0.0.1:8000; proxy_pass 127.0.0.1:80; }"), get(S, port=8000))

HSTS = "Strict-Transport-Security"


def hsts(wanted, path="/", **data):
    return [*SECURE, cm(hsts_max_age=86400, **data), get(S, path, tls=True, headers={HSTS: wanted})]


area("settings/tls")
spec("a cipher suite", *SECURE, cm(ssl_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-SHA", ssl_protocols="TLSv1.2"),
     get(S, tls=True, cipher="ECDHE-ECDSA-AES256-GCM-SHA384"), cm(ssl_ciphers="ECDHE-ECDSA-AES128-GCM-SHA256", ssl_protocols="TLSv1.2"),
     get(S, tls=True, cipher="ECDHE-ECDSA-AES128-GCM-SHA256"))
spec("hsts-max-age", *hsts("max-age=86400; includeSubDomains"))
spec("hsts-include-subdomains", *hsts("max-age=86400", hsts_include_subdomains="false"))
spec("hsts-preload", *hsts("max-age=86400; preload", hsts_include_subdomains="false", hsts_preload="true"))
spec("over what servers behind say", *hsts("max-age=86400; preload", "/?hsts=true", hsts_include_subdomains="false", hsts_preload="true"))
spec("no port in the redirect to https", *SECURE, get(S, status=308, headers={"Location": f"https://{S}"}))
spec("X-Forwarded-Host in the redirect to https", *SECURE, cm(use_forwarded_headers="true"),
     get(S, status=308, send={"X-Forwarded-Host": "example.com:80"}, headers={"Location": "https://example.com"}))

area("settings/validations")
for title in ("create", "update"):
    spec(f"the risk of annotations ({title})", cm(annotations_risk_level="Medium", allow_snippet_annotations="true"),
         ing("risk", default_backend="echo", denylist_source_range="1.1.1.1/32"), refused(taken=True),
         ing("risk", default_backend="echo", denylist_source_range="1.1.1.1/32", modsecurity_transaction_id="bla123", modsecurity_snippet="some random stuff;"), refused(),
         snippets=True)
