//! `proxy_cache_rules rfc9111` before servers whose answers are written out byte by byte: what a 304 changes, and what of an
//! answer reaches clients that wait for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_testkit::{Dir, Server, listen};

use super::WEIR;

/// A server that answers each request by its number, from 0, and its head, and then closes the connection. Its port, and how
/// many requests it has had.
pub fn scripted(
    answer: impl Fn(usize, &str) -> String + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let port = listen(move |mut stream: TcpStream| {
        let Some(head) = read_head(&mut stream) else { return };
        let answer = answer(count.fetch_add(1, Ordering::SeqCst), &head);
        let _ = stream.write_all(answer.as_bytes());
    });
    (port, asked)
}

/// Reads a head, and no byte more; `None` where the connection ends before.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// A cache before the server at this port.
pub fn before(port: u16, cached: &str) -> Server {
    before_in(Dir::new(), port, cached)
}

pub fn before_in(dir: Dir, port: u16, cached: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{
             access_log off;
             proxy_cache_path %%DIR%%/cache keys_zone=one:1m;
             proxy_cache one; proxy_cache_key $uri;
             add_header X-Cache $upstream_cache_status always;
             server {{ listen 127.0.0.1:%%PORT%%;
                 location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache_rules rfc9111; {cached} }} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

/// An answer 304 may come from a cache that had it for a while: its age counts, whether it has a date or not.
#[test]
fn the_age_of_an_answer_304_counts() {
    for date in ["", "Date: Thu, 01 Jan 2037 00:00:00 GMT\r\n"] {
        let (port, asked) = scripted(move |_, head| {
            let fields = "ETag: \"a\"\r\nCache-Control: max-age=100\r\nConnection: close";
            match head.contains("If-None-Match") {
                true => format!("HTTP/1.1 304 Not Modified\r\n{date}Age: 150\r\n{fields}\r\n\r\n"),
                false => {
                    format!("HTTP/1.1 200 OK\r\nAge: 200\r\n{fields}\r\nContent-Length: 1\r\n\r\na")
                }
            }
        });
        let server = before(port, "");
        assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
        for n in 2..5 {
            let again = server.get("/a");
            assert_eq!(again.header("X-Cache"), Some("REVALIDATED"), "{n} {date}");
            let age = again.header("Age").and_then(|age| age.parse::<u64>().ok());
            assert!(age.is_some_and(|age| age >= 150), "{age:?} {date}");
            assert_eq!(asked.load(Ordering::SeqCst), n);
        }
    }
}
