"""Annotations of single Ingresses, from P to Z."""

from words import *

P = "ssl.bar.com"
area("annotations/preserve-trailing-slash")
spec("the slash stays", pair(P), ing(P, tls=True, ssl_redirect="true", preserve_trailing_slash="true"),
     get(P, status=308, headers={"Location": f"https://{P}/"}))

H = "proxy.foo.com"
area("annotations/proxy")
spec("proxy-redirect-from off", ing(H, proxy_redirect_from="off", proxy_redirect_to="goodbye.com"),
     get(H, "/?redirect=http://hello.com/x", 302, headers={"Location": "http://hello.com/x"}), conf("proxy_redirect off;"))
spec("proxy-redirect-from default", ing(H, proxy_redirect_from="default", proxy_redirect_to="goodbye.com"), get(H), conf("proxy_redirect default;"))
spec("proxy-redirect-from and -to", ing(H, proxy_redirect_from="http://hello.com", proxy_redirect_to="http://goodbye.com"),
     get(H, "/?redirect=http://hello.com/x", 302, headers={"Location": "http://goodbye.com/x"}))
spec("proxy-body-size", ing(H, proxy_body_size="8m"), get(H, method="POST", body="x" * (8 << 20)), get(H, method="POST", body="x" * ((8 << 20) + 1), status=413))
spec("a wrong proxy-body-size", ing(H, proxy_body_size="15r"), get(H), conf(lacks="client_max_body_size 15"))
spec("times", ing(H, proxy_connect_timeout=50, proxy_send_timeout=20, proxy_read_timeout=20), get(H),
     conf("proxy_connect_timeout 50s;", "proxy_send_timeout 20s;", "proxy_read_timeout 20s;"))
spec("wrong times", ing(H, proxy_connect_timeout="50k", proxy_send_timeout="20k", proxy_read_timeout="20k"), get(H),
     conf(lacks=["proxy_connect_timeout", "proxy_send_timeout", "proxy_read_timeout"]))
spec("buffers", ing(H, proxy_buffering="on", proxy_buffers_number=8, proxy_buffer_size="8k", proxy_busy_buffers_size="16k"), get(H, "/?size=100000"),
     conf("proxy_buffering on;", "proxy_buffer_size 8192;", "proxy_buffers 8 8192;", "proxy_busy_buffers_size 16384;"))
spec("no buffering of requests", ing(H, proxy_request_buffering="off"), get(H, method="POST", body="x" * 100000, has="body=100000"),
     conf("proxy_request_buffering off;"))
spec("another server", ing(H, proxy_next_upstream="error timeout http_502", proxy_next_upstream_timeout=999999, proxy_next_upstream_tries=888888), get(H),
     conf("proxy_next_upstream error timeout http_502;", "proxy_next_upstream_timeout 999999", "proxy_next_upstream_tries 888888;"))
spec("cookies", ing(H, proxy_cookie_domain="localhost example.org", proxy_cookie_path="/one/ /"),
     get(H, "/?cookie=a=b;domain=localhost;path=/one/", headers={"Set-Cookie": has("example.org")}),
     conf("proxy_cookie_domain localhost example.org;", "proxy_cookie_path /one/ /;"))
spec("HTTP/1.0", ing(H, proxy_http_version="1.0"), get(H, has="request_version=1.0"))

PS = "proxyssl.foo.com"
MA = pair(PS, authority=True)
TO_HTTPS = get(PS, status=308)
area("annotations/proxy-ssl")


def secured(**pairs):
    return ing(PS, tls=True, proxy_ssl_secret=f"t/{PS}", **{"proxy_ssl_" + k: v for k, v in pairs.items()})


spec("a certificate for servers behind", MA, secured(), TO_HTTPS, get(PS, tls=True),
     conf("proxy_ssl_certificate ", "proxy_ssl_certificate_key", "proxy_ssl_trusted_certificate"))
spec("a check of servers behind", MA, secured(verify="on", verify_depth=2, server_name="on"), TO_HTTPS, get(PS, tls=True),
     conf("proxy_ssl_verify on;", "proxy_ssl_verify_depth 2;", "proxy_ssl_server_name on;"))
spec("ciphers", MA, secured(ciphers="HIGH:!AES"), TO_HTTPS, get(PS, tls=True), conf("proxy_ssl_ciphers HIGH:!AES;"))
spec("protocols", MA, secured(protocols="TLSv1.2 TLSv1.3"), TO_HTTPS, get(PS, tls=True), conf("proxy_ssl_protocols TLSv1.2 TLSv1.3;"))
spec("in the location alone", pair("secretone", ["proxyssl.com"], authority=True), svc("echo-tls", ports=((None, 443),)), pods("echo-tls", ["10.99.8.1"], 443),
     ing("proxyssl.com", "/bar", "echo-tls", port=443, backend_protocol="HTTPS", proxy_ssl_secret="t/secretone", proxy_ssl_verify="on",
         proxy_ssl_server_name="on", proxy_ssl_name="proxyssl.com"), cm(proxy_ssl_location_only="true"),
     get("proxyssl.com", "/bar", has="Hostname: echo-tls-1"))

R = "http://redirect.example.com"
area("annotations/permanent-redirect")
spec("301", ing("redirect", "/something", permanent_redirect=R), get("redirect", "/something", 301, headers={"Location": R}))
spec("another status", ing("redirect", "/something", permanent_redirect=R, permanent_redirect_code=302), get("redirect", "/something", 302, headers={"Location": R}))
area("annotations/relative-redirects")
spec("is a directive", ing("rr.foo.com", service="httpbun", relative_redirects="true"), get("rr.foo.com"), conf("absolute_redirect off;"))
for on, wanted in (("false", "http://rr.foo.com/new-location"), ("true", "/new-location")):
    spec(f"{'a relative' if on == 'true' else 'an absolute'} URL", ing("rr.foo.com", "/something", permanent_redirect="/new-location", relative_redirects=on),
         get("rr.foo.com", "/something", 301, headers={"Location": wanted}))

RW = "rewrite.bar.com"
TARGET = {"rewrite_target": "/new/backend"}


def uri(path, behind):
    return get(RW, path, has=f"request_uri=http://{RW}:80{behind}\n")


area("annotations/rewrite-target use-regex")
spec("a log of rewriting", ing(RW, "/something", rewrite_target="/", enable_rewrite_log="true"), get(RW, "/something"),
     log('"(?i)/something" matches "/something"', 'rewritten data: "/", args: ""'))
ACME = "/.well-known/acme/challenge"
spec("the longest path", ing(RW, ACME, name="lego"), uri(ACME, ACME), ing(RW, name="index", **TARGET), uri("/x", "/new/backend"), uri(ACME, ACME))
spec("patterns", ing(RW, "/foo", name="foo"), uri("/foo", "/foo"),
     ing(RW, "/foo.+", name="regex", kind="ImplementationSpecific", use_regex="true", **TARGET), uri("/foo/bar", "/new/backend"), uri("/foo", "/foo"))
spec("the longest pattern, which may be shorter in what it matches", ing(RW, "/foo/bar/bar", name="foo"),
     ing(RW, "/foo/bar/[a-z]{3}", name="regex", kind="ImplementationSpecific", use_regex="true", **TARGET), uri("/foo/bar/bar", "/new/backend"))
spec("groups", ing(RW, "/foo/bar/(.+)", kind="ImplementationSpecific", use_regex="true", rewrite_target="/new/backend/$1"),
     uri("/foo/bar/bar", "/new/backend/bar"))

SNIP = 'more_set_headers "Foo: Bar";\nmore_set_headers "Xpto: Lalala";'
S = "snippet.foo.com"
area("annotations/server-snippet")
spec("directives", ing(S, server_snippet=SNIP), get(S, headers={"Foo": "Bar", "Xpto": "Lalala"}), snippets=True)
spec("not without the administrator", ing(S, server_snippet=SNIP), get(S, headers={"Foo": None, "Xpto": None}))
area("annotations/configuration-snippet")
spec("directives", ing(S, service="httpbun", configuration_snippet='more_set_headers "Foo1: Bar1";'), get(S, headers={"Foo1": "Bar1"}), snippets=True)
spec("not without the administrator", ing(S, service="httpbun", configuration_snippet='more_set_headers "Foo1: Bar1";'),
     cm(allow_snippet_annotations="false"), get(S, headers={"Foo1": None}))

area("annotations/ssl-ciphers")
for text, prefer in (("ALL:!aNULL:!EXPORT56:RC4+RSA:+HIGH:+MEDIUM:+LOW:+SSLv2:+EXP", "false"),
                     ("ALL:!aNULL:!EXPORT56:RC4+RSA@STRENGTH:+HIGH@SECLEVEL=0:+MEDIUM:+LOW:+SSLv2:+EXP", "true")):
    spec(f"a list, with ssl-prefer-server-ciphers {prefer}", ing("ciphers.foo.com", "/something", ssl_ciphers=text, ssl_prefer_server_ciphers=prefer),
         get("ciphers.foo.com", "/something", tls=True), conf(f"ssl_ciphers {text};", f"ssl_prefer_server_ciphers {'on' if prefer == 'true' else 'off'};"))

area("annotations/stream-snippet")
cannot("a server of streams", "snippets outside of servers and locations are never taken")
spec("the administrator's, and not that of an Ingress", cm(stream_snippet="server { listen 127.0.0.1:8000; proxy_pass 127.0.0.1:80; }"), ing("cm.foo.com"),
     ing("annot.foo.com", stream_snippet="server { listen 127.0.0.1:8001; proxy_pass 127.0.0.1:80; }"), get("cm.foo.com", port=8000),
     get("cm.foo.com", port=8001, fails=True))

area("annotations/upstream-vhost")
spec("the host for servers behind", ing("vhost.foo.com", upstream_vhost="vhost.bar.com"), get("vhost.foo.com", has="\nhost=vhost.bar.com\n"))
area("annotations/x-forwarded-prefix")
spec("a value", ing("xfp.baz.com", x_forwarded_prefix="/test/value", rewrite_target="/foo"), get("xfp.baz.com", has="x-forwarded-prefix=/test/value"))
spec("no value", ing("xfp.baz.com", x_forwarded_prefix="", rewrite_target="/foo"), get("xfp.baz.com", lacks="x-forwarded-prefix"))
