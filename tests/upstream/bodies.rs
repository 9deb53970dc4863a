//! Bodies of requests on their way to servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};

use weir_proto::http2::frame;
use weir_testkit::{Dir, Oracle, PATIENCE, Server, listen};

use super::origin::forgetful;
use super::{WEIR, start};

/// A body longer than the kernel's buffers of a connection.
pub const LONG: usize = 12 << 20;

/// A directory with a certificate for any name.
pub fn certified() -> Dir {
    let dir = Dir::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for name in ["self.pem", "self.key"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir
}

#[test]
fn a_body_in_a_file_goes_out_over_tls() {
    let conf = "user root; events { }
         http {
             client_max_body_size 0; proxy_buffer_size 64k; proxy_buffers 4 64k;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 client_body_in_file_only clean;
                 location / { proxy_pass https://127.0.0.1:%%PORT1%%; }
             }
             server {
                 listen 127.0.0.1:%%PORT1%% ssl;
                 ssl_certificate self.pem; ssl_certificate_key self.key;
                 client_body_buffer_size 1m;
                 add_header X-Body $request_body always;
                 location / { proxy_pass http://127.0.0.1:%%PORT2%%; }
             }
             server { listen 127.0.0.1:%%PORT2%%; return 204; }
         }";
    let server = Server::start_in(certified(), WEIR, conf);
    let body: String = (0..40_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let mut client = server.connect();
    let len = body.len();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}"));
    let answer = client.response();
    assert_eq!(answer.status, 204, "{}", server.log());
    assert_eq!(answer.header("X-Body"), Some(body.as_str()));
}

/// An origin that takes one body of `len` bytes, answers it, and gives it to the test.
fn reader(len: usize) -> (u16, Receiver<Vec<u8>>) {
    let (tell, got) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        while !line.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut line).unwrap() > 0);
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body).unwrap();
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        tell.send(body).unwrap();
    });
    (port, got)
}

#[test]
fn a_body_in_a_file_that_cannot_be_sent_at_once_is_read_first() {
    // Of a file in a tmpfs the kernel does not tell what is in memory; so it is with what has left the page cache.
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return;
    }
    let spilled = memory.join(format!("weir-test-{}", std::process::id()));
    let (port, got) = reader(LONG);
    let conf = format!(
        "user root; events {{ }}
         http {{
             client_max_body_size 0; client_body_buffer_size 16k;
             client_body_temp_path {};
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://127.0.0.1:{port}; }}
             }}
         }}",
        spilled.display()
    );
    let server = Server::start(WEIR, &conf);
    let body: Vec<u8> = (0..LONG).map(|n| (n / 1000 % 251) as u8).collect();
    let mut client = server.connect();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n"));
    client.send(&body);
    let came = got.recv_timeout(PATIENCE);
    let answer = came.as_ref().ok().map(|_| client.response().status);
    drop(server);
    let _ = std::fs::remove_dir_all(&spilled);
    assert!(came.expect("the body") == body, "the body came otherwise");
    assert_eq!(answer, Some(200));
}

#[test]
fn of_what_passes_by_one_range_is_made_at_a_time() {
    let server = Server::start(
        WEIR,
        "events { }
         http {
             proxy_cache_path %%DIR%%/cache keys_zone=c:1m; proxy_force_ranges on; proxy_cache_valid 1h;
             server { listen 127.0.0.1:%%PORT%%;
                 location /passed { proxy_pass http://127.0.0.1:%%PORT1%%; }
                 location /kept { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache c; } }
             server { listen 127.0.0.1:%%PORT1%%; max_ranges 0; return 200 0123456789; }
         }",
    );
    let ask = |path: &str, range: &str| server.ask(&format!("GET {path}"), range, "").status;
    assert_eq!(ask("/passed", "Range: bytes=2-3\r\n"), 206);
    assert_eq!(ask("/passed", "Range: bytes=0-0,2-3\r\n"), 200);
    assert_eq!(ask("/kept", ""), 200);
    let kept = || ask("/kept", "Range: bytes=0-0,2-3\r\n") == 206;
    assert!(weir_testkit::ask_until(kept), "all of it is at hand");
}

/// An origin that says something, takes a body, and says the rest.
fn hasty(first: &'static str, then: &'static str) -> u16 {
    listen(move |stream| {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0);
        }
        stream.get_mut().write_all(first.as_bytes()).unwrap();
        let came = std::io::copy(&mut stream.by_ref().take(LONG as u64), &mut std::io::sink());
        if came.is_ok_and(|came| came == LONG as u64) {
            stream.get_mut().write_all(then.as_bytes()).unwrap();
        }
    })
}

/// A hint, or half a head, is no answer: a server that waits for the rest of the body would wait
/// for ever.
#[test]
fn the_body_goes_on_until_the_head_of_the_answer_is_complete() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
    let (half, rest) = ANSWER.split_at(11);
    for (first, then) in [(hint, ANSWER), (half, rest)] {
        let port = hasty(first, then);
        let conf = format!(
            "events {{ }}
             http {{
                 client_max_body_size 0; proxy_read_timeout 5s; proxy_send_timeout 5s;
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     location / {{ proxy_pass http://127.0.0.1:{port}; }}
                     location /now {{
                         proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off;
                     }}
                 }}
             }}"
        );
        let server = Server::start(WEIR, &conf);
        for path in ["/", "/now"] {
            let mut client = server.connect();
            client
                .send(format!("PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n"));
            client.send(vec![b'a'; LONG]);
            assert_eq!(client.response().status, 200, "{first:?} {path} {}", server.log());
        }
    }
}

/// What came of the body with the head, or that there is none, is known when the server is asked again.
#[test]
fn what_has_come_as_a_whole_is_sent_again_though_bodies_are_not_buffered() {
    let (port, opened) = forgetful();
    let group = format!("upstream u {{ server 127.0.0.1:{port}; keepalive 1; }}");
    let server = start("", &format!("proxy_request_buffering off; http2 on; {group}"));
    let over_http1 = |method: &str, headers: &str, body: &str| {
        server.connect().ask(&format!("{method} /"), headers, body).status == 200
    };
    assert!(over_http1("GET", "", ""));
    let attempts: [&dyn Fn() -> bool; 4] = [
        &|| over_http1("GET", "", ""),
        &|| over_http1("PUT", "Content-Length: 4\r\n", "body"),
        &|| over_http1("PUT", "Transfer-Encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n"),
        &|| put_over_http2(&server, b"body"),
    ];
    for (number, attempt) in attempts.iter().enumerate() {
        assert!(attempt(), "{number} {}", server.log());
        assert_eq!(opened.load(SeqCst), number + 2, "the kept connection was of no use");
    }
}

/// Whether a request that comes in one piece is answered with 200.
fn put_over_http2(server: &Server, body: &[u8]) -> bool {
    // PUT, http, / and a host as they are (RFC 7541, appendix A).
    let head = [b"\x02\x03PUT".as_slice(), b"\x86\x84", b"\x01\x01a"].concat();
    let mut out = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut out);
    for (kind, flags, payload) in [(1, 4, head.as_slice()), (0, 1, body)] {
        out.extend_from_slice(&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1]);
        out.extend_from_slice(payload);
    }
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&out).unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        socket.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            return payload.contains(&0x88);
        }
    }
}

/// `client_body_in_file_only` and `client_body_buffer_size` are about bodies that are read before a server is asked.
#[test]
fn a_body_that_is_not_buffered_goes_into_no_file_as_with_nginx() {
    let conf = "user root; events { } http { access_log off;
         server { listen 127.0.0.1:%%PORT%%; proxy_request_buffering off; client_body_temp_path %%DIR%%/bodies;
             proxy_set_header X-File $request_body_file; client_body_in_file_only on;
             location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /small { client_body_in_file_only off; client_body_buffer_size 1k; proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /buffered { proxy_request_buffering on; proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /usual { proxy_request_buffering on; client_body_in_file_only off; proxy_pass http://127.0.0.1:%%PORT1%%; } }
         server { listen 127.0.0.1:%%PORT1%%; return 200 [$http_x_file]; } }";
    let mut servers = vec![WEIR.to_owned()];
    servers.extend(Oracle::find().filter(|nginx| !nginx.is_old()).map(|nginx| nginx.path));
    for server in &servers {
        let s = Server::start(server, conf);
        let long = "y".repeat(5000);
        for (path, body) in [("/", "x"), ("/", &long), ("/small", &long)] {
            let length = format!("Content-Length: {}\r\n", body.len());
            let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            for (headers, body) in
                [(length.as_str(), body), ("Transfer-Encoding: chunked\r\n", &chunked)]
            {
                let answer = s.connect().ask(&format!("POST {path}"), headers, body);
                assert_eq!(answer.body(), "[]", "{server} {path} {headers}");
            }
        }
        let answer = s.connect().ask("POST /buffered", "Content-Length: 1\r\n", "x");
        assert_ne!(answer.body(), "[]", "{server}");
        // Without a directive, the buffer has two pages.
        for (len, in_file) in [(8000, false), (12_000, true)] {
            let length = format!("Content-Length: {len}\r\n");
            let answer = s.connect().ask("POST /usual", &length, &"y".repeat(len));
            assert_eq!(answer.body() != "[]", in_file, "{server} {len}");
        }
    }
}
