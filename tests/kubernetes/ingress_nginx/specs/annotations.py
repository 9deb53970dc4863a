"""Annotations of single Ingresses, from A to M."""

from words import *

area("annotations/server-alias")
spec("200 for the host and 404 for another one", ing("foo"), get("foo", has="host=foo"), get("bar", status=404, has="404 Not Found"))
spec("200 for the host and its alias", ing("foo", server_alias="bar"), get("foo", has="host=foo"), get("bar", has="host=bar"))
spec("an alias counts for all paths of the host, of another Ingress, too", ing("foo", "/app-a", name="app-a"), ing("foo", "/app-b", name="app-b", server_alias="bar"),
     *(get(host, "/app-a", has=f"host={host}") for host in ("foo", "bar")))

area("annotations/app-root")
spec("/ goes to the root of the application", ing("approot.bar.com", app_root="/foo"),
     get("approot.bar.com", status=302, headers={"Location": "http://approot.bar.com/foo"}))

BP = "backendprotocol.foo.com"
area("annotations/backend-protocol")
spec("HTTPS", ing(BP, service="echo-tls", port=443, backend_protocol="HTTPS"), pods("echo-tls", ["10.99.8.1"], 443), svc("echo-tls", ports=((None, 443),)),
     get(BP, has="Hostname: echo-tls-1"))
spec("https in small letters", ing(BP, service="echo-tls", port=443, backend_protocol="https"), pods("echo-tls", ["10.99.8.1"], 443),
     svc("echo-tls", ports=((None, 443),)), get(BP, has="Hostname: echo-tls-1"))
spec("AUTO_HTTP", ing(BP, backend_protocol="AUTO_HTTP"), get(BP, has="Hostname: echo-1"), conf("proxy_pass $scheme://"))
spec("GRPC", ing(BP, service="grpcbin", port=9000, backend_protocol="GRPC"), get(BP, grpc=True, has=["content-type=application/grpc", "scheme=http\n"]))
spec("GRPCS", ing(BP, service="grpcbin", port=9001, backend_protocol="GRPCS"), get(BP, grpc=True, has=["content-type=application/grpc", "scheme=https\n"]))
spec("FCGI", ing(BP, service="fastcgi", port=9000, backend_protocol="FCGI"), get(BP, has="Hello world!"))

CB = "client-body-buffer-size.com"
area("annotations/client-body-buffer-size")
for text, wanted in (("1000", "1000"), ("1K", "1024"), ("1k", "1024"), ("1m", "1048576"), ("1M", "1048576")):
    spec(f"takes {text}", ing(CB, client_body_buffer_size=text), get(CB), conf(f"client_body_buffer_size {wanted};"))
spec("does not take 1b", ing(CB, client_body_buffer_size="1b"), get(CB), conf(lacks="client_body_buffer_size"))

area("annotations/connection-proxy-header")
spec("keep-alive", ing("connection.foo.com", connection_proxy_header="keep-alive"), get("connection.foo.com", has="connection=keep-alive"))

C = "cors.foo.com"
ACAO = "Access-Control-Allow-Origin"


def cors(**pairs):
    return ing(C, enable_cors="true", **{"cors_" + k: v for k, v in pairs.items()})


def good(origin, wanted=None):
    return get(C, send={"Origin": origin}, headers={ACAO: wanted or origin})


def bad(origin):
    return get(C, send={"Origin": origin}, headers={ACAO: None})


area("annotations/cors")
spec("the defaults", cors(), get(C, send={"Origin": "http://a.test"}, headers={
    ACAO: "*", "Access-Control-Allow-Methods": "GET, PUT, POST, DELETE, PATCH, OPTIONS", "Access-Control-Max-Age": "1728000",
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Headers": "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"}))
spec("methods", cors(allow_methods="POST, GET"), get(C, headers={"Access-Control-Allow-Methods": "POST, GET"}))
spec("max-age", cors(max_age=200), get(C, headers={"Access-Control-Max-Age": "200"}))
spec("no credentials", cors(allow_credentials="false"), get(C, headers={"Access-Control-Allow-Credentials": None}))
spec("an origin", cors(allow_origin="https://origin.cors.com:8080"), good("https://origin.cors.com:8080"))
spec("headers", cors(allow_headers="DNT, User-Agent"), get(C, headers={"Access-Control-Allow-Headers": "DNT, User-Agent"}))
EXPOSED = "X-CustomResponseHeader, X-CustomSecondHeader"
spec("exposed headers", cors(expose_headers=EXPOSED), get(C, headers={"Access-Control-Expose-Headers": EXPOSED}))
spec("one of several origins", cors(allow_origin="https://origin.cors.com:8080, https://origin2.cors.com"), good("https://origin.cors.com:8080"))
spec("none of several origins", cors(allow_origin="http://origin2.cors.com, https://origin.com"), bad("http://no.origin.com"))
spec("a wrong origin in the list", cors(allow_origin="origin.cors.com:8080, https://origin2.cors.com, https://origin.com"), bad("origin.cors.com:8080"),
     good("https://origin2.cors.com"), good("https://origin.com"))
spec("a star", cors(allow_origin="*"), get(C, headers={ACAO: "*"}))
spec("no star", cors(), get(C, headers={ACAO: "*"}))
spec("a star and more", cors(allow_origin="*, foo.bar.com"), get(C, headers={ACAO: "*"}))
spec("a dot is a dot", cors(allow_origin="https://foo.bar.com"), bad("https://fooxbar.com"))
TWO = "http://origin.cors.com:8080, http://origin.com:8080"
spec("an origin with a port", cors(allow_origin=TWO), good("http://origin.com:8080"))
spec("an origin with a port that is not wanted", cors(allow_origin="https://origin2.cors.com, http://origin.com"), bad("http://origin.com:8080"))
spec("an origin without the port", cors(allow_origin=TWO), bad("http://origin.com"))
STARS = "http://*.origin.cors.com, http://*.origin.com:8080"
spec("a wildcard", cors(allow_origin=STARS), good("http://foo.origin.cors.com"), good("http://bar-foo.origin.cors.com"))
spec("a wildcard is one label", cors(allow_origin=STARS), bad("http://bar.foo.origin.cors.com"))
STAR = "http://origin.cors.com:8080, http://*.origin.com:8080"
spec("a wildcard with a port", cors(allow_origin=STAR), good("http://abc.origin.com:8080"))
spec("a wildcard without the port", cors(allow_origin=STAR), bad("http://abc.origin.com"))
spec("a wildcard needs a label", cors(allow_origin=STAR), bad("http://origin.com:8080"), good("http://bar.origin.com:8080"))
spec("spaces are no list", cors(allow_origin="      "), *(good(o, "*") for o in ("http://origin.com", "http://book.origin.com", "test.origin.com")))
spec("empty entries", cors(allow_origin="https://origin-123.cors.com:8080,   ,https://origin-321.cors.com:8080,"), good("https://origin-123.cors.com:8080"),
     good("https://origin-321.cors.com:8080"), bad("https://unknown.cors.com:8080"))
spec("other schemes", cors(allow_origin="test://localhost, tauri://localhost:3000"), good("test://localhost"), good("tauri://localhost:3000"))

CH = "custom-headers"
area("annotations/custom-headers")
spec("none", ing(CH), get(CH, has="host=custom-headers"))
spec("503 without the ConfigMap", ing(CH, custom_headers="t/custom-headers"), get(CH, status=503, has="503 Service Temporarily Unavailable"))
spec("headers, with a dollar that is no variable", ing(CH, custom_headers="t/custom-headers"),
     cm({"My-Custom-Header": "42", "My-Custom-Header-Dollar": "$remote_addr"}, name="custom-headers"),
     cm(global_allowed_response_headers="My-Custom-Header,My-Custom-Header-Dollar"),
     get(CH, headers={"My-Custom-Header": "42", "My-Custom-Header-Dollar": "$remote_addr"}))

CE = "customerrors.foo.com"
DEFAULT = ("--default-backend-service=t/echo-two",)
area("annotations/custom-http-errors")
spec("errors go to the default backend, or the Ingress's own", ing(CE, service="httpbun", custom_http_errors="404,500"),
     *(get(CE, f"/status/{code}", 200, has=["Hostname: echo-two-1", f"x-code={code}"]) for code in (404, 500)), get(CE, "/status/503", 503),
     ing(CE, service="httpbun", custom_http_errors="503"), get(CE, "/status/503", 200, has="x-code=503"), get(CE, "/status/404", 404),
     ing(CE, "/else", "httpbun", name="else", custom_http_errors="404, 503"), get(CE, "/status/503", 200, has="x-code=503"),
     ing(CE, service="httpbun", custom_http_errors="503", default_backend="first-service"), get(CE, "/status/503", 200, has="Hostname: first-service-1"),
     flags=DEFAULT)
area("annotations/default-backend")
spec("answers for a Service that is not there", ing("default-backend", service="invalid", default_backend="echo"),
     get("default-backend", "/alma/armud", send={"x-request-id": "something-unique"},
         has=["x-code=503", "x-ingress-name=default-backend", "x-service-name=invalid", "x-request-id=something-unique"]))
area("annotations/disable-proxy-intercept-errors")
PIE = {"custom_http_errors": "404", "default_backend": "echo"}
spec("errors of servers behind stay", ing("pie.foo.com", service="httpbun", disable_proxy_intercept_errors="true", **PIE), get("pie.foo.com", "/status/404", 404),
     ing("pie.foo.com", service="httpbun", disable_proxy_intercept_errors="false", **PIE),
     get("pie.foo.com", "/status/404", send={"x-request-id": "own"},
         has=["x-code=404", "x-ingress-name=pie.foo.com", "x-service-name=httpbun", "x-request-id=own"]))

area("annotations/disable-access-log")
LOGGED = "log.foo.com"
spec("disable-access-log", ing(LOGGED), cm(disable_access_log="true"), get(LOGGED, "/here"), log(lacks="/here"))
spec("disable-http-access-log", ing(LOGGED), cm(disable_http_access_log="true"), get(LOGGED, "/here"), log(lacks="/here"))
spec("disable-stream-access-log", ing(LOGGED), cm(disable_stream_access_log="true"), get(LOGGED, "/here"), log("/here"))
area("annotations/enable-access-log enable-rewrite-log")
spec("no access log", ing(LOGGED, enable_access_log="false"), get(LOGGED, "/here"), log(lacks="/here"))
spec("a log of rewriting", ing(LOGGED, enable_rewrite_log="true"), get(LOGGED), conf("rewrite_log on;"))

FCGI = {"service": "fastcgi", "port": 9000, "backend_protocol": "FCGI"}
area("annotations/fastcgi")
spec("the parameters of FastCGI", ing("fastcgi", "/hello", **FCGI), get("fastcgi", "/hello", has=["REQUEST_METHOD=GET", "REQUEST_URI=/hello"]))
spec("fastcgi-index", ing("fastcgi", "/hello", fastcgi_index="index.php", **FCGI), get("fastcgi", "/hello/", has="SCRIPT_NAME=/hello/index.php"),
     conf("fastcgi_index index.php;"))
spec("fastcgi-params-configmap", ing("fastcgi", "/hello", fastcgi_params_configmap="params", **FCGI),
     cm({"SCRIPT_FILENAME": "$fastcgi_script_name", "REDIRECT_STATUS": "200"}, name="params"),
     get("fastcgi", "/hello", has=["SCRIPT_FILENAME=/hello", "REDIRECT_STATUS=200"]))
spec("an answer", ing("fastcgi", "/hello", **FCGI), get("fastcgi", "/hello", has="Hello world!"))

area("annotations/force-ssl-redirect")
spec("to https, with or without a certificate", ing("force.bar.com", force_ssl_redirect="true"),
     get("force.bar.com", status=308, headers={"Location": "https://force.bar.com"}))

WWW = "www.bar.com"
area("annotations/from-to-www-redirect")
spec("from www, over http", ing("bar.com", from_to_www_redirect="true"), get(WWW, "/foo", 308, headers={"Location": "http://bar.com/foo"}))
spec("from www, over https", pair("bar.com", ["bar.com", WWW]),
     ing("bar.com", tls=["bar.com", WWW], from_to_www_redirect="true", configuration_snippet='more_set_headers "ExpectedHost: $http_host";'),
     get(WWW, status=308, tls=True, headers={"Location": has("https://bar.com")}), get("bar.com", tls=True, headers={"ExpectedHost": "bar.com"}), snippets=True)

GRPC = {"service": "grpcbin-test", "backend_protocol": "GRPC"}


def grpcbin(port):
    return [svc("grpcbin-test", external="grpcbin.names.test", ports=(("echo", port),)), do("name", "grpcbin.names.test", "10.99.7.1")]


area("annotations/grpc")
spec("GRPC over TLS", *grpcbin(9000), ing("echo", port=9000, tls=True, **GRPC),
     get("echo", grpc=True, tls=True, has=["content-type=application/grpc", ":authority=echo"]))
spec("an authentication service's Authorization goes to the gRPC server", *grpcbin(9000),
     ing("echo", port=9000, tls=True, auth_url="http://10.99.2.1/response-headers?authorization=foo", auth_response_headers="Authorization", **GRPC),
     get("echo", grpc=True, tls=True, send={"authorization": "bar"}, has="authorization=foo"))
spec("GRPCS", *grpcbin(9001), ing("echo", port=9001, tls=True, service="grpcbin-test", backend_protocol="GRPCS",
                                  configuration_snippet="grpc_ssl_name grpcbin.names.test; grpc_ssl_server_name on;"),
     get("echo", grpc=True, tls=True, has=["content-type=application/grpc", "scheme=https\n"]), snippets=True)
TIMES = {"proxy_connect_timeout": 1, "proxy_send_timeout": 1, "proxy_read_timeout": 1}
spec("within the time", ing("grpc", service="grpcbin", port=9000, backend_protocol="GRPC", **TIMES),
     get("grpc", grpc=True, has=["content-type=application/grpc", ":authority=grpc"]))
spec("beyond the time", ing("grpc", service="grpcbin", port=9000, backend_protocol="GRPC", **TIMES), get("grpc", "/slow", 504, grpc=True, within=8))

area("annotations/http2-push-preload")
spec("is taken, and requests are served", ing("http2pp.foo.com", http2_push_preload="true"), get("http2pp.foo.com"), says("browsers no longer take pushed answers"))

area("annotations/allowlist-source-range")
spec("networks", ing("allow.foo.com", allowlist_source_range="18.0.0.0/8, 56.0.0.0/8"), cm(use_forwarded_headers="true"),
     *(get("allow.foo.com", status=s, send={"X-Forwarded-For": a}) for a, s in (("18.0.0.1", 200), ("56.1.2.3", 200), ("19.0.0.1", 403))))
area("annotations/denylist-source-range")
DENY = "deny.foo.com"
spec("only what is denied", ing(DENY, denylist_source_range="18.0.0.0/8, 56.0.0.1"), cm(use_forwarded_headers="true"),
     *(get(DENY, status=s, send={"X-Forwarded-For": a}) for a, s in (("18.0.0.1", 403), ("56.0.0.1", 403), ("56.0.0.2", 200))))
spec("beside what is allowed", ing(DENY, denylist_source_range="18.1.0.0/16, 56.0.0.0/8", whitelist_source_range="18.0.0.0/8, 55.0.0.0/8"),
     cm(use_forwarded_headers="true"),
     *(get(DENY, status=s, send={"X-Forwarded-For": a}) for a, s in (("18.1.0.1", 403), ("10.10.10.10", 403), ("18.4.0.1", 200), ("55.55.55.55", 200))))

area("annotations/limit-connections")
spec("8 of 20", ing("limit", service="slow-echo"), get("limit"), ing("limit", service="slow-echo", limit_connections=8), conf("limit_conn"),
     do("parallel", "limit", "/sleep/10", 20, {200: 8, 503: 12}))
area("annotations/limit-rate")
spec("kilobytes a second", ing("rate", proxy_buffering="on", limit_rate=1), get("rate"), conf("limit_rate 1k;"),
     ing("rate", proxy_buffering="on", limit_rate=90), get("rate"), conf("limit_rate 90k;"))

M = "mirror.foo.com"
area("annotations/mirror")
spec("to a target", ing(M, mirror_target="http://10.99.11.1/mirror"), do("forget", "echo-two-1"), get(M, has="Hostname: echo-1"), do("count", "echo-two-1", 1),
     conf("mirror_request_body on;"))
spec("to a target with the URI", ing(M, mirror_target="https://test.env.com/$request_uri"), get(M), conf("proxy_pass https://test.env.com/$request_uri;"),
     known="the name of the host is in a variable, so that its address is followed")
spec("without the body", ing(M, mirror_target="http://10.99.11.1/mirror", mirror_request_body="off"), do("forget", "echo-two-1"), get(M, method="POST", body="x"),
     do("count", "echo-two-1", 1), conf("mirror_request_body off;"))

area("annotations/modsecurity")
SECURITY = "weir has no web application firewall"
for name in ("on", "with rules of OWASP and an id of the transaction", "with a snippet", "on for all without another directive", "off where it is on for all",
             "a snippet that blocks", "on for all with a snippet that blocks", "rules of OWASP for all with a snippet that blocks", "by the ConfigMap",
             "a snippet in place of the default settings"):
    cannot(name, SECURITY)
spec("off", ing("modsecurity.foo.com", enable_modsecurity="false"), get("modsecurity.foo.com"), conf(lacks="modsecurity on"))
spec("a snippet that the administrator does not allow", ing("modsecurity.foo.com", modsecurity_snippet="SecRuleEngine On"),
     cm(enable_modsecurity="true", allow_snippet_annotations="false"), get("modsecurity.foo.com", send={"User-Agent": "block-ua"}))
