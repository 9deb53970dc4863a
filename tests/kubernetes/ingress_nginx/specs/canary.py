"""Canaries."""

from words import *

MAIN = ing("foo", "/info", "httpbun", name="foo")
OF_MAIN, OF_CANARY = '"httpbun-1"', '"httpbun-canary-1"'


def canary(**pairs):
    return ing("foo", "/info", "httpbun-canary", name="foo-canary", canary="true", **{"canary_" + k if k[:2] in ("by", "we") else k: v for k, v in pairs.items()})


def main(value=None, name="CanaryByHeader", **more):
    return get("foo", "/info", has=OF_MAIN, send={name: value} if value else {}, **more)


def other(value=None, name="CanaryByHeader", **more):
    return get("foo", "/info", has=OF_CANARY, send={name: value} if value else {}, **more)


HEADER = canary(by_header="CanaryByHeader")
area("annotations/canary")
spec("no header", MAIN, HEADER, main())
spec("404 for a canary alone", HEADER,
     get("foo", "/info", 404, send={"CanaryByHeader": "always"}))
spec("main before canary", MAIN, HEADER, main("never"), other("always"))
spec("canary before main", HEADER, MAIN, main("never"), other("always"))
spec("main changes", MAIN, HEADER, other("always"),
     ing("foo", "/info", "httpbun", name="foo", full={"foo": "bar"}), main("never"), other("always"))
spec("canary changes", MAIN, HEADER, other("always"), canary(by_header="CanaryByHeader2"),
     other("always", "CanaryByHeader2"), main("never", "CanaryByHeader2"))
spec("a header without a value", MAIN, HEADER, other("always"), main("never"), main("badheadervalue"))
spec("a header with a value", MAIN, canary(by_header="CanaryByHeader", by_header_value="DoCanary"), other("DoCanary"), main("always"),
     main("never"), main("otherheadervalue"))
PATTERN = "^Do[A-Z][a-z]+y$"
spec("a header with a pattern", MAIN, canary(by_header="CanaryByHeader", by_header_pattern=PATTERN), other("DoCanary"), main("Docanary"))
spec("a header with both",
     MAIN, canary(by_header="CanaryByHeader", by_header_value="DoCanary", by_header_pattern=PATTERN), main("DoCananry"))
spec("a pattern that is none",
     MAIN, canary(by_header="CanaryByHeader", by_header_pattern="[][**da?$&*", by_cookie="CanaryByCookie"),
     main("DoCanary", cookie={"CanaryByCookie": "always"}))
spec("a header and a cookie", MAIN, canary(by_header="CanaryByHeader", by_header_value="DoCanary", by_cookie="CanaryByCookie"),
     other("otherheadervalue", cookie={"CanaryByCookie": "always"}))
spec("a cookie", MAIN, canary(by_cookie="Canary-By-Cookie"),
     *(f(cookie={"Canary-By-Cookie": v}, times=50) for f, v in ((other, "always"), (main, "never"), (main, "badcookievalue"))))
spec("weight 0", MAIN, canary(weight=0), main(times=20))
spec("weight 100", MAIN, canary(weight=100), other(times=20))
spec("weight 1000 of 1000", MAIN, canary(weight=1000, weight_total=1000), other(times=20))
spec("weight 50", MAIN, canary(weight=50), spread("foo", "/info", 200, 2, 70))
spec("weight 100 of 200", MAIN, canary(weight=100, weight_total=200), spread("foo", "/info", 200, 2, 70))
CATCH_ALL = ing("", service="httpbun", name="foo", rules=[], default="httpbun")
spec("no canary for all hosts",
     ing("", name="foo-canary", rules=[], default="httpbun-canary", canary="true", canary_by_header="CanaryByHeader"), CATCH_ALL,
     get("", has=OF_MAIN), get("anything", has=OF_MAIN))
spec("no server for a canary alone", HEADER, ing("bar", "/info", "httpbun"), get("bar", "/info", has=OF_MAIN),
     get("foo", "/info", 404, send={"CanaryByHeader": "always"}))
spec("several paths of a Service that is not there",
     ing("foo", ["/foo", "/bar"], "httpy-svc-canary", name="foo-canary", canary="true", canary_by_header="CanaryByHeader"), MAIN, main())
AFFINE = ing("foo", "/info", "httpbun", name="foo", affinity="cookie", session_cookie_name="aff")
FORCE = {"by_header": "ForceCanary", "by_header_value": "yes"}
for title, more in (("default", {}), ("explicit sticky", {"affinity_canary_behavior": "sticky"})):
    spec(f"a client of the canary stays there ({title})", AFFINE, canary(weight=1, **FORCE, **more),
         other("yes", "ForceCanary", keep="aff"), other(times=50))
spec("a client of the canary does not stay there (legacy)", AFFINE, canary(weight=50, affinity_canary_behavior="legacy", **FORCE),
     other("yes", "ForceCanary", headers={"Set-Cookie": lacks("aff=")}), spread("foo", "/info", 200, 2, 70))
