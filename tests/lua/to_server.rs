//! Scripts in handshakes with servers: `proxy_ssl_certificate_by_lua`, `proxy_ssl_verify_by_lua`, and their modules.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;

use weir_testkit::{Client, Server, certified, listen, run};

use super::WEIR;

/// Servers that ask for a certificate by TLS 1.3 (port 1) and 1.2 (port 2), and these locations before them. The certificate
/// of the servers is for `www.example.org`, and `root.pem` vouches for it.
fn conf(locations: &str) -> String {
    let behind = |port: u8, version: &str| {
        format!(
            "server {{
                 listen 127.0.0.1:%%PORT{port}%% ssl; ssl_protocols {version};
                 ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                 ssl_verify_client optional; ssl_client_certificate root.pem;
                 return 200 '<$ssl_protocol $ssl_client_verify $ssl_client_s_dn $ssl_session_reused>';
             }}"
        )
    };
    let (thirteen, twelve) = (behind(1, "TLSv1.3"), behind(2, "TLSv1.2"));
    format!(
        r#"user root; events {{ }}
        http {{
            access_log off; error_log error.log info; {thirteen} {twelve}
            lua_shared_dict said 1m;
            init_by_lua_block {{
                function read(name)
                    local file = assert(io.open("%%DIR%%/" .. name))
                    local text = file:read("*a")
                    file:close()
                    return text
                end
                function show(chain, key)
                    local ssl, to_server = require "ngx.ssl", require "ngx.ssl.proxysslcert"
                    assert(to_server.set_cert(assert(ssl.parse_pem_cert(chain))))
                    assert(to_server.set_priv_key(assert(ssl.parse_pem_priv_key(key))))
                end
            }}
            proxy_ssl_name www.example.org; proxy_ssl_trusted_certificate root.pem; proxy_ssl_verify_depth 2;
            server {{ listen 127.0.0.1:%%PORT%%; {locations} }}
        }}"#
    )
}

fn start(locations: &str) -> Server {
    Server::start_in(certified(), WEIR, &conf(locations))
}

/// A location that passes to the server of TLS 1.3.
fn location(path: &str, lines: &str) -> String {
    format!("location {path} {{ proxy_pass https://127.0.0.1:%%PORT1%%; {lines} }}")
}

/// The same to that of TLS 1.2.
fn older(path: &str, lines: &str) -> String {
    format!("location {path} {{ proxy_pass https://127.0.0.1:%%PORT2%%; {lines} }}")
}

const CLIENT: &str = "proxy_ssl_certificate client.pem; proxy_ssl_certificate_key client.key;";

#[test]
fn a_script_chooses_the_certificate_that_a_server_is_shown() {
    let chooses =
        "proxy_ssl_certificate_by_lua_block { show(read('client.pem'), read('client.key')) }";
    let forms = "proxy_ssl_certificate_by_lua_block {
        local ssl, to_server = require 'ngx.ssl', require 'ngx.ssl.proxysslcert'
        assert(to_server.set_der_cert(assert(ssl.cert_pem_to_der(read('client.pem')))))
        assert(to_server.set_der_priv_key(assert(ssl.priv_key_pem_to_der(read('client.key')))))
    }";
    let clears = "proxy_ssl_certificate_by_lua_block {
        assert(require 'ngx.ssl.proxysslcert'.clear_certs())
    }";
    let leaves = "proxy_ssl_certificate_by_lua_block { ngx.log(ngx.WARN, ngx.get_phase()) }";
    let server = start(
        &[
            location("/chooses", chooses),
            older("/older", chooses),
            location("/forms", forms),
            location("/clears", &format!("{CLIENT} {clears}")),
            location("/leaves", &format!("{CLIENT} {leaves}")),
            location("/none", ""),
        ]
        .concat(),
    );
    let said = |path: &str| server.get(path).body();
    let none = said("/none");
    assert!(none.starts_with("<TLSv1.3 NONE "), "{none}");
    assert_eq!(said("/clears"), none);
    for path in ["/chooses", "/forms", "/leaves"] {
        assert!(said(path).starts_with("<TLSv1.3 SUCCESS CN="), "{path}: {}", said(path));
    }
    assert!(said("/older").starts_with("<TLSv1.2 SUCCESS CN="), "{}", said("/older"));
    // No session is resumed, which would be that of another certificate.
    assert!(said("/older").ends_with(" .>"), "{}", said("/older"));
    server.wait_log("proxy_ssl_cert while loading proxy ssl certificate by lua, client: ", 1);
}

#[test]
fn a_script_judges_the_certificate_of_a_server() {
    let verify =
        |text: &str| format!("proxy_ssl_verify on; proxy_ssl_verify_by_lua_block {{ {text} }}");
    let looks = "local verify, proxy = require 'ngx.ssl.proxysslverify', require 'ngx.proxyssl'
        local ffi = require 'ffi'
        ffi.cdef 'int X509_NAME_get_text_by_NID(void *, int, char *, int); void *X509_get_subject_name(void *);'
        local name = ffi.new('char[64]')
        local subject = ffi.C.X509_get_subject_name(assert(verify.get_verify_cert()))
        ffi.C.X509_NAME_get_text_by_NID(subject, 13, name, 64)
        ngx.log(ngx.WARN, ngx.get_phase(), ' ', ffi.string(name), ' ', verify.get_verify_result(),
            ' ', proxy.get_tls1_version_str())";
    let revokes = "local verify = require 'ngx.ssl.proxysslverify'
        assert(verify.set_verify_result(23))
        assert(verify.get_verify_result() == 23)";
    let server = start(
        &[
            location("/looks", &verify(looks)),
            older("/older", &verify(looks)),
            location("/revokes", &verify(revokes)),
            older("/revokes-older", &verify(revokes)),
            location("/number", &verify("require 'ngx.ssl.proxysslverify'.set_verify_result(990)")),
            location("/exits", &verify("ngx.exit(ngx.ERROR)")),
            location("/leaves", &verify("ngx.sleep(0.001) ngx.exit(ngx.OK) error('behind')")),
            location("/raises", &verify("ngx.sleep(0.001) error('bad')")),
            location("/captures", &verify("ngx.location.capture('/looks')")),
            location("/reads", &verify("ngx.req.read_body()")),
        ]
        .concat(),
    );
    assert!(server.get("/looks").body().starts_with("<TLSv1.3 NONE "));
    server.wait_log(
        "proxy_ssl_verify www.example.org 0 TLSv1.3 while loading proxy ssl verify by lua",
        1,
    );
    assert!(server.get("/older").body().starts_with("<TLSv1.2 NONE "));
    server.wait_log(
        "proxy_ssl_verify www.example.org 0 TLSv1.2 while loading proxy ssl verify by lua",
        1,
    );
    assert_eq!(server.get("/leaves").status, 200);
    for path in
        ["/revokes", "/revokes-older", "/number", "/exits", "/raises", "/captures", "/reads"]
    {
        assert_eq!(server.get(path).status, 502, "{path}");
    }
    let wrong = "upstream SSL certificate verify error: ";
    let place = "while SSL handshaking to upstream, client: ";
    server.wait_log(&format!("{wrong}(23:certificate revoked) {place}"), 2);
    server.wait_log(&format!("{wrong}(990:error number 990) {place}"), 1);
    server.wait_log(
        &format!("SSL_do_handshake() failed (SSL: certificate verify failed) {place}"),
        4,
    );
    server.wait_log("3: API disabled in the context of proxy_ssl_verify_by_lua*", 0);
    server.wait_log("API disabled in the context of proxy_ssl_verify_by_lua*", 2);
}

/// Whatever connections to the same group others have opened and kept, also with the same settings of TLS.
#[test]
fn a_script_judges_the_connections_of_its_location_alone() {
    let locations = "location /any { proxy_pass https://u; }
         location /judged { proxy_pass https://u;
             proxy_ssl_verify_by_lua_block { require 'ngx.ssl.proxysslverify'.set_verify_result(23) } }";
    let own = "server { listen 127.0.0.1:%%PORT%%;";
    let group = "upstream u { server 127.0.0.1:%%PORT1%%; keepalive 4; } ";
    let conf = conf(locations).replace(own, &format!("{group}{own}"));
    let server = Server::start_in(certified(), WEIR, &conf);
    assert_eq!(Client::connect(server.port()).get("/any").status, 200);
    assert_eq!(Client::connect(server.port()).get("/judged").status, 502);
    assert_eq!(Client::connect(server.port()).get("/any").status, 200);
}

/// A server must not get a byte of the request before the script has let it pass, nor any message but the first of the
/// handshake.
#[test]
fn a_server_that_a_script_refuses_gets_no_certificate_and_no_request() {
    let both = format!(
        "{CLIENT} proxy_ssl_verify_by_lua_block {{ ngx.sleep(0.001) ngx.exit(ngx.ERROR) }}"
    );
    let server = start(&[location("/", &both), older("/older", &both)].concat());
    assert_eq!(server.get("/").status, 502);
    assert_eq!(server.get("/older").status, 502);
    server.wait_log("peer closed connection in SSL handshake", 2);
}

#[test]
fn only_a_script_says_whether_a_certificate_leads_to_an_authority() {
    let own = "proxy_ssl_verify on; proxy_ssl_trusted_certificate self.pem;";
    let skips = "lua_upstream_skip_openssl_default_verify on;";
    let runs = "proxy_ssl_verify_by_lua_block { ngx.log(ngx.WARN, 'runs for ', ngx.var.uri) }";
    let server = start(
        &[
            location("/skips", &format!("{own} {skips} {runs}")),
            location("/verifies", &format!("{own} {runs}")),
            location("/name", &format!("{own} {skips} {runs} proxy_ssl_name b.test;")),
            location("/alone", &format!("{own} {skips}")),
        ]
        .concat(),
    );
    assert_eq!(server.get("/skips").status, 200);
    server.wait_log("runs for /skips", 1);
    // Without a script the setting changes nothing.
    for path in ["/verifies", "/name", "/alone"] {
        assert_eq!(server.get(path).status, 502, "{path}");
    }
    server.wait_log("upstream SSL certificate verify error: (", 2);
    server.wait_log("upstream SSL certificate does not match \"b.test\"", 1);
    assert_eq!(server.logged("runs for "), 1);
}

#[test]
fn a_script_of_a_handshake_waits_while_others_are_served_and_ends_with_its_time() {
    let (asked, asks) = channel();
    let (answer, answers) = channel::<()>();
    let (asked, answers) = (Mutex::new(asked), Mutex::new(answers));
    let port = listen(move |_| {
        asked.lock().unwrap().send(()).unwrap();
        let _ = answers.lock().unwrap().recv();
    });
    let waits = format!(
        "local socket = ngx.socket.tcp()
         assert(socket:connect('127.0.0.1', {port}))
         socket:receive('*a')
         ngx.log(ngx.WARN, ngx.ctx.greeting, ' from ', ngx.get_phase())"
    );
    let server = start(
        &[
            location(
                "/waits",
                &format!(
                    "rewrite_by_lua_block {{ ngx.ctx.greeting = 'hello' }}
                     proxy_ssl_certificate_by_lua_block {{ {waits} }}
                     proxy_ssl_verify_by_lua_block {{ {waits} }}"
                ),
            ),
            location(
                "/late",
                &format!("proxy_connect_timeout 50ms; proxy_ssl_verify_by_lua_block {{ {waits} }}"),
            ),
            "location /other { return 200 served; }".to_owned(),
        ]
        .concat(),
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.get("/waits").status);
        for _ in 0..2 {
            asks.recv().unwrap();
            assert_eq!(Client::connect(server.port()).get("/other").body(), "served");
            answer.send(()).unwrap();
        }
        assert_eq!(waiting.join().unwrap(), 200);
    });
    server.wait_log("hello from proxy_ssl_cert while loading proxy ssl certificate by lua", 1);
    server.wait_log("hello from proxy_ssl_verify while loading proxy ssl verify by lua", 1);
    assert_eq!(server.get("/late").status, 504);
    server.wait_log(
        "upstream timed out (110: Connection timed out) while loading proxy ssl verify by lua",
        1,
    );
    drop(answer);
}

#[test]
fn a_script_of_a_handshake_ends_with_its_client() {
    let (asked, asks) = channel();
    let asked = Mutex::new(asked);
    let port = listen(move |mut stream| {
        asked.lock().unwrap().send(()).unwrap();
        // The script's socket closes with the script.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        asked.lock().unwrap().send(()).unwrap();
    });
    let waits = format!(
        "proxy_ssl_verify_by_lua_block {{
             local socket = ngx.socket.tcp()
             assert(socket:connect('127.0.0.1', {port}))
             socket:receive('*a')
         }}"
    );
    let server = start(&location("/", &waits));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    asks.recv().unwrap();
    drop(client);
    asks.recv().unwrap();
}

#[test]
fn scripts_of_handshakes_with_servers_may_stand_in_files() {
    let dir = certified();
    dir.write("choose.lua", "show(read('client.pem'), read('client.key'))");
    dir.write(
        "judge.lua",
        "require 'ngx.ssl.proxysslverify'.set_verify_result(ngx.var.arg_result)",
    );
    let files =
        "proxy_ssl_certificate_by_lua_file choose.lua; proxy_ssl_verify_by_lua_file judge.lua;
        proxy_ssl_verify on; proxy_ssl_conf_command VerifyMode Peer;";
    let server = Server::start_in(dir, WEIR, &conf(&location("/", files)));
    assert!(server.get("/?result=0").body().starts_with("<TLSv1.3 SUCCESS CN="));
    assert_eq!(server.get("/?result=18").status, 502);
    server.wait_log("upstream SSL certificate verify error: (18:self-signed certificate) while", 1);
}

#[test]
fn such_scripts_stand_in_locations_that_speak_tls() {
    let refused = |text: &str, why: &str| {
        let dir = certified();
        let text = text.replace("%%DIR%%", "x").replace("%%PORT", "1%%PORT");
        let file = dir.write("nginx.conf", format!("events {{}} http {{ {text} }}"));
        let args = ["-t", "-p", dir.path().to_str().unwrap(), "-c", file.to_str().unwrap()];
        let said = run(WEIR, args);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(why), "{said}");
    };
    let script = "proxy_ssl_verify_by_lua_block { return }";
    refused(
        &format!("server {{ location / {{ proxy_pass http://127.0.0.1; {script} }} }}"),
        "[emerg] proxy_ssl_verify_by_lua* should be used with proxy_pass https url",
    );
    refused(
        "server { location / { proxy_ssl_certificate_by_lua_block { return } } }",
        "[emerg] proxy_ssl_certificate_by_lua* should be used with proxy_pass https url",
    );
    let place = "\"proxy_ssl_verify_by_lua_block\" directive is not allowed here";
    refused(script, place);
    refused(&format!("server {{ {script} }}"), place);
    let pass = "proxy_pass https://127.0.0.1;";
    refused(
        &format!(
            "server {{ location / {{ {pass} {script} proxy_ssl_verify_by_lua_file a.lua; }} }}"
        ),
        "\"proxy_ssl_verify_by_lua_file\" directive is duplicate",
    );
    let branch = format!("if ($arg_a) {{ {script} }}");
    refused(&format!("server {{ location / {{ {branch} {pass} }} }}"), "test is successful");
    refused(
        &format!("server {{ location / {{ {pass} {script} location /a {{ }} }} }}"),
        "test is successful",
    );
}
