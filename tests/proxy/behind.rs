//! The trailers of an answer.

use super::start;
use super::talk::upstream;

#[test]
fn trailers_pass_where_the_answer_is_kept_and_hidden_ones_do_not() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n");
        talk.say("X-Sum: 3\r\nX-Hidden: 1\r\nServer: own\r\n");
        // They would be about this connection and this body.
        talk.say("Connection: close\r\nContent-Length: 7\r\nUpgrade: x\r\n\r\n");
    });
    let pass = format!("proxy_pass http://127.0.0.1:{port};");
    let server = start(
        "proxy_pass_trailers on; proxy_hide_header X-Hidden; proxy_cache_path cache keys_zone=c:1m;
         log_format t '$uri $upstream_trailer_x_sum $upstream_trailer_x_hidden'; access_log logs/t t;",
        &format!(
            "location / {{ {pass} }}
             location /cached {{ {pass} proxy_cache c; proxy_cache_valid 1h; }}
             location /stored {{ {pass} proxy_store files$uri; }}"
        ),
    );
    for path in ["/", "/cached", "/stored"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let rest = client.rest();
        assert!(rest.ends_with("\r\n0\r\nX-Sum: 3\r\n\r\n"), "{path}: {rest}");
        server.wait_file("logs/t", &format!("{path} 3 1\n"), 1);
    }
    // They are not kept.
    assert_eq!(server.get("/cached").header("Transfer-Encoding"), None);
    server.wait_file("logs/t", "/cached - -\n", 1);
}

/// As in nginx, they may be as long as a head.
#[test]
fn trailers_that_are_longer_than_a_buffer_are_refused() {
    let port = upstream(|talk| {
        let head = talk.head();
        let len = head.split(['/', ' ']).find_map(|word| word.parse().ok()).unwrap_or(0);
        talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n");
        talk.say(format!("X-Sum: {}\r\n\r\n", "x".repeat(len)));
    });
    let server = start(
        "proxy_pass_trailers on;",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}/; proxy_buffer_size 4k; }}
             location /large/ {{
                 proxy_pass http://127.0.0.1:{port}/; proxy_buffer_size 32k; proxy_buffers 8 32k;
             }}"
        ),
    );
    for (path, whole) in
        [("/4000", true), ("/5000", false), ("/large/30000", true), ("/large/40000", false)]
    {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        assert_eq!(client.rest().ends_with("x\r\n\r\n"), whole, "{path}");
    }
    server.wait_log("upstream sent too big trailers while reading upstream", 2);
}
