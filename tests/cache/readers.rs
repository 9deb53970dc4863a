//! Several readers of one answer while it comes in: what each of them gets, and when it sees the
//! end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::fastcgi::{END, STDOUT, record};
use weir_testkit::{Client, Dir, PATIENCE, Server, ask_until, listen, until};

use super::disk::Mounted;
use super::{WEIR, body, files};

/// More than the buffers of a connection take of an answer that its client does not read.
const LENGTH: usize = 16 << 20;
/// More than a reader waits for, and less than the disk has room for.
const FIRST: usize = 400 << 10;

/// A server with a first answer that stops behind [`FIRST`] until it may go on, the number of its
/// requests, and what it sends to all later ones: `interim` before the head, and a body.
fn pausing(interim: &'static str, later: Vec<u8>) -> (u16, Arc<AtomicUsize>, Sender<()>) {
    let (asked, (go_on, may)) = (Arc::new(AtomicUsize::new(0)), channel::<()>());
    let (count, may) = (asked.clone(), Mutex::new(may));
    let first = body(1, LENGTH);
    let port = listen(move |mut stream: TcpStream| {
        read_head(&mut stream);
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let (interim, body) = if is_first { ("", &first) } else { (interim, &later) };
        let length = body.len();
        let head = format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let (before, behind) = body.split_at(FIRST);
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(before));
        if is_first {
            let _ = may.lock().unwrap().recv();
        }
        let _ = stream.write_all(behind);
    });
    (port, asked, go_on)
}

/// Reads a head, and no byte more.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A client that has the head of the answer.
fn reading(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200 "));
    stream
}

fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A connection that is cut may be reset.
    let _ = stream.read_to_end(&mut all);
    all
}

/// A cache on a disk with room for some of the answer, and a server that answers so.
fn small_disk(port: u16, dir: Dir, cached: &str) -> Option<(Server, Mounted)> {
    let disk = Mounted::new(dir.file("cache"), "1m")?;
    let conf = format!(
        "events {{ }} http {{
             proxy_cache_path %%DIR%%/cache keys_zone=one:1m use_temp_path=off;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port};
                 proxy_cache one; proxy_cache_valid 1h; proxy_cache_lock on; {cached} }} }} }}"
    );
    Some((Server::start_in(dir, WEIR, &conf), disk))
}

/// So many answers are being stored when their worker is told to end.
const ANSWERS: usize = 20;

/// The server of these answers, and what lets them go on.
fn storing() -> (Server, Sender<()>) {
    let (go_on, may) = channel::<()>();
    let (answer, may) = (body(1, FIRST + 1000), Mutex::new(may));
    let port = listen(move |mut stream: TcpStream| {
        read_head(&mut stream);
        let (before, behind) = answer.split_at(FIRST);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(before));
        let _ = may.lock().unwrap().recv();
        let _ = stream.write_all(behind);
    });
    let conf = format!(
        "thread_pool default threads=1; events {{ }} http {{
             proxy_cache_path %%DIR%%/cache keys_zone=one:1m; proxy_temp_path %%DIR%%/temporary;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port};
                 proxy_cache one; proxy_cache_valid 1h; proxy_cache_key $uri; }} }} }}"
    );
    let server = Server::start(WEIR, &conf);
    for n in 0..ANSWERS {
        let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        read_head(&mut client);
    }
    assert!(ask_until(|| left(&server)[1] == ANSWERS), "{}", server.log());
    (server, go_on)
}

/// Files of the cache, and those that are to become one.
fn left(server: &Server) -> [usize; 2] {
    ["cache", "temporary"].map(|directory| files(&server.dir().file(directory)).len())
}

/// The clients have left, so the worker has nothing else to do once the answers are there.
#[test]
fn answers_are_stored_although_their_worker_ends_with_them() {
    let (server, go_on) = storing();
    let old = server.workers();
    server.reload();
    drop(go_on);
    old.into_iter().for_each(|worker| server.wait_gone(worker));
    assert_eq!(left(&server), [ANSWERS, 0], "{}", server.log());
}

#[test]
fn a_worker_that_is_terminated_leaves_no_parts_of_answers() {
    let (mut server, _go_on) = storing();
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(left(&server), [0, 0], "{}", server.log());
}

/// One client reads nothing of an answer that the disk does not take. Other clients that ask for
/// the same get all of it meanwhile.
#[test]
fn on_a_full_disk_no_reader_waits_for_another() {
    let (port, asked, go_on) = pausing("", body(1, LENGTH));
    let Some((server, _disk)) = small_disk(port, Dir::new(), "") else { return };
    let slow = reading(&server);
    let others = [(); 2].map(|()| reading(&server));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    go_on.send(()).unwrap();
    let others = others.map(|other| std::thread::spawn(|| rest(other)));
    for other in others {
        assert!(other.join().unwrap() == body(1, LENGTH), "{}", server.log());
    }
    server.wait_log("cannot be stored (28: No space left on device)", 1);
    assert!(rest(slow) == body(1, LENGTH));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

/// The server has another answer by then: no client gets a mixture.
#[test]
fn on_a_full_disk_no_reader_gets_parts_of_two_answers() {
    let whole = body(1, LENGTH);
    let mut other = whole.clone();
    other[FIRST / 2] ^= 1;
    for other in [other, body(1, LENGTH - 1)] {
        let (port, _asked, go_on) = pausing("", other);
        let Some((server, _disk)) = small_disk(port, Dir::new(), "") else { return };
        let (slow, quick) = (reading(&server), reading(&server));
        go_on.send(()).unwrap();
        let got = rest(quick);
        assert!(got.len() < whole.len() && whole.starts_with(&got), "{}", got.len());
        server.wait_log("upstream sent another answer than the one that the client has begun", 1);
        assert!(rest(slow) == whole);
    }
}

/// The server that is asked for the rest says something before its answer: the clients have their heads, and get nothing of
/// that.
#[test]
fn on_a_full_disk_no_interim_answer_gets_into_a_body() {
    for cached in ["proxy_cache_rules rfc9111;", "early_hints 1;"] {
        let interim = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
        let (port, asked, go_on) = pausing(interim, body(1, LENGTH));
        let Some((server, _disk)) = small_disk(port, Dir::new(), cached) else { return };
        let (slow, quick) = (reading(&server), reading(&server));
        go_on.send(()).unwrap();
        assert!(rest(quick) == body(1, LENGTH), "{cached} {}", server.log());
        assert!(rest(slow) == body(1, LENGTH));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}

/// A request may not use the answer that comes in as it is, the server says that it stands, and then the disk takes no more of
/// it: the server is asked for the rest.
#[test]
fn on_a_full_disk_an_answer_that_stands_is_sent_to_its_end() {
    let whole = Arc::new(body(1, LENGTH));
    for asks in ["no-cache", "min-fresh=200", "max-age=5"] {
        let (asked, (go_on, may)) = (Arc::new(AtomicUsize::new(0)), channel::<()>());
        let (count, may, body) = (asked.clone(), Mutex::new(may), whole.clone());
        let port = listen(move |mut stream: TcpStream| {
            let head = read_head(&mut stream);
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            if head.contains("If-None-Match") {
                let _ = stream.write_all(b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n");
                return;
            }
            let fields =
                "ETag: \"a\"\r\nCache-Control: max-age=100\r\nAge: 20\r\nConnection: close";
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {LENGTH}\r\n\r\n");
            let (before, behind) = body.split_at(FIRST);
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(before));
            if is_first {
                let _ = may.lock().unwrap().recv();
            }
            let _ = stream.write_all(behind);
        });
        let cached = "proxy_cache_rules rfc9111; add_header X-Cache $upstream_cache_status;";
        let Some((server, _disk)) = small_disk(port, Dir::new(), cached) else { return };
        let slow = reading(&server);
        let mut other = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        other.set_read_timeout(Some(PATIENCE)).unwrap();
        let text = format!(
            "GET /large HTTP/1.1\r\nHost: a\r\nCache-Control: {asks}\r\nConnection: close\r\n\r\n"
        );
        other.write_all(text.as_bytes()).unwrap();
        assert!(read_head(&mut other).contains("X-Cache: REVALIDATED"), "{asks}");
        go_on.send(()).unwrap();
        let got = rest(other);
        assert!(got == *whole, "{asks}: {} bytes\n{}", got.len(), server.log());
        assert!(rest(slow) == *whole);
        assert_eq!(asked.load(Ordering::SeqCst), 3, "{asks}");
    }
}

/// What a server sends, and the end of its answer, which it sends later.
type Said = (Vec<u8>, Vec<u8>);

/// A server that tells the end of its answers when the client has asked twice, or has had time for that.
fn late(said: Said, done: Receiver<()>) -> u16 {
    let done = Mutex::new(done);
    listen(move |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 65536]);
        let _ = stream.write_all(&said.0);
        let _ = done.lock().unwrap().recv_timeout(Duration::from_millis(100));
        let _ = stream.write_all(&said.1);
    })
}

/// The client sees the end of an answer when the cache has it: asked again at once, the cache answers, by whatever the
/// server tells the end.
#[test]
fn an_answer_ends_when_the_cache_has_it() {
    // More than `postpone_output` waits for.
    let body = "a line of text\n".repeat(300);
    let head = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let bare = format!("Content-Type: text/plain\r\n\r\n{body}");
    let records = |output: &str| record(STDOUT, output.as_bytes(), 3);
    let ended = || [record(STDOUT, b"", 0), record(END, &[0; 8], 0)].concat();
    let text = |first: &str, then: &str| (first.as_bytes().to_vec(), then.as_bytes().to_vec());
    let http = |head: &str| format!("HTTP/1.1 200 OK\r\n{head}");
    let chunk = format!("{:x}\r\n{body}\r\n", body.len());
    let chunked = http(&format!("Transfer-Encoding: chunked\r\n\r\n{chunk}"));
    let cases: [(&str, &str, Said); 11] = [
        ("fastcgi", "", (records(&head), ended())),
        ("fastcgi", "", (records(&bare), ended())),
        (
            "fastcgi",
            "",
            ([records(&head), record(STDOUT, b"", 0)].concat(), record(END, &[0; 8], 0)),
        ),
        ("scgi", "", text(&head, "")),
        ("scgi", "", text(&bare, "")),
        ("uwsgi", "", text(&head, "")),
        ("uwsgi", "", text(&bare, "")),
        ("proxy", "http://", text(&http(&head), "")),
        ("proxy", "http://", text(&http(&bare), "")),
        ("proxy", "http://", text(&http(&bare).replace("1.1", "1.0"), "")),
        ("proxy", "http://", text(&chunked, "0\r\n\r\n")),
    ];
    for (n, (kind, scheme, said)) in cases.into_iter().enumerate() {
        let (done, is_done) = channel();
        let port = late(said, is_done);
        let server = Server::start(
            WEIR,
            &format!(
                "events {{ }} http {{ {kind}_cache_path %%DIR%%/cache keys_zone=one:1m;
                     server {{ listen 127.0.0.1:%%PORT%%; location / {{
                         {kind}_pass {scheme}127.0.0.1:{port}; {kind}_cache one;
                         {kind}_cache_key $uri; {kind}_cache_valid 1h;
                         add_header X-Cache $upstream_cache_status; }} }} }}"
            ),
        );
        let state = || {
            let answer = Client::connect(server.port()).get("/a");
            assert_eq!(answer.body(), body, "{n} {kind}");
            answer.header("X-Cache").unwrap().to_owned()
        };
        assert_eq!(state(), "MISS", "{n} {kind}");
        assert_eq!(state(), "HIT", "{n} {kind}");
        let _ = done.send(());
    }
}

/// Answers grow among the temporary files of proxying, which weir does not empty otherwise.
#[test]
fn a_start_removes_what_killed_processes_have_left_of_answers() {
    let dir = Dir::new();
    let mut process = Command::new("true").spawn().unwrap();
    process.wait().unwrap();
    let left = format!("proxy_temp/{:032x}.{}.0000000000", 7, process.id());
    let others = "proxy_temp/0000000007";
    dir.write(&left, "half of an answer");
    dir.write(others, "a body");
    let server = super::start_in(dir, 1, "", "", "return 200;");
    assert!(until(&server.dir().file("proxy_temp"), || !server.dir().file(&left).exists()));
    assert!(server.dir().file(others).exists());
}
