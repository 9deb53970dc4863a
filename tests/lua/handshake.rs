//! Scripts in handshakes: `ssl_client_hello_by_lua`, `ssl_certificate_by_lua`, and the modules `ngx.ssl` and
//! `ngx.ssl.clienthello`. The clients are OpenSSL's and curl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;

use weir_testkit::{Client, Server, certified, listen, run, s_client, until};

use super::WEIR;

const GET: &str = "GET / HTTP/1.0\r\n\r\n";

/// What each test can do in a script.
const HELPERS: &str = r#"init_by_lua_block {
    function read(name)
        local file = assert(io.open("%%DIR%%/" .. name))
        local text = file:read("*a")
        file:close()
        return text
    end
    function show(chain, key)
        local ssl = require "ngx.ssl"
        assert(ssl.clear_certs())
        assert(ssl.set_cert(assert(ssl.parse_pem_cert(chain))))
        assert(ssl.set_priv_key(assert(ssl.parse_pem_priv_key(key))))
    end
}"#;

/// A server with these lines in `http`, and a server of TLS with these and the certificate `self`.
fn conf(http: &str, inside: &str) -> String {
    format!(
        "user root; events {{ }}
         http {{
             access_log off; error_log error.log info; {HELPERS} {http}
             server {{
                 listen 127.0.0.1:%%PORT%% ssl default_server; http2 on;
                 ssl_certificate self.pem; ssl_certificate_key self.key;
                 {inside}
                 location / {{ return 200 '<$ssl_server_name $ssl_protocol $ssl_session_reused $http2>'; }}
             }}
         }}"
    )
}

fn start(http: &str, inside: &str) -> Server {
    Server::start_in(certified(), WEIR, &conf(http, inside))
}

/// The same with one script for certificates.
fn choosing(script: &str) -> Server {
    start("", &format!("ssl_certificate_by_lua_block {{ {script} }}"))
}

/// What OpenSSL's client says that asks for this name.
fn said(server: &Server, name: &str, args: &[&str]) -> String {
    let args = [&["-ign_eof", "-servername", name, "-CAfile", "root.pem"], args].concat();
    s_client(server.dir().path(), server.port(), &args, GET).expect("OpenSSL")
}

/// The name of the certificate that it is shown.
fn shown(server: &Server, name: &str) -> String {
    let said = said(server, name, &[]);
    let subject = said.lines().find_map(|line| line.strip_prefix("subject="));
    subject.and_then(|subject| subject.rsplit("CN = ").next()).unwrap_or(&said).to_owned()
}

/// The handshake ends with this alert.
#[track_caller]
fn assert_alert(server: &Server, name: &str, alert: u8) {
    let said = said(server, name, &[]);
    assert!(said.contains(&format!("SSL alert number {alert}\n")), "{name}: {said}");
}

#[test]
fn certificates_come_by_name_from_a_shared_dictionary() {
    let http = r#"lua_shared_dict certificates 1m;
        init_worker_by_lua_block {
            local dict = ngx.shared.certificates
            dict:set("www.example.org", read("chain.pem"))
            dict:set("www.example.org key", read("leaf.key"))
        }"#;
    let inside = r#"ssl_certificate_by_lua_block {
        local ssl, dict = require "ngx.ssl", ngx.shared.certificates
        local name = ssl.server_name()
        local chain = name and dict:get(name)
        if not chain then return end
        assert(ssl.clear_certs())
        assert(ssl.set_der_cert(assert(ssl.cert_pem_to_der(chain))))
        assert(ssl.set_der_priv_key(assert(ssl.priv_key_pem_to_der(dict:get(name .. " key")))))
    }"#;
    let server = start(http, inside);
    let good = said(&server, "www.example.org", &["-verify_hostname", "www.example.org"]);
    assert!(good.contains("Verify return code: 0 (ok)"), "{good}");
    assert!(good.contains("<www.example.org TLSv1.3 . >"), "{good}");
    assert_eq!(shown(&server, "other.example.org"), "self");
    let twelve = said(&server, "www.example.org", &["-tls1_2"]);
    assert!(twelve.contains("CN = www.example.org") && twelve.contains("TLSv1.2 . >"), "{twelve}");
    // HTTP/2
    let (port, root) = (server.port(), server.dir().file("root.pem"));
    let at = format!("www.example.org:{port}:127.0.0.1");
    let url = format!("https://www.example.org:{port}/");
    let curl = run("curl", ["-s", "--resolve", &at, "--cacert", root.to_str().unwrap(), &url]);
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "<www.example.org TLSv1.3 . h2>");
}

#[test]
fn a_script_waits_for_a_certificate_of_another_server_while_others_are_served() {
    let (asked, asks) = channel();
    let (answer, answers) = channel::<String>();
    let (asked, answers) = (Mutex::new(asked), Mutex::new(answers));
    let port = listen(move |mut stream| {
        let mut line = [0; 16];
        let n = stream.read(&mut line).unwrap();
        asked.lock().unwrap().send(line[..n].to_vec()).unwrap();
        stream.write_all(answers.lock().unwrap().recv().unwrap().as_bytes()).unwrap();
    });
    let http = "server { listen 127.0.0.1:%%PORT1%%; return 200 served; }";
    let script = format!(
        r#"ssl_certificate_by_lua_block {{
            local socket = ngx.socket.tcp()
            assert(socket:connect("127.0.0.1", {port}))
            assert(socket:send("the chain"))
            local chain = assert(socket:receive("*a"))
            local thread = ngx.thread.spawn(function() ngx.sleep(0.001) return read("leaf.key") end)
            local _, key = ngx.thread.wait(thread)
            ngx.timer.at(0, function() ngx.log(ngx.WARN, "a timer of a handshake") end)
            show(chain, key)
        }}"#
    );
    let server = start(http, &script);
    thread::scope(|scope| {
        let shown = scope.spawn(|| shown(&server, "www.example.org"));
        assert_eq!(asks.recv().unwrap(), b"the chain");
        assert_eq!(Client::connect(server.port_at(1)).get("/").body(), "served");
        answer.send(server.dir().read("chain.pem")).unwrap();
        assert_eq!(shown.join().unwrap(), "www.example.org");
    });
    server.wait_log("a timer of a handshake", 1);
}

#[test]
fn keys_and_certificates_are_read_in_each_form() {
    let server = choosing(
        r#"local ssl = require "ngx.ssl"
           local function told(...) ngx.log(ngx.WARN, "told: ", ...) end
           local der = assert(ssl.cert_pem_to_der(read("chain.pem")))
           told(tostring(ssl.set_der_cert(der)), " ", #der > #assert(ssl.cert_pem_to_der(read("leaf.pem"))))
           told(ssl.priv_key_pem_to_der(read("self.sealed.key")))
           told(ssl.priv_key_pem_to_der(read("self.sealed.key"), "wrong"))
           told("opened ", #assert(ssl.priv_key_pem_to_der(read("self.sealed.key"), "weir")))
           told("of another ", ssl.set_priv_key(assert(ssl.parse_pem_priv_key(read("self.key")))))
           told("no chain ", ssl.parse_pem_cert("text"))
           told("no key ", ssl.parse_pem_priv_key("text"))
           told("no der ", ssl.parse_der_cert("text"), " ", select(2, ssl.parse_der_priv_key("text")))
           told("empty ", ssl.parse_der_cert(""))
           told("no set ", ssl.set_der_cert("text"), " ", select(2, ssl.set_der_priv_key("text")))
           told(pcall(ssl.set_cert, "text"))
           told("none ", ssl.set_cert(nil), " ", select(2, ssl.set_cert()), " ", select(2, ssl.set_priv_key(nil)))
           local key = assert(ssl.parse_der_priv_key(assert(ssl.priv_key_pem_to_der(read("leaf.key")))))
           told("set ", tostring(ssl.set_cert(assert(ssl.parse_der_cert(der)))), " ", tostring(ssl.set_priv_key(key)))"#,
    );
    assert_eq!(shown(&server, "www.example.org"), "www.example.org");
    server.wait_log("told: set ", 1);
    for told in [
        "told: true true",
        "told: nilPEM_read_bio_PrivateKey() failed",
        "told: nilPEM_read_bio_PrivateKey() failed (bad decrypt)",
        "told: opened 1",
        "told: of another nilSSL_use_PrivateKey() failed",
        "told: no chain nilPEM_read_bio_X509_AUX() failed",
        "told: no key nilPEM_read_bio_PrivateKey() failed",
        "told: no der nil d2i_PrivateKey_bio() failed",
        "told: empty nilinvalid argument",
        "told: no set nil d2i_PrivateKey_bio() failed",
        "certificate expected, got string",
        "told: none nil invalid certificate chain invalid private key",
        "told: set true true",
    ] {
        assert!(server.logged(told) > 0, "{told}\n{}", server.log());
    }
}

#[test]
fn a_script_that_fails_ends_the_handshake() {
    let server = choosing(
        r#"local ssl = require "ngx.ssl"
           local fails = {
               error = function() error("no certificate today") end,
               exit = function() ngx.exit(ngx.ERROR) end,
               status = function() ngx.exit(444) end,
               say = function() ngx.say("text") end,
               var = function() return ngx.var.uri end,
               header = function() return ngx.req.get_headers() end,
               capture = function() ngx.location.capture("/") end,
               pem = function() show("text", "text") end,
               later = function() ngx.sleep(0.001) error("later") end,
               clear = function() ssl.clear_certs() end,
               half = function()
                   ssl.clear_certs()
                   ssl.set_cert(ssl.parse_pem_cert(read("chain.pem")))
               end,
               ok = function() ngx.exit(ngx.OK) end,
           }
           fails[ssl.server_name()]()"#,
    );
    const CONTEXT: &str =
        ", context: ssl_certificate_by_lua*, client: 127.0.0.1, server: 127.0.0.1:";
    for (name, text) in [
        ("error", "no certificate today"),
        ("exit", ""),
        ("status", ""),
        ("say", "API disabled in the context of ssl_certificate_by_lua*"),
        ("var", "API disabled in the current context"),
        ("header", "API disabled in the current context"),
        ("capture", "API disabled in the context of ssl_certificate_by_lua*"),
        ("pem", "PEM_read_bio_X509_AUX() failed"),
        ("later", "later"),
    ] {
        let before = (server.logged(CONTEXT), server.logged(text));
        let failed = server.logged("SSL_do_handshake() failed (SSL: cert cb error)");
        assert_alert(&server, name, 80);
        server.wait_log("SSL_do_handshake() failed (SSL: cert cb error)", failed + 1);
        if !text.is_empty() {
            let after = (server.logged(CONTEXT), server.logged(text));
            assert!(after.0 > before.0 && after.1 > before.1, "{name}\n{}", server.log());
        }
    }
    assert_eq!(server.logged("lua entry thread aborted: runtime error: "), 7, "{}", server.log());
    assert_alert(&server, "clear", 40);
    assert_alert(&server, "half", 40);
    assert_eq!(shown(&server, "ok"), "self");
}

/// The first message of a client that says nothing more.
fn first_message(server: &Server) -> TcpStream {
    let file = server.dir().file("first");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = thread::spawn(move || {
        let dir = file.parent().unwrap();
        s_client(dir, port, &["-servername", "slow"], "").expect("OpenSSL")
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut message = vec![0; 4096];
    let n = stream.read(&mut message).unwrap();
    drop(stream);
    client.join().unwrap();
    let mut silent = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    silent.write_all(&message[..n]).unwrap();
    silent
}

#[test]
fn a_script_ends_with_its_client_and_with_the_time_for_the_handshake() {
    let script = |time: &str| {
        format!(
            "client_header_timeout {time}; ssl_certificate_by_lua_block {{
                 ngx.log(ngx.WARN, 'it waits') ngx.sleep(1000) ngx.log(ngx.WARN, 'it goes on')
             }}"
        )
    };
    let server = start("", &script("1000s"));
    let client = first_message(&server);
    server.wait_log("it waits", 1);
    drop(client);
    server.wait_log("client prematurely closed connection", 1);
    server.wait_log("peer closed connection in SSL handshake while SSL handshaking", 1);
    let server = start("", &script("100ms"));
    let mut client = first_message(&server);
    server.wait_log("client timed out (110: Connection timed out) while SSL handshaking", 1);
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(server.logged("it goes on"), 0);
}

#[test]
fn no_script_chooses_a_certificate_for_a_session_that_is_resumed() {
    let script = "ssl_client_hello_by_lua_block { ngx.log(ngx.WARN, 'a hello') }
        ssl_certificate_by_lua_block { ngx.log(ngx.WARN, 'a choice') show(read('chain.pem'), read('leaf.key')) }";
    for how in ["", "ssl_session_tickets off; ssl_session_cache shared:a:1m;"] {
        for version in ["-tls1_2", "-tls1_3"] {
            let server = start(how, script);
            let first = said(&server, "www.example.org", &[version, "-sess_out", "session"]);
            assert!(first.contains("New, TLSv1"), "{how} {version}: {first}");
            server.wait_log("a choice", 1);
            let again = said(&server, "www.example.org", &[version, "-sess_in", "session"]);
            assert!(again.contains("Reused, TLSv1"), "{how} {version}: {again}");
            assert!(again.contains(" r >"), "{how} {version}: {again}");
            server.wait_log("a hello", 2);
            // A session is good for its name only.
            let other = said(&server, "other", &[version, "-sess_in", "session"]);
            assert!(other.contains("New, TLSv1"), "{how} {version}: {other}");
            server.wait_log("a hello", 3);
            server.wait_log("a choice", 2);
            assert_eq!(server.logged("a choice"), 2, "{how} {version}");
        }
    }
}

#[test]
fn a_script_sees_the_first_message_and_chooses_versions() {
    let http = "server {
            listen 127.0.0.1:%%PORT%% ssl; server_name named;
            ssl_certificate chain.pem; ssl_certificate_key leaf.key; return 200 '<$ssl_protocol>';
        }";
    let inside = r#"ssl_client_hello_by_lua_block {
            local hello, ssl = require "ngx.ssl.clienthello", require "ngx.ssl"
            local name, why = hello.get_client_hello_server_name()
            local ciphers, extensions = hello.get_client_hello_ciphers(), hello.get_client_hello_ext_present()
            ngx.log(ngx.WARN, ngx.get_phase(), " of ", name, " ", why, " ",
                table.concat(hello.get_supported_versions(), " "), ", ", ciphers[1], " ", extensions[1] ~= nil, " ",
                #hello.get_client_hello_ext(0), " ", hello.get_client_hello_ext(9999))
            ngx.ctx.name = name
            if name == "wrong" then ngx.log(ngx.WARN, "wrong: ", hello.set_protocols { "TLSv9" }) end
            if name == "exit" then ngx.exit(ngx.ERROR) end
            if name == "raise" then error("raised") end
            if name == "old" then hello.set_protocols { "TLSv1", "TLSv1.1" } end
            if name == "twelve" or name == "named" then assert(hello.set_protocols { "TLSv1.1", "TLSv1.2" }) end
        }
        ssl_certificate_by_lua_block {
            local ssl, hello = require "ngx.ssl", require "ngx.ssl.clienthello"
            local address, kind = ssl.raw_client_addr()
            local own = ssl.raw_server_addr()
            ngx.log(ngx.WARN, ngx.get_phase(), " of ", ngx.ctx.name, " ", ssl.get_tls1_version_str(), " ",
                ssl.get_tls1_version(), " ", kind, table.concat({ address:byte(1, -1) }, "."), " ", own == address, " ",
                ssl.server_port(), " ", #ssl.get_client_random(), ssl.get_client_random(0), #ssl.get_client_random(7), " ",
                #ssl.get_req_shared_ssl_ciphers() > 0, " ", select(2, ssl.get_server_random()))
            ngx.log(ngx.WARN, "late: ", pcall(hello.get_client_hello_server_name))
        }
        log_by_lua_block { ngx.log(ngx.WARN, "request of ", ngx.ctx.name, " ", require "ngx.ssl".server_name()) }"#;
    let server = start(http, inside);
    let said_of = |name| said(&server, name, &[]);
    assert!(said_of("any").contains("<any TLSv1.3 . >"));
    server.wait_log("ssl_client_hello of any nil TLSv1", 1);
    let seen = format!(
        "ssl_cert of any TLSv1.3 772 inet127.0.0.1 true {} 32327 true not supported",
        server.port()
    );
    server.wait_log(&seen, 1);
    server.wait_log("API disabled in the current context", 1);
    server.wait_log("request of any any", 1);
    assert!(said_of("twelve").contains("<twelve TLSv1.2 . >"));
    // The script is the default server's, and the certificate that of the server that is named.
    let named = said_of("named");
    assert!(
        named.contains("<named TLSv1.2 . >") && named.contains("CN = www.example.org"),
        "{named}"
    );
    assert_alert(&server, "exit", 80);
    server.wait_log("SSL_do_handshake() failed (SSL: callback failed)", 1);
    assert_alert(&server, "raise", 80);
    server.wait_log("raised", 1);
    assert_alert(&server, "old", 70);
    server.wait_log("SSL_do_handshake() failed (SSL: unsupported protocol)", 1);
    assert!(said_of("wrong").contains("<wrong TLSv1.3 . >"));
    server.wait_log("wrong: nilinvalid protocols failed", 1);
}

#[test]
fn a_script_asks_the_client_for_its_certificate() {
    let inside = r#"ssl_certificate_by_lua_block {
            local ssl = require "ngx.ssl"
            local name = ssl.server_name()
            if name == "none" then return end
            assert(ssl.verify_client(ssl.parse_pem_cert(read(name .. ".pem")), 2))
        }
        location = /client { return 200 "<$ssl_client_verify $ssl_client_s_dn>"; }"#;
    let server = start("", inside);
    let client = ["-cert", "client.pem", "-key", "client.key", "-sess_out", "session"];
    let get = "GET /client HTTP/1.0\r\n\r\n";
    let said = |name: &str, args: &[&str]| {
        let args = [&["-ign_eof", "-servername", name], args].concat();
        s_client(server.dir().path(), server.port(), &args, get).expect("OpenSSL")
    };
    let good = said("root", &client);
    assert!(good.contains("<SUCCESS CN=") && good.contains("CN = root"), "{good}");
    assert!(said("self", &client).contains("<FAILED:"), "{}", said("self", &client));
    assert!(said("root", &[]).contains("<NONE >"));
    assert!(said("none", &client).contains("<NONE >"));
    // What a script has asked for is not forgotten with a session.
    let again = said("root", &["-sess_in", "session"]);
    assert!(again.contains("New, TLSv1"), "{again}");
}

#[test]
fn a_script_adds_what_a_responder_says_of_a_certificate() {
    let server = choosing(
        r#"local ssl, ocsp = require "ngx.ssl", require "ngx.ocsp"
           local function told(...) ngx.log(ngx.WARN, "told: ", ...) end
           local chain = assert(ssl.cert_pem_to_der(read("chain.pem")))
           local leaf = assert(ssl.cert_pem_to_der(read("leaf.pem")))
           local _, short = ocsp.create_ocsp_request(chain, 4)
           told("request ", assert(ocsp.create_ocsp_request(chain)) == read("leaf.ocsp-request"))
           told("short ", short:match("^output buffer too small: %d+ > 4$") ~= nil)
           told("alone ", ocsp.create_ocsp_request(leaf))
           told("no der ", ocsp.create_ocsp_request("text"))
           told("url ", ocsp.get_ocsp_responder_from_der_chain(chain))
           told("good ", ocsp.validate_ocsp_response(read("good.ocsp"), chain))
           told("revoked ", ocsp.validate_ocsp_response(read("revoked.ocsp"), chain))
           told("other ", ocsp.validate_ocsp_response(read("client-good.ocsp"), chain))
           told("text ", ocsp.validate_ocsp_response("text", chain))
           show(read("chain.pem"), read("leaf.key"))
           told("set ", ocsp.set_ocsp_status_resp(read("good.ocsp")))"#,
    );
    let asked = said(&server, "www.example.org", &["-status"]);
    assert!(asked.contains("OCSP Response Status: successful"), "{asked}");
    server.wait_log("told: set true", 1);
    for told in [
        "request true",
        "short true",
        "alone nilno issuer certificate in chain",
        "no der nild2i_X509_bio() failed",
        "url nil",
        "good true",
        "revoked nilcertificate status \"revoked\" in the OCSP response",
        "other nilcertificate status not found in the OCSP response",
        "text nild2i_OCSP_RESPONSE() failed",
    ] {
        assert!(server.logged(&format!("told: {told}")) > 0, "{told}\n{}", server.log());
    }
    let plain = said(&server, "www.example.org", &[]);
    assert!(!plain.contains("OCSP Response Status"), "{plain}");
    server.wait_log("told: set trueno status req", 1);
}

#[test]
fn a_reload_takes_the_new_script() {
    let inside = |name: &str| {
        format!(
            "ssl_certificate_by_lua_file %%DIR%%/choose.lua; server_name {name};
             ssl_client_hello_by_lua_file %%DIR%%/hello.lua;"
        )
    };
    let dir = certified();
    dir.write("choose.lua", "");
    dir.write("hello.lua", "ngx.log(ngx.WARN, 'a hello')");
    let server = Server::start_in(dir, WEIR, &conf("", &inside("first")));
    assert_eq!(shown(&server, "www.example.org"), "self");
    server.wait_log("[lua] hello.lua:1: a hello", 1);
    server.dir().write("choose.lua", "show(read('chain.pem'), read('leaf.key'))");
    server.configure(&conf("", &inside("second")));
    server.reload();
    assert!(until(server.dir().path(), || shown(&server, "www.example.org") == "www.example.org"));
}

#[test]
fn a_server_with_such_a_script_needs_a_certificate() {
    let server = super::server("return 200;");
    for (script, listens) in [
        ("ssl_certificate_by_lua_block { }", "127.0.0.1:%%PORT%%"),
        ("ssl_client_hello_by_lua_block { }", "127.0.0.1:%%PORT%% ssl"),
    ] {
        let conf = format!("events {{ }} http {{ server {{ listen {listens}; {script} }} }}");
        server.configure(&conf);
        let out = server.command(&["-t"]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(text.contains("no ssl configured for the server"), "{text}");
    }
}

#[test]
fn requests_see_what_their_handshake_has_left() {
    let inside = r#"ssl_client_hello_by_lua_block { ngx.ctx.name = require("ngx.ssl.clienthello").get_client_hello_server_name() }
        ssl_certificate_by_lua_block { ngx.ctx.count, ngx.ctx.shared = 0, { 0 } }
        location /ctx { content_by_lua_block {
            local ctx = ngx.ctx
            ctx.count, ctx.shared[1] = ctx.count + 1, ctx.shared[1] + 1
            ngx.print("<", ctx.name, " ", ctx.count, " ", ctx.shared[1], ">")
        } }"#;
    // Among loops of one process connections may move.
    let conf = format!("worker_threads 2; {}", conf("", inside));
    let server = Server::start_in(certified(), WEIR, &conf);
    let twice = "GET /ctx HTTP/1.1\r\nHost: a\r\n\r\nGET /ctx HTTP/1.0\r\n\r\n";
    let args = ["-ign_eof", "-servername", "any"];
    for _ in 0..2 {
        let said = s_client(server.dir().path(), server.port(), &args, twice).expect("OpenSSL");
        assert!(said.contains("<any 1 1>") && said.contains("<any 1 2>"), "{said}");
    }
    let url = format!("https://any:{}/ctx", server.port());
    let name = format!("any:{}:127.0.0.1", server.port());
    let out = run("curl", ["-sk", "--http2", "--resolve", &name, &url, &url]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "<any 1 1><any 1 2>");
}

#[test]
fn scripts_keep_sessions_of_clients_that_resume_by_their_ids() {
    let scripts = r#"lua_shared_dict sessions 1m;
        ssl_session_fetch_by_lua_block {
            local session = require "ngx.ssl.session"
            ngx.sleep(0.001)
            local id = session.get_session_id()
            local known = ngx.shared.sessions:get(id)
            ngx.log(ngx.WARN, ngx.get_phase(), " finds ", #id, " ", known ~= nil, " ", select(2, session.get_serialized_session()))
            if known then assert(session.set_serialized_session(known)) end
        }
        ssl_session_store_by_lua_block {
            local session = require "ngx.ssl.session"
            local id, kept = session.get_session_id(), session.get_serialized_session()
            ngx.timer.at(0, function()
                ngx.shared.sessions:set(id, kept)
                ngx.log(ngx.WARN, "kept ", #id, " ", select(2, session.get_session_id()))
            end)
            ngx.log(ngx.WARN, ngx.get_phase(), " stores")
            ngx.sleep(1)
        }
        ssl_session_tickets off;"#;
    let server = start(
        scripts,
        "ssl_certificate_by_lua_block { ngx.log(ngx.WARN, 'a choice') show(read('chain.pem'), read('leaf.key')) }",
    );
    let asked = |name: &str, args: &[&str]| said(&server, name, args);
    let first = asked("www.example.org", &["-tls1_2", "-sess_out", "session"]);
    assert!(first.contains("New, TLSv1.2"), "{first}");
    server.wait_log("ssl_session_store stores, context: ssl_session_store_by_lua*, client: ", 1);
    server.wait_log("API disabled in the context of ssl_session_store_by_lua*", 1);
    server.wait_log("kept 64 bad lua context", 1);
    assert_eq!((server.logged("finds"), server.logged("a choice")), (0, 1));
    for count in 1..=2 {
        let again = asked("www.example.org", &["-tls1_2", "-sess_in", "session"]);
        assert!(again.contains("Reused, TLSv1.2") && again.contains(" r >"), "{again}");
        server.wait_log("ssl_session_fetch finds 64 true bad session in lua context", count);
    }
    assert_eq!((server.logged("stores,"), server.logged("a choice")), (1, 1));
    // A session is good for its name only.
    let other = asked("other", &["-tls1_2", "-sess_in", "session"]);
    assert!(other.contains("New, TLSv1.2"), "{other}");
    server.wait_log("stores,", 2);
    // With TLS 1.3 no session has an id.
    assert!(asked("www.example.org", &["-tls1_3"]).contains("New, TLSv1.3"));
    server.wait_log("a choice", 3);
    assert_eq!((server.logged("finds"), server.logged("stores,")), (3, 2));
}

#[test]
fn requests_see_what_the_script_of_their_session_has_left() {
    let store =
        "ssl_session_tickets off; ssl_session_store_by_lua_block { ngx.ctx.stored = 'kept' }";
    let location =
        "location = /ctx { content_by_lua_block { ngx.print('<', ngx.ctx.stored, '>') } }";
    let server = start(store, location);
    let get = "GET /ctx HTTP/1.0\r\n\r\n";
    let args = ["-ign_eof", "-tls1_2"];
    let said = s_client(server.dir().path(), server.port(), &args, get).expect("OpenSSL");
    assert!(said.contains("<kept>"), "{said}");
}

#[test]
fn a_script_that_finds_no_session_leaves_the_client_a_new_one() {
    let scripts = |tickets: &str, end: &str| {
        format!(
            r#"ssl_session_tickets {tickets};
            ssl_session_fetch_by_lua_block {{
                ngx.log(ngx.WARN, "looked for")
                require("ngx.ssl.session").set_serialized_session("none that is one")
                {end}
            }}
            ssl_session_store_by_lua_block {{ ngx.log(ngx.WARN, "stored") error("wrong") }}"#
        )
    };
    for end in ["", "error('raised')", "ngx.exit(ngx.ERROR)"] {
        let server = start(&scripts("off", end), "");
        let asked = |args: &[&str]| said(&server, "www.example.org", args);
        assert!(asked(&["-tls1_2", "-sess_out", "session"]).contains("New, TLSv1.2"));
        server.wait_log("stored", 1);
        let again = asked(&["-tls1_2", "-sess_in", "session"]);
        assert!(again.contains("New, TLSv1.2") && again.contains(" . >"), "{end}: {again}");
        server.wait_log("looked for", 1);
        server.wait_log("failed to run session_store_by_lua*: ssl_session_store_by_lua(", 2);
    }
    // A client that has a ticket needs no script.
    let server = start(&scripts("on", ""), "");
    let asked = |args: &[&str]| said(&server, "www.example.org", args);
    assert!(asked(&["-tls1_2", "-sess_out", "session"]).contains("New, TLSv1.2"));
    assert!(asked(&["-tls1_2", "-sess_in", "session"]).contains("Reused, TLSv1.2"));
    assert!(asked(&["-tls1_2", "-no_ticket", "-sess_out", "session"]).contains("New, TLSv1.2"));
    server.wait_log("stored", 1);
    assert_eq!((server.logged("looked for"), server.logged(" stored")), (0, 1));
}

#[test]
fn scripts_of_sessions_of_tls_may_stand_in_files() {
    let dir = certified();
    dir.write("fetch.lua", "ngx.log(ngx.WARN, 'in a file: looked for')");
    dir.write("store.lua", "ngx.log(ngx.WARN, 'in a file: stored')");
    let scripts = "ssl_session_tickets off; ssl_session_cache shared:a:1m;
        ssl_session_fetch_by_lua_file %%DIR%%/fetch.lua; ssl_session_store_by_lua_file %%DIR%%/store.lua;";
    let server = Server::start_in(dir, WEIR, &conf(scripts, ""));
    let asked = |args: &[&str]| said(&server, "www.example.org", args);
    assert!(asked(&["-tls1_2", "-sess_out", "session"]).contains("New, TLSv1.2"));
    server.wait_log("in a file: stored", 1);
    // The cache has it, too.
    assert!(asked(&["-tls1_2", "-sess_in", "session"]).contains("Reused, TLSv1.2"));
    server.wait_log("in a file: looked for", 1);
}
