//! Where `Location` becomes a URL of this server, and where it stays a path: as it is said by scripts, directives and servers.

use weir_testkit::{Response, Server};

use super::WEIR;

fn lines(answer: &Response) -> Vec<&str> {
    let lines = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("Location"));
    lines.map(|(_, value)| value.as_str()).collect()
}

/// A path that a script says stays one: the client may have come by another port than the server listens on.
#[test]
fn a_path_that_a_script_says_as_location_stays_a_path() {
    let server = super::server(
        r#"location = /redirect { content_by_lua_block { ngx.redirect("/x") } }
           location = /early { rewrite_by_lua_block { ngx.redirect("/x", 301) } }
           location = /access { access_by_lua_block { return ngx.redirect("/x") } }
           location = /exit { content_by_lua_block { ngx.header.Location = "/x" ngx.exit(302) } }
           location = /page { content_by_lua_block { ngx.header.location = "/x" ngx.exit(404) } }
           location = /say { content_by_lua_block { ngx.header["Location"] = "/x" ngx.say(ngx.header.Location) } }
           location = /filter { return 302 /y; header_filter_by_lua_block { ngx.header.Location = "/x" } }
           location = /same { return 302 /x; header_filter_by_lua_block { ngx.header.Location = ngx.header.Location } }
           location = /twice { content_by_lua_block { ngx.header.Location = "/y" ngx.header.location = "/x" ngx.exit(302) } }
           location = /named { server_name_in_redirect on; content_by_lua_block { ngx.redirect("/x") } }
           location = /list { content_by_lua_block { ngx.header.Location = { "/x" } ngx.exit(302) } }
           location = /capture { content_by_lua_block {
               ngx.header.Location = ngx.location.capture("/redirect").header.Location ngx.exit(302)
           } }
           location = /net { content_by_lua_block { ngx.redirect("//b.b/x") } }
           location = /other { content_by_lua_block { ngx.redirect("http://b.b/x") } }
           location = /near { content_by_lua_block { ngx.redirect("../x") } }
           location = /both { content_by_lua_block { ngx.header.Location = { "/x", "/y" } ngx.exit(302) } }
           location = /none { content_by_lua_block { ngx.header.Location = "/x" ngx.header.Location = nil ngx.exit(302) } }
           location = /return { return 302 /x; }
           location = /logged { content_by_lua_block { ngx.redirect("/x") }
               log_by_lua_block { ngx.log(ngx.ERR, "went to ", ngx.var.sent_http_location) } }"#,
    );
    let paths = [
        "/redirect",
        "/early",
        "/access",
        "/exit",
        "/page",
        "/say",
        "/filter",
        "/same",
        "/twice",
        "/named",
        "/list",
        "/capture",
    ];
    for path in paths {
        assert_eq!(lines(&server.get(path)), ["/x"], "{path}");
    }
    for (path, expected) in [("/net", "//b.b/x"), ("/other", "http://b.b/x"), ("/near", "../x")] {
        assert_eq!(lines(&server.get(path)), [expected], "{path}");
    }
    assert_eq!(lines(&server.get("/both")), ["/x", "/y"]);
    assert!(lines(&server.get("/none")).is_empty());
    let own = format!("http://localhost:{}/x", server.port());
    assert_eq!(lines(&server.get("/return")), [own]);
    server.get("/logged");
    server.wait_log("went to /x", 1);
}

/// A path of a server behind is passed on as it is; a directive or a script that changes it leaves no second line.
#[test]
fn a_proxied_location_is_changed_in_its_place() {
    let server = Server::start(
        WEIR,
        r#"events { }
           http {
               server { listen 127.0.0.1:%%PORT1%%; absolute_redirect off; return 302 /up; }
               server {
                   listen 127.0.0.1:%%PORT%%; proxy_redirect /mapped /own;
                   location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
                   location /set { proxy_pass http://127.0.0.1:%%PORT1%%; more_set_headers "Location: /x"; }
                   location /clear { proxy_pass http://127.0.0.1:%%PORT1%%; more_clear_headers Location; }
                   location /wild { proxy_pass http://127.0.0.1:%%PORT1%%; more_clear_headers Loc*; }
                   location /script { proxy_pass http://127.0.0.1:%%PORT1%%;
                       header_filter_by_lua_block { ngx.header.Location = ngx.header.Location .. "/x" } }
                   location /mapped { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_redirect /up /own; }
                   location /added { proxy_pass http://127.0.0.1:%%PORT1%%; add_header Location /x always; }
               }
           }"#,
    );
    let here = format!("http://localhost:{}", server.port());
    assert_eq!(lines(&server.get("/")), ["/up"]);
    assert_eq!(lines(&server.get("/set")), [format!("{here}/x")]);
    assert!(lines(&server.get("/clear")).is_empty());
    assert!(lines(&server.get("/wild")).is_empty());
    assert_eq!(lines(&server.get("/script")), ["/up/x"]);
    assert_eq!(lines(&server.get("/mapped")), [format!("{here}/own")]);
    assert_eq!(lines(&server.get("/added")), ["/up", "/x"]);
}
