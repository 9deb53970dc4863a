//! Files: what is sent, what is refused, and what the log says of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use weir_testkit::{Client, Dir, PATIENCE, Response, Server, under_strace};

#[path = "static_files/climbing.rs"]
mod climbing;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// 2001-09-09 01:46:40 UTC.
const MODIFIED: u64 = 1_000_000_000;
const MODIFIED_TEXT: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

const CONF: &str = "
    events { }
    http {
        types { text/html html; text/x-css css; }
        server {
            listen 127.0.0.1:%%PORT%%;
            root %%DIR%%/html;
            location / { }
            location /quiet/ { log_not_found off; }
            location /sendfile/ { sendfile on; alias %%DIR%%/html/; }
            location /one/ { max_ranges 1; alias %%DIR%%/html/; }
            location /none/ { max_ranges 0; etag off; alias %%DIR%%/html/; }
            location /before/ { if_modified_since before; alias %%DIR%%/html/; }
            location /always/ { if_modified_since off; alias %%DIR%%/html/; }
            location /kept/ { open_file_cache max=10; alias %%DIR%%/html/; }
            location /strict/ { disable_symlinks on from=%%DIR%%/html; alias %%DIR%%/html/; }
            location /first/ { disable_symlinks on from=%%DIR%%/html; alias %%DIR%%/html/;
                try_files $uri /small.html; }
            location /owner/ { disable_symlinks if_not_owner; alias %%DIR%%/html/; }
        }
    }
";

fn server() -> Server {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.file("html/dir")).unwrap();
    std::fs::create_dir_all(dir.file("html/empty")).unwrap();
    dir.write("html/small.html", "0123456789");
    dir.write("html/style.CSS", "a{}");
    dir.write("html/nothing", "");
    dir.write("html/large", large());
    dir.write("html/dir/index.html", "the index");
    symlink("small.html", dir.file("html/link.html")).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED);
    for name in ["html/small.html", "html/large"] {
        let file = std::fs::File::options().write(true).open(dir.file(name)).unwrap();
        file.set_modified(time).unwrap();
    }
    Server::start_in(dir, WEIR, CONF)
}

/// More than any buffer or socket holds at once.
fn large() -> Vec<u8> {
    (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn with(server: &Server, path: &str, headers: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n"));
    client.response()
}

fn head(client: &mut Client, path: &str) -> String {
    client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"));
    client.rest()
}

#[test]
fn a_file_comes_with_what_is_known_of_it() {
    let server = server();
    let response = server.get("/small.html");
    assert_eq!((response.status, response.body().as_str()), (200, "0123456789"));
    assert_eq!(response.header("Content-Type"), Some("text/html"));
    assert_eq!(response.header("Content-Length"), Some("10"));
    assert_eq!(response.header("Last-Modified"), Some(MODIFIED_TEXT));
    assert_eq!(response.header("ETag"), Some("\"3b9aca00-a\""));
    assert_eq!(response.header("Accept-Ranges"), Some("bytes"));
    assert_eq!(server.get("/style.CSS").header("Content-Type"), Some("text/x-css"));
    assert_eq!(server.get("/large").header("Content-Type"), Some("text/plain"));
    assert_eq!(server.get("/nothing").body(), "");
}

#[test]
fn large_files_arrive_whole_whatever_way_they_take() {
    let server = server();
    for path in ["/large", "/sendfile/large", "/kept/large"] {
        let mut client = server.connect();
        assert!(client.get(path).bytes == large(), "{path}");
        assert!(client.get(path).bytes == large(), "{path} again");
    }
}

#[test]
fn a_head_is_the_same_without_a_body() {
    let server = server();
    let text = head(&mut server.connect(), "/small.html");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("Content-Length: 10\r\n") && text.ends_with("\r\n\r\n"), "{text}");
}

#[test]
fn what_is_not_there_or_not_allowed() {
    let server = server();
    assert_eq!(server.get("/nope").status, 404);
    assert_eq!(server.get("/small.html/below").status, 404);
    assert_eq!(server.get("/empty/").status, 403);
    assert_eq!(server.get("/quiet/nope").status, 404);
    assert_eq!(server.get("/../../etc/passwd").status, 400);
    for method in ["PUT", "DELETE", "POST"] {
        let mut client = server.connect();
        client.send(format!("{method} /small.html HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response().status, 405, "{method}");
    }
    let dir = server.dir().path().display().to_string();
    let text = format!("[error] open() \"{dir}/html/nope\" failed (2: No such file or directory)");
    let text = text.strip_prefix("[error] ").unwrap();
    server.wait_log(text, 1);
    server.wait_log(&format!("directory index of \"{dir}/html/empty/\" is forbidden"), 1);
    server.wait_log("(20: Not a directory)", 1);
    assert_eq!(server.logged("quiet/nope\" failed"), 0);
}

#[test]
fn directories_end_with_a_slash_and_have_an_index() {
    let server = server();
    let port = server.port();
    let response = with(&server, "/dir?a=b", "");
    assert_eq!(response.status, 301);
    let location = format!("http://a.example:{port}/dir/?a=b");
    assert_eq!(response.header("Location"), Some(location.as_str()));
    assert_eq!(server.get("/dir/").body(), "the index");
    assert_eq!(server.get("/nodir/").status, 404);
    server.wait_log("nodir/index.html\" is not found (2: No such file or directory)", 1);
}

#[test]
fn one_range() {
    let server = server();
    for (range, body, content_range) in [
        ("0-3", "0123", "bytes 0-3/10"),
        ("5-", "56789", "bytes 5-9/10"),
        ("-2", "89", "bytes 8-9/10"),
        ("8-100", "89", "bytes 8-9/10"),
    ] {
        let response = with(&server, "/small.html", &format!("Range: bytes={range}\r\n"));
        assert_eq!((response.status, response.body().as_str()), (206, body), "{range}");
        assert_eq!(response.header("Content-Range"), Some(content_range));
        assert_eq!(response.header("Accept-Ranges"), None);
    }
    for path in ["/large", "/sendfile/large"] {
        let response = with(&server, path, "Range: bytes=1000000-1999999\r\n");
        assert!(response.bytes == large()[1_000_000..2_000_000], "{path}");
    }
}

#[test]
fn ranges_outside_and_ranges_that_do_not_count() {
    let server = server();
    let response = with(&server, "/small.html", "Range: bytes=10-\r\n");
    assert_eq!(response.status, 416);
    assert_eq!(response.header("Content-Range"), Some("bytes */10"));
    assert_eq!(response.header("ETag"), None);
    let whole = |path: &str, headers: &str| {
        let response = with(&server, path, headers);
        assert_eq!((response.status, response.body().len()), (200, 10), "{path} {headers}");
    };
    whole("/small.html", "Range: lines=1-2\r\n");
    whole("/none/small.html", "Range: bytes=1-2\r\n");
    whole("/one/small.html", "Range: bytes=1-2,4-5\r\n");
    whole("/small.html", "Range: bytes=1-2\r\nIf-Range: \"other\"\r\n");
    whole("/small.html", "Range: bytes=1-2\r\nIf-Range: Sun, 09 Sep 2001 01:46:41 GMT\r\n");
    let part = |headers: &str| with(&server, "/small.html", headers).status;
    assert_eq!(part("Range: bytes=1-2\r\nIf-Range: \"3b9aca00-a\"\r\n"), 206);
    assert_eq!(part(&format!("Range: bytes=1-2\r\nIf-Range: {MODIFIED_TEXT}\r\n")), 206);
    let none = server.get("/none/small.html");
    assert_eq!((none.header("Accept-Ranges"), none.header("ETag")), (None, None));
}

#[test]
fn several_ranges_are_several_parts() {
    let server = server();
    let response = with(&server, "/small.html", "Range: bytes=0-1, 8-\r\n");
    assert_eq!(response.status, 206);
    let kind = response.header("Content-Type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, body: &str| {
        format!(
            "\r\n--{boundary}\r\nContent-Type: text/html\r\nContent-Range: bytes {range}/10\
             \r\n\r\n{body}"
        )
    };
    let end = format!("\r\n--{boundary}--\r\n");
    assert_eq!(response.body(), part("0-1", "01") + &part("8-9", "89") + &end);
}

#[test]
fn conditions() {
    let server = server();
    let status = |path: &str, headers: &str| with(&server, path, headers).status;
    let since = format!("If-Modified-Since: {MODIFIED_TEXT}\r\n");
    let later = "If-Modified-Since: Sun, 09 Sep 2001 01:46:41 GMT\r\n";
    assert_eq!(status("/small.html", &since), 304);
    assert_eq!(status("/small.html", later), 200);
    assert_eq!(status("/before/small.html", later), 304);
    assert_eq!(status("/always/small.html", &since), 200);
    assert_eq!(status("/small.html", "If-None-Match: \"x\", W/\"3b9aca00-a\"\r\n"), 304);
    assert_eq!(status("/small.html", "If-None-Match: \"x\"\r\n"), 200);
    assert_eq!(status("/small.html", &format!("{since}If-None-Match: \"x\"\r\n")), 200);
    assert_eq!(status("/small.html", "If-Match: \"3b9aca00-a\"\r\n"), 200);
    assert_eq!(status("/small.html", "If-Match: \"x\"\r\n"), 412);
    let unmodified = "If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n";
    assert_eq!(status("/small.html", unmodified), 412);
    let response = with(&server, "/small.html", &since);
    assert_eq!(response.header("ETag"), Some("\"3b9aca00-a\""));
    assert_eq!((response.header("Content-Type"), response.header("Content-Length")), (None, None));
}

#[test]
fn a_changed_file_is_seen_unless_it_is_kept() {
    let server = server();
    assert_eq!(server.get("/kept/small.html").body(), "0123456789");
    assert_eq!(server.get("/small.html").body(), "0123456789");
    let new = server.dir().write("html/new", "changed");
    std::fs::rename(new, server.dir().file("html/small.html")).unwrap();
    assert_eq!(server.get("/small.html").body(), "changed");
    assert_eq!(server.get("/kept/small.html").body(), "0123456789");
}

#[test]
fn kept_files_obey_the_rule_for_links_of_each_location() {
    let conf = "
        events { }
        http {
            open_file_cache max=10;
            open_file_cache_errors on;
            server {
                listen 127.0.0.1:%%PORT%%;
                root %%DIR%%;
                location /a/ { alias %%DIR%%/; }
                location /b/ { disable_symlinks on from=%%DIR%%; alias %%DIR%%/; }
                location /c/ { disable_symlinks if_not_owner; alias %%DIR%%/; }
            }
        }";
    let dir = Dir::new();
    dir.write("file", "old");
    symlink("file", dir.file("link")).unwrap();
    let server = Server::start_in(dir, WEIR, conf);
    let statuses = || {
        let paths = ["a/file", "a/link", "b/file", "b/link", "c/file", "c/link"];
        paths.map(|path| server.get(&format!("/{path}")).body())
    };
    let before = statuses();
    let kept = ["old", "old", "old", &before[3], "old", "old"];
    assert_eq!(before, kept);
    assert!(before[3].contains("403 Forbidden"), "{}", before[3]);
    let new = server.dir().write("new", "new");
    std::fs::rename(&new, server.dir().file("file")).unwrap();
    std::fs::remove_file(server.dir().file("link")).unwrap();
    assert_eq!(statuses(), kept);
}

#[test]
fn links_lead_nowhere_where_that_is_asked_for() {
    let server = server();
    assert_eq!(server.get("/link.html").body(), "0123456789");
    assert_eq!(server.get("/strict/small.html").body(), "0123456789");
    assert_eq!(server.get("/strict/link.html").status, 403);
    assert_eq!(server.get("/strict/dir/").body(), "the index");
    // What cannot be opened is not found, and a pipe is not waited for.
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o0);
    std::fs::set_permissions(server.dir().file("html/style.CSS"), closed).unwrap();
    let pipe = server.dir().file("html/pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    for (path, body) in [("style.CSS", "0123456789"), ("dir/index.html", "the index")] {
        assert_eq!(server.get(&format!("/first/{path}")).body(), body, "{path}");
    }
    assert_eq!(server.get("/first/pipe").status, 404);
    assert_eq!(server.get("/owner/link.html").body(), "0123456789");
    server.wait_log("link.html\" failed (40: Too many levels of symbolic links)", 1);
}

/// `send_timeout` is how long a client may take nothing, not how long all of it takes.
#[test]
#[allow(clippy::disallowed_methods, reason = "a client that is slow")]
fn a_slow_reader_gets_all_and_a_stopped_one_is_cut_off() {
    const LEN: usize = 8 << 20;
    let dir = Dir::new();
    dir.write("big", vec![b'x'; LEN]);
    let conf = "events { } http { root %%DIR%%; sendfile on; send_timeout 2s;
        server { listen 127.0.0.1:%%PORT%% sndbuf=16k; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        set_socket_recv_buffer_size(&stream, 16 << 10).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let mut slow = ask();
    let mut got = Vec::new();
    // Two that read nothing, one after the other, run out of time meanwhile.
    for times in 1..=2 {
        let _silent = ask();
        while server.logged("client timed out (110: Connection timed out)") < times {
            let mut piece = [0; 4096];
            let n = slow.read(&mut piece).unwrap();
            assert_ne!(n, 0, "cut off after {} bytes", got.len());
            got.extend_from_slice(&piece[..n]);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    slow.read_to_end(&mut got).unwrap();
    let head = got.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(got.len() - head, LEN);
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_sent_is_told() {
    const SIZE: usize = 16 << 20;
    let dir = Dir::new();
    let s = Server::start_in(
        dir,
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; gzip_types *;
             location /on { sendfile on; alias %%DIR%%/large; }
             location /off { sendfile off; alias %%DIR%%/large; }
             location /packed { gzip on; alias %%DIR%%/large; } } }",
    );
    let mut seed = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    })
    .flatten()
    .take(SIZE)
    .collect();
    for (times, path) in ["on", "off", "packed"].into_iter().enumerate() {
        let large = s.dir().write("large", &bytes);
        let mut stream = TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1 << 10]).unwrap();
        std::fs::File::options().write(true).open(large).unwrap().set_len(10).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < SIZE, "{path}");
        let end = "/large\" while sending response to client, client";
        s.wait_log(
            &format!(
                "a file that is being sent was truncated: \"{}{end}",
                s.dir().path().display()
            ),
            times + 1,
        );
    }
}

/// A sandbox forbids calls with an error of its choice. Some file systems answer EINVAL to sendfile.
#[test]
fn files_are_sent_where_newer_calls_and_sendfile_are_refused() {
    for call in ["openat2", "preadv2", "sendfile"] {
        for error in ["EPERM", "ENOSYS", "EINVAL"] {
            let dir = Dir::new();
            dir.write("html/small.html", "0123456789");
            dir.write("html/large", large());
            let inject = format!("error={error}");
            let Some(weir) = under_strace(&dir, WEIR, call, &inject) else { return };
            let s = Server::start_in(dir, &weir, CONF);
            assert_eq!(s.get("/small.html").body(), "0123456789", "{call}: {error}");
            for path in ["/large", "/sendfile/large"] {
                assert!(s.get(path).bytes == large(), "{call}: {error}: {path}");
            }
        }
    }
}
