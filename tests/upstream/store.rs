//! `proxy_store`: answers become files.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use weir_testkit::{Dir, Server, listen};

use super::WEIR;

fn start() -> Server {
    let conf = "
        events { }
        http {
            server {
                listen 127.0.0.1:%%PORT%%;
                root %%DIR%%/files;
                location / {
                    error_page 404 = @origin;
                }
                location @origin {
                    proxy_pass http://127.0.0.1:%%PORT1%%;
                    proxy_store on;
                    proxy_store_access group:r all:r;
                }
                location /elsewhere {
                    proxy_pass http://127.0.0.1:%%PORT1%%;
                    proxy_store %%DIR%%/files/by-arg/$arg_name;
                }
            }
            server {
                listen 127.0.0.1:%%PORT1%%;
                location / { root %%DIR%%/origin; }
                location /empty { return 200; }
            }
        }";
    let dir = Dir::new();
    std::fs::create_dir_all(dir.file("origin/deep")).unwrap();
    std::fs::create_dir_all(dir.file("files")).unwrap();
    // Workers may run as another user.
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.file("files"), all).unwrap();
    dir.write("origin/deep/a", "0123456789".repeat(100_000));
    dir.write("origin/elsewhere", "there");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = std::fs::File::options().write(true).open(dir.file("origin/deep/a")).unwrap();
    file.set_modified(time).unwrap();
    let conf = conf.replace("%%DIR%%", &dir.path().display().to_string());
    Server::start_in(dir, WEIR, &conf)
}

#[test]
fn an_answer_becomes_a_file() {
    let server = start();
    let first = server.get("/deep/a");
    assert_eq!((first.status, first.bytes.len()), (200, 1_000_000));
    let path = server.dir().file("files/deep/a");
    let info = std::fs::metadata(&path).unwrap();
    assert_eq!((info.len(), info.permissions().mode() & 0o777), (1_000_000, 0o644));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    assert_eq!(info.modified().unwrap(), time);
    // The file is the server's own now.
    std::fs::remove_file(server.dir().file("origin/deep/a")).unwrap();
    assert_eq!(server.get("/deep/a").bytes, first.bytes);
}

#[test]
fn the_place_may_be_computed() {
    let server = start();
    assert_eq!(server.get("/elsewhere?name=x").body(), "there");
    assert_eq!(server.dir().read("files/by-arg/x"), "there");
}

#[test]
fn an_empty_answer_is_an_empty_file_and_an_error_is_none() {
    let server = start();
    assert_eq!(server.get("/empty").status, 200);
    assert_eq!(std::fs::metadata(server.dir().file("files/empty")).unwrap().len(), 0);
    assert_eq!(server.get("/missing").status, 404);
    assert!(!server.dir().file("files/missing").exists());
}

#[test]
fn an_answer_without_a_head_is_not_stored() {
    let port = listen(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"no HTTP\n");
    });
    let conf = "events { } http { server { listen 127.0.0.1:%%PORT%%;
        location / { proxy_pass http://127.0.0.1:%%ORIGIN%%; proxy_store %%DIR%%/kept; } } }";
    let server = Server::start(WEIR, &conf.replace("%%ORIGIN%%", &port.to_string()));
    assert_eq!(server.get("/").status, 502);
    // The file would have been there before the answer's end.
    assert!(!server.dir().file("kept").exists());
}

#[test]
fn a_block_stores_or_keeps() {
    let dir = Dir::new();
    let conf = |outer: &str, inner: &str| {
        format!(
            "events {{ }} http {{ proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
             server {{ listen 127.0.0.1:%%PORT%%; {outer} proxy_cache_valid 1h;
             location / {{ {inner} proxy_pass http://127.0.0.1:1; }} }} }}"
        )
    };
    let server = Server::start_in(dir, WEIR, &conf("", ""));
    let (store, cache) = ("proxy_store on;", "proxy_cache z;");
    for (outer, inner, said) in [
        (
            "",
            format!("{store} {cache}"),
            "\"proxy_cache\" directive is incompatible with \"proxy_store\"",
        ),
        (
            "",
            format!("{cache} {store}"),
            "\"proxy_store\" directive is incompatible with \"proxy_cache\"",
        ),
        (store, cache.to_owned(), "successful"),
        (cache, store.to_owned(), "successful"),
        ("", format!("proxy_store off; {cache}"), "successful"),
    ] {
        server.configure(&conf(outer, &inner));
        let out = server.command(&["-t"]);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(text.contains(said), "{outer} {inner}: {text}");
    }
}

/// What an answer that breaks off still brought is not for a client that was given up on the way to it.
#[test]
fn a_client_that_was_given_up_is_sent_no_rest() {
    let server = Server::start(
        WEIR,
        "error_log error.log info; events { }
         http { server { listen 127.0.0.1:%%PORT%%; send_timeout 100ms; location / {
             proxy_pass http://127.0.0.1:%%PORT1%%; proxy_store %%DIR%%/kept; } } }",
    );
    let listener = TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (mut origin, _) = listener.accept().unwrap();
    origin.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2000000\r\n").unwrap();
    origin.write_all(&vec![b'a'; 0x200_0000]).unwrap();
    server.wait_log("client timed out", 1);
    origin.write_all(b"\r\n8\r\nthe rest\r\nno number\r\n").unwrap();
    server.wait_log("upstream sent invalid chunked response", 1);
    let came = client.rest();
    assert!(!came.contains("the rest"), "{}", &came[came.len() - 40..]);
}

/// As in nginx, an empty name in `proxy_store` stores nothing, and is no error.
#[test]
fn an_empty_name_stores_nothing() {
    let dir = Dir::new();
    dir.write("origin/a", "there");
    let conf = "
        error_log %%DIR%%/error.log;
        events { }
        http {
            server {
                listen 127.0.0.1:%%PORT%%;
                location / {
                    proxy_pass http://127.0.0.1:%%PORT1%%;
                    proxy_store $arg_name;
                }
            }
            server { listen 127.0.0.1:%%PORT1%%; root %%DIR%%/origin; }
        }";
    let conf = conf.replace("%%DIR%%", &dir.path().display().to_string());
    let server = Server::start_in(dir, WEIR, &conf);
    assert_eq!(server.get("/a").bytes, b"there");
    let log = server.dir().read("error.log");
    assert!(!log.contains("failed"), "{log}");
}
