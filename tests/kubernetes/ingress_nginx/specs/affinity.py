"""Cookies that bind clients, and other choices of a server."""

from words import *

COOKIE = {"affinity": "cookie", "session_cookie_name": "SERVERID"}


def sets(*parts):
    """Attributes of cookies have no case."""
    return {"Set-Cookie": Folded(*parts)}


class Folded(Has):
    def __eq__(self, other):
        return other is not None and all(part.lower() in other.lower() for part in self.parts)


area("annotations/affinity")
spec("a cookie", ing("sticky.foo.com", **COOKIE), get("sticky.foo.com", headers=sets("SERVERID=")))
spec("another name of the cookie", ing("change.foo.com", **COOKIE), get("change.foo.com", headers=sets("SERVERID=")),
     ing("change.foo.com", affinity="cookie", session_cookie_name="OTHERCOOKIENAME"), get("change.foo.com", headers=sets("OTHERCOOKIENAME=")))
spec("the path of the cookie is that of the rule", ing("path.foo.com", "/something", **COOKIE),
     get("path.foo.com", "/something", headers=sets("Path=/something")))
spec("each of two rules has its path", ing("more.foo.com", ["/something", "/somewhereelse"], **COOKIE),
     get("more.foo.com", "/something", headers=sets("Path=/something")), get("more.foo.com", "/somewhereelse", headers=sets("Path=/somewhereelse")))
spec("expires and max-age", ing("expires.foo.com", affinity="cookie", session_cookie_name="ExpiresCookie", session_cookie_expires=172800,
                                           session_cookie_max_age=259200), get("expires.foo.com", headers=sets("Expires=", "Max-Age=259200")))
spec("domain", ing("domain.foo.com", affinity="cookie", session_cookie_name="DomainCookie", session_cookie_domain="foo.bar"),
     get("domain.foo.com", headers=sets("Domain=foo.bar")))
spec("no domain", ing("no.foo.com", **COOKIE), get("no.foo.com", headers={"Set-Cookie": lacks("Domain", "domain")}))
spec("a pattern, and session-cookie-path",
     ing("re.foo.com", "/foo/.*", kind="ImplementationSpecific", use_regex="true", session_cookie_path="/foo/bar", **COOKIE),
     get("re.foo.com", "/foo/bar", headers=sets("Path=/foo/bar", "SERVERID=")))
spec("a pattern without session-cookie-path is told",
     ing("warn.foo.com", "/foo/.*", kind="ImplementationSpecific", use_regex="true", **COOKIE), get("warn.foo.com", "/foo/bar"), says("session-cookie-path"))
spec("the cookie of one Ingress alone", ing("two.foo.com", "/foo/bar", name="one", affinity="cookie"),
     ing("two.foo.com", "/foo", name="two"), get("two.foo.com", "/foo", headers={"Set-Cookie": None}),
     get("two.foo.com", "/foo/bar", headers=sets("Path=/foo/bar")))
spec("without a host", ing("", **COOKIE), get("", headers=sets("SERVERID=")))
spec("with server-alias", ing("foo.com", "/bar", server_alias="a1.foo.com,a2.foo.com", **COOKIE),
     *(get(h, "/bar", headers=sets("SERVERID=")) for h in ("foo.com", "a1.foo.com", "a2.foo.com")))
spec("secure over http if it is wanted", ing("foo.com", "/bar", session_cookie_secure="true", **COOKIE),
     get("foo.com", "/bar", headers=sets("; Secure")))
spec("not secure over http if it is not wanted", ing("foo.com", "/bar", session_cookie_secure="false", **COOKIE),
     get("foo.com", "/bar", headers={"Set-Cookie": lacks("; Secure", "; secure")}))
spec("secure over https in any case", ing("foo.com", tls=True, session_cookie_secure="false", **COOKIE),
     get("foo.com", tls=True, headers=sets("; Secure")))

MODE = {"affinity": "cookie", "session_cookie_name": "hello-cookie", "session_cookie_expires": 172800, "session_cookie_max_age": 172800,
        "ssl_redirect": "false", "session_cookie_hash": "sha1"}
area("annotations/affinitymode")
spec("balanced", ing("balance.com", affinity_mode="balanced", **MODE), replicas(5),
     get("balance.com", headers=sets("hello-cookie=")))
spec("persistent", ing("persistent.com", affinity_mode="persistent", **MODE), pods("echo", ["10.99.1.3"]),
     get("persistent.com", keep="hello-cookie", same="first"), replicas(5), get("persistent.com", same="first", times=5), replicas(15),
     get("persistent.com", same="first", times=5), replicas(0), get("persistent.com", status=503), pods("echo", ["10.99.1.1", "10.99.1.2"]),
     get("persistent.com", lacks="Hostname: echo-3"))

area("annotations/upstream-hash-by")
spec("one pod", ing("hash.foo.com", upstream_hash_by="$request_uri"), replicas(6), spread("hash.foo.com", servers=1))
spec("a subset of pods",
     ing("hash.foo.com", upstream_hash_by="$request_uri", upstream_hash_by_subset="true", upstream_hash_by_subset_size=3), replicas(6),
     spread("hash.foo.com", servers=3), known="a key has one server, not a group of them")

area("annotations/service-upstream")
spec("by the annotation", ing("up", service_upstream="true"), get("up", has="Hostname: cluster-ip"))
spec("by the ConfigMap", ing("up"), cm(service_upstream="true"), get("up", has="Hostname: cluster-ip"))
spec("the annotation over the ConfigMap", ing("up", service_upstream="false"), cm(service_upstream="true"),
     get("up", has="Hostname: echo-1"))

area("loadbalance")
spec("ewma by the ConfigMap", ing("lb.com"), cm(load_balance="ewma"), replicas(3), conf("least_time", http=True), get("lb.com"))
spec("ewma answers all", ing("lb.com"), cm(load_balance="ewma", worker_processes=2), replicas(3), spread("lb.com", count=30))
spec("round robin is even", ing("lb.com"), cm(worker_processes=1), replicas(3),
     get("lb.com"), spread("lb.com", count=600, servers=3, least=199))
