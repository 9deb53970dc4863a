//! Redirects of servers behind, outside and inside, and `proxy_redirect`.

use super::start;
use super::talk::upstream;

#[test]
fn an_unsafe_redirect_of_a_server_is_logged() {
    let port = upstream(|talk| {
        let head = talk.head();
        let to = if head.contains("/up") { "/../up" } else { "" };
        talk.say(format!("HTTP/1.1 200 OK\r\nX-Accel-Redirect: {to}\r\nContent-Length: 0\r\n\r\n"));
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    for (path, uri) in [("/", ""), ("/up", "/../up")] {
        assert_eq!(server.get(path).status, 404);
        let said = "was detected while reading response header from upstream";
        server.wait_log(&format!("unsafe URI \"{uri}\" {said}"), 1);
    }
}

#[test]
fn a_server_may_send_the_request_elsewhere_inside() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /inside?q=1\r\nSet-Cookie: a=b\r\n");
        talk.say("X-Other: x\r\nContent-Length: 0\r\n\r\n");
        talk.head();
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; }}
             location /inside {{ internal; return 200 $uri?$args; }}"
        ),
    );
    let answer = server.get("/");
    assert_eq!(answer.body(), "/inside?q=1");
    assert_eq!((answer.header("Set-Cookie"), answer.header("X-Other")), (Some("a=b"), None));
}

#[test]
fn redirects_and_cookies_speak_of_this_server() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 302 Found\r\nLocation: http://back/app/x\r\nContent-Length: 0\r\n");
        talk.say("Set-Cookie: a=b; Domain=.back; Path=/app/y\r\n\r\n");
        talk.head();
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port};
                 proxy_redirect http://back/app/ /front/;
                 proxy_cookie_domain back front.example; proxy_cookie_path /app/ /;
                 proxy_cookie_flags a secure samesite=lax; absolute_redirect off; }}"
        ),
    );
    let answer = server.get("/");
    assert_eq!(answer.header("Location"), Some("/front/x"));
    let cookie = "a=b; Domain=.front.example; Path=/y; Secure; SameSite=Lax";
    assert_eq!(answer.header("Set-Cookie"), Some(cookie));
}

/// As in nginx, the rule that follows from `proxy_pass` is inherited like a written one.
#[test]
fn a_location_inside_inherits_the_default_rule_for_redirects() {
    let behind = "http://127.0.0.1:%%PORT1%%";
    let server = start(
        &format!("server {{ listen 127.0.0.1:%%PORT1%%; return 302 {behind}/$arg_to; }}"),
        &format!(
            "absolute_redirect off;
             location /a/ {{
                 proxy_pass {behind}/outer/;
                 if ($arg_if) {{ proxy_pass {behind}; }}
                 location /a/b/ {{ proxy_pass {behind}/inner/; }}
             }}
             location /v/ {{
                 proxy_pass $arg_url;
                 location /v/b/ {{ proxy_pass {behind}; }}
             }}"
        ),
    );
    let kept = format!("http://127.0.0.1:{}/inner/x", server.port_at(1));
    for (path, location) in [
        ("/a/?to=outer/x", "/a/x"),
        ("/a/b/?to=outer/x", "/a/x"),
        ("/a/b/?to=inner/x", &*kept),
        ("/a/?if=1&to=outer/x", "/a/x"),
        ("/v/b/?to=x", "/x"),
    ] {
        assert_eq!(server.get(path).header("Location"), Some(location), "{path}");
    }
}

#[test]
fn behind_a_redirect_the_log_still_names_the_server() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /none\r\nContent-Length: 0\r\n\r\n");
    });
    let server = start(
        "",
        &format!("location /inside {{ proxy_pass http://127.0.0.1:{port}; }} location / {{ }}"),
    );
    assert_eq!(server.get("/inside").status, 404);
    let asked = format!("\"GET /inside HTTP/1.1\", upstream: \"http://127.0.0.1:{port}/inside\"");
    let missing = server.wait_line("none\" failed (2: ");
    assert!(missing.contains(&asked), "{}", server.log());
}
