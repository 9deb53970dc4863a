//! TLS of sessions. The clients are OpenSSL's and Python's. The servers behind are `http` of the
//! same weir, nginx where there is one, and servers without TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use weir_testkit::{Oracle, PATIENCE, Server, certified, examples, listen, s_client};

use super::{connect, echo, heard};

#[path = "tls/servers.rs"]
mod servers;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const NAME: &str = "www.example.org";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n";

/// What each answer of these servers says of its client, between brackets.
const SAYS: &str = "[answer $ssl_protocol $ssl_server_name $ssl_session_reused $ssl_alpn_protocol \
                    $ssl_client_verify $ssl_client_serial]";

fn conf(stream: &str) -> String {
    conf_beside("server { listen 127.0.0.1:%%PORT%%; location / { return 200 http; } }", stream)
}

fn conf_beside(http: &str, stream: &str) -> String {
    format!(
        "error_log %%DIR%%/error.log info; events {{ }}
         http {{ ssl_certificate chain.pem; ssl_certificate_key leaf.key; {http} }}
         stream {{
            log_format tls '$status $ssl_protocol $ssl_server_name $bytes_received/$bytes_sent;';
            access_log %%DIR%%/tls.log tls;
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            {stream}
         }}"
    )
}

/// A server with these lines in its `stream` block, which has a certificate.
pub fn start(stream: &str) -> Server {
    start_with(WEIR, stream)
}

fn start_with(program: &str, stream: &str) -> Server {
    Server::start_in(certified(), program, &conf(stream))
}

/// What a port says to OpenSSL; none where that is missing. `text` is sent, and all is read until the end.
fn openssl(s: &Server, port: usize, args: &[&str], text: &str) -> Option<String> {
    let args: Vec<&str> = args.iter().copied().chain(["-ign_eof"]).collect();
    let said = s_client(s.dir().path(), s.port_at(port), &args, text);
    if said.is_none() {
        println!("not run: no openssl");
    }
    said
}

/// What stands between the brackets, if anything was said.
fn said(text: &str) -> &str {
    text.split("[answer ").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("nothing")
}

/// A server without TLS that hears a line, says what it was, and ends.
fn repeats() -> u16 {
    listen(|socket| {
        let mut line = String::new();
        let mut socket = BufReader::new(socket);
        if socket.read_line(&mut line).is_ok() {
            let _ = write!(socket.get_mut(), "[answer heard {}]", line.trim());
        }
    })
}

/// What a client of Python's prints; none where there is no Python.
fn python(s: &Server, mode: &str, port: usize) -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/stream/client.py");
    let port = s.port_at(port).to_string();
    let ran = Command::new("timeout")
        .args(["30", "python3", script, mode, &port, "root.pem", NAME])
        .current_dir(s.dir().path())
        .output();
    match ran {
        Ok(ran) if ran.status.success() => Some(String::from_utf8_lossy(&ran.stdout).into_owned()),
        Ok(ran) if ran.status.code() != Some(127) => {
            panic!("{mode}: {}\n{}", String::from_utf8_lossy(&ran.stderr), s.log())
        }
        _ => {
            println!("not run: no python3");
            None
        }
    }
}

#[test]
fn what_comes_with_tls_is_passed_on_without_it() {
    let (to, echo) = (repeats(), echo());
    let s = start(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%% ssl; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT2%% ssl; proxy_pass 127.0.0.1:{echo}; }}"
    ));
    for version in ["-tls1_2", "-tls1_3"] {
        let args = [version, "-servername", NAME];
        let Some(text) = openssl(&s, 1, &args, "a word\n") else { return };
        assert_eq!(said(&text), "heard a word", "{text}");
    }
    // Bytes are counted as the session has them.
    s.wait_file("tls.log", &format!("200 TLSv1.2 {NAME} 7/21;"), 1);
    s.wait_file("tls.log", &format!("200 TLSv1.3 {NAME} 7/21;"), 1);
    if let Some(printed) = python(&s, "echo", 2) {
        assert_eq!(printed.trim(), "same TLSv1.3");
        s.wait_file("tls.log", &format!("{NAME} 1048576/1048576;"), 1);
    }
    // A client that goes away costs its session and nothing else.
    if let Some(printed) = python(&s, "abrupt", 2) {
        assert_eq!(printed.trim(), "hello");
        s.wait_file("tls.log", &format!("{NAME} 5/5;"), 1);
        assert_eq!(said(&openssl(&s, 1, &[], "after\n").unwrap()), "heard after");
    }
}

#[test]
fn the_name_in_the_handshake_chooses_server_and_certificate() {
    for program in programs() {
        let s = start_with(
            &program,
            &format!(
                "server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate self.pem;
                ssl_certificate_key self.key; return '[answer default $ssl_server_name]'; }}
             server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name {NAME}; return '{SAYS}'; }}
             server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name leaf client;
                ssl_certificate $ssl_server_name.pem; ssl_certificate_key $ssl_server_name.key;
                ssl_certificate_cache max=4; return '[answer computed $server_name]'; }}
             server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name gone;
                ssl_certificate $ssl_server_name.pem; ssl_certificate_key leaf.key; return x; }}
             server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name ~^re.*fused$;
                ssl_reject_handshake on; return x; }}"
            ),
        );
        let say = |name: &str| openssl(&s, 1, &["-servername", name], "");
        let Some(text) = say(NAME) else { return };
        assert_eq!(said(&text), format!("TLSv1.3 {NAME} .  NONE "));
        assert!(text.contains("CN = www.example.org"), "{text}");
        let text = say("elsewhere").unwrap();
        assert_eq!(said(&text), "default elsewhere");
        assert!(text.contains("CN = self"), "{text}");
        assert_eq!(said(&openssl(&s, 1, &["-noservername"], "").unwrap()), "default ");
        for name in ["leaf", "client", "leaf"] {
            assert_eq!(said(&say(name).unwrap()), "computed leaf", "{name}");
        }
        let text = say("refused").unwrap();
        assert!(text.contains("unrecognized name"), "{text}");
        s.wait_log("handshake rejected while SSL handshaking, client: 127.0.0.1, server: 127", 1);
        assert_eq!(said(&say("gone").unwrap()), "nothing");
        s.wait_log("cannot load certificate \"", 1);
        s.wait_file("tls.log", "500 ", 2);
    }
}

/// A certificate that a name stands for is kept for a while; not so what a password opens.
#[test]
fn what_a_password_opens_is_read_anew() {
    let dir = certified();
    dir.write("passwords", "weir\n");
    let stream = "server { listen 127.0.0.1:%%PORT1%% ssl; ssl_password_file passwords; return x;
        ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key;
        ssl_certificate_cache max=4 valid=1h inactive=1h; }";
    let s = Server::start_in(dir, WEIR, &conf(stream));
    let dir = s.dir();
    let put = |certificate: &str, key: &str| {
        dir.write("name.crt", dir.read(certificate));
        dir.write("name.key", dir.read(key));
    };
    let shows = |text: &str| {
        let said = openssl(&s, 1, &["-servername", "name"], "");
        said.is_none_or(|said| said.contains(text))
    };
    put("self.pem", "self.sealed.key");
    assert!(shows("CN = self"), "{}", s.log());
    put("leaf.pem", "leaf.key");
    assert!(shows("CN = www.example.org"));
    put("self.pem", "self.sealed.key");
    assert!(shows("CN = www.example.org"));
}

#[test]
fn clients_show_certificates() {
    let mut servers = String::new();
    for (port, mode) in [(1, "on"), (2, "optional"), (3, "optional_no_ca")] {
        servers += &format!(
            "server {{ listen 127.0.0.1:%%PORT{port}%% ssl; ssl_verify_client {mode};
                ssl_client_certificate root.pem; return '{SAYS}'; }}"
        );
    }
    for program in programs() {
        let s = start_with(&program, &servers);
        let bad = "FAILED:self-signed certificate";
        for version in ["-tls1_2", "-tls1_3"] {
            for (shown, expected) in [
                ("", [None, Some("NONE "), Some("NONE ")]),
                ("client", [Some("SUCCESS 04"), Some("SUCCESS 04"), Some("SUCCESS 04")]),
                ("self", [None, None, Some(bad)]),
            ] {
                let (file, key) = (format!("{shown}.pem"), format!("{shown}.key"));
                let mut args = vec![version];
                if !shown.is_empty() {
                    args.extend(["-cert", &file, "-key", &key]);
                }
                for (i, expected) in expected.iter().enumerate() {
                    let Some(text) = openssl(&s, i + 1, &args, "") else { return };
                    match expected {
                        None => assert_eq!(said(&text), "nothing", "{version} {shown} {i}"),
                        Some(end) => {
                            assert!(said(&text).contains(end), "{version} {shown} {i}: {text}")
                        }
                    }
                }
            }
        }
        s.wait_log("client sent no required SSL certificate while SSL handshaking, client:", 2);
        s.wait_log("client SSL certificate verify error: (18:self-signed certificate)", 4);
    }
}

/// A server without a certificate of its own shows the default server's, which judges clients, too.
#[test]
fn one_servers_judgement_is_not_anothers() {
    let server = |name: &str, lines: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name {name}; {lines}
                ssl_verify_client on; return '[answer {name} $ssl_client_verify]'; }}"
        )
    };
    let pair = "ssl_certificate chain.pem; ssl_certificate_key leaf.key;";
    let s = Server::start_in(
        certified(),
        WEIR,
        &format!(
            "error_log %%DIR%%/error.log info; events {{ }} stream {{ {} {} {} }}",
            server("first", &format!("{pair} ssl_client_certificate root.pem;")),
            server("alike", "ssl_client_certificate root.pem;"),
            server("other", "ssl_client_certificate self.pem;"),
        ),
    );
    let say = |name: &str| {
        let args = ["-servername", name, "-cert", "client.pem", "-key", "client.key"];
        openssl(&s, 1, &args, "").map(|text| said(&text).to_owned())
    };
    let Some(first) = say("first") else { return };
    assert_eq!(first, "first SUCCESS");
    assert_eq!(say("alike").unwrap(), "alike SUCCESS");
    assert_eq!(say("other").unwrap(), "nothing");
    s.wait_log("client SSL certificate was judged by another server", 1);
}

#[test]
fn both_ends_agree_on_a_protocol() {
    for program in programs() {
        let s = start_with(
            &program,
            &format!(
                "ssl_alpn first second;
             server {{ listen 127.0.0.1:%%PORT1%% ssl; return '{SAYS}'; }}"
            ),
        );
        let Some(text) = openssl(&s, 1, &["-alpn", "second,first"], "") else { return };
        // The server's order counts.
        assert!(said(&text).contains(" first "), "{text}");
        assert!(
            said(&openssl(&s, 1, &["-alpn", "third,second"], "").unwrap()).contains(" second ")
        );
        assert!(said(&openssl(&s, 1, &[], "").unwrap()).starts_with("TLSv1.3"));
        let text = openssl(&s, 1, &["-alpn", "third"], "").unwrap();
        assert!(text.contains("alert no application protocol"), "{text}");
    }
}

#[test]
fn sessions_are_resumed() {
    for program in programs() {
        let s = start_with(&program, &format!(
            "ssl_session_cache shared:sessions:1m;
             server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_session_tickets off; return '{SAYS}'; }}
             server {{ listen 127.0.0.1:%%PORT2%% ssl; return '{SAYS}'; }}
             server {{ listen 127.0.0.1:%%PORT3%% ssl; ssl_session_cache off; ssl_session_tickets off;
                return '{SAYS}'; }}"
        ));
        for version in ["-tls1_2", "-tls1_3"] {
            for (port, reused) in [(1, "r"), (2, "r"), (3, ".")] {
                let Some(text) = openssl(&s, port, &[version, "-sess_out", "session"], "") else {
                    return;
                };
                assert_eq!(said(&text).split(' ').nth(2), Some("."), "{version} {port}: {text}");
                let text = openssl(&s, port, &[version, "-sess_in", "session"], "").unwrap();
                assert_eq!(said(&text).split(' ').nth(2), Some(reused), "{version} {port}: {text}");
            }
        }
    }
}

#[test]
fn a_client_without_tls_is_closed() {
    let s = start(
        "ssl_handshake_timeout 200ms;
         server { listen 127.0.0.1:%%PORT1%% ssl; return x; }",
    );
    let unexpected = &b"\x15\x03\x03\x00\x02\x02\x0a"[..];
    for (text, answer, words) in [
        (&b"GET / HTTP/1.0\r\n\r\n"[..], &b""[..], "http request"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"", "https proxy request"),
        (b"hello\r\n", b"", "wrong version number"),
        // An alert, and data.
        (b"\x15\x03\x01\x00\x02\x02\x28", unexpected, "unexpected message"),
        (b"\x17\x03\x03\x00\x01x", unexpected, "unexpected message"),
    ] {
        assert_eq!(heard(s.port_at(1), text), answer);
        let line = format!("(SSL: {words}) while SSL handshaking, client: 127.0.0.1");
        s.wait_log(&line, if words.starts_with("unexpected") { 2 } else { 1 });
    }
    let ends = |text: &[u8]| {
        let mut client = connect(s.port_at(1));
        client.write_all(text).unwrap();
        let mut rest = Vec::new();
        // Alerts may come before the end.
        let _ = client.read_to_end(&mut rest);
        assert!(rest.len() < 16, "{rest:?}");
    };
    ends(b"");
    ends(b"\x16\x03\x01");
    s.wait_log("timed out (110: Connection timed out) while SSL handshaking, client:", 2);
    ends(&[&b"\x16\x03\x01\x00\x10"[..], &[0xff; 16]].concat());
    drop(connect(s.port_at(1)));
    s.wait_log("peer closed connection in SSL handshake while SSL handshaking, client:", 1);
    s.wait_file("tls.log", "500 - - 0/0;", 9);
}

#[test]
fn a_balancer_speaks_before_the_handshake() {
    let s = start(
        "server { listen 127.0.0.1:%%PORT1%% ssl proxy_protocol; set_real_ip_from 127.0.0.1;
            return '$remote_addr $remote_port $proxy_protocol_server_port $ssl_protocol'; }",
    );
    let Some(printed) = python(&s, "balanced", 1) else { return };
    assert_eq!(printed.trim(), "192.0.2.7 4711 443 TLSv1.3");
    // Neither the header nor the handshake, which came with it, is of the session.
    s.wait_file("tls.log", &format!("200 TLSv1.3 {NAME} 0/26;"), 1);
}

#[test]
fn servers_hear_what_is_known_of_a_clients_tls() {
    let about = "$proxy_protocol_tlv_ssl_version $proxy_protocol_tlv_ssl_verify $proxy_protocol_tlv_ssl_sig_alg \
                 $proxy_protocol_tlv_ssl_key_alg";
    let stream = format!(
        "proxy_protocol v2;
         server {{ listen 127.0.0.1:%%PORT1%% ssl; proxy_pass 127.0.0.1:%%PORT2%%; ssl_session_cache shared:s:1m;
            ssl_alpn one two; ssl_verify_client optional; ssl_client_certificate root.pem; }}
         server {{ listen 127.0.0.1:%%PORT3%% ssl; proxy_pass 127.0.0.1:%%PORT2%%; ssl_certificate rsa.pem; ssl_certificate_key rsa.key; }}
         server {{ listen 127.0.0.1:%%PORT2%% proxy_protocol;
            return '[answer $proxy_protocol_tlv_authority $proxy_protocol_tlv_alpn {about} $proxy_protocol_tlv_ssl_cn]'; }}",
    );
    for program in programs() {
        let dir = certified();
        let mut make = Command::new("openssl");
        make.args(
            "req -x509 -newkey rsa:2048 -nodes -subj /CN=rsa -keyout rsa.key -out rsa.pem"
                .split(' '),
        );
        let made = make.current_dir(dir.path()).stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("not run: no openssl");
            return;
        }
        let s = Server::start_in(dir, &program, &conf(&stream));
        let args = ["-tls1_2", "-servername", NAME, "-alpn", "two", "-sess_out", "session"];
        let Some(text) = openssl(&s, 1, &args, "") else { return };
        let known = format!("{NAME} two TLSv1.2 1 ecdsa-with-SHA256 EC256 ");
        assert_eq!(said(&text), known, "{program}: {text}");
        let again = ["-tls1_2", "-servername", NAME, "-alpn", "two", "-sess_in", "session"];
        let text = openssl(&s, 1, &again, "").unwrap();
        assert!(text.contains("Reused, ") && said(&text) == known, "{program}: {text}");
        let shown = ["-tls1_3", "-noservername", "-cert", "client.pem", "-key", "client.key"];
        let text = openssl(&s, 1, &shown, "").unwrap();
        let known = "TLSv1.3 0 ecdsa-with-SHA256 EC256 ";
        let (rest, name) = said(&text).split_once(known).expect("an accepted certificate");
        assert!(rest.trim().is_empty() && !name.is_empty(), "{program}: {text}");
        let text = openssl(&s, 3, &["-noservername"], "").unwrap();
        assert_eq!(said(&text).trim(), "TLSv1.3 1 RSA-SHA256 RSA2048", "{program}: {text}");
    }
}

/// weir, and nginx where there is one that knows all this.
fn programs() -> Vec<String> {
    let fits = |nginx: &Oracle| {
        nginx.minor() >= 31 && nginx.has("OpenSSL 3") && nginx.has("stream_ssl_module")
    };
    let nginx = Oracle::find().filter(fits);
    if nginx.is_none() {
        println!("not run: no nginx 1.31 with TLS of sessions to compare with");
    }
    [WEIR.to_owned()].into_iter().chain(nginx.map(|nginx| nginx.path)).collect()
}

#[test]
fn a_connection_with_tls_is_passed_to_another_listener() {
    let http = format!(
        "map $http_host $t {{ default '$https $server_addr:$server_port $ssl_server_name $ssl_client_verify'; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 '[answer plain $t]'; }} }}
         server {{ listen 127.0.0.1:%%PORT2%% ssl; server_name {NAME};
            location / {{ return 200 '[answer own $t]'; }} }}
         server {{ listen 127.0.0.1:%%PORT7%% ssl; server_name first;
            location / {{ return 200 '[answer first $t]'; }} }}
         server {{ listen 127.0.0.1:%%PORT7%% ssl; server_name {NAME}; ssl_verify_client optional;
            ssl_client_certificate root.pem;
            location / {{ return 200 '[answer secure $scheme $ssl_protocol $t]'; }} }}
         server {{ listen 127.0.0.1:%%PORT9%% ssl; server_name {NAME}; ssl_verify_client on;
            ssl_client_certificate root.pem; error_page 496 = /none;
            location / {{ return 200 '[answer $t]'; }}
            location = /none {{ return 200 '[answer no certificate]'; }} }}"
    );
    let stream = format!(
        "server {{ listen 127.0.0.1:%%PORT1%% ssl; pass 127.0.0.1:%%PORT%%;
            ssl_verify_client optional_no_ca; }}
         map $ssl_preread_server_name $to {{ {NAME} 127.0.0.1:%%PORT2%%; local 127.0.0.1:%%PORT4%%;
            wrong nowhere; default 127.0.0.1:1; }}
         server {{ listen 127.0.0.1:%%PORT3%%; ssl_preread on; pass $to; }}
         server {{ listen 127.0.0.1:%%PORT4%% ssl; return '[answer stream $ssl_server_name]'; }}
         server {{ listen 127.0.0.1:%%PORT5%%; pass 127.0.0.1:%%PORT5%%; }}
         server {{ listen 127.0.0.1:%%PORT6%% ssl; ssl_preread on; pass 127.0.0.1:%%PORT%%; }}
         map $ssl_server_name $secure {{ {NAME} 127.0.0.1:%%PORT7%%; default 127.0.0.1:%%PORT9%%; }}
         server {{ listen 127.0.0.1:%%PORT8%% ssl; pass $secure; }}"
    );
    let get = String::from_utf8_lossy(GET);
    for program in programs() {
        let s = Server::start_in(certified(), &program, &conf_beside(&http, &stream));
        let say = |port, args: &[&str]| Some(said(&openssl(&s, port, args, &get)?).to_owned());
        let Some(text) = say(1, &["-servername", NAME]) else { return };
        let (first, second) = (s.port(), s.port_at(2));
        assert_eq!(text, format!("plain on 127.0.0.1:{first} {NAME} NONE"), "{program}");
        // What was wrong with a certificate is not forgotten on the way.
        let args = ["-servername", NAME, "-cert", "self.pem", "-key", "self.key"];
        let failed = format!("plain on 127.0.0.1:{first} {NAME} FAILED:self-signed certificate");
        assert_eq!(say(1, &args), Some(failed), "{program}");
        assert_eq!(
            say(3, &["-servername", NAME]),
            Some(format!("own on 127.0.0.1:{second} {NAME} NONE")),
            "{program}"
        );
        // One that wants TLS has it. nginx waits for a request there that it may have read with the handshake.
        if program == WEIR {
            assert_eq!(
                say(8, &["-servername", NAME, "-tls1_3"]),
                Some(format!("secure https TLSv1.3 on 127.0.0.1:{} {NAME} NONE", s.port_at(7)))
            );
            let bare = say(8, &["-servername", "other"]);
            assert_eq!(bare.as_deref(), Some("no certificate"));
        }
        let local = say(3, &["-servername", "local"]);
        assert_eq!(local.as_deref(), Some("stream local"), "{program}");
        assert_eq!(say(3, &["-servername", "wrong"]).as_deref(), Some("nothing"), "{program}");
        s.wait_log("no addresses in pass \"nowhere\"", 1);
        assert_eq!(say(3, &["-servername", "none"]).as_deref(), Some("nothing"), "{program}");
        s.wait_log("port not found for \"127.0.0.1:1\"", 1);
        assert_eq!(say(6, &[]).as_deref(), Some("nothing"), "{program}");
        s.wait_log("cannot pass connection with preread data", 1);
        assert_eq!(heard(s.port_at(5), b""), b"", "{program}");
        s.wait_log("stream pass cycle", 1);
    }
}

#[test]
fn responders_are_asked_about_clients_and_responses_stapled() {
    let http =
        "server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; default_type application/ocsp-response;
            location /good/ { try_files /client-good.ocsp =404; }
            location /revoked/ { try_files /client-revoked.ocsp =404; }
            location /own/ { try_files /good.ocsp =404; } }";
    let server = |port: u32, path: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT{port}%% ssl; ssl_verify_client on; ssl_ocsp on;
                ssl_client_certificate root.pem; ssl_ocsp_cache shared:ocsp{port}:1m;
                ssl_ocsp_responder http://127.0.0.1:%%PORT%%/{path}/; return '{SAYS}'; }}"
        )
    };
    let stapling = "server { listen 127.0.0.1:%%PORT3%% ssl; ssl_stapling on;
            ssl_stapling_file good.ocsp; return x; }
        server { listen 127.0.0.1:%%PORT4%% ssl; ssl_stapling on; ssl_stapling_verify on;
            ssl_trusted_certificate root.pem; ssl_stapling_responder http://127.0.0.1:%%PORT%%/own/;
            return x; }";
    let stream = [server(1, "good"), server(2, "revoked"), stapling.to_owned()].concat();
    let s = Server::start_in(certified(), WEIR, &conf_beside(http, &stream));
    let args = ["-cert", "client.pem", "-key", "client.key"];
    for _ in 0..2 {
        let Some(text) = openssl(&s, 1, &args, "") else { return };
        assert!(said(&text).ends_with("SUCCESS 04"), "{text}\n{}", s.log());
        assert_eq!(said(&openssl(&s, 2, &args, "").unwrap()), "nothing");
    }
    s.wait_log("client SSL certificate verify error: certificate revoked", 2);
    let stapled = |port| {
        openssl(&s, port, &["-status"], "").unwrap().contains("OCSP Response Status: successful")
    };
    assert!(stapled(3));
    assert!(weir_testkit::until(s.dir().path(), || stapled(4)), "{}", s.log());
    assert!(!openssl(&s, 1, &["-status"], "").unwrap().contains("OCSP Response Status"));
}

#[test]
fn sessions_with_tls_go_on_through_a_reload() {
    let to = echo();
    let s = start(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:%%PORT2%%; proxy_ssl on; }}
         server {{ listen 127.0.0.1:%%PORT2%% ssl; proxy_pass 127.0.0.1:{to}; }}"
    ));
    let mut client = connect(s.port_at(1));
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    super::echoed(&mut client, b"before");
    s.reload();
    super::echoed(&mut client, b"after");
    super::echoed(&mut connect(s.port_at(1)), b"another");
}

#[test]
fn the_second_example_of_the_page_works() {
    let behind =
        start("server { listen 127.0.0.1:%%PORT1%% ssl; return '[answer to $ssl_server_name]'; }");
    let page = include_str!("../../docs/stream.md");
    let example = examples(page).nth(1).unwrap();
    let example = example
        .replace(":8443", ":%%PORT%%")
        .replace(":8081", &format!(":{}", behind.port_at(1)))
        .replace("www.pem", "chain.pem")
        .replace("www.key", "leaf.key")
        .replace("clients.pem", "root.pem")
        .replace("servers.pem", "root.pem");
    let s = Server::start_in(certified(), WEIR, &example);
    let args = ["-alpn", "mqtt", "-cert", "client.pem", "-key", "client.key"];
    let Some(text) = openssl(&s, 0, &args, "") else { return };
    assert_eq!(said(&text), format!("to {NAME}"), "{text}");
    s.wait_file("tls.log", "127.0.0.1 TLSv1.3 - mqtt SUCCESS 200", 1);
    assert_eq!(said(&openssl(&s, 0, &args[..2], "").unwrap()), "nothing");
    let text = openssl(&s, 0, &["-servername", "text.example"], "").unwrap();
    assert!(text.contains("hello over TLSv1.3"), "{text}");
}

#[test]
fn what_is_wrong_is_said() {
    let s = start("server { listen 127.0.0.1:%%PORT1%%; return x; }");
    let own = "ssl_certificate chain.pem; ssl_certificate_key leaf.key;";
    let long = "x".repeat(256);
    for (lines, text) in [
        (
            "server { listen 1 ssl; return x; }",
            "no \"ssl_certificate\" is defined for the \"listen",
        ),
        ("ssl_certificate a; server { listen 1; }", "no \"ssl_certificate_key\" is defined for"),
        (
            &format!("{own} ssl_verify_client on; server {{ listen 1 ssl; }}"),
            "no ssl_client_certif",
        ),
        (
            "ssl_certificate nothing; ssl_certificate_key leaf.key; server { listen 1; }",
            "cannot load",
        ),
        ("server { listen 1; ssl_alpn a; ssl_alpn b; }", "\"ssl_alpn\" directive is duplicate"),
        (
            &format!("server {{ listen 1; proxy_ssl_alpn a {long}; }}"),
            "\"proxy_ssl_alpn\" directive protocol too long",
        ),
        ("server { listen 1; ssl_early_data on; }", "\"ssl_early_data\" directive is not allowed"),
        ("server { listen 1; return $ssl_early_data; }", "unknown \"ssl_early_data\" variable"),
        ("proxy_ssl on; proxy_ssl_verify on; server { listen 1; }", "no proxy_ssl_trusted_certif"),
        (
            "server { listen 1; proxy_ssl on; proxy_ssl_certificate leaf.pem; }",
            "no \"proxy_ssl_certificate_key\" is defined for certificate \"leaf.pem\"",
        ),
        ("server { listen 1; pass nowhere:1; }", "\"pass\" directive has no addresses"),
        ("server { listen 1; pass 127.0.0.1; }", "\"pass\" directive has no port"),
        (
            "server { listen 1; pass 127.0.0.1:0; }",
            "invalid port in \"127.0.0.1:0\" of the \"pass\"",
        ),
    ] {
        let path = s.configure(&format!("events {{ }} stream {{ {lines} }}"));
        let tested = s.command(&["-t", "-c", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&tested.stderr).into_owned();
        assert!(!tested.status.success() && said.contains(text), "{lines}: {said}");
    }
}
