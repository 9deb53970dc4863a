//! Which object's requests are which, on status pages.

use serde_json::json;
use weir_testkit::{Dir, Server, ask_until};

use super::gateway::{self, plain, route, to};
use super::{ask, behind, both, gateways_at_second, ingress, serve_in, service};

/// Serves manifests, Ingresses at the first port and Gateways at the second; figures are at the third.
fn serve(manifests: &str) -> Option<Server> {
    let figures = "http { server { listen 127.0.0.1:%%PORT2%%; location / { weir_status; } }";
    let change = |text: String| gateways_at_second(text).replacen("http {", figures, 1);
    Some(serve_in(Dir::new(), manifests, both(), change)?.0)
}

#[test]
fn requests_count_under_the_ingress_and_the_route_that_they_reached() {
    let manifests = [
        service("shop", "web", behind("web")),
        ingress("shop", "web", &[], "shop.test", &[("Prefix", "/", "web")]),
        ingress("shop", "cart", &[], "shop.test", &[("Prefix", "/cart", "web")]),
        ingress(
            "shop",
            "moved",
            &[("permanent-redirect", "http://b.test")],
            "b.test",
            &[("Prefix", "/", "web")],
        ),
        plain(),
        route("HTTPRoute", "shop", "web", &["route.test"], json!([{ "backendRefs": to("web") }])),
    ];
    let Some(server) = serve(&manifests.concat()) else { return };
    for path in ["/", "/a", "/cart", "/b"] {
        assert_eq!(ask(&server, "shop.test", path).0, "200");
    }
    assert_eq!(ask(&server, "b.test", "/").0, "301");
    let mut gateway = weir_testkit::Client::connect(server.port_at(1));
    gateway.send("GET / HTTP/1.1\r\nHost: route.test\r\nConnection: close\r\n\r\n");
    assert_eq!(gateway.response().status, 200);
    let counted = || {
        let mut figures = weir_testkit::Client::connect(server.port_at(2));
        figures.get("/").body()
    };
    let lines = [
        r#"weir_zone_requests_total{zone="Ingress shop/web",status="2xx"} 3"#,
        r#"weir_zone_requests_total{zone="Ingress shop/cart",status="2xx"} 1"#,
        r#"weir_zone_requests_total{zone="Ingress shop/moved",status="3xx"} 1"#,
        r#"weir_zone_requests_total{zone="HTTPRoute shop/web",status="2xx"} 1"#,
        r#"weir_upstream_requests_total{upstream="shop_web_80","#,
    ];
    assert!(ask_until(|| lines.iter().all(|line| counted().contains(line))), "{}", counted());
}

#[test]
fn requests_that_a_canary_gets_count_apart() {
    let manifests = [
        service("shop", "web", behind("web")),
        service("shop", "new", behind("new")),
        ingress("shop", "web", &[], "shop.test", &[("Prefix", "/", "web")]),
        ingress(
            "shop",
            "trial",
            &[("canary", "true"), ("canary-by-header", "X-New")],
            "shop.test",
            &[("Prefix", "/", "new")],
        ),
    ];
    let Some(server) = serve(&manifests.concat()) else { return };
    for (value, wanted) in [("always", "new"), ("never", "web"), ("always", "new")] {
        let answer = gateway::ask(&server, "GET /", "shop.test", &format!("X-New: {value}\r\n"));
        assert!(answer.body().contains(wanted), "{value}: {}", answer.body());
    }
    let counted = || weir_testkit::Client::connect(server.port_at(2)).get("/").body();
    let lines = [
        r#"weir_zone_requests_total{zone="Ingress shop/web",status="2xx"} 1"#,
        r#"weir_zone_requests_total{zone="Ingress shop/web canary new:80",status="2xx"} 2"#,
    ];
    assert!(ask_until(|| lines.iter().all(|line| counted().contains(line))), "{}", counted());
}
