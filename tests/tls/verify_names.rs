//! `proxy_ssl_verify_names`: the names that certificates of servers must have, beside the one that is sent.

use rcgen::{CertificateParams, KeyPair, SanType};
use weir_testkit::{Dir, Server, run};

use super::WEIR;

/// A server whose certificate is for a host and a URI.
fn certified_for_both() -> Dir {
    let dir = Dir::new();
    let mut params = CertificateParams::new(["shop.example.org".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI("spiffe://mesh/shop".try_into().unwrap()));
    let key = KeyPair::generate().unwrap();
    dir.write("both.pem", params.self_signed(&key).unwrap().pem());
    dir.write("both.key", key.serialize_pem());
    dir
}

#[test]
fn a_server_needs_one_of_the_names_and_no_other() {
    let cases = [
        ("shop.example.org", 200),
        ("spiffe://mesh/shop", 200),
        ("other.example.org spiffe://mesh/shop", 200),
        ("other.example.org", 502),
        ("spiffe://mesh/shops", 502),
        ("spiffe://mesh/Shop", 502),
        ("mesh/shop", 502),
        ("https://shop.example.org", 502),
    ];
    let location = |(n, (names, _)): (usize, &(&str, u16))| {
        format!(
            "location = /{n} {{ proxy_pass https://127.0.0.1:%%PORT1%%; proxy_ssl_verify_names {names}; }}"
        )
    };
    let locations: String = cases.iter().enumerate().map(location).collect();
    let conf = format!(
        "events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%; proxy_ssl_verify on; proxy_ssl_server_name on;
             proxy_ssl_trusted_certificate both.pem; proxy_ssl_name other.example.org; {locations}
             location = /own {{ proxy_pass https://127.0.0.1:%%PORT1%%; proxy_ssl_name shop.example.org; }} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate both.pem; ssl_certificate_key both.key;
             return 200 $ssl_server_name; }} }}"
    );
    let server = Server::start_in(certified_for_both(), WEIR, &conf);
    for (n, (names, status)) in cases.iter().enumerate() {
        let answer = server.get(&format!("/{n}"));
        assert_eq!(answer.status, *status, "{names}");
        if *status == 200 {
            assert_eq!(answer.body(), "other.example.org", "the name that is sent stays");
        }
    }
    assert_eq!(server.get("/own").status, 200);
    server.wait_log("upstream SSL certificate does not match \"spiffe://mesh/Shop\"", 1);
}

#[test]
fn names_without_a_check_are_an_error() {
    let dir = Dir::new();
    let conf = "events { } http { server { listen 8080; location / { proxy_pass https://127.0.0.1:1; proxy_ssl_verify_names a; } } }";
    dir.write("nginx.conf", conf);
    let at = dir.path().display().to_string();
    let tested = run(WEIR, ["-t", "-e", "stderr", "-p", &at, "-c", "nginx.conf"]);
    let text = String::from_utf8_lossy(&tested.stderr).into_owned();
    assert!(!tested.status.success(), "{text}");
    assert!(text.contains("no proxy_ssl_verify for proxy_ssl_verify_names"), "{text}");
}
