//! Where paths lead: no text of a client leads out of a directory, whatever the configuration puts
//! before it. An inherited path is relative to the directive that gave it.

use std::os::unix::fs::symlink;

use weir_testkit::{Client, Dir, Server};

use super::WEIR;

/// `secret` and `secret.gz` beside the directory `w3`, which has `file.txt`, and links to what is beside.
fn dir() -> Dir {
    let dir = Dir::new();
    dir.write("secret", "the secret");
    dir.write("secret.gz", "the secret, packed");
    dir.write("w3/file.txt", "inside");
    dir.write("w3/sub/index.html", "below");
    symlink("../secret", dir.file("w3/link")).unwrap();
    symlink(".", dir.file("w3/round")).unwrap();
    dir
}

/// A server with the root `html` and these locations; `W3` is the directory `w3`.
fn start(locations: &str) -> Server {
    Server::start_in(dir(), WEIR, &conf(locations))
}

fn conf(locations: &str) -> String {
    format!(
        "user root; events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%;
            root %%DIR%%/html; client_body_temp_path %%DIR%%/bodies; proxy_temp_path %%DIR%%/proxied;
            {} }} }}",
        locations.replace("W3", "%%DIR%%/w3")
    )
}

/// Every entry to the file system, each off by a slash; `NAME` is its location.
const ENTRIES: &[(&str, &str)] = &[
    ("static", ""),
    ("kept", "open_file_cache max=10;"),
    ("packed", "gzip_static always;"),
    ("list", "autoindex on;"),
    ("random", "random_index on;"),
    ("film", "mp4;"),
    ("flash", "flv;"),
    ("tried", "try_files $uri =404;"),
    ("asked", "if (-f $request_filename) { return 200 'there is the secret'; } return 404;"),
    ("links", "disable_symlinks on;"),
];

#[test]
fn an_alias_is_not_left() {
    let locations: Vec<String> = ENTRIES
        .iter()
        .map(|(name, inside)| format!("location /{name} {{ alias W3/; {inside} }}"))
        .collect();
    let more = "location /accel { proxy_pass http://127.0.0.1:%%PORT%%/told; }
        location = /told { add_header X-Accel-Redirect /static../secret; return 200; }
        location ~ ^/group(.*)$ { alias W3/$1; }
        location /moved { rewrite ^/moved(.*)$ /deep/$1 last; }
        location /deep/ { root W3; }
        location ~ ^/named/(?<name>.*)$ { alias W3/x/$name; }
        location /tidy/ { alias W3/; }";
    let server = start(&(locations.concat() + more));
    let ask = |path: &str| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
        let answer = client.rest();
        assert!(!answer.contains("secret"), "{path}: {answer}");
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    for (name, _) in ENTRIES {
        let status = ask(&format!("/{name}../secret"));
        assert!(matches!(status, 403 | 404), "{name}: {status}");
        assert!(matches!(ask(&format!("/{name}..")), 403 | 404), "{name}");
        assert!(matches!(ask(&format!("/{name}../")), 403 | 404), "{name}");
        assert!(matches!(ask(&format!("/{name}%2e%2e%2fsecret")), 403 | 404), "{name}");
    }
    for path in ["/accel", "/group../secret", "/moved../secret"] {
        assert!(matches!(ask(path), 403 | 404), "{path}");
    }
    assert_eq!(ask("/static../secret"), 403);
    server.wait_log("w3/../secret\" leaves the directory that it is put below", 1);
    // What only looks like it is a name like others.
    for (path, status) in [("/staticfile.txt", 200), ("/static..file", 404), ("/tidy/..file", 404)]
    {
        assert_eq!(ask(path), status, "{path}");
    }
}

#[test]
fn a_path_that_the_configuration_gives_a_request_does_not_climb() {
    let server = start(
        "location /page { error_page 404 =200 /x/../bytes.txt; return 404; }
        location /tried { try_files /none /x/../bytes.txt; }
        location /moved { rewrite ^ /x/../bytes.txt last; }
        location /flat { rewrite ^ /./bytes.txt last; }",
    );
    server.dir().write("html/bytes.txt", "bytes");
    server.dir().write("html/x/y", "");
    for path in ["/page", "/tried", "/moved"] {
        assert_eq!(server.get(path).status, 403, "{path}");
    }
    assert_eq!(server.get("/flat").body(), "bytes");
}

/// The answer would tell whether the file is there.
#[test]
fn an_index_that_the_client_chooses_is_below_the_directory() {
    let server = start("location /w3/ { alias W3/; index $arg_name file.txt; }");
    for name in ["../secret", "../none", "sub/../../secret"] {
        let answer = server.get(&format!("/w3/?name={name}"));
        assert_eq!((answer.status, &*answer.body()), (200, "inside"), "{name}");
    }
    assert_eq!(server.get("/w3/?name=sub/index.html").body(), "below");
}

#[test]
fn nothing_is_written_beside_an_alias() {
    let server = start(
        "location /dav { alias W3/; dav_methods PUT DELETE MKCOL COPY MOVE; }
        location /store { alias W3/; proxy_store on; proxy_pass http://127.0.0.1:%%PORT%%/bytes; }
        location ~ ^/to(.*)$ { proxy_store %%DIR%%/w3/$1; proxy_pass http://127.0.0.1:%%PORT%%; }
        rewrite ^/to /bytes; location /bytes { return 200 bytes; }",
    );
    let dir = |name: &str| server.dir().file(name).exists();
    let put = |path: &str| server.ask(&format!("PUT {path}"), "Content-Length: 1\r\n", "x").status;
    assert_eq!(put("/dav../evil"), 403);
    assert_eq!(put("/davgood"), 201);
    assert_eq!(server.ask("MKCOL /dav../evil/", "", "").status, 403);
    assert_eq!(server.ask("DELETE /dav../secret", "", "").status, 403);
    for method in ["COPY", "MOVE"] {
        for (from, to) in [("/davgood", "/dav../evil"), ("/dav../secret", "/davstolen")] {
            let to = format!("Destination: {to}\r\n");
            assert_eq!(server.ask(&format!("{method} {from}"), &to, "").status, 403, "{method}");
        }
    }
    server.get("/store../evil");
    server.get("/to../evil");
    assert!(dir("secret") && dir("w3/good") && !dir("evil") && !dir("w3/stolen"));
}

#[test]
fn a_server_is_not_asked_for_what_is_beside() {
    let server = start(
        "location /api { proxy_pass http://127.0.0.1:%%PORT%%/v1/; }
        location /v1/ { return 200 $request_uri; }",
    );
    assert_eq!(server.get("/api../other").status, 403);
    assert_eq!(server.get("/api..").status, 403);
    assert_eq!(server.get("/api/x").body(), "/v1//x");
    assert_eq!(server.get("/api..x").body(), "/v1/..x");
}

#[test]
fn an_alias_off_by_a_slash_is_warned_of() {
    let server = start("location /tidy/ { alias W3/; } location = /one { alias W3/; }");
    let said = |locations: &str| {
        server.configure(&conf(locations));
        let said = server.command(&["-t"]);
        assert!(said.status.success());
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let tidy = "location /tidy/ { alias W3/; } location = /one { alias W3/; }
        location /bare { alias W3; } location ~ ^/x { alias W3/; } location /root { root W3/; }";
    assert!(!said(tidy).contains("[warn]"));
    let warning = "[warn] \"alias\" ends with \"/\" and location \"/off\" does not";
    assert!(said("location /off { alias W3/; }").contains(warning));
}

/// What the configuration says may climb.
#[test]
fn directories_of_the_configuration_may_be_above() {
    let server = start(
        "set $base %%DIR%%/w3/sub/..;
        location /up/ { alias W3/sub/../; }
        location /base/ { alias $base/; try_files $uri =404; }
        location /host/ { alias W3/../$arg_dir/; if (-f $base/file.txt) { add_header Is-There 1; } }",
    );
    assert_eq!(server.get("/up/file.txt").body(), "inside");
    assert_eq!(server.get("/base/file.txt").body(), "inside");
    let answer = server.get("/host/file.txt?dir=w3");
    assert_eq!((answer.body().as_str(), answer.header("Is-There")), ("inside", Some("1")));
    assert_eq!(server.get("/host/secret?dir=w3/..").status, 403);
}

#[test]
fn what_is_inherited_stands_for_what_it_was_said_of() {
    let server = start(
        "location /a/ {
            alias W3/;
            location ~ \\.txt$ { add_header Inner txt; }
            location /a/sub/ { add_header Inner sub; }
            location = /a/link { add_header Inner one; }
            location ~ ^/a/tried { try_files /file.txt =404; }
            location ~ ^/a/put { dav_methods PUT; }
            location ~ ^/a/name { return 200 $request_filename; }
            if ($arg_if) { add_header Inner if; }
        }
        location ~ ^/group/(.*)$ {
            alias W3/$1;
            location ~ ^/group/(file.*)$ { add_header Inner file; }
        }",
    );
    for (path, body, inner) in [
        ("/a/file.txt", "inside", Some("txt")),
        ("/a/sub/", "below", Some("sub")),
        ("/a/link", "the secret", Some("one")),
        ("/a/round/file.txt?if=1", "inside", Some("if")),
        ("/a/tried", "inside", None),
        ("/group/file.txt", "inside", Some("file")),
    ] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.body().as_str()), (200, body), "{path}");
        // A nested pattern wins over the condition of the location around it.
        if !path.contains("if=1") {
            assert_eq!(answer.header("Inner"), inner, "{path}");
        }
    }
    assert!(server.get("/a/name").body().ends_with("/w3/name"));
    let put = server.ask("PUT /a/put", "Content-Length: 1\r\n", "x");
    assert_eq!((put.status, server.dir().read("w3/put").as_str()), (201, "x"));
}

#[test]
fn links_that_are_not_to_be_followed_are_not_there() {
    let tests = |test: &str| {
        format!(
            "location /{test}/ {{ alias W3/; if (-{test} $request_filename) {{ return 200 yes; }}
                return 200 no; }}"
        )
    };
    let all = ["f", "d", "e", "x"].map(tests).concat();
    let server = start(&format!(
        "{all} location /list/ {{ alias W3/; autoindex on; }}
        location /dav/ {{ alias W3/; dav_methods PUT DELETE; }}"
    ));
    let ask = |server: &Server, path: &str| Client::connect(server.port()).get(path).body();
    for path in ["/f/link", "/d/round", "/e/round", "/e/link", "/x/round"] {
        assert_eq!(ask(&server, path), "yes", "{path}");
    }
    assert_eq!(server.get("/list/round/").status, 200);
    server.configure(&conf(&format!(
        "disable_symlinks on from=%%DIR%%; {all} location /list/ {{ alias W3/; autoindex on; }}
        location /dav/ {{ alias W3/; dav_methods PUT DELETE; }}"
    )));
    server.reload();
    for path in ["/f/link", "/d/round", "/e/round", "/e/link", "/x/round", "/f/round/file.txt"] {
        assert_eq!(ask(&server, path), "no", "{path}");
    }
    for path in ["/f/file.txt", "/d/sub", "/e/file.txt", "/x/sub"] {
        assert_eq!(ask(&server, path), "yes", "{path}");
    }
    assert!(matches!(server.get("/list/round/").status, 403 | 404));
    assert_eq!(server.get("/list/").status, 200);
    for line in ["PUT /dav/round/new", "DELETE /dav/round/file.txt"] {
        assert_eq!(server.ask(line, "Content-Length: 0\r\n", "").status, 403, "{line}");
    }
    assert!(server.dir().file("w3/file.txt").exists() && !server.dir().file("w3/new").exists());
}
