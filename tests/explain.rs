//! `weir explain` says what the running server does.

use std::process::Command;

use serde_json::Value;
use weir_testkit::{Client, Response, Server, examples};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Each block says its name in a header, and the path that it sees.
const SITES: &str = "events { }
http {
    access_log logs/none/access.log;
    map $http_x_kind $kind { default plain; new fresh; }
    add_header X-Place http always; add_header X-Uri $uri always;
    server {
        listen 127.0.0.1:%%PORT%% default_server;
        server_name first.example *.wild.example;
        add_header X-Place first always; add_header X-Uri $uri always;
        rewrite ^/srv/(.*)$ /exact/$1 last;
        location = / { add_header X-Place root always; add_header X-Uri $uri always; empty_gif; }
        location / { empty_gif; }
        location /images/ { add_header X-Place images always; add_header X-Uri $uri always; empty_gif;
            location ~ [.]png$ { add_header X-Place png always; add_header X-Uri $uri always; empty_gif; }
            location /images/deep/ { empty_gif; } }
        location ^~ /static/ { add_header X-Place static always; add_header X-Uri $uri always; empty_gif; }
        location ~* [.](gif|png)$ { add_header X-Place regex always; add_header X-Uri $uri always; empty_gif; }
        location /exact/ { rewrite ^/exact/(a.*)$ /images/$1 last; rewrite ^/exact/b /cut break;
            add_header X-Place exact always; add_header X-Uri $uri always; empty_gif; }
        location /cond/ { add_header X-Place cond always; add_header X-Uri $uri always; empty_gif;
            if ($kind = fresh) { add_header X-Place if always; add_header X-Uri $uri always; } }
        location /limited/ { add_header X-Place limited always; add_header X-Uri $uri always; empty_gif; }
        location /gone/ { return 410; }
        location /moved { return 302 /elsewhere?$args; }
        location /found/ { error_page 404 = @named; return 404; }
        location @named { add_header X-Place named always; add_header X-Uri $uri always; empty_gif; }
    }
    server {
        listen 127.0.0.1:%%PORT%%;
        server_name ~^(?<name>.+)[.]any[.]example$ second.example;
        add_header X-Place second always; add_header X-Uri $uri always;
        location / { rewrite ^/(.*) /$name/$1 break; empty_gif; }
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        location / { add_header X-Place other always; add_header X-Uri $uri always; empty_gif; }
    }
}";

/// A host, a path and further header lines.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("first.example", "/", ""),
    ("first.example", "/plain", ""),
    ("first.example", "/images/a", ""),
    ("first.example", "/images/a.png", ""),
    ("first.example", "/images/deep/a.png", ""),
    ("first.example", "/images/deep/a", ""),
    ("first.example", "/static/a.png", ""),
    ("first.example", "/a.PNG", ""),
    ("first.example", "/exact/a.png", ""),
    ("first.example", "/exact/b", ""),
    ("first.example", "/exact/c", ""),
    ("first.example", "/srv/a/%7Eb?x=y", ""),
    ("first.example", "/cond/x", ""),
    ("first.example", "/cond/x", "X-Kind: new"),
    ("first.example", "/limited/x", ""),
    ("first.example", "/gone/", ""),
    ("first.example", "/moved?a=b", ""),
    ("first.example", "/found/x", ""),
    ("first.example", "/../../x", ""),
    ("first.example", "/%2e%2e/%00", ""),
    ("a.b.wild.example", "/images/", ""),
    ("wild.example", "/", ""),
    ("second.example", "/x", ""),
    ("some.any.example", "/x", ""),
    ("nobody.example", "/x", ""),
    ("bad host", "/x", ""),
];

fn explained(server: &Server, args: &[&str]) -> Value {
    let conf = server.dir().file("nginx.conf");
    let output = Command::new(WEIR)
        .args(["explain", "--json", "-c", conf.to_str().unwrap(), "-p"])
        .arg(server.dir().path())
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}{told}"))
}

/// What is in force of a header: the last word of its `add_header`.
fn header_in_force(report: &Value, name: &str) -> Option<String> {
    let settings = report["settings"].as_array()?;
    let lines = settings.iter().filter(|s| s["name"] == "add_header");
    let mut values = lines.filter_map(|s| s["value"].as_str());
    values
        .find_map(|v| v.strip_prefix(name))
        .map(|v| v.trim_end_matches(" always").trim().to_owned())
}

fn agree(report: &Value, answer: &Response, asked: &str) {
    if !report["answer"].is_null() {
        assert_eq!(report["answer"]["status"], answer.status, "{asked}: {report:#}");
        assert_eq!(report["answer"]["location"].as_str(), answer.header("Location"), "{asked}");
        return;
    }
    assert_eq!(answer.status, 200, "{asked}: {report:#}");
    assert_eq!(
        header_in_force(report, "X-Place").as_deref(),
        answer.header("X-Place"),
        "{asked}: {report:#}"
    );
    assert_eq!(report["path"].as_str(), answer.header("X-Uri"), "{asked}: {report:#}");
}

#[test]
fn it_says_what_the_server_does() {
    let server = Server::start(WEIR, &SITES.replace("logs/none/access.log", "off"));
    let mut arrived = 0;
    for (host, path, header) in REQUESTS {
        let asked = format!("{host} {path} {header}");
        let mut client = Client::connect(server.port());
        let line = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{line}\r\n"
        ));
        let answer = client.response();
        let url = format!("http://127.0.0.1:{}{path}", server.port());
        let host = format!("Host: {host}");
        let mut args = vec![url.as_str(), "-H", &host];
        if !header.is_empty() {
            args.extend(["-H", header]);
        }
        let report = explained(&server, &args);
        agree(&report, &answer, &asked);
        arrived += usize::from(report["answer"].is_null());
    }
    assert!(arrived > 18, "{arrived}");
    let url = format!("http://127.0.0.1:{}/x", server.port_at(1));
    let report = explained(&server, &[&url]);
    assert_eq!(header_in_force(&report, "X-Place").as_deref(), Some("other"));
}

#[test]
fn each_setting_comes_with_its_line_and_rewrites_are_told() {
    let server = Server::start(WEIR, &SITES.replace("logs/none/access.log", "off"));
    let port = server.port();
    let url = format!("http://first.example:{port}/srv/a/b");
    let report = explained(&server, &[&url]);
    let place = |value: &Value| {
        (value["text"].as_str().unwrap().to_owned(), value["line"].as_u64().unwrap())
    };
    assert_eq!(place(&report["server"]), ("server first.example *.wild.example".to_owned(), 6));
    assert_eq!(place(&report["location"]), ("location /images/".to_owned(), 13));
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2, "{report:#}");
    let notes = steps[0]["notes"].to_string();
    assert!(notes.contains("\\\"^/srv/(.*)$\\\" matches \\\"/srv/a/b\\\""), "{notes}");
    assert!(
        steps[1]["notes"].to_string().contains("rewritten data: \\\"/images/a/b\\\""),
        "{report:#}"
    );
    let gif = |name: &str| report["settings"].as_array().unwrap().iter().any(|s| s["name"] == name);
    assert!(gif("empty_gif") && gif("server_name") == gif("listen"), "{report:#}");

    // A block without lines of its own inherits settings, but not the content handler.
    let url = format!("http://first.example:{port}/images/deep/x");
    let report = explained(&server, &[&url]);
    let lines: Vec<&Value> = report["settings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["name"] == "add_header")
        .collect();
    assert!(
        lines.iter().all(|s| s["inherited_from"] == "location /images/" && s["line"] == 13),
        "{report:#}"
    );
}

/// What the text says of a request, without its settings; the file's name is cut.
fn told(server: &Server, url: &str, more: &[&str]) -> String {
    let conf = server.dir().file("nginx.conf");
    let output = Command::new(WEIR).args(["explain", url, "-c"]).arg(&conf).args(more).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let text = text.replace(&format!("{}:", conf.display()), "");
    text.split("\n\n").next().unwrap_or_default().to_owned()
}

#[test]
fn an_answer_before_the_content_comes_with_its_block_and_its_reason() {
    let server = Server::start(
        WEIR,
        "events { }
http { access_log off;
    server { listen 127.0.0.1:%%PORT%%; server_name a.example;
        location /admin {
            add_header X-Of admin;
            return 200 x;
        }
        location /missing { error_page 404 = @named; return 404; }
        location @named {
            return 200 named; }
        location /if {
            if ($arg_x) { add_header X-Of if;
                return 403; }
            empty_gif; }
        location /cycle { rewrite ^ /cycle last; }
        location /internal { internal; empty_gif; }
        location /slash/ { proxy_pass http://127.0.0.1:1; }
        location /moved { rewrite ^ /new permanent; }
        location /cut { return 444; }
    }
    server { listen 127.0.0.1:%%PORT%%; server_name b.example;
        return 301 https://x$request_uri;
    }
}",
    );
    let at = |host: &str, path: &str| format!("http://{host}:{}{path}", server.port());
    for (path, lines) in [
        ("/admin", vec!["location /admin (4), answered by its \"return\" in line 6", "200"]),
        (
            "/missing",
            vec![
                "location /missing (8), with path /missing\n            answered by its \"return\" in line 8",
                "location @named (9), answered by its \"return\" in line 10",
            ],
        ),
        ("/if?x=1", vec!["location /if, if ($arg_x) (12), answered by its \"return\" in line 13"]),
        (
            "/cycle",
            vec!["the same again, 10 more", "location /cycle (15), answered", "redirection cycle"],
        ),
        ("/internal", vec!["location /internal (16), answered", "404", "location is internal"]),
        ("/slash", vec!["location /slash/ (17), answered", "301", "without the slash"]),
        ("/moved", vec!["location /moved (18), answered by its \"rewrite\" in line 18", "301"]),
        ("/cut", vec!["location /cut (19), answered by its \"return\" in line 19", "is closed"]),
        ("/%00", vec!["none: the request was refused", "400", "client sent invalid request"]),
    ] {
        let text = told(&server, &at("a.example", path), &[]);
        for line in lines {
            assert!(text.contains(line), "{path}, {line}: {text}");
        }
    }
    let text = told(&server, &at("b.example", "/"), &[]);
    assert!(
        text.contains("no location server b.example (21), answered by its \"return\""),
        "{text}"
    );
    let text = told(&server, &at("a..example", "/"), &[]);
    assert!(text.contains("client sent invalid host header"), "{text}");

    let report = explained(&server, &[&at("a.example", "/admin")]);
    assert_eq!(report["location"]["line"], 4, "{report:#}");
    assert_eq!(report["answered_by"]["text"], "return", "{report:#}");
    assert_eq!(report["answered_by"]["line"], 6, "{report:#}");
    assert_eq!(header_in_force(&report, "X-Of").as_deref(), Some("admin"), "{report:#}");
    let report = explained(&server, &[&at("a.example", "/if?x=1")]);
    assert_eq!(header_in_force(&report, "X-Of").as_deref(), Some("if"), "{report:#}");
}

#[test]
fn nothing_is_opened_or_written_and_what_is_wrong_is_said() {
    let server = Server::start(WEIR, "events { } http { server { listen 127.0.0.1:%%PORT%%; } }");
    let conf = server.dir().write(
        "other.conf",
        "error_log none/error.log; events { } http { access_log none/access.log; limit_req_zone $host zone=a:1m rate=1r/s;
         server { listen 81; location / { limit_req zone=a; proxy_pass http://127.0.0.1:1; } } }",
    );
    let explain = |url: &str| {
        let output = Command::new(WEIR)
            .args(["explain", url, "-c"])
            .arg(&conf)
            .arg("-p")
            .arg(server.dir().path())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, text) = explain("http://a.example:81/x");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("proxy_pass http://127.0.0.1:1"), "{text}");
    assert!(!server.dir().file("none").exists());
    let (code, text) = explain("http://a.example/x");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no server listens on port 80; there are 0.0.0.0:81"), "{text}");
    let (code, text) = explain("https://a.example:81/x");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("there is no TLS at this port"), "{text}");
    // An excerpt comes with its sentence: a warning, and an error.
    let said = |conf: &str| {
        server.dir().write("other.conf", conf);
        explain("http://a.example:81/x")
    };
    let (code, text) = said(
        "events { } http { server { listen 81; ssl_dhparam x; ssl_protocols SSLv3 TLSv1.2; } }",
    );
    assert_eq!(code, Some(0), "{text}");
    let (above, _) = text.split_once("\n  1 | ").expect("an excerpt");
    let sentence = above.lines().next_back().unwrap_or_default();
    assert!(sentence.starts_with("weir explain: [warn] protocols older"), "{text}");
    assert!(sentence.ends_with("other.conf:1"), "{text}");
    let (code, text) = said("events { } http { server { lisen 81; } }");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("weir explain: [emerg] unknown directive \"lisen\""), "{text}");
    assert!(text.contains("\n  1 | ") && text.contains("did you mean"), "{text}");
    assert!(!text.contains("http block"), "{text}");
    let (code, text) = said("events { }");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the configuration has no http block"), "{text}");
}

#[test]
fn with_tls_the_name_of_the_url_is_shown_in_the_handshake() {
    let conf =
        "events { } http { access_log off; ssl_certificate self.pem; ssl_certificate_key self.key;
        server { listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl;
            server_name a.example; location / { empty_gif; } }
        server { listen 127.0.0.1:%%PORT%% ssl; server_name b.example;
            if ($scheme = http) { return 301 https://$host; }
            location / { add_header X-Name $ssl_server_name; empty_gif; } } }";
    let dir = weir_testkit::Dir::new();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    let server = Server::start_in(dir, WEIR, conf);
    let report = explained(&server, &[&format!("https://b.example:{}/x", server.port())]);
    assert_eq!(report["server"]["text"], "server b.example", "{report:#}");
    assert_eq!(report["location"]["text"], "location /", "{report:#}");
    // As the server does: a client without TLS gets its answer.
    let report = explained(&server, &[&format!("http://b.example:{}/x", server.port())]);
    assert_eq!(report["answer"]["status"], 400, "{report:#}");
}

#[test]
fn the_socket_may_be_said_and_what_comes_later_is_shown() {
    let server = Server::start(
        WEIR,
        "events { } http {
             server { listen 127.0.0.1:%%PORT%%; location / { add_header X-Place first; empty_gif; } }
             server { listen 127.0.0.1:%%PORT1%%; location / {
                 deny all; auth_basic realm; auth_basic_user_file none; try_files /none =404;
                 access_by_lua_block { ngx.exit(403) } } } }",
    );
    let url = format!("http://a.example:{}/x", server.port());
    let to = format!("127.0.0.1:{}", server.port_at(1));
    let has = |report: &Value, name: &str, value: &str| {
        let settings = report["settings"].as_array().unwrap();
        settings.iter().any(|s| s["name"] == name && s["value"].as_str().unwrap().contains(value))
    };
    let report = explained(&server, &[&url]);
    assert_eq!(header_in_force(&report, "X-Place").as_deref(), Some("first"), "{report:#}");
    let report = explained(&server, &[&url, "--to", &to]);
    assert_eq!(report["location"]["text"], "location /", "{report:#}");
    assert_eq!(report["answer"], Value::Null, "{report:#}");
    for (name, value) in [("deny", "all"), ("auth_basic", "realm"), ("try_files", "=404")] {
        assert!(has(&report, name, value), "{name}: {report:#}");
    }
    assert!(has(&report, "access_by_lua_block", ""), "{report:#}");
}

#[test]
fn the_page_shows_what_it_says() {
    let page = include_str!("../docs/explain.md");
    let conf = examples(page).next().unwrap();
    let dir = weir_testkit::Dir::new();
    dir.write("nginx.conf", format!("{conf}events {{ }}"));
    let url = page.split_once("`weir explain '").unwrap().1.split_once('\'').unwrap().0;
    let output = Command::new(WEIR)
        .args(["explain", url, "-c"])
        .arg(dir.file("nginx.conf"))
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).replace(&format!("{}/", dir.path().display()), "");
    let shown = page.split("```\n").find(|part| part.starts_with("GET ")).unwrap();
    assert_eq!(said, shown, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn it_says_what_the_cache_has_and_would_do() {
    let server = Server::start(
        WEIR,
        "events { } http { proxy_cache_path %%DIR%%/cache levels=1:2 keys_zone=one:1m;
         server { listen 127.0.0.1:%%PORT%%; proxy_cache one; proxy_cache_rules rfc9111;
             location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /own { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache_rules nginx; } }
         server { listen 127.0.0.1:%%PORT1%%; location / {
             add_header Cache-Control s-maxage=300; add_header Age 12; add_header Vary X-Of; return 200 a; } } }",
    );
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", server.port());
    let said = |path: &str, args: &[&str]| {
        let report = explained(&server, &[&[url(path).as_str()], args].concat());
        let lines = report["cache"].as_array().unwrap();
        lines.iter().map(|line| line.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let key = format!("one, key \"http://127.0.0.1:{}/a\"", server.port_at(1));
    assert_eq!(said("/a", &[]), [key.as_str(), "nothing is stored"]);
    server.get("/a");
    assert!(weir_testkit::ask_until(|| said("/a", &[]).len() == 3));
    let stored = said("/a", &[]);
    assert!(stored[1].starts_with("stored with status 200 in "), "{stored:?}");
    assert!(stored[2].starts_with("served: fresh 300 s by s-maxage, age 1"), "{stored:?}");
    assert_eq!(
        said("/a", &["-H", "Cache-Control: max-age=5"])[2].split(':').next(),
        Some("older than the request's max-age")
    );
    assert_eq!(said("/a", &["-H", "X-Of: b"])[1], "no stored variant has the request's fields");
    assert!(said("/a", &["-X", "PUT"])[1].starts_with("not asked: "));
    let supposed = |path: &str, field: &str, status: &str| {
        let args = ["--answer", field, "--status", status];
        said(path, &args).pop().unwrap().trim_start_matches("such an answer would be ").to_owned()
    };
    assert_eq!(
        supposed("/a", "Cache-Control: max-age=60", "200"),
        "stored: fresh 60 s by max-age, age 0"
    );
    assert_eq!(supposed("/a", "Cache-Control: private", "200"), "not stored: private");
    assert_eq!(
        supposed("/a", "Content-Range: bytes 0-1/5", "206"),
        "not stored: nothing says for how long it is fresh"
    );
    assert_eq!(supposed("/own", "Set-Cookie: a=b", "200"), "not stored: Set-Cookie");
    assert_eq!(
        supposed("/own", "Cache-Control: max-age=60", "200"),
        "stored: fresh 60 s by max-age, age 0"
    );
}
