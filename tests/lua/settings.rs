//! The directives of scripts' sockets and timers: each with a value that has a visible effect.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::thread;

use weir_testkit::{Deaf, Dir, PATIENCE, Server, free_port, listen};

use super::{WEIR, ask, server, server_with};

/// What a script says that connects to this port and goes on with `more`, where these directives stand.
fn through(settings: &str, port: u16, more: &str) -> (Server, String) {
    let server = server(&format!(
        "location / {{ {settings} content_by_lua_block {{
             local sock = ngx.socket.tcp()
             local ok, why = sock:connect('127.0.0.1', {port})
             if not ok then ngx.log(ngx.ERR, 'none') return ngx.print(why) end
             {more}
         }} }}"
    ));
    let said = server.get("/").body();
    (server, said)
}

/// Says nothing, reads nothing, until the other end goes.
fn silent() -> u16 {
    listen(|stream: TcpStream| {
        let room = &mut [0; 1];
        while stream.peek(room).is_ok_and(|n| n > 0) {
            thread::park();
        }
    })
}

#[test]
fn an_empty_script_is_an_error_where_openresty_refuses_it() {
    let server = server("return 200;");
    for (empty, is_refused) in [
        ("content_by_lua_block {}", true),
        ("access_by_lua '';", true),
        ("log_by_lua_file '';", true),
        ("content_by_lua_block { }", false),
        ("set_by_lua_block $a {}", false),
    ] {
        server.configure(&format!("events {{ }} http {{ server {{ location / {{ {empty} }} }} }}"));
        let out = server.command(&["-t"]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), !is_refused, "{empty} {text}");
        assert_eq!(
            text.contains("invalid location config: no runnable Lua code"),
            is_refused,
            "{text}"
        );
    }
}

#[test]
fn scripts_of_an_if_run_in_it() {
    let server = server(
        "location /rewrite { if ($arg_a) { rewrite_by_lua_block { ngx.exit(403) } } return 200 in; }
         location /access { if ($arg_a) { access_by_lua_block { ngx.exit(403) } } content_by_lua_block { ngx.say('in') } }
         location /lines { if ($arg_a) { rewrite_by_lua_block { ngx.exit(403) } } content_by_lua_block { ngx.say('in') } }
         location /other { rewrite_by_lua_block { ngx.exit(403) }
             if ($arg_a) { rewrite_by_lua_block { ngx.header['X-If'] = 'in' } } content_by_lua_block { ngx.say('in') } }",
    );
    let told = |path: &str| server.get(path).status;
    // `return` answers before scripts are asked.
    assert_eq!((told("/rewrite?a=1"), told("/rewrite")), (200, 200));
    assert_eq!((told("/access?a=1"), told("/access")), (403, 200));
    assert_eq!((told("/lines?a=1"), told("/lines")), (403, 200));
    assert_eq!((told("/other?a=1"), told("/other")), (200, 403));
}

#[test]
fn a_scripts_socket_waits_no_longer_than_is_said() {
    let deaf = Deaf::new();
    assert_eq!(through("lua_socket_connect_timeout 50ms;", deaf.port(), "").1, "timeout");
    let read = "ngx.print(select(2, sock:receive()))";
    assert_eq!(through("lua_socket_read_timeout 50ms;", silent(), read).1, "timeout");
    let send = "ngx.print(select(2, sock:send(('x'):rep(30000000))))";
    assert_eq!(through("lua_socket_send_timeout 50ms;", silent(), send).1, "timeout");
}

#[test]
fn sockets_that_do_not_connect_are_logged_unless_it_is_off() {
    for (settings, lines) in [("", 1), ("lua_socket_log_errors off;", 0)] {
        let dead = free_port();
        let (server, said) = through(settings, dead, "");
        assert_eq!(said, "connection refused");
        server.wait_log(" none, client: ", 1);
        let text = format!("lua tcp socket connect to 127.0.0.1:{dead}: connect() failed (111: ");
        assert_eq!(server.logged(&text), lines, "{settings}");
    }
}

#[test]
fn connections_of_scripts_rest_as_many_and_as_long_as_is_said() {
    // How many have ended is what their server sees.
    let (tell, ended) = std::sync::mpsc::channel();
    let port = listen(move |mut stream: TcpStream| {
        let _ = stream.read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    let one = "ngx.print(sock:setkeepalive())";
    let (_server, said) = through("lua_socket_keepalive_timeout 50ms;", port, one);
    assert_eq!(said, "1");
    ended.recv_timeout(PATIENCE).expect("an end after 50 ms");
    let two = format!(
        "local other = ngx.socket.tcp()
         assert(other:connect('127.0.0.1', {port}))
         sock:setkeepalive() other:setkeepalive() ngx.print('both')"
    );
    let (_server, said) = through("lua_socket_pool_size 1;", port, &two);
    assert_eq!(said, "both");
    ended.recv_timeout(PATIENCE).expect("the end of one of two");
}

#[test]
fn a_pool_with_a_backlog_has_no_more_connections_than_is_said() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let more = format!(
        "local function connect(backlog)
             local sock = ngx.socket.tcp()
             sock:settimeout(200)
             return sock, sock:connect('127.0.0.1', {port}, {{ pool = 'p', pool_size = 2, backlog = backlog }})
         end
         local first, second = connect(1), connect(1)
         ngx.say(select(3, connect(1)))
         local waiting = ngx.thread.spawn(function() return connect(1) end)
         ngx.say(select(3, connect(1)))
         first:setkeepalive()
         local _, third = ngx.thread.wait(waiting)
         ngx.say(third:getreusedtimes())
         second:close()
         ngx.say(select(2, connect(1)))
         for _, options in ipairs {{ {{ pool_size = 0 }}, {{ pool_size = {{}} }}, {{ backlog = -1 }} }} do
             ngx.say((select(2, pcall(sock.connect, sock, '127.0.0.1', {port}, options)):match('bad \"[^)]*')))
         end"
    );
    let (_server, said) = through("", port, &more);
    let expected = "timeout\ntoo many waiting connect operations\n1\n1\nbad \"pool_size\" option value: 0\n\
        bad \"pool_size\" option type: table\nbad \"backlog\" option value: -1\n";
    assert_eq!(said, expected);
}

/// A directory with certificates.
fn certificates() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let read = |file: &str| std::fs::read(data.join(file)).unwrap();
    dir.write("chain.pem", [read("leaf.pem"), read("inter.pem")].concat());
    for file in
        ["leaf.key", "root.pem", "root.crl", "client.pem", "client.key", "self.pem", "self.key"]
    {
        dir.write(file, read(file));
    }
    dir
}

#[test]
fn scripts_speak_tls_as_is_said() {
    let conf = "events { }
        http {
            init_by_lua_block {
                function shake(port, session, name, verify, prepare)
                    local sock = ngx.socket.tcp()
                    assert(sock:connect('127.0.0.1', port))
                    if prepare then prepare(sock) end
                    local made, why = sock:sslhandshake(session, name, verify)
                    if not made then return nil, why end
                    sock:send('GET / HTTP/1.0\\r\\n\\r\\n')
                    sock:receiveuntil('\\r\\n\\r\\n')()
                    return made, (sock:receive('*a')), sock:getsslsession()
                end
                function read(name) return io.open('%%DIR%%/' .. name):read('*a') end
            }
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            server { listen 127.0.0.1:%%PORT%%;
                location /newest { lua_ssl_protocols TLSv1.3;
                    content_by_lua_block { ngx.print((select(2, shake(%%PORT1%%)))) } }
                location /old { lua_ssl_protocols TLSv1.2; lua_ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256;
                    content_by_lua_block { ngx.print((select(2, shake(%%PORT1%%)))) } }
                location /command { lua_ssl_conf_command MaxProtocol TLSv1.2;
                    content_by_lua_block { ngx.print((select(2, shake(%%PORT1%%)))) } }
                location /shown { lua_ssl_certificate self.pem; lua_ssl_certificate_key self.key;
                    content_by_lua_block { ngx.print((select(2, shake(%%PORT1%%)))) } }
                location /own { content_by_lua_block {
                    local ssl = require 'ngx.ssl'
                    local cert = ssl.parse_pem_cert(read('self.pem'))
                    local key = ssl.parse_pem_priv_key(read('self.key'))
                    ngx.say((select(2, shake(%%PORT1%%, nil, nil, false, function(sock)
                        ngx.say(sock:setclientcert(cert, key))
                        for _, pair in ipairs { { cert }, { 'x', key }, { cert, 'x' } } do
                            ngx.say((select(2, sock:setclientcert(pair[1], pair[2]))))
                        end
                    end))))
                    ngx.say((select(2, shake(%%PORT1%%, nil, nil, false, function(sock)
                        sock:setclientcert(cert, key)
                        sock:setclientcert()
                    end))))
                } }
                location /revoked { lua_ssl_trusted_certificate root.pem; lua_ssl_crl root.crl;
                    content_by_lua_block { ngx.print((select(2, shake(%%PORT2%%, nil, nil, true)))) } }
                location /unrevoked { lua_ssl_trusted_certificate root.pem;
                    content_by_lua_block { ngx.print(type(shake(%%PORT2%%, nil, nil, true))) } }
                location /sessions { lua_ssl_protocols TLSv1.2;
                    content_by_lua_block {
                        local first, said = shake(%%PORT1%%, nil, 'a.a')
                        ngx.say(type(first), ' ', said)
                        local _, said, later = shake(%%PORT1%%, first, 'a.a')
                        ngx.say(type(later), ' ', said)
                        ngx.say((select(2, shake(%%PORT1%%, later, 'a.a'))))
                        -- A session is its name's.
                        ngx.say((select(2, shake(%%PORT1%%, later, 'b.b'))))
                        ngx.say((select(2, shake(%%PORT1%%, false))))
                    }
                }
            }
            server { listen 127.0.0.1:%%PORT1%% ssl; ssl_verify_client optional_no_ca;
                location / { return 200 '$ssl_protocol $ssl_cipher $ssl_client_s_dn $ssl_session_reused'; } }
            server { listen 127.0.0.1:%%PORT2%% ssl; ssl_certificate client.pem; ssl_certificate_key client.key; return 200; }
        }";
    let server = Server::start_in(certificates(), WEIR, conf);
    assert!(server.get("/newest").body().starts_with("TLSv1.3 "));
    let old = server.get("/old").body();
    assert!(old.starts_with("TLSv1.2 ") && old.contains("AES128-GCM-SHA256"), "{old}");
    assert!(server.get("/command").body().starts_with("TLSv1.2 "));
    assert!(server.get("/shown").body().contains(" CN=self "));
    let own = server.get("/own").body();
    let lines: Vec<&str> = own.lines().collect();
    const LACKS: &str = "client certificate must be supplied with corresponding private key";
    let expected = ["true", LACKS, "bad cert arg: cdata expected, got string"];
    assert_eq!(lines[..3], expected, "{own}");
    assert_eq!(lines[3], "bad pkey arg: cdata expected, got string");
    assert!(lines[4].contains(" CN=self ") && !lines[5].contains("CN=self"), "{own}");
    assert_eq!(server.get("/revoked").body(), "23: certificate revoked");
    assert_eq!(server.get("/unrevoked").body(), "cdata");

    let sessions = server.get("/sessions").body();
    let ends: Vec<_> = sessions.lines().map(|line| line.ends_with(" r")).collect();
    assert_eq!(ends[..4], [false, true, true, false], "{sessions}");
    assert!(
        sessions.starts_with("cdata ") && sessions.lines().nth(1).unwrap().starts_with("cdata")
    );
}

#[test]
fn scripts_judge_servers_by_the_authorities_and_the_depth_that_are_said() {
    let of_root = "lua_ssl_trusted_certificate root.pem;";
    const UNKNOWN: &str = "20: unable to get local issuer certificate";
    for (settings, name, verdict) in [
        (of_root, "'www.example.org'", "true"),
        // Without a name the certificate may be for any.
        (of_root, "nil", "true"),
        (of_root, "''", "SSL_set_tlsext_host_name failed"),
        (of_root, "'www.example.com'", "certificate host mismatch"),
        ("lua_ssl_trusted_certificate self.pem;", "'www.example.org'", UNKNOWN),
        ("lua_ssl_trusted_certificate self.pem;", "nil", UNKNOWN),
        ("lua_ssl_trusted_certificate root.pem; lua_ssl_verify_depth 0;", "nil", UNKNOWN),
        ("", "nil", UNKNOWN),
    ] {
        let conf = format!(
            "events {{ }}
             http {{
                 server {{ listen 127.0.0.1:%%PORT%%; {settings} location / {{ content_by_lua_block {{
                     local sock = ngx.socket.tcp()
                     assert(sock:connect('127.0.0.1', %%PORT1%%))
                     local ok, why = sock:sslhandshake(nil, {name}, true)
                     ngx.print(tostring(ok and true or why))
                 }} }} }}
                 server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate chain.pem;
                     ssl_certificate_key leaf.key; return 200 ok; }}
             }}"
        );
        let server = Server::start_in(certificates(), WEIR, &conf);
        assert_eq!(server.get("/").body(), verdict, "{settings} {name}");
        if verdict.starts_with('2') {
            server.wait_log(&format!("lua ssl certificate verify error: ({verdict})"), 1);
        }
    }
}

#[test]
fn any_true_value_asks_for_a_check_of_the_server() {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for file in ["self.pem", "self.key"] {
        dir.write(file, std::fs::read(data.join(file)).unwrap());
    }
    let conf = "events { }
        http {
            server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
                local sock = ngx.socket.tcp()
                for _, check in ipairs { true, 1, 0, 'no', {}, false } do
                    assert(sock:connect('127.0.0.1', %%PORT1%%))
                    ngx.print(sock:sslhandshake(nil, nil, check) and 'passes' or 'fails', ' ')
                end
            } } }
            server { listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate self.pem;
                ssl_certificate_key self.key; return 200 ok; }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/").body(), "fails fails fails fails fails passes ");
}

/// A machine without OpenSSL has no store.
#[test]
fn scripts_trust_the_authorities_of_a_store_of_their_own() {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let read = |file: &str| std::fs::read(data.join(file)).unwrap();
    dir.write("chain.pem", [read("leaf.pem"), read("inter.pem")].concat());
    for file in ["leaf.key", "root.pem", "self.pem"] {
        dir.write(file, read(file));
    }
    let conf = r#"events { }
        http {
            init_by_lua_block {
                local ffi = require "ffi"
                ffi.cdef [[
                    typedef struct x509_store_st X509_STORE;
                    X509_STORE *X509_STORE_new(void);
                    int X509_STORE_load_locations(X509_STORE *store, const char *file, const char *dir);
                    int i2d_X509(const void *, unsigned char **);
                ]]
                has_openssl = pcall(function() return ffi.C.X509_STORE_new end)
                function store_of(file)
                    local store = ffi.C.X509_STORE_new()
                    assert(ffi.C.X509_STORE_load_locations(store, "%%DIR%%/" .. file, nil) == 1)
                    return store
                end
            }
            server { listen 127.0.0.1:%%PORT%%; lua_ssl_trusted_certificate self.pem; lua_ssl_verify_depth 2;
                location / { content_by_lua_block {
                    if not has_openssl then return ngx.print("none") end
                    local sock = ngx.socket.tcp()
                    local function tried(...)
                        assert(sock:connect("127.0.0.1", %%PORT1%%))
                        for _, store in ipairs { ... } do assert(sock:settrustedstore(store or nil)) end
                        local ok, why = sock:sslhandshake(nil, "www.example.org", true)
                        ngx.say(ok and "trusted" or why)
                    end
                    ngx.say((select(2, pcall(sock.settrustedstore, sock, store_of("root.pem"))):gsub("^.*: ", "")))
                    ngx.say(sock:settrustedstore("root.pem"))
                    tried(store_of("root.pem"))
                    tried(store_of("self.pem"))
                    tried(store_of("root.pem"), false)
                    tried()
                    sock:close()
                    ngx.say(sock:settrustedstore(store_of("root.pem")))
                } }
            }
            server { listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate chain.pem;
                ssl_certificate_key leaf.key; return 200 ok; }
        }"#;
    let server = Server::start_in(dir, WEIR, conf);
    let said = server.get("/").body();
    if said == "none" {
        return println!("not run: OpenSSL is missing");
    }
    let unknown = "20: unable to get local issuer certificate\n".repeat(3);
    let expected = format!(
        "socket is never created nor connected\nnilbad store arg: cdata expected, got string\ntrusted\n{unknown}nilclosed\n"
    );
    assert_eq!(said, expected);
}

#[test]
fn timers_wait_and_run_as_many_as_is_said() {
    let set = "content_by_lua_block {
            local wait = function() ngx.sleep(0.2) end
            for i = 1, 3 do ngx.say(select(2, ngx.timer.at(tonumber(ngx.var.arg_in), wait)) or 'set') end
        }";
    let few = server_with("lua_max_pending_timers 2;", &format!("location / {{ {set} }}"));
    assert_eq!(few.get("/?in=1000").body(), "set\nset\ntoo many pending timers\n");
    let few = server_with("lua_max_running_timers 1;", &format!("location / {{ {set} }}"));
    assert_eq!(few.get("/?in=0").body(), "set\nset\nset\n");
    few.wait_log("1 lua_max_running_timers are not enough", 2);
}

#[test]
fn a_client_of_http_1_0_waits_for_the_length_unless_it_is_off() {
    let server = server(
        "location /whole { content_by_lua_block { ngx.print('a') ngx.flush(true) ngx.print('b') } }
         location /pieces { lua_http10_buffering off;
             content_by_lua_block { ngx.print('a') ngx.flush(true) ngx.print('b') } }",
    );
    for (path, length) in [("/whole", Some("2")), ("/pieces", None)] {
        let answer = ask(&server, &format!("GET {path} HTTP/1.0"), "");
        assert_eq!((answer.header("Content-Length"), answer.body()), (length, "ab".to_owned()));
    }
}

#[test]
fn scripts_see_the_environment_that_is_said() {
    for master in ["on", "off"] {
        let conf = format!(
            "master_process {master}; env SEEN=here; events {{ }}
             http {{
                 init_by_lua_block {{ at_the_start = os.getenv('SEEN') }}
                 server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{
                     ngx.print(at_the_start, ' ', os.getenv('SEEN'), ' ', os.getenv('HOME')) }} }} }}
             }}"
        );
        assert_eq!(Server::start(WEIR, &conf).get("/").body(), "here here nil", "{master}");
    }
}

#[test]
fn a_script_learns_how_the_program_was_configured() {
    let server =
        server("location / { content_by_lua_block { ngx.print(ngx.config.nginx_configure()) } }");
    let prefix = format!("{}/", server.dir().path().display());
    let args = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-V"];
    let shown = std::process::Command::new(WEIR).args(args).output().unwrap();
    let shown = String::from_utf8(shown.stderr).unwrap();
    let words = shown.lines().find_map(|line| line.strip_prefix("configure arguments:")).unwrap();
    assert_eq!(server.get("/").body(), words);
    assert!(words.contains(" --with-http_v2_module"), "{words}");
}

#[test]
fn the_first_script_sees_what_the_server_was_started_with() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    dir.write("modules/known.lua", "return 'found'");
    let path = dir.path().display();
    let start = dir.write(
        "start",
        format!(
            "#!/bin/sh\nSEEN=outside OTHER=too LUA_PATH='{path}/modules/?.lua;;' LUA_CPATH=/of/c exec {WEIR} \"$@\"\n"
        ),
    );
    std::fs::set_permissions(&start, std::fs::Permissions::from_mode(0o755)).unwrap();
    let conf = "env SEEN=inside; events { } http {
        lua_package_path '/own/?.lua;;';
        init_by_lua_block { getenv = os.getenv first = os.getenv('SEEN') .. ' ' .. os.getenv('OTHER') .. ' ' .. require('known') }
        server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
            ngx.say(first, ' ', os.getenv('SEEN'), ' ', os.getenv('OTHER'), ' ', os.getenv('LUA_PATH'), ' ', os.getenv ~= getenv)
            ngx.say(package.path:match('^/own/%?.lua;.+/modules/%?.lua;%./%?.lua;') ~= nil, ' ', package.cpath)
        } } }
    }";
    let server = Server::start_in(dir, start.to_str().unwrap(), conf);
    assert_eq!(server.get("/").body(), "inside too found inside nil nil true\ntrue /of/c\n");
}
