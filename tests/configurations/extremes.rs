//! Extremes: each variable of requests that say nothing, too little, too often, too much and not in
//! ASCII; and each directive that takes variables with unexpected values. Over each protocol,
//! beside nginx.

use std::fmt::Write;

use weir_testkit::{Oracle, Server};

use crate::ask::{Ask, Framing, Wire};
use crate::back::Back;
use crate::{WEIR, files, seen};

/// Names that begin with what they read, and names of the configuration's own. All others are those that weir has.
const EXAMPLES: &[&str] = &[
    "arg_v",
    "arg_V",
    "arg_none",
    "http_x",
    "http_none",
    "cookie_a",
    "cookie_v",
    "cookie_none",
    "sent_http_x",
    "sent_trailer_x",
    "upstream_http_x",
    "upstream_cookie_a",
    "upstream_trailer_x",
    "proxy_protocol_tlv_alpn",
    "part",
];

/// Variables that are not equal by right, and why.
const UNEQUAL: &[(&str, &[&str])] = &[
    (
        "times",
        &[
            "connection_time",
            "date_gmt",
            "date_local",
            "msec",
            "request_time",
            "time_iso8601",
            "time_local",
            "upstream_connect_time",
            "upstream_header_time",
            "upstream_response_time",
            "ssl_client_v_remain",
        ],
    ),
    (
        "chance, and numbers of connections, processes and ports",
        &[
            "connection",
            "pid",
            "remote_port",
            "realip_remote_port",
            "request_id",
            "request_port",
            "server_port",
            "ssl_session_id",
        ],
    ),
    (
        "counters, which another request may change",
        &[
            "connections_active",
            "connections_reading",
            "connections_waiting",
            "connections_writing",
        ],
    ),
    (
        "how many bytes heads take, which compress or name their writer",
        &[
            "bytes_sent",
            "body_bytes_sent",
            "request_length",
            "upstream_bytes_received",
            "upstream_bytes_sent",
            "upstream_response_length",
        ],
    ),
    ("bytes that weir writes into no head", &["binary_remote_addr"]),
    ("of the kernel", &["tcpinfo_rcv_space", "tcpinfo_rtt", "tcpinfo_rttvar", "tcpinfo_snd_cwnd"]),
    (
        "what two libraries of TLS offer and prefer",
        &["ssl_cipher", "ssl_ciphers", "ssl_curve", "ssl_curves", "ssl_sigalg", "ssl_sigalgs"],
    ),
    ("nginx has them not", &["event_loop_blocked", "loop", "upstream_cache_key"]),
];

/// All variables that are compared: a new variable needs no line here.
fn variables() -> Vec<String> {
    let all = weir_server::variables();
    for name in UNEQUAL.iter().flat_map(|(_, names)| *names) {
        assert!(all.iter().any(|known| known == name), "there is no ${name}");
    }
    let unequal = |name: &String| {
        UNEQUAL.iter().any(|(_, names)| names.contains(&name.as_str())) || name.starts_with("echo_")
    };
    let equal = all.into_iter().filter(|name| !unequal(name));
    equal.chain(EXAMPLES.iter().map(|name| (*name).to_owned())).collect()
}

/// Directives that take variables, with one of them.
const TAKERS: &[&str] = &[
    "root %%DIR%%/html/$arg_v;",
    "root %%DIR%%/html; index $arg_v a.html;",
    "root %%DIR%%/html; try_files $arg_v =404;",
    "root %%DIR%%/html; try_files /$arg_v/ /e.txt;",
    "error_page 404 /$arg_v; return 404;",
    "error_page 404 $arg_v; return 404;",
    "return 302 $arg_v;",
    "return 302 /x$arg_v;",
    "return 200 $arg_v;",
    "return 200 [$arg_v];",
    "rewrite ^ /$arg_v redirect;",
    "rewrite ^ $arg_v permanent;",
    "rewrite ^ /e.txt?$arg_v last;",
    "add_header X $arg_v; add_header X-Always \"$arg_v\" always; return 404;",
    "add_header Last-Modified $arg_v; alias %%DIR%%/html/e.txt;",
    "add_header ETag $arg_v; alias %%DIR%%/html/e.txt;",
    "add_trailer X $arg_v; return 200 x;",
    "expires $arg_v; return 200 x;",
    "expires modified $arg_v; alias %%DIR%%/html/e.txt;",
    "charset $arg_v; default_type text/plain; return 200 x;",
    "source_charset $arg_v; charset utf-8; default_type text/plain; return 200 x;",
    "limit_rate $arg_v; return 200 x;",
    "limit_rate_after $arg_v; limit_rate 1m; return 200 x;",
    "set $limit_rate $arg_v; return 200 $limit_rate;",
    "set $args $arg_v; return 200 \"$args|$is_args|$query_string\";",
    "proxy_pass http://$arg_v;",
    "proxy_pass http://$arg_v/x;",
    "proxy_pass http://back$arg_v;",
    "proxy_pass http://back/$arg_v;",
    "proxy_method $arg_v; proxy_pass http://back;",
    "proxy_set_header X $arg_v; proxy_pass http://back;",
    "proxy_set_header Host $arg_v; proxy_pass http://back;",
    "proxy_set_body $arg_v; proxy_pass http://back;",
    "proxy_cache $arg_v; proxy_pass http://back;",
    "proxy_cache stored; proxy_cache_key $arg_v; proxy_cache_valid 1h; proxy_pass http://back;",
    "proxy_cache stored; proxy_cache_bypass $arg_v; proxy_cache_valid 1h; proxy_pass http://back;",
    "proxy_cache stored; proxy_no_cache $arg_v; proxy_cache_valid 1h; proxy_pass http://back;",
    "proxy_redirect http://back/ $arg_v; proxy_pass http://back/?up=move&x=;",
    "proxy_redirect $arg_v /x; proxy_pass http://back/?up=move&x=;",
    "proxy_cookie_domain $arg_v x; proxy_pass http://back;",
    "proxy_cookie_domain up.example $arg_v; proxy_pass http://back;",
    "proxy_cookie_path / $arg_v; proxy_pass http://back;",
    "proxy_cookie_flags a $arg_v; proxy_pass http://back;",
    "proxy_limit_rate $arg_v; proxy_pass http://back;",
    "proxy_bind $arg_v; proxy_pass http://back;",
    "sub_filter_types *; sub_filter $arg_v y; return 200 text; default_type text/html;",
    "sub_filter a '$arg_v'; alias %%DIR%%/html/p/a.html; default_type text/html;",
    "auth_basic $arg_v; auth_basic_user_file %%DIR%%/users; alias %%DIR%%/html/e.txt;",
    "auth_basic x; auth_basic_user_file %%DIR%%/$arg_v; alias %%DIR%%/html/e.txt;",
    "secure_link $arg_v; secure_link_md5 x; return 200 $secure_link;",
    "secure_link $arg_v,9; secure_link_md5 $arg_v; return 200 \"[$secure_link|$secure_link_expires]\";",
    "disable_symlinks on from=$arg_v; root %%DIR%%/html;",
    "if ($arg_v) { return 200 yes; } return 200 no;",
    "if ($arg_v = x) { return 200 yes; } return 200 no;",
    "if ($arg_v ~ (x+)) { return 200 [$1]; } return 200 no;",
    "if (-e %%DIR%%/html/$arg_v) { return 200 yes; } return 200 no;",
    "if (-f $arg_v) { return 200 yes; } return 200 no;",
    "early_hints $arg_v; return 200 x;",
    "default_type $arg_v; return 200 x;",
    "userid log; userid_name uid; return 200 \"[$uid_got]\";",
    "return 200 \"$by_map|$by_geo|$by_split|$by_regex\";",
    "limit_req zone=rate; alias %%DIR%%/html/e.txt;",
    "limit_conn conns 1; alias %%DIR%%/html/e.txt;",
    "access_log %%DIR%%/logs/$arg_v.log; return 200 x;",
    "access_log %%DIR%%/logs/other.log seen if=$arg_v; return 200 x;",
];

/// Where weir differs on purpose: docs/differences.md.
const BY_RIGHT: &[(&str, &[&str])] = &[
    ("root %%DIR%%/html/$arg_v", &["v=../x"]),
    ("error_page 404 /$arg_v", &["v=../x"]),
    ("charset $arg_v", &["", "v"]),
    ("source_charset $arg_v", &["", "v"]),
    // nginx ends these without a word of TLS.
    ("proxy_pass http://$arg_v", &["", "v", "v=/", "v=/e.txt"]),
    // nginx takes a kept connection of any address; neither may have this one.
    ("proxy_bind $arg_v", &["v=127.0.0.1:1"]),
];

const VALUES: &[&str] = &[
    "",
    "v",
    "v=",
    "v=0",
    "v=x",
    "v=off",
    "v=1h",
    "v=utf-8",
    "v=-1",
    "v=999999999999999999999",
    "v=stored",
    "v=../x",
    "v=/",
    "v=/e.txt",
    "v=%c3%a9",
    "v=\u{e9}",
    "v=%00",
    "v=a%20b",
    "v=a+b",
    "v=900000&v=2",
    "V=upper",
    "v=%%",
    "v=$uri",
    "v=127.0.0.1:1",
    "v=256.0.0.1",
    "v=%22%5c%0a",
    "v=xxxxxxxxxxxxxxxx",
    "v=&v=x",
    "&&v=x&",
    "v=x=y",
    "v=text/html",
    "v=@named",
];

fn conf(back: &str, old: bool) -> String {
    let (mut names, mut early) = (String::new(), String::new());
    let mut lines = String::new();
    for name in variables().iter().filter(|name| !NEW.contains(&name.as_str()) || !old) {
        let _ = write!(names, "[${{{name}}}] ");
        // What nginx is asked too early it does not find later, either.
        if !LATE.iter().any(|late| name.starts_with(late)) {
            let _ = write!(early, "[${{{name}}}] ");
        }
    }
    for (n, taker) in TAKERS.iter().enumerate().filter(|(_, t)| !t.starts_with("early") || !old) {
        let _ = writeln!(lines, "location /t{n}/ {{ {taker} }}");
    }
    let (of_old, of_new) = if old { (" http2", "") } else { ("", "http2 on;") };
    format!(
        "events {{ }}
         http {{
             server_tokens off;
             log_format plain '{names}';
             log_format json escape=json '{names}';
             log_format none escape=none '{names}';
             log_format seen '$request $status';
             map $arg_v $by_map {{ default d; x mapped; ~^(?<cut>.).* $cut; '' empty; }}
             map $arg_v $by_regex {{ volatile; hostnames; default d; .example e; ~*^/(.*) '$1+'; }}
             geo $arg_v $by_geo {{ default d; 127.0.0.0/8 near; 0.0.0.0/1 low; }}
             split_clients $arg_v $by_split {{ 30% a; 30% b; * c; }}
             limit_req_zone $arg_v zone=rate:64k rate=1r/m; limit_conn_zone $arg_v zone=conns:64k;
             proxy_cache_path %%DIR%%/stored keys_zone=stored:1m;
             upstream back {{ server {back}; }}
             large_client_header_buffers 8 16k;
             access_log %%DIR%%/logs/seen.log plain; access_log %%DIR%%/logs/json.log json;
             server {{
                 listen 127.0.0.1:%%PORT%%; server_name s1.example ~^(?<part>.)re;
                 listen 127.0.0.1:%%PORT1%% ssl{of_old}; listen 127.0.0.1:%%PORT2%%{of_old}; {of_new}
                 ssl_protocols TLSv1.2 TLSv1.3;
                 ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
                 location / {{ root %%DIR%%/html; return 200 '{early}'; }}
                 location /up/ {{ proxy_http_version 1.1; proxy_set_header Connection ''; proxy_pass http://back;
                     proxy_set_header X-All '{early}'; root %%DIR%%/html; }}
                 location ~ ^/cut/(.)(.*)$ {{ return 200 '{early}'; }}
                 location = /e.txt {{ root %%DIR%%/html; }}
                 location @named {{ return 200 named; }}
                 {lines}
             }}
         }}"
    )
}

/// Variables that are known once there is an answer begin so.
const LATE: &[&str] = &["sent_", "upstream_", "status", "gzip_", "uid_set", "limit_"];

/// Variables that an older nginx does not know.
const NEW: &[&str] = &["is_request_port", "ssl_alpn_protocol", "sent_trailer_x"];

/// Requests that say nothing, too little, too often, too much and not in ASCII.
fn odd() -> Vec<Ask> {
    let long = "l".repeat(5_000);
    let fields: Vec<Vec<(&'static str, String)>> = vec![
        vec![],
        vec![("X", String::new()), ("Cookie", String::new()), ("User-Agent", String::new())],
        vec![("X", "1".to_owned()), ("x", "2".to_owned()), ("X", String::new())],
        vec![("Cookie", "a=1; v=2".to_owned()), ("Cookie", "a=3;v=\"4\"".to_owned())],
        vec![("Cookie", "=;a;a =1; ;v==".to_owned()), ("Referer", "\u{e9}\u{20ac}".to_owned())],
        vec![("X", long.clone()), ("Cookie", format!("a={long}"))],
        vec![("X", "\u{e9}\"\\\u{1f600}".to_owned()), ("User-Agent", "a\tb".to_owned())],
        vec![("X-Forwarded-For", "1.1.1.1".to_owned()), ("X-Forwarded-For", "2.2.2.2".to_owned())],
        vec![("Via", "1.1 a".to_owned()), ("Via", "1.0 b".to_owned())],
        vec![("Authorization", "Basic".to_owned())],
        vec![("Authorization", "Basic dTpw".to_owned()), ("Referer", "x".to_owned())],
        vec![("Authorization", "Basic 5c3pOuk=".to_owned())],
    ];
    let targets = [
        "/",
        "/?",
        "/?v",
        "/?v=",
        "/?v=1&v=2",
        "/\u{e9}?v=\u{e9}",
        "/%c3%a9/%e9?v=%e9",
        "/a//b/./c",
        "/cut/x",
        "/cut/%c3%a9",
        "/up/x?v=%20",
        "/up/\u{e9}",
        "//",
        "/?a#f",
        "/%20%22%5c",
    ];
    let mut all = Vec::new();
    let wires = [Wire::Plain, Wire::Tls, Wire::Http2, Wire::Http2Tls];
    let long = format!("/?v={}", "w".repeat(5_000));
    for (n, fields) in fields.iter().enumerate() {
        for (m, target) in targets.iter().copied().chain([long.as_str()]).enumerate() {
            for wire in [wires[(n + m) % 4], wires[(n + m + 2) % 4]] {
                all.push(get(wire, target, fields));
            }
        }
    }
    all
}

fn get(wire: Wire, target: &str, fields: &[(&'static str, String)]) -> Ask {
    let mut fields = fields.to_vec();
    fields.push(("Connection", "close".to_owned()));
    Ask {
        wire,
        method: "GET",
        target: target.to_owned(),
        host: "s1.example".to_owned(),
        version: "1.1",
        fields,
        body: "",
        framing: Framing::None,
    }
}

#[test]
fn extremes_are_answered_as_with_nginx() {
    let Some(nginx) = Oracle::find() else { return };
    if nginx.is_old() {
        println!("not run: repeated fields mean other things to nginx {}", nginx.version);
        return;
    }
    let back = Back::start();
    let conf = conf(&back.address, false);
    let theirs = Server::start_in(files(), &nginx.path, &conf);
    let ours = Server::start_in(files(), WEIR, &conf);
    let mut asks = odd();
    let wires = [Wire::Plain, Wire::Http2Tls, Wire::Tls, Wire::Http2];
    for n in 0..TAKERS.len() {
        let by_right = BY_RIGHT.iter().filter(|(taker, _)| TAKERS[n].starts_with(taker));
        let by_right: Vec<&str> = by_right.flat_map(|(_, values)| values.iter().copied()).collect();
        for (m, value) in VALUES.iter().enumerate().filter(|(_, v)| !by_right.contains(v)) {
            asks.push(get(wires[(n + m) % 4], &format!("/t{n}/?{value}"), &[]));
        }
    }
    let mut wrong = Vec::new();
    for ask in &asks {
        let (expected, got) = (seen(&theirs, &back, ask), seen(&ours, &back, ask));
        if expected != got {
            let taker = ask.target.strip_prefix("/t").and_then(|rest| rest.split('/').next());
            let taker = taker.and_then(|n| TAKERS.get(n.parse::<usize>().ok()?)).unwrap_or(&"");
            let differing = expected.split("] ").zip(got.split("] ")).find(|(a, b)| a != b);
            let difference = format!(
                "{taker} {ask:?}\n-- nginx:\n{expected}\n-- weir:\n{got}\n-- first: {differing:?}\n"
            );
            println!("{difference}");
            wrong.push(difference);
        }
    }
    println!(
        "{} extremes compared with nginx {}, {} differ",
        asks.len(),
        nginx.version,
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} differ", wrong.len());
}

#[test]
fn no_request_writes_a_line_that_is_not_in_the_configuration() {
    let back = Back::start();
    // What was decoded of the path, wherever a variable may stand.
    let conf = conf(&back.address, false).replace("$arg_v", "$uri");
    let server = Server::start_in(files(), WEIR, &conf);
    let mut wrong = Vec::new();
    for (n, taker) in TAKERS.iter().enumerate() {
        for wire in [Wire::Plain, Wire::Tls, Wire::Http2, Wire::Http2Tls] {
            let target = format!("/t{n}/%0d%0aInjected:%20yes%20HTTP/1.1%0d%0aInjected:%20too");
            let came = crate::wire::ask(&get(wire, &target, &[]), crate::look::ports(&server));
            let mut fields = came.head.iter().chain(&came.trailers);
            let ends = |text: &str| text.contains(['\r', '\n', '\0']);
            if fields.any(|(name, value)| name.eq_ignore_ascii_case("injected") || ends(value)) {
                wrong.push(format!("{taker}: an answer over {wire:?} has a line of its client's"));
            }
            for asked in back.take() {
                let head = asked.split("\r\n\r\n").next().unwrap_or_default();
                if head.lines().any(|line| line.starts_with("Injected:")) {
                    wrong.push(format!("{taker}: the server behind got a line of the client's"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
