//! What `-t` says of single lines, with the place that nginx names.

use weir_testkit::Dir;

use super::{stderr, weir};

/// The first line of what is said of a configuration, without the program's name and the prefix; empty where it is right.
fn verdict(dir: &Dir, conf: &str) -> String {
    let said = stderr(&weir(dir, conf, &["-t", "-q"]));
    let prefix = format!("{}/", dir.path().display());
    let line = said.lines().next().unwrap_or_default().replace(&prefix, "");
    line.strip_prefix("weir: [emerg] ").unwrap_or(&line).to_owned()
}

/// Judges lines of `http`, beside a server that passes requests on. The first line is the third of the file.
fn in_http(lines: &str) -> String {
    let server =
        "server { listen unix:%%DIR%%/sock; location / { proxy_pass http://127.0.0.1:1; } }";
    let dir = Dir::new();
    let conf = format!("events {{ }}\nhttp {{ access_log off;\n{lines}\n{server}\n}}");
    verdict(&dir, &conf.replace("%%DIR%%", &dir.path().display().to_string()))
}

#[test]
fn one_directory_is_for_one_cache_or_for_temporary_files() {
    let used = |name: &str, first: u32, second: u32| {
        format!(
            "the same path name \"{name}\" used in nginx.conf:{first} and in nginx.conf:{second}"
        )
    };
    let cache = "proxy_cache_path c keys_zone=a:1m;\n";
    for (other, at) in [
        ("proxy_cache_path c keys_zone=b:1m;", 4),
        ("proxy_cache_path c/ levels=1:2 keys_zone=b:1m;", 4),
        ("fastcgi_cache_path c keys_zone=b:1m;", 4),
        ("proxy_temp_path c;", 4),
        ("client_body_temp_path c 1;", 4),
    ] {
        assert_eq!(in_http(&format!("{cache}{other}")), used("c", 3, at), "{other}");
    }
    let levels =
        "the same path name \"t\" in nginx.conf:3 has the different levels than in nginx.conf:4";
    assert_eq!(in_http("proxy_temp_path t 1;\nclient_body_temp_path t 2;"), levels);
    for right in [
        "proxy_temp_path t 1 2;\nfastcgi_temp_path t/ 1 2;",
        "proxy_cache_path c keys_zone=a:1m use_temp_path=off;\nproxy_temp_path c/temp;",
        "proxy_cache_path c keys_zone=a:1m;\nproxy_cache_path c/d keys_zone=b:1m;",
    ] {
        assert_eq!(in_http(right), "", "{right}");
    }
}

#[test]
fn a_directory_of_temporary_files_need_not_be_named_to_be_used() {
    let cache = "proxy_cache_path proxy_temp keys_zone=a:1m;";
    let used = "the same path name \"proxy_temp\" used in nginx.conf:3 and in nginx.conf:5";
    assert_eq!(in_http(cache), used);
    assert_eq!(in_http(&format!("{cache} proxy_temp_path elsewhere;")), "");
    let levels = |name: &str| {
        format!(
            "the path name \"{name}\" in nginx.conf:3 has the same name as default path, but the different \
             levels, you need to define default path in http section"
        )
    };
    assert_eq!(in_http("client_body_temp_path uwsgi_temp;"), levels("uwsgi_temp"));
    let server = |line: &str| format!("server {{ listen unix:%%DIR%%/other; {line} }}");
    assert_eq!(in_http(&server("proxy_temp_path proxy_temp 1;")), levels("proxy_temp"));
    assert_eq!(in_http(&server("proxy_temp_path proxy_temp 1 2;")), "");
    // No server is left that uses it.
    let dir = Dir::new();
    let only = format!(
        "events {{ }} http {{ access_log off; server {{ listen unix:{}/sock; client_body_temp_path client_body_temp 1; }} }}",
        dir.path().display()
    );
    assert_eq!(verdict(&dir, &only), "");
}

#[test]
fn off_stands_alone() {
    for (name, value) in [("domain", "a b"), ("path", "/a /b"), ("flags", "a secure")] {
        let name = format!("proxy_cookie_{name}");
        let duplicate = format!("\"{name}\" directive is duplicate in nginx.conf:4");
        assert_eq!(in_http(&format!("{name} off;\n{name} {value};")), duplicate);
        assert_eq!(in_http(&format!("{name} {value};\n{name} off;")), duplicate);
        assert_eq!(in_http(&format!("{name} {value};\n{name} {value};")), "");
    }
}

#[test]
fn a_cache_has_a_zone_of_its_own() {
    let zone = "\"proxy_cache_path\" must have \"keys_zone\" parameter in nginx.conf:3";
    assert_eq!(in_http("proxy_cache_path c keys_zone=:1m;"), zone);
    let other =
        "the shared memory zone \"z\" is already declared for a different use in nginx.conf:4";
    let both = "proxy_cache_path a keys_zone=z:1m;\nfastcgi_cache_path b keys_zone=z:1m;";
    assert_eq!(in_http(both), other);
    for (declared, used) in [("fastcgi", "proxy"), ("proxy", "uwsgi")] {
        let lines = format!("{declared}_cache_path a keys_zone=z:1m;\n{used}_cache z;");
        assert_eq!(in_http(&lines), other);
    }
    let twice = both.replace("fastcgi", "proxy");
    assert_eq!(in_http(&twice), "duplicate zone \"z\" in nginx.conf:4");
    assert_eq!(in_http("proxy_cache_path c levels= keys_zone=z:1m;"), "");
}

#[test]
fn errors_of_the_whole_block_name_a_line() {
    let sizes =
        "the maximum of the value of \"proxy_buffer_size\" and one of the \"proxy_buffers\"";
    let at_least =
        |name: &str| format!("\"{name}\" must be equal to or greater than {sizes} in nginx.conf:5");
    assert_eq!(in_http("proxy_busy_buffers_size 1k;"), at_least("proxy_busy_buffers_size"));
    assert_eq!(in_http("proxy_temp_file_write_size 1;"), at_least("proxy_temp_file_write_size"));
    let few = "there must be at least 2 \"proxy_buffers\" in nginx.conf:5";
    assert_eq!(in_http("proxy_buffers 1 8k;"), few);
    let mixed = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\" in nginx.conf:5";
    assert_eq!(in_http("server { location / { secure_link a; secure_link_secret b; } }"), mixed);
    let other =
        "the shared memory zone \"z\" is already declared for a different use in nginx.conf:4";
    assert_eq!(in_http("limit_conn_zone $uri zone=z:1m;\nlimit_req zone=z;"), other);
    assert_eq!(in_http("limit_req_zone $uri zone=z:1m rate=1r/s;\nlimit_conn z 1;"), other);
}

#[test]
fn quic_without_its_version_of_tls_is_told_with_the_server() {
    let dir = weir_testkit::certified();
    let conf = "events { }\nhttp {\nserver {\nlisten 127.0.0.1:1 quic; ssl_protocols TLSv1.2;\n\
                ssl_certificate chain.pem; ssl_certificate_key leaf.key; } }";
    let text = "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive in nginx.conf:3";
    assert_eq!(verdict(&dir, conf), text);
}

#[test]
fn parameters_of_listen_that_say_nothing_are_refused() {
    let listen =
        |parameters: &str| in_http(&format!("server {{ listen 127.0.0.1:1 {parameters}; }}"));
    let backlog =
        "\"listen\" directive \"backlog\" parameter is incompatible with \"quic\" in nginx.conf:3";
    assert_eq!(listen("quic backlog=10"), backlog);
    for none in ["0:0:0", "0::", "::0", "::"] {
        let text = format!("invalid so_keepalive value: \"{none}\" in nginx.conf:3");
        assert_eq!(listen(&format!("so_keepalive={none}")), text);
    }
}

#[test]
fn a_session_server_without_a_listener_is_told_with_its_first_line() {
    let dir = Dir::new();
    let conf = "events { }\nstream {\nserver {\nproxy_pass 127.0.0.1:1;\n} }";
    assert_eq!(verdict(&dir, conf), "no \"listen\" is defined for server in nginx.conf:3");
}

#[test]
fn sessions_are_not_bound_to_servers() {
    let dir = Dir::new();
    for word in ["drain", "route=a"] {
        let group = format!("upstream u {{ server 127.0.0.1:1 {word}; }}");
        let text = format!("invalid parameter \"{word}\" in nginx.conf:2");
        assert_eq!(verdict(&dir, &format!("events {{ }}\nstream {{ {group} }}")), text);
        assert_eq!(verdict(&dir, &format!("events {{ }}\nhttp {{ {group} }}")), "");
    }
}

#[test]
fn a_method_below_what_binds_clients_is_warned_of() {
    let said = |lines: &str| in_http(&format!("upstream u {{ server 127.0.0.1:1; {lines} }}"));
    assert_eq!(said("least_conn; sticky cookie s;"), "");
    let text = "weir: [warn] load balancing method redefined in nginx.conf:3";
    assert_eq!(said("sticky cookie s; least_conn;"), text);
    assert_eq!(said("least_conn; least_conn;"), text);
    let text = "\"least_time\" directive is duplicate in nginx.conf:3";
    assert_eq!(said("least_time header; least_time last_byte;"), text);
    for (sticky, text) in [
        ("cookie s path=", "\"sticky\" directive no value for \"path\""),
        ("learn zone=z:64k create=$arg_a lookup=$", "invalid variable name \"$\""),
    ] {
        assert_eq!(said(&format!("sticky {sticky};")), format!("{text} in nginx.conf:3"));
    }
}

#[test]
fn a_group_of_a_match_has_no_braces() {
    for line in ["return 200 ${1};", "set $x a${1}b;", "rewrite (.) /${1};", "add_header X ${1};"] {
        let said = in_http(&format!("server {{ listen unix:%%DIR%%/other; {line} }}"));
        assert_eq!(said, "unknown \"1\" variable", "{line}");
    }
}

#[test]
fn a_variable_of_a_server_behind_has_a_known_name() {
    let said = |name: &str| {
        in_http(&format!("server {{ listen unix:%%DIR%%/other; return 200 ${name}; }}"))
    };
    assert_eq!(said("upstream_nosuch"), "unknown \"upstream_nosuch\" variable");
    for name in ["upstream_status", "upstream_http_x", "upstream_trailer_x", "upstream_cookie_x"] {
        assert_eq!(said(name), "", "{name}");
    }
}

#[test]
fn a_local_address_has_no_port_0() {
    for (address, is_right) in
        [("127.0.0.1:0", false), ("[::1]:0", false), ("127.0.0.1:1", true), ("127.0.0.1", true)]
    {
        let text = format!("invalid address \"{address}\" in nginx.conf:3");
        let text = if is_right { "" } else { &text };
        assert_eq!(in_http(&format!("proxy_bind {address};")), text);
    }
}

#[test]
fn a_character_has_whole_bytes() {
    for value in ["1", "c2a"] {
        let text = format!("invalid value \"{value}\" in nginx.conf:3");
        assert_eq!(in_http(&format!("charset_map a utf-8 {{ 80 {value}; }}")), text);
    }
    assert_eq!(in_http("charset_map a utf-8 { 80 c2a0; }"), "");
}

#[test]
fn connections_are_more_than_listening_sockets() {
    let dir = Dir::new();
    let judged = |connections: u32| {
        let prefix = dir.path().display();
        let listens = format!("listen unix:{prefix}/a; listen unix:{prefix}/b;");
        let conf = format!(
            "events {{ worker_connections {connections}; }} http {{ access_log off; server {{ {listens} }} }}"
        );
        verdict(&dir, &conf)
    };
    for few in [0, 1, 2] {
        let text = format!("{few} worker_connections are not enough for 2 listening sockets");
        assert_eq!(judged(few), text);
    }
    assert_eq!(judged(3), "");
}

#[test]
fn what_says_nothing_is_taken_where_nginx_takes_it() {
    let dir = Dir::new();
    for conf in ["events { epoll_events 0; }", "env \"\"; events { }"] {
        assert_eq!(verdict(&dir, conf), "", "{conf}");
    }
    for line in ["quic_active_connection_id_limit 1;", "quic_active_connection_id_limit 0;"] {
        assert_eq!(in_http(line), "", "{line}");
    }
}

#[test]
fn what_tls_does_not_use_is_judged_all_the_same() {
    let dir = weir_testkit::certified();
    let prefix = dir.path().display().to_string();
    let judged = |line: &str| {
        let conf = format!(
            "events {{ }}\nhttp {{\naccess_log off;\nserver {{\nlisten unix:{prefix}/sock ssl;\n\
             ssl_certificate chain.pem; ssl_certificate_key leaf.key; {line}\n}} }}"
        );
        verdict(&dir, &conf)
    };
    let options = "ssl_conf_command Options ServerPreference,NoResumptionOnRenegotiation;";
    assert_eq!(judged(options), "");
    let text = judged("ssl_dhparam none.pem;");
    assert!(text.starts_with("BIO_new_file(\"none.pem\") failed"), "{text}");
    assert_eq!(
        judged("ssl_dhparam chain.pem;"),
        "PEM_read_bio_DHparams(\"chain.pem\") failed (SSL: no start line)"
    );
    let prime = |first: &str| format!("MIGHAoGB{first}{}AgEC", "/".repeat(168));
    // Nothing; primes of 1024 and 1023 bits; zero.
    for (parameters, said) in [
        ("MAA=".to_owned(), "PEM_read_bio_DHparams(\"dh.pem\") failed (SSL: bad parameters)"),
        (prime("AP//"), ""),
        (prime("AH//"), "SSL_CTX_set_tmp_dh(\"dh.pem\") failed (SSL: dh key too small)"),
        (
            "MAYCAQACAQI=".to_owned(),
            "PEM_read_bio_DHparams(\"dh.pem\") failed (SSL: bad parameters)",
        ),
    ] {
        let (begin, end) = ("-----BEGIN DH PARAMETERS-----", "-----END DH PARAMETERS-----");
        dir.write("dh.pem", format!("{begin}\n{parameters}\n{end}\n"));
        assert_eq!(judged("ssl_dhparam dh.pem;"), said);
    }
    let text = judged("ssl_session_tickets off; ssl_session_ticket_key none;");
    assert!(text.starts_with("open() \"none\" failed"), "{text}");
    for (len, said) in [(4095, ""), (4096, "too long line in \"passwords\" in nginx.conf:6")] {
        dir.write("passwords", format!("{}\n", "x".repeat(len)));
        assert_eq!(judged("ssl_password_file passwords;"), said);
    }
    let text = judged("ssl_protocols TLSv1.3; ssl_conf_command MaxProtocol TLSv1.2;");
    assert!(text.contains("failed (SSL: no version of TLS is left)"), "{text}");
}

#[test]
fn a_group_that_repeats_queries_needs_a_zone_and_a_resolver() {
    let said = |lines: &str| in_http(&format!("upstream u {{ server a.test resolve; {lines} }}"));
    let no_zone = "resolving names at run time requires upstream \"u\" to be in shared memory";
    let no_resolver = "no resolver defined to resolve names at run time in upstream \"u\"";
    // Without both, nginx names the zone.
    for (lines, text) in [("", no_zone), ("zone z 64k;", no_resolver)] {
        let said = said(lines);
        assert!(said.starts_with(text), "{lines}: {said}");
    }
}

#[test]
fn blocks_share_no_zone() {
    let dir = Dir::new();
    let other =
        "the shared memory zone \"z\" is already declared for a different use in nginx.conf:3";
    let group = "upstream u { zone z 64k; server 127.0.0.1:1; }";
    let sessions = "ssl_session_cache shared:z:64k;";
    let limit = "limit_conn_zone $remote_addr zone=z:64k;";
    let used = "server { listen 127.0.0.1:1; limit_conn z 1; return a; }";
    for (http, stream) in [
        (group, group),
        (group, "upstream u { zone z; server 127.0.0.1:1; }"),
        (sessions, sessions),
        (limit, limit),
        (limit, used),
    ] {
        let conf = format!("events {{ }}\nhttp {{ {http} }}\nstream {{ {stream} }}");
        assert_eq!(verdict(&dir, &conf), other, "{stream}");
    }
    let mail = format!("events {{ }}\nstream {{ {sessions} }}\nmail {{ {sessions} }}");
    assert_eq!(verdict(&dir, &mail), other);
}

#[test]
fn a_slow_start_needs_a_method_with_weights_in_either_order() {
    let text = "balancing method does not support parameter \"slow_start=1s\" in nginx.conf:3";
    let slow = "server 127.0.0.1:1 slow_start=1s;";
    for method in ["hash $uri;", "ip_hash;", "random;", "random two;"] {
        for lines in [format!("{method} {slow}"), format!("{slow} {method}")] {
            assert_eq!(in_http(&format!("upstream u {{ {lines} }}")), text, "{lines}");
        }
    }
    assert_eq!(in_http(&format!("upstream u {{ {slow} least_conn; }}")), "");
}

#[test]
fn a_scheme_alone_names_no_host() {
    for line in ["grpc_pass grpc://;", "grpc_pass grpcs://;", "proxy_pass http://;"] {
        let said = in_http(&format!("server {{ location / {{ {line} }} }}"));
        assert_eq!(said, "no host in upstream \"\" in nginx.conf:3", "{line}");
    }
}

#[test]
fn warnings_stand_before_the_error_behind_them() {
    let dir = Dir::new();
    let group = "upstream u { server 127.0.0.1:1; hash a; random; }";
    for (block, wrong) in [
        ("http", "upstream v { }"),
        ("stream", "upstream v { }"),
        ("stream", "server { listen 127.0.0.1:1; return $nothing; }"),
    ] {
        let said = stderr(&weir(
            &dir,
            &format!("events {{ }}\n{block} {{ {group}\n{wrong} }}"),
            &["-t", "-q"],
        ));
        let [warning, error] =
            ["[warn] load balancing method redefined", "[emerg] "].map(|text| said.find(text));
        assert!(warning.is_some() && warning < error, "{said}");
    }
}
