"""Who is let in: passwords, authentication services, client certificates."""

import subprocess

from words import *


# The password is "bar".
HASH = subprocess.run(["openssl", "passwd", "-apr1", "-salt", "ab", "bar"], capture_output=True, text=True, check=True).stdout.strip()


def users(line=f"foo:{HASH}\n", **entry):
    """A Secret with lines of a password file, or with a key for each user."""
    return secret("test", {user: HASH for user in entry} or {"auth": line})


BASIC = {"auth_type": "basic", "auth_secret": "test", "auth_realm": "test auth"}
LOGIN = ("foo", "bar")
area("annotations/auth")
spec("200 when no authentication is configured", ing("auth"), get("auth", has="host=auth"))
spec("503 when authentication is configured with an invalid secret", ing("auth", **{**BASIC, "auth_secret": "something"}),
     get("auth", status=503, has="503 Service Temporarily Unavailable"))
spec("401 when the Authorization header is not sent", users(), ing("auth", **BASIC), get("auth", status=401, has="401 Authorization Required"))
spec("401 when the Authorization header has invalid credentials", users(), ing("auth", **BASIC),
     get("auth", status=401, login=("user", "pass"), has="401 Authorization Required"))
spec("401 and cors headers when authentication and cors are configured", users(), ing("auth", enable_cors="true", **BASIC),
     get("auth", status=401, headers={"Access-Control-Allow-Origin": "*"}))
spec("200 when the Authorization header is sent", users(), ing("auth", **BASIC), get("auth", login=LOGIN))
spec("200 when authentication is configured with a map", users(foo=1), ing("auth", auth_secret_type="auth-map", **BASIC), get("auth", login=LOGIN))
spec("401 when authentication is configured with invalid content", users(line="foo:"), ing("auth", **BASIC), get("auth", status=401, login=LOGIN))
BUN = f"http://{PODS['httpbun']}"
ECHO = f"http://{PODS['echo-two']}"
spec("set the snippet when external auth is configured",
     ing("auth", auth_url=f"{ECHO}/", auth_snippet="proxy_set_header My-Custom-Header 42;"), get("auth"), conf("proxy_set_header My-Custom-Header 42;"),
     snippets=True)
spec("not set the snippet when external auth is not configured", ing("auth", auth_snippet="proxy_set_header My-Custom-Header 42;"),
     get("auth", lacks="my-custom-header"), conf(lacks="My-Custom-Header"), snippets=True)
spec("set headers for the service when auth-proxy-set-headers is set", cm({"My-Custom-Header": "42"}, name="auth-headers"),
     ing("auth", auth_url=f"{ECHO}/", auth_proxy_set_headers="t/auth-headers"), get("auth"), conf("proxy_set_header My-Custom-Header 42;"))
spec("set the cache key when external auth cache is configured",
     ing("auth", auth_url=f"{BUN}/basic-auth/user/password", auth_cache_key="foo", auth_cache_duration="200 202 401 30m"),
     get("auth", login=("user", "password")), conf("proxy_cache_valid 200 202 401 30m;"), conf("proxy_cache_key"))
COOKIE = {"auth_url": f"http://{PODS['cookies']}/cookies/set/alma/armud", "auth_signin": "http://$host/auth/start"}


def both(**more):
    return ing("check", "/", "cookies", name="one", **COOKIE, **more), ing("check", "/error", "cookies", name="two", **COOKIE, **more)


QUERY = "?a=b&c=d"
spec("the cookie of the service", *both(), get("check", "/" + QUERY, headers={"Set-Cookie": has("alma=armud")}))
spec("no cookie beside an error", *both(), get("check", "/error" + QUERY, 503, headers={"Set-Cookie": None}))
spec("the cookie beside an error with auth-always-set-cookie", *both(auth_always_set_cookie="true"),
     get("check", "/error" + QUERY, 503, headers={"Set-Cookie": has("alma=armud")}))
USER = ("user", "password")
OUT = {"auth_url": f"{BUN}/basic-auth/user/password", "auth_signin": "http://$host/auth/start"}
ESCAPED = "%2F%3Fa%3Db%26c%3Dd"
for title, more, param in (("", {}, "rd"), (" (custom redirect parameter)", {"auth_signin_redirect_param": "orig"}, "orig")):
    spec(f"200 when signed in{title}", ing("auth", **OUT, **more), get("auth", login=USER))
    spec(f"redirect to signin url when not signed in{title}", ing("auth", **OUT, **more),
         get("auth", "/" + QUERY, 302, headers={"Location": f"http://auth/auth/start?{param}=http://auth{ESCAPED}"}))
    spec(f"a wrong Ingress stops no other{title}", ing("auth", **OUT, **more), get("auth", login=USER),
         ing("auth", **OUT, **more, **{**BASIC, "auth_secret": "something"}), ing("different"), get("different"))
spec("overwrite Foo header with auth response", ing("auth", auth_response_headers="Foo", **OUT),
     get("auth", login=USER, send={"Foo": "bar"}, lacks="foo=bar"))
KEPT = {"auth_keepalive": 123, "auth_keepalive_requests": 456, "auth_keepalive_timeout": 789}
NO_UPSTREAM = conf(lacks="upstream auth-external", http=True)
WORKS = get("auth", login=USER)
spec("no additional upstream block when auth-keepalive is not set", cm(use_http2="false"), ing("auth", **OUT), WORKS, NO_UPSTREAM)
spec("no additional upstream block when the host of auth-url has a variable", cm(use_http2="false"),
     ing("auth", auth_url="http://$host/path", auth_signin="http://$host/auth/start", auth_keepalive=123),
     conf("http://$host/path", http=True), NO_UPSTREAM, known="refused: a client would choose who lets it in")
spec("no additional upstream block when auth-keepalive is negative", cm(use_http2="false"), ing("auth", auth_keepalive=-1, **OUT), WORKS, NO_UPSTREAM)
spec("no additional upstream block when auth-keepalive is set with HTTP/2", ing("auth", **KEPT, **OUT), WORKS, NO_UPSTREAM)
spec("an additional upstream block when auth-keepalive is set with HTTP/1.x", cm(use_http2="false"), ing("auth", **KEPT, **OUT), WORKS,
     conf("keepalive 123;", "keepalive_requests 456;", "keepalive_timeout 789s;", http=True))
spec("variables of its own for the service when auth-keepalive-share-vars is not set", cm(use_http2="false"), ing("auth", auth_keepalive=10, **OUT), WORKS,
     conf("keepalive 10;", http=True))
cannot("variables of the request for the service with auth-keepalive-share-vars", "a request to the service has variables of its own")
CACHED = {**OUT, "auth_cache_key": "fixed", "auth_cache_duration": "200 201 401 30m"}
FOUR = [ing(host, path, name=f"{host}-{path[1:]}", **CACHED) for host in ("auth", "different") for path in ("/foo", "/bar")]
GONE = do("stop", "httpbun-1")
spec("200 when signed in after the auth backend is deleted", *FOUR, get("auth", "/foo", login=USER), GONE, get("auth", "/foo", login=USER))
spec("deny login for different location on same server", *FOUR, get("auth", "/foo", login=USER), GONE, get("auth", "/foo", login=USER),
     get("auth", "/bar", 500, login=USER))
spec("deny login for different servers", *FOUR, get("auth", "/foo", login=USER), GONE, get("auth", "/foo", login=USER),
     get("different", "/foo", 500, login=USER))
spec("redirect to signin url when not signed in, with a cache", *FOUR,
     get("auth", "/foo" + QUERY, 302, headers={"Location": "http://auth/auth/start?rd=http://auth%2Ffoo%3Fa%3Db%26c%3Dd"}))
BAD = ing("auth", "/denied-auth", auth_url="https://invalid..auth.url")
spec("503 for a location with an invalid auth-url", BAD, get("auth", "/denied-auth", 503))
spec("says that the auth-url is invalid", BAD, says("auth-url", "host"))

HOST = "authtls.foo.com"
MA = pair(HOST, authority=True)


def mutual(**pairs):
    return ing(HOST, tls=True, auth_tls_secret=f"t/{HOST}", **{"auth_tls_" + k: v for k, v in pairs.items()})


IN = get(HOST, tls=True, certificate=HOST)
NOT_IN = get(HOST, tls=True, status=400)
area("annotations/authtls")
spec("set certificate, verify and depth with auth-tls-secret", MA, ing(HOST, tls=True), get(HOST, tls=True), conf(lacks="ssl_verify_client"), mutual(),
     conf("ssl_verify_client on;", "ssl_verify_depth 1;", "ssl_client_certificate"), NOT_IN, IN)
spec("set valid auth-tls-secret, sslVerify to off, and sslVerifyDepth to 2", MA, mutual(verify_client="off", verify_depth=2), get(HOST, tls=True))
spec("302 to the error page instead of 400 when auth-tls-error-page is set", MA, mutual(error_page="http://127.0.0.1/error"),
     get(HOST, tls=True, status=302, headers={"Location": "http://127.0.0.1/error"}), IN)
spec("pass URL-encoded certificate to upstream", MA, mutual(pass_certificate_to_upstream="true"), NOT_IN,
     get(HOST, tls=True, certificate=HOST, has="ssl-client-cert=-----BEGIN%20CERTIFICATE-----%0A"))
spec("validate auth-tls-verify-client", MA, mutual(verify_client="on"), IN, NOT_IN, mutual(verify_client="off"), get(HOST, tls=True), IN)
spec("403 using auth-tls-match-cn with no matching CN", MA, mutual(verify_client="on", match_cn="CN=notgonnamatch"),
     get(HOST, tls=True, certificate=HOST, status=403))
spec("200 using auth-tls-match-cn with matching CN", MA, mutual(verify_client="on", match_cn="CN=authtls"), IN)
spec("take a changed auth-tls-match-cn", MA, mutual(verify_client="on", match_cn="CN=notvalid"), get(HOST, tls=True, certificate=HOST, status=403),
     mutual(verify_client="on", match_cn="CN=authtls"), IN)
spec("200 where at least one of the options of the pattern matches", MA, mutual(verify_client="on", match_cn="CN=(itwillmatch|withthenextoption|authtls)"), IN)

area("annotations/satisfy")
spec("configure satisfy directive correctly", ing("satisfy", satisfy="all"), get("satisfy", has="host=satisfy"), conf("satisfy all;"),
     ing("satisfy", satisfy="any"), get("satisfy"), conf("satisfy any;"))
spec("allow multiple auth with satisfy any", users(), ing("auth", satisfy="any", **OUT, **BASIC), get("auth", login=LOGIN),
     get("auth", "/" + QUERY, 302, headers={"Location": f"http://auth/auth/start?rd=http://auth{ESCAPED}"}))

area("settings/no-auth-locations")
OPEN = ing("noauth", ["/", "/noauth"], **BASIC)
spec("401 when accessing / unauthenticated", users(), cm(no_auth_locations="/noauth"), OPEN, get("noauth", status=401, has="401 Authorization Required"))
spec("200 when accessing / authenticated", users(), cm(no_auth_locations="/noauth"), OPEN, get("noauth", login=LOGIN))
spec("200 when accessing /noauth unauthenticated", users(), cm(no_auth_locations="/noauth"), OPEN, get("noauth", "/noauth"))

area("settings/global-auth-url")
FOO_BAR = [ing("global", "/foo", name="foo"), ing("global", "/bar", name="bar")]
REFUSES = {"global_auth_url": f"{BUN}/status/401"}
spec("401 when requesting any protected service", *FOO_BAR, cm(**REFUSES), get("global", "/foo", 401), get("global", "/bar", 401))
spec("200 for a location of no-auth-locations", *FOO_BAR, cm(no_auth_locations="/bar", **REFUSES), get("global", "/foo", 401), get("global", "/bar"))
spec("200 for an Ingress with enable-global-auth false", FOO_BAR[0], ing("global", "/bar", name="bar", enable_global_auth="false"), cm(**REFUSES),
     get("global", "/foo", 401), get("global", "/bar"))
spec("still 200 after the auth backend is deleted, by the cache", *FOO_BAR,
     cm(global_auth_url=f"{BUN}/status/200", global_auth_cache_key="foo", global_auth_cache_duration="200 201 401 30m"), get("global", "/bar", login=USER),
     GONE, get("global", "/bar", login=USER))
spec("the method of global-auth-method", *FOO_BAR, cm(global_auth_method="GET", global_auth_url=f"{BUN}/status/200"),
     get("global", "/foo", method="POST", body="x"), conf("proxy_method GET;"))
spec("an error page with global-auth-signin", *FOO_BAR, cm(global_auth_signin="http://foo.com/global-error-page", **REFUSES),
     get("global", "/foo", 302, headers={"Location": has("http://foo.com/global-error-page")}))
spec("headers with global-auth-response-headers", *FOO_BAR,
     cm(global_auth_url=f"{BUN}/response-headers?Foo=one&Bar=two", global_auth_response_headers="Foo, Bar"), get("global", "/foo", has=["foo=one", "bar=two"]))
spec("the redirect of global-auth-request-redirect", *FOO_BAR, cm(global_auth_request_redirect="Foo-Redirect", global_auth_url=f"{BUN}/status/200"),
     get("global", "/foo"), conf("Foo-Redirect"))
spec("the snippet of global-auth-snippet", *FOO_BAR, cm(global_auth_snippet="proxy_set_header My-Custom-Header 42;", global_auth_url=f"{BUN}/status/200"),
     get("global", "/foo"), conf("proxy_set_header My-Custom-Header 42;"))
PAIR = [ing("check", "/", "cookies", name="one"), ing("check", "/error", "cookies", name="two")]
SETS = {"global_auth_url": COOKIE["auth_url"]}
spec("the cookie of the service", *PAIR, cm(**SETS), get("check", "/" + QUERY, headers={"Set-Cookie": has("alma=armud")}))
spec("no cookie beside an error", *PAIR, cm(**SETS), get("check", "/error" + QUERY, 503, headers={"Set-Cookie": None}))
spec("the cookie beside an error with global-auth-always-set-cookie", *PAIR, cm(global_auth_always_set_cookie="true", **SETS),
     get("check", "/error" + QUERY, 503, headers={"Set-Cookie": has("alma=armud")}))
