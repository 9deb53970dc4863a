//! echo.

use crate::{refused, server};

#[test]
fn lines_are_said_in_their_order() {
    let s = server(
        "",
        "location /say { echo hello $uri; echo -n world; echo; echo \"a  b\" c; echo -- -n; }
         location /status { echo_status 404; echo_sleep 0.01; echo not; }
         location /many { echo_duplicate 3 ab; echo_duplicate -1 c; echo_duplicate $arg_n d; }
         location /nothing { echo_flush; }
         location /exec { echo_exec /say q=1; }
         location /exec2 { echo_exec @named; }
         location @named { echo named; }
         location /each { echo_foreach_split '&' $query_string; echo \"item: $echo_it\"; echo_end; echo end $echo_it.; }",
    );
    let say = s.get("/say");
    assert_eq!(say.body(), "hello /say\nworld\na  b c\n-n\n");
    assert_eq!(say.header("Content-Type"), Some("text/plain"));
    let status = s.get("/status");
    assert_eq!((status.status, status.body()), (404, "not\n".to_owned()));
    assert_eq!(s.get("/many?n=1").body(), "abababd");
    assert_eq!(s.get("/nothing").body(), "");
    assert_eq!(s.get("/exec").body(), "hello /say\nworld\na  b c\n-n\n");
    assert_eq!(s.get("/exec2").body(), "named\n");
    assert_eq!(s.get("/each?a=1&b=2&&").body(), "item: a=1\nitem: b=2\nend .\n");
    let mut client = s.connect();
    client.send("HEAD /say HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let head = client.rest();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn lines_are_said_in_an_if_unless_it_has_its_own() {
    let s = server(
        "",
        "location /out { echo out; echo more; if ($arg_a) { add_header X-If in; } }
         location /own { echo out; if ($arg_a) { echo in; echo more; } }
         location /sub { echo out; location /sub/in { } }
         location /limited { echo out; limit_except POST { allow all; } }",
    );
    let out = s.get("/out?a=1");
    assert_eq!((out.header("X-If"), out.body()), (Some("in"), "out\nmore\n".to_owned()));
    assert_eq!(s.get("/own?a=1").body(), "in\nmore\n");
    assert_eq!(s.get("/own").body(), "out\n");
    // As in nginx: a location inside and limited methods are for files.
    assert_eq!((s.get("/sub/in").status, s.get("/limited").status), (404, 404));
    assert_eq!(s.ask("POST /limited", "", "").body(), "out\n");
}

#[test]
fn requests_and_other_paths_are_said() {
    let s = server(
        "",
        "location /body { echo_read_request_body; echo_request_body; echo; echo $request_body; echo $echo_request_method; }
         location /other { echo_location /part a; echo between; echo_location /part; }
         location /part { echo \"$uri:$args\"; }
         location /sub { echo_subrequest POST /seen -q 'a=b' -b 'body'; echo_subrequest GET /seen; }
         location /seen { echo_read_request_body; echo \"$echo_request_method $uri $args $request_body $content_length\"; }
         location /head { echo $echo_client_request_headers; echo $echo_client_request_method $echo_request_uri; }
         location /async { echo_location_async /part b; echo_subrequest_async PUT /seen; }
         location /timer { echo_blocking_sleep 0.02; echo_reset_timer; echo $echo_timer_elapsed; }
         location /cycle { echo_location /cycle; }",
    );
    let post = |path: &str, body: &str| {
        let length = format!("Content-Length: {}\r\n", body.len());
        s.ask(&format!("POST {path}"), &length, body).body()
    };
    assert_eq!(post("/body", "x=1"), "x=1\nx=1\nPOST\n");
    assert_eq!(s.get("/other").body(), "/part:a\nbetween\n/part:\n");
    assert_eq!(s.get("/sub").body(), "POST /seen a=b body 4\nGET /seen   \n");
    let head = s.ask("GET /head?q", "X-A: b\r\n", "").body();
    assert!(head.starts_with("GET /head?q HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("X-A: b\r\n") && head.ends_with("GET /head?q\n"), "{head}");
    assert_eq!(s.get("/async").body(), "/part:b\nPUT /seen   \n");
    let timer = s.get("/timer").body();
    assert!(timer.trim().parse::<f64>().is_ok_and(|seconds| seconds < 0.02), "{timer}");
    // A cycle has an end.
    let mut cycle = s.connect();
    cycle.send("GET /cycle HTTP/1.0\r\n\r\n");
    cycle.rest();
    s.wait_log("subrequests cycle while processing \"/cycle\"", 1);
    // What was not asked for is read past.
    let mut client = s.connect();
    for _ in 0..2 {
        assert_eq!(client.ask("POST /part", "Content-Length: 3\r\n", "abc").body(), "/part:\n");
    }
}

#[test]
fn answers_get_something_around_them() {
    let s = server(
        "gzip on; gzip_min_length 1; gzip_types *;",
        "location / { echo_before_body before $uri; echo_after_body -n after; }
         location /none { echo_after_body x; return 404; }",
    );
    s.dir().write("file.txt", "text\n");
    assert_eq!(s.get("/file.txt").body(), "before /file.txt\ntext\nafter");
    assert_eq!(s.get("/file.txt").header("Accept-Ranges"), None);
    assert!(!s.get("/none").body().contains('x'));
    let packed = s.ask("GET /file.txt", "Accept-Encoding: gzip\r\n", "");
    assert_eq!(packed.header("Content-Encoding"), Some("gzip"));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (line, why) in [
        ("echo_status abc;", "invalid status \"abc\""),
        ("echo_subrequest FETCH /;", "invalid method \"FETCH\""),
        ("echo_subrequest GET / -x y;", "invalid option \"-x\""),
        ("echo_subrequest GET / -q;", "-q takes an argument"),
        ("echo $;", "invalid variable name"),
    ] {
        let said = refused(&format!("server {{ location / {{ {line} }} }}"));
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
fn a_sleep_takes_its_time() {
    let s = server(
        "",
        "location /sleep { echo_reset_timer; echo_sleep 0.05; echo $echo_timer_elapsed; }
         location /block { echo_reset_timer; echo_blocking_sleep 0.05; echo $echo_timer_elapsed; }",
    );
    for path in ["/sleep", "/block"] {
        let took = s.get(path).body();
        assert!(took.trim().parse::<f64>().is_ok_and(|took| took >= 0.05), "{path}: {took}");
    }
}
