//! Certificates with variables in their names: loaded for what the client says first.

use super::bench::{URL, assert_answered, bench};
use super::*;

const CERTIFICATES: &str =
    "ssl_certificate $ssl_server_name.pem; ssl_certificate_key $ssl_server_name.key;
                            location / { return 200 \"$ssl_server_name $server_port\"; }";

fn certified_for(names: &[&str]) -> Dir {
    let dir = certified();
    for name in names {
        dir.write(&format!("{name}.pem"), dir.read("chain.pem"));
        dir.write(&format!("{name}.key"), dir.read("leaf.key"));
    }
    dir
}

#[test]
fn certificates_are_loaded_by_the_name_that_a_client_asks_for() {
    let dir = certified_for(&[NAME, "www.example.org"]);
    let server = Server::start_in(dir, WEIR, &conf("", CERTIFICATES));
    let authority = server.dir().file("root.pem");
    let options = format!("-n 40 -c 4 --close --cacert {}", authority.display());
    assert_answered(&bench(server.port(), &options, URL), 40);
    server.wait_file("seen.log", " h3 200 / ", 40);
    let Some(got) = ask(&server, server.port(), &[], &["/one"]) else { return };
    assert_eq!(got.read("one"), format!("{NAME} {}", server.port()));
}

/// The cache keeps what one protocol uses apart from the other's.
#[test]
fn kept_certificates_serve_both_protocols() {
    let dir = certified_for(&[NAME, "www.example.org"]);
    let inside = format!("ssl_certificate_cache max=10; {CERTIFICATES}");
    let server = Server::start_in(dir, WEIR, &conf("", &inside));
    for n in 1..=2 {
        let url = format!("https://{NAME}:{}/", server.port());
        let said =
            run("curl", ["-sk", "--resolve", &format!("{NAME}:{}:127.0.0.1", server.port()), &url]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{NAME} {}", server.port()));
        assert_answered(&bench(server.port(), "-n 8 -c 2 --close --insecure", URL), 8);
        server.wait_file("seen.log", " h3 200 / ", 8 * n);
    }
}

#[test]
fn a_certificate_that_is_missing_ends_the_handshake_and_no_other() {
    let dir = certified_for(&["www.example.org"]);
    let server = Server::start_in(dir, WEIR, &conf("", CERTIFICATES));
    let report = bench(server.port(), "-n 2 -c 1 --insecure", "https://other.example.org/");
    assert_eq!(report["requests"].as_u64(), Some(0), "{report}");
    server.wait_log("cannot load certificate \"", 1);
    assert!(server.logged("other.example.org.pem") > 0 && server.logged("client: 127.0.0.1") > 0);
    assert_answered(&bench(server.port(), "-n 8 -c 2 --close --insecure", URL), 8);
}

/// QUIC has TLS 1.3 alone.
#[test]
fn a_name_without_tls_1_3_is_refused_over_quic_and_no_other() {
    let other =
        "return 200; } server { listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl;
                 server_name old.example.org; ssl_protocols TLSv1.2; return 200;";
    let server = start("", other);
    let report = bench(server.port(), "-n 2 -c 1 --insecure", "https://old.example.org/");
    assert_eq!(report["requests"].as_u64(), Some(0), "{report}");
    assert_answered(&bench(server.port(), "-n 8 -c 2 --close --insecure", URL), 8);
}

/// A first message of two datagrams: the client's half of FFDHE8192 has a KiB.
#[test]
fn a_first_message_of_two_datagrams_is_read_whole() {
    let server = Server::start_in(certified_for(&[NAME]), WEIR, &conf("", CERTIFICATES));
    let groups = "--groups=-GROUP-ALL:+GROUP-X25519:+GROUP-FFDHE8192";
    let Some(got) = ask(&server, server.port(), &[groups], &["/one"]) else { return };
    assert_eq!(got.read("one"), format!("{NAME} {}", server.port()));
}

/// A script may wait before it chooses, and may end the handshake.
#[test]
fn scripts_choose_certificates() {
    let inside = r#"ssl_client_hello_by_lua_block {
            local name = require "ngx.ssl.clienthello".get_client_hello_server_name()
            if name == "refused.example.org" then ngx.exit(ngx.ERROR) end
        }
        ssl_certificate_by_lua_block {
            local ssl = require "ngx.ssl"
            local name = ssl.server_name()
            ngx.sleep(0.001)
            if name == "broken.example.org" then error("no certificate today") end
            ngx.log(ngx.WARN, "chosen over ", ssl.get_tls1_version_str(), " at ", ssl.server_port())
            local function read(name)
                local file = assert(io.open("%%DIR%%/" .. name))
                local text = file:read("*a")
                file:close()
                return text
            end
            assert(ssl.clear_certs())
            assert(ssl.set_cert(assert(ssl.parse_pem_cert(read("chain.pem")))))
            assert(ssl.set_priv_key(assert(ssl.parse_pem_priv_key(read("leaf.key")))))
        }
        ssl_certificate self.pem; ssl_certificate_key self.key;
        location / { return 200 ok; }"#;
    let server = start("", inside);
    let root = server.dir().file("root.pem").display().to_string();
    let report = bench(server.port(), &format!("-n 4 -c 2 --close --cacert {root}"), URL);
    assert_answered(&report, 4);
    let chosen = format!("chosen over TLSv1.3 at {}", server.port());
    assert!(server.logged(&chosen) >= 2, "{}", server.log());
    for (name, text) in [("broken", "no certificate today"), ("refused", "callback failed")] {
        let url = format!("https://{name}.example.org/");
        let report = bench(server.port(), "-n 1 -c 1 --insecure", &url);
        assert_eq!(report["requests"].as_u64(), Some(0), "{report}");
        server.wait_log(text, 1);
    }
    assert_answered(&bench(server.port(), "-n 2 -c 1 --insecure", URL), 2);
}
