//! Ways around a rule that were found, one by one.

use weir_testkit::Server;

use super::WEIR;

fn start(locations: &str) -> Server {
    let conf = format!(
        "user root; events {{ }} http {{ access_log off; proxy_temp_path %%DIR%%/proxied;
            client_body_temp_path %%DIR%%/bodies;
            server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%/html; {locations} }} }}"
    );
    Server::start(WEIR, &conf)
}

#[test]
fn a_request_that_goes_on_after_its_answer_is_judged_where_it_comes() {
    let mut server = start(
        "location = /a { post_action /denied; return 200; } location = /denied { deny all; proxy_pass http://127.0.0.1:%%PORT%%/hit; }
         location = /b { post_action /open; return 200; } location = /open { proxy_pass http://127.0.0.1:%%PORT%%/hit?b; }
         location = /hit { access_log %%DIR%%/hits; return 200; }",
    );
    assert_eq!((server.get("/a").status, server.get("/b").status), (200, 200));
    server.stop();
    let hits = server.dir().read("hits");
    assert!(hits.lines().count() == 1 && hits.contains("/hit?b"), "{hits}");
}

#[test]
fn a_body_that_was_read_elsewhere_may_be_too_large_here() {
    let server = start(
        "location = /told { add_header X-Accel-Redirect $arg_to; return 200; }
         location = /a { proxy_pass http://127.0.0.1:%%PORT%%/told; }
         location = /small { client_max_body_size 4; return 200 small; }
         location = /page { client_max_body_size 4; error_page 413 /told; return 200; }
         location = /asks { auth_request /small; }",
    );
    let ask = |path: &str, body: &str| {
        let length = format!("Content-Length: {}\r\n", body.len());
        server.ask(&format!("POST {path}"), &length, body).status
    };
    for (path, large) in [("/a?to=/small", 413), ("/a?to=/page", 413), ("/asks", 500)] {
        assert_eq!(ask(path, "too long"), large, "{path}");
    }
    assert_eq!(ask("/a?to=/small", "none"), 200);
    let pieces = "Transfer-Encoding: chunked\r\n";
    let asked = server.ask("POST /a?to=/small", pieces, "8\r\ntoo long\r\n0\r\n\r\n");
    assert_eq!(asked.status, 413);
}

#[test]
fn any_file_stands_for_a_directory_below_too() {
    let server = start(
        "location / { random_index on; location /in/ { }
            location /limited/ { random_index on; limit_except POST { allow all; } } }",
    );
    for path in ["/in/", "/limited/"] {
        server.dir().write(&format!("html{path}one"), "this one");
        assert_eq!(server.get(path).body(), "this one", "{path}");
    }
}
