//! Files that clients change: PUT, DELETE, MKCOL, COPY, MOVE.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use weir_testkit::{Client, Dir, Response, Server, certified};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn start() -> Server {
    let dir = Dir::new();
    dir.write("root/keep", "kept");
    Server::start_in(
        dir,
        WEIR,
        "user root;
         events { }
         http {
             access_log off;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%/root;
                 client_body_temp_path %%DIR%%/bodies;
                 dav_methods PUT DELETE MKCOL COPY MOVE;
                 create_full_put_path on;
                 dav_access group:r;
                 location /deep/ { min_delete_depth 3; }
                 location /alias/ { alias %%DIR%%/root/; }
             }
         }",
    )
}

fn put(server: &Server, path: &str, body: &str) -> Response {
    let length = format!("Content-Length: {}\r\n", body.len());
    server.ask(&format!("PUT {path}"), &length, body)
}

fn to(target: &str) -> String {
    format!("Destination: {target}\r\n")
}

#[test]
fn files_are_put_with_their_directories() {
    let server = start();
    let location = format!("http://localhost:{}/a%20b/c/d.txt", server.port());
    let r = put(&server, "/a%20b/c/d.txt", "one");
    assert_eq!((r.status, r.header("Location")), (201, Some(location.as_str())));
    assert_eq!(put(&server, "/a%20b/c/d.txt", "two").status, 204);
    assert_eq!(server.get("/a%20b/c/d.txt").body(), "two");
    let file = server.dir().file("root/a b/c/d.txt");
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(put(&server, "/a%20b", "x").status, 409);
    assert_eq!(put(&server, "/a%20b/", "x").status, 409);
    assert_eq!(put(&server, "/empty", "").status, 201);
    // What could not be placed leaves nothing behind.
    let left = std::fs::read_dir(server.dir().file("bodies")).unwrap().count();
    assert!(left <= 1, "{left} temporary files");
}

#[test]
fn a_copy_that_does_not_end_leaves_threads_to_readers() {
    let dir = Dir::new();
    dir.write("root/list/a", "");
    let pipe = dir.file("root/pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let server = Server::start_in(
        dir,
        WEIR,
        "user root;
         worker_processes 1;
         thread_pool default threads=2;
         events { }
         http {
             server {
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%/root;
                 dav_methods COPY;
                 autoindex on;
             }
         }",
    );
    let copies: Vec<_> = (0..4)
        .map(|n| {
            let mut client = server.connect();
            client.send(format!("COPY /pipe HTTP/1.1\r\nHost: a\r\n{}\r\n", to(&format!("/{n}"))));
            client
        })
        .collect();
    // No process writes into the pipe.
    assert!(server.get("/list/").body().contains("\"a\""));
    drop(copies);
}

#[test]
fn the_clients_date_is_kept() {
    let server = start();
    let headers = "Content-Length: 1\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    assert_eq!(server.ask("PUT /old", headers, "x").status, 201);
    let r = server.get("/old");
    assert_eq!(r.header("Last-Modified"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
}

#[test]
fn collections_are_made_copied_moved_and_deleted() {
    let server = start();
    assert_eq!(server.ask("MKCOL /c/", "", "").status, 201);
    assert_eq!(server.ask("MKCOL /c/", "", "").status, 405);
    assert_eq!(server.ask("MKCOL /no/such/", "", "").status, 409);
    put(&server, "/c/sub/x", "deep");
    assert_eq!(server.ask("COPY /c/", &to("/copy/"), "").status, 201);
    assert_eq!(server.get("/copy/sub/x").body(), "deep");
    assert_eq!(server.ask("COPY /c/", &(to("/copy/") + "Overwrite: F\r\n"), "").status, 412);
    assert_eq!(server.ask("MOVE /c/", &to("http://localhost/moved/"), "").status, 201);
    assert_eq!(server.get("/c/sub/x").status, 404);
    assert_eq!(server.get("/moved/sub/x").body(), "deep");
    assert_eq!(server.ask("COPY /moved/sub/x", &to("/y"), "").status, 204);
    assert_eq!(server.ask("MOVE /y", &to("/new/z"), "").status, 204);
    assert_eq!(server.get("/new/z").body(), "deep");
    assert_eq!(server.ask("DELETE /moved", "", "").status, 409);
    assert_eq!(server.ask("DELETE /moved/", "Depth: 1\r\n", "").status, 400);
    assert_eq!(server.ask("DELETE /moved/", "", "").status, 204);
    assert_eq!(server.ask("DELETE /moved/", "", "").status, 404);
}

/// The destination is removed first, so it must not be what is to be moved, under another name.
#[test]
fn a_collection_that_is_moved_onto_itself_stays() {
    let server = start();
    put(&server, "/c/sub/x", "deep");
    symlink(".", server.dir().file("root/link")).unwrap();
    for target in ["/c/", "/./c/", "/c/./", "/c/%2e/", "/link/c/"] {
        for (source, method) in [("/c/", "MOVE"), ("/c/sub/", "MOVE"), ("/c/sub/", "COPY")] {
            let status = server.ask(&format!("{method} {source}"), &to(target), "").status;
            assert_eq!(status, 403, "{method} {source} {target}");
        }
    }
    assert_eq!(server.get("/c/sub/x").body(), "deep");
    // A collection beside it whose name begins alike does not contain it.
    server.ask("MKCOL /c2/", "", "");
    assert_eq!(server.ask("MOVE /c2/", &to("/link/c/"), "").status, 201);
    assert_eq!(server.get("/c/sub/x").status, 404);
}

/// A destination with the scheme of the connection: over TLS clients name places with `https`.
#[test]
fn a_destination_is_of_what_the_connection_speaks() {
    let dir = certified();
    dir.write("root/keep", "kept");
    let server = Server::start_in(
        dir,
        WEIR,
        "user root; events { }
         http {
             access_log off; client_body_temp_path %%DIR%%/bodies;
             server {
                 listen 127.0.0.1:%%PORT%% ssl; ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                 root %%DIR%%/root; dav_methods COPY MOVE;
             }
         }
         stream {
             server { listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:%%PORT%%; proxy_ssl on; }
         }",
    );
    let mut client = Client::connect(server.port_at(1));
    assert_eq!(client.ask("COPY /keep", &to("https://localhost/copy"), "").status, 204);
    assert_eq!(client.get("/copy").body(), "kept");
    assert_eq!(client.ask("MOVE /copy", &to("/moved"), "").status, 204);
    assert_eq!(client.ask("COPY /keep", &to("http://localhost/other"), "").status, 400);
}

#[test]
fn a_file_that_is_being_sent_is_replaced_not_rewritten() {
    let server = start();
    put(&server, "/old", "old text");
    put(&server, "/new", "new");
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(server.dir().file("root/new"), mode.clone()).unwrap();
    let mut sending = std::fs::File::open(server.dir().file("root/old")).unwrap();
    assert_eq!(server.ask("COPY /new", &to("/old"), "").status, 204);
    let copied = fs::metadata(server.dir().file("root/old")).unwrap();
    assert_eq!(copied.permissions().mode() & 0o777, mode.mode());
    assert_eq!(server.get("/old").body(), "new");
    let mut sent = String::new();
    std::io::Read::read_to_string(&mut sending, &mut sent).unwrap();
    assert_eq!(sent, "old text");
}

#[test]
fn nothing_goes_out_of_its_place() {
    let server = start();
    for (target, status) in [
        ("/../out", 400),
        ("/%2e%2e/out", 400),
        ("http://other/keep2", 400),
        ("https://localhost/keep2", 400),
        ("/keep2/", 409),
        ("/keep", 403),
        ("//keep", 403),
        ("/./keep", 403),
        ("/%2e/keep?x", 403),
        ("/keep#x", 403),
    ] {
        assert_eq!(server.ask("COPY /keep", &to(target), "").status, status, "{target}");
    }
    assert_eq!(server.ask("COPY /keep", "", "").status, 400);
    for target in ["/x", "/other/x", "/alias2/x"] {
        assert_eq!(server.ask("COPY /alias/keep", &to(target), "").status, 400, "{target}");
    }
    assert_eq!(server.ask("COPY /alias/keep", &to("/./alias//x"), "").status, 204);
    server.ask("MKCOL /c/", "", "");
    assert_eq!(server.ask("COPY /c/", &to("/c/inner/"), "").status, 403);
    assert_eq!(server.ask("DELETE /deep/file", "", "").status, 409);
    server.wait_log("insufficient URI depth:2 to DELETE", 1);
    assert_eq!(server.get("/keep").body(), "kept");
}

/// A collection with links of all kinds, and what they lead to.
fn linked() -> Dir {
    let dir = Dir::new();
    dir.write("root/outer/file", "outer");
    dir.write("root/src/file", "file");
    dir.write("root/src/sub/deep", "deep");
    for (target, link) in [
        ("file", "to-file"),
        ("sub", "to-sub"),
        ("../outer/file", "up"),
        ("nowhere", "dangling"),
        (".", "itself"),
        ("../..", "all"),
        ("loop", "loop"),
    ] {
        symlink(target, dir.file("root/src").join(link)).unwrap();
    }
    dir
}

fn start_linked(dir: Dir) -> Server {
    let conf = "user root; events { }
         http { server { listen 127.0.0.1:%%PORT%%; root %%DIR%%/root; dav_methods COPY MOVE DELETE;
             location /none/ { disable_symlinks on from=%%DIR%%/root; alias %%DIR%%/root/; }
             location /own/ { disable_symlinks if_not_owner from=%%DIR%%/root; alias %%DIR%%/root/; } } }";
    Server::start_in(dir, WEIR, conf)
}

#[test]
fn a_collection_is_copied_with_what_its_links_lead_to() {
    let server = start_linked(linked());
    assert_eq!(server.ask("COPY /src/", &to("/dst/"), "").status, 201);
    let at = |name: &str| server.dir().file("root/dst").join(name);
    for (name, text) in
        [("file", "file"), ("to-file", "file"), ("to-sub/deep", "deep"), ("up", "outer")]
    {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), text, "{name}");
        assert!(!at(name).is_symlink(), "{name}");
    }
    for name in ["dangling", "loop", "itself", "all/root/dst", "all/root/src"] {
        assert!(fs::symlink_metadata(at(name)).is_err(), "{name}");
    }
    // Above the collection it is copied like any other directory, but for what is being copied.
    assert_eq!(fs::read_to_string(at("all/root/outer/file")).unwrap(), "outer");
    for (text, times) in [
        ("[crit]", 2),
        ("src/dangling\" failed (2: No such file or directory)", 1),
        ("src/loop\" failed (40: Too many levels of symbolic links)", 1),
        ("src/itself\" leads back to a directory that is being copied", 1),
        ("src/all/root/dst\" leads back to a directory that is being copied", 1),
    ] {
        server.wait_log(text, times);
    }
    // A link alone is copied as the file that it leads to, with its permissions.
    assert_eq!(server.ask("COPY /src/to-file", &to("/alone"), "").status, 204);
    let alone = server.dir().file("root/alone").metadata().unwrap();
    assert_eq!((alone.len(), alone.permissions().mode() & 0o111), (4, 0));
    assert_eq!(server.ask("DELETE /src/", "", "").status, 204);
    assert_eq!(server.get("/outer/file").body(), "outer");
}

#[test]
fn refused_links_are_not_copied() {
    let dir = linked();
    let own = dir.file("root/src/to-file").symlink_metadata().unwrap().uid();
    let is_root = own == 0;
    if is_root {
        lchown(dir.file("root/src/up"), Some(1), None).unwrap();
    }
    let server = start_linked(dir);
    for (place, copied, refused) in
        [("none", "file", "to-file"), ("none", "file", "to-sub"), ("own", "to-file", "up")]
    {
        if place == "own" && !is_root {
            continue;
        }
        let line = format!("COPY /{place}/src/");
        let r = server.ask(&line, &to(&format!("/{place}/dst/")), "");
        assert_eq!(r.status, 201, "{place}");
        let at = |name: &str| server.dir().file("root/dst").join(name);
        assert_eq!(fs::read_to_string(at(copied)).unwrap(), "file", "{place}");
        assert!(fs::symlink_metadata(at(refused)).is_err(), "{place} {refused}");
        server.wait_log(&format!("openat() \"{}", server.dir().file("root/src/up").display()), 1);
    }
}

#[test]
fn a_collection_that_was_not_copied_whole_is_not_removed() {
    let memory = Path::new("/dev/shm");
    let dir = linked();
    let device = |path: &Path| path.metadata().map(|info| info.dev()).ok();
    if !memory.is_dir() || device(memory) == device(dir.path()) {
        return;
    }
    let away = memory.join(format!("weir-dav-{}", std::process::id()));
    fs::create_dir(&away).unwrap();
    symlink(&away, dir.file("root/away")).unwrap();
    let server = start_linked(dir);
    let file = |name: &str| server.dir().file("root").join(name);
    assert_eq!(server.ask("MOVE /src/", &to("/away/src/"), "").status, 500);
    server.wait_log("src\" was not copied whole, so it stays", 1);
    assert!(file("src/sub/deep").exists() && file("src/dangling").is_symlink());
    for name in ["dangling", "loop", "itself", "all"] {
        fs::remove_file(file("src").join(name)).unwrap();
    }
    assert_eq!(server.ask("MOVE /src/", &to("/away/src/"), "").status, 201);
    assert!(!file("src").exists());
    let copy = |name: &str| fs::read_to_string(away.join("src").join(name)).unwrap();
    assert_eq!((copy("up"), copy("to-sub/deep")), ("outer".to_owned(), "deep".to_owned()));
    // What a link led to is not a part of the collection.
    assert!(file("outer/file").exists());
    let _ = fs::remove_dir_all(away);
}
