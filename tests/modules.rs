//! Modules that need a running server to be tested.

use weir_testkit::{Client, Response, Server};

fn server(http: &str, server: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{ access_log off; {http} server {{ listen 127.0.0.1:%%PORT%%; \
         default_type text/plain; root %%DIR%%; {server} }} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

fn ask(client: &mut Client, path: &str, headers: &str) -> Response {
    client.ask(&format!("GET {path}"), headers, "")
}

#[test]
fn the_name_is_weirs_own() {
    let s = server("", "location = /v { return 200 $nginx_version; }");
    let page = s.get("/none");
    assert!(page.header("Server").is_some_and(|name| name.starts_with("weir/")), "{page:?}");
    assert!(page.body().contains("<center>weir/"), "{}", page.body());
    assert_eq!(s.get("/v").body(), "1.31.5");
    let quiet = server("server_tokens off;", "").get("/none");
    assert_eq!(quiet.header("Server"), Some("weir"));
    assert!(quiet.body().contains("<center>weir</center>"), "{}", quiet.body());
}

#[test]
fn a_connection_goes_on_after_412() {
    let s = server("", "location = /yes { return 200 yes; }");
    s.dir().write("file", "text");
    let mut client = s.connect();
    let refused = ask(&mut client, "/file", "If-Match: \"other\"\r\n");
    assert_eq!((refused.status, refused.header("Connection")), (412, Some("keep-alive")));
    assert_eq!(ask(&mut client, "/yes", "").body(), "yes");
}

#[test]
fn what_was_sent_is_known_though_it_was_asked_for_before() {
    let s = server(
        "log_format sent '$sent_http_content_type';",
        "access_log %%DIR%%/sent.log sent; return 200 \"[$sent_http_content_type]\";",
    );
    assert_eq!(s.get("/").body(), "[]");
    s.wait_file("sent.log", "text/plain\n", 1);
}

#[test]
fn modern_browsers_may_be_listed_for_all_servers() {
    let s = server("modern_browser msie 5.5;", "return 200 \"[$modern_browser]\";");
    let is_modern = |version: &str| {
        let name = format!("User-Agent: Mozilla/4.0 (compatible; MSIE {version}; Windows)\r\n");
        ask(&mut s.connect(), "/", &name).body() == "[1]"
    };
    assert_eq!(["5.0", "5.5", "6.0"].map(is_modern), [false, true, true]);
}

#[test]
fn maps_and_networks_give_variables_their_values() {
    let s = server(
        "map $arg_a $m { hostnames; default none; .example.org names; ~^x(.*)$ \"rest $1\"; }
         geo $arg_ip $net { default far; 10.0.0.0/8 near; 10.1.0.0/16 nearer; }
         split_clients $arg_a $share { 100% all; }",
        "location / { return 200 \"$m, $net, $share\"; }",
    );
    assert_eq!(s.get("/?a=www.example.org&ip=10.1.2.3").body(), "names, nearer, all");
    assert_eq!(s.get("/?a=xyz&ip=10.9.9.9").body(), "rest yz, near, all");
    assert_eq!(s.get("/?a=&ip=::1").body(), "none, far, all");
}

/// A pattern that may match nothing lets in no request without the header.
/// As in nginx: the value is empty, and the log says why.
#[test]
fn maps_that_lead_to_each_other_end() {
    let maps = "map $b $a { default $b; } map $a $b { default $a; }
         map $d $c { volatile; default $d$d; } map $c $d { volatile; default $c; }";
    let conf = format!(
        "worker_threads 2; events {{ }}
         http {{ {maps} server {{ listen 127.0.0.1:%%PORT%%; return 200 \"[$a$b][$c]\"; }} }}
         stream {{ {maps} server {{ listen 127.0.0.1:%%PORT1%%; return \"[$a$b][$c]\"; }} }}"
    );
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &conf);
    for _ in 0..3 {
        assert_eq!(s.get("/").body(), "[][]");
        assert_eq!(Client::connect(s.port_at(1)).rest(), "[][]");
    }
    s.wait_log("cycle while evaluating variable", 12);
    assert!(!s.log().contains("exited on signal"), "{}", s.log());
}

#[test]
fn patterns_of_a_map_are_not_tried_on_an_empty_value() {
    let s = server(
        "map $http_x_t $digits { default deny; ~^[0-9]*$ allow; }
         map $http_x_t $none { default other; ~^$ empty; }
         map $http_x_t $named { default other; \"\" named; ~* any; }
         map $http_x_t $names { hostnames; default other; ~^$ empty; ~.* any; }",
        "location / { return 200 \"$digits $none $named $names\"; }",
    );
    let mut client = s.connect();
    for headers in ["", "X-T:\r\n"] {
        assert_eq!(ask(&mut client, "/", headers).body(), "deny other named other");
    }
    // The dot behind a name is cut first.
    assert_eq!(ask(&mut client, "/", "X-T: .\r\n").body(), "deny other any other");
    assert_eq!(ask(&mut client, "/", "X-T: 5\r\n").body(), "allow other any any");
}

#[test]
fn headers_and_trailers_are_added() {
    let s = server(
        "add_header X-Outer 1;",
        "location / { return 200 ok; } location /own { add_header X-Own $uri always; return 404; }
         location /old { expires -1; return 200 ok; } location /long { expires max; return 200 ok; }
         location /t { add_trailer X-End $status; return 200 body; }",
    );
    assert_eq!(s.get("/").header("x-outer"), Some("1"));
    let own = s.get("/own");
    assert_eq!((own.header("x-own"), own.header("x-outer")), (Some("/own"), None));
    assert_eq!(s.get("/old").header("cache-control"), Some("no-cache"));
    assert_eq!(s.get("/long").header("cache-control"), Some("max-age=315360000"));
    let mut client = s.connect();
    client.send("GET /t HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let text = client.rest();
    assert!(text.ends_with("4\r\nbody\r\n0\r\nX-End: 200\r\n\r\n"), "{text}");
}

#[test]
fn expires_keeps_the_places_of_the_servers_headers() {
    let s = server(
        "",
        "location /from { add_header X-A 1; add_header Cache-Control private; add_header X-B 2;
             add_header Expires 0; add_header X-C 3; add_header Cache-Control no-store; return 200 ok; }
         location / { expires epoch; proxy_pass http://127.0.0.1:%%PORT%%/from; }",
    );
    let mut client = s.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let text = client.rest();
    let lines = "X-A: 1\r\nCache-Control: no-cache\r\nX-B: 2\r\n\
                 Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\nX-C: 3\r\n\r\nok";
    assert!(text.ends_with(lines), "{text}");
}

#[test]
fn a_root_that_begins_with_a_variable_is_below_the_prefix() {
    let s = server(
        "",
        "location / { set $site kept; root $site/pages; return 200 $document_root; }
         location /whole { set $site %%DIR%%; root $site/pages; return 200 $document_root; }",
    );
    let dir = s.dir().path().display().to_string();
    assert_eq!(s.get("/").body(), format!("{dir}/kept/pages"));
    assert_eq!(s.get("/whole").body(), format!("{dir}/pages"));
}

#[test]
fn addresses_decide_about_access() {
    let s = server(
        "",
        "location /in { allow 127.0.0.0/8; deny all; return 200 never; }
         location /out { deny 127.0.0.1; }
         location /behind { set_real_ip_from 127.0.0.1; deny 192.0.2.0/24; }",
    );
    // `return` comes before access is looked at, as in nginx.
    assert_eq!(s.get("/in").status, 200);
    assert_eq!(s.get("/out").status, 403);
    s.wait_log("access forbidden by rule", 1);
    let mut client = s.connect();
    assert_eq!(ask(&mut client, "/behind", "X-Real-IP: 192.0.2.7\r\n").status, 403);
    assert_eq!(ask(&mut client, "/behind", "X-Real-IP: 198.51.100.7\r\n").status, 404);
}

#[test]
fn status_pages_count() {
    let s = server(
        "",
        "location /stub { stub_status; } location /all { weir_status; }
         location /json { weir_status json; }",
    );
    let mut client = s.connect();
    let stub = ask(&mut client, "/stub", "").body();
    assert!(stub.starts_with("Active connections: "), "{stub}");
    assert!(stub.contains("Reading: 0 Writing: 1 Waiting: 0"), "{stub}");
    let all = ask(&mut client, "/all", "");
    assert_eq!(all.header("content-type"), Some("text/plain; version=0.0.4"));
    assert!(all.body().contains("\nweir_requests_total 2\n"), "{}", all.body());
    let json = ask(&mut client, "/json", "").body();
    assert!(json.contains(r#""requests":3,"#), "{json}");
}

#[test]
fn a_directory_is_listed_in_each_form() {
    let s = server(
        "",
        "autoindex on; location /x/ { alias %%DIR%%/d/; autoindex_format xml; }
         location /j/ { alias %%DIR%%/d/; autoindex_format jsonp; }",
    );
    std::fs::create_dir_all(s.dir().file("d/sub")).unwrap();
    s.dir().write("d/a&b.txt", "12345");
    s.dir().write("d/.hidden", "");
    let list = s.get("/d/?callback=f()");
    let page = list.body();
    assert_eq!(list.header("Content-Length"), Some(page.len().to_string().as_str()));
    assert!(page.contains("<a href=\"sub/\">sub/</a>"), "{page}");
    assert!(page.contains("<a href=\"a%26b.txt\">a&amp;b.txt</a>"), "{page}");
    assert!(!page.contains("hidden") && page.find("sub/") < page.find("a%26b"));
    let xml = s.get("/x/").body();
    assert!(xml.contains(" size=\"5\">a&amp;b.txt</file>\r\n"), "{xml}");
    assert!(s.get("/j/?callback=f").body().contains("f([\r\n{ \"name\":\"sub\""));
    assert_eq!(s.get("/j/?callback=f()").status, 400);
    // The list in HTML has no use for the callback.
    let refusal = "client sent invalid callback name: \"f()\"";
    s.wait_log(refusal, 1);
    assert_eq!(s.logged(refusal), 1);
    assert_eq!(s.get("/nowhere/").status, 404);
}

#[test]
fn a_client_is_known_again_by_its_cookie() {
    let conf = r#"userid on; userid_name id; ssi on; ssi_types *; location / { return 200 "$uid_got"; }
        location /page { return 200 '<!--# include virtual="/part" -->'; }
        location /part { userid off; return 200 "$uid_got|$uid_set"; }
        location /old { userid_name old; set $x "$uid_set"; return 404; error_page 404 = /new; }
        location /new { userid_name new; return 200 "$uid_got"; }"#;
    let s = server("", conf);
    let mut client = s.connect();
    let first = ask(&mut client, "/", "");
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let again = ask(&mut client, "/", &format!("Cookie: {cookie}\r\n"));
    assert_eq!(again.header("set-cookie"), None);
    assert_eq!(again.body().len(), "id=".len() + 32);
    assert!(ask(&mut client, "/", "Cookie: id=short\r\n").header("set-cookie").is_some());
    // A part of a page has the identifier of the page, whatever its own settings are.
    let known = again.body();
    let part = ask(&mut client, "/page", &format!("Cookie: {cookie}\r\n"));
    assert_eq!(part.body(), format!("{known}|"));
    let page = ask(&mut client, "/page", "");
    let body = page.body();
    let sent = page.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let got = ask(&mut client, "/", &format!("Cookie: {sent}\r\n")).body();
    assert_eq!(body, format!("|{got}"));
    // Another location may have another cookie.
    let redirected =
        ask(&mut client, "/old", &format!("Cookie: {cookie}; new={}\r\n", &cookie[3..]));
    assert_eq!(redirected.body(), known.replace("id=", "new="));
}

#[test]
fn flags_of_that_cookie_add_up_line_by_line() {
    let s = server(
        "",
        "userid on; userid_flags samesite=lax; userid_flags off; userid_flags HttpOnly;
         location / { return 200; } location /own { userid_flags secure; return 200; }
         location /none { userid_flags off; return 200; }
         location /strict { userid_flags samesite=strict samesite=lax; userid_flags samesite=none; return 200; }",
    );
    let flags = |path: &str| {
        let answer = s.get(path);
        let cookie = answer.header("set-cookie").unwrap();
        cookie.split_once(';').map_or("", |(_, flags)| flags).to_owned()
    };
    assert_eq!(flags("/"), " path=/; httponly; samesite=lax");
    assert_eq!(flags("/own"), " path=/; secure");
    assert_eq!(flags("/none"), " path=/");
    assert_eq!(flags("/strict"), " path=/; samesite=strict");
}

#[test]
fn headers_that_come_twice_are_one_list() {
    let all =
        "$content_type|$http_user_agent|$http_cookie|$http_x_forwarded_for|$http_accept|$http_x";
    let s = server("", &format!("underscores_in_headers on; return 200 '{all}';"));
    let headers = "Content-Type: a\r\nContent-Type: b\r\nUser-Agent: c\r\nUser-Agent:\r\n\
                   Cookie: d\r\nCookie: e\r\nX-Forwarded-For: f\r\nX_Forwarded_For: g\r\n\
                   X-Forwarded-For: h\r\nAccept: i\r\nAccept: j\r\nX: k\r\nX: l\r\n";
    assert_eq!(ask(&mut s.connect(), "/", headers).body(), "a, b|c, |d; e|f, h|i, j|k, l");
}

#[test]
fn the_way_to_check_a_link_is_that_of_the_inner_block() {
    let s = server(
        "",
        "location /s/ { secure_link_secret word; return 200 \"secret $secure_link\";
            location /s/md5 { secure_link $arg_md5; secure_link_md5 x$uri; return 200 \"md5 $secure_link\"; } }
         location /m/ { secure_link $arg_md5; secure_link_md5 x$uri; return 200 \"md5 $secure_link\";
            location /m/29245bdc2d04a9e0e729927ed0f84e26 { secure_link_secret word; return 200 \"secret $secure_link\"; } }",
    );
    assert_eq!(s.get("/s/29245bdc2d04a9e0e729927ed0f84e26/link").body(), "secret link");
    assert_eq!(s.get("/s/md5?md5=6pgsWMvqMccE5YO3swz7Ig").body(), "md5 1");
    assert_eq!(s.get("/s/md5?md5=wrong").body(), "md5 ");
    assert_eq!(s.get("/m/29245bdc2d04a9e0e729927ed0f84e26/link").body(), "secret link");
}
