//! Origin servers of these tests.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use weir_testkit::{PATIENCE, listen};

/// An origin that answers when it is told to.
pub struct Slow {
    pub port: u16,
    asked: Receiver<Sender<()>>,
}

impl Slow {
    pub fn new() -> Slow {
        let (tell, asked) = channel();
        let tell = Arc::new(Mutex::new(tell));
        let port = serve(move |_| {
            let (answer, wait) = channel();
            tell.lock().unwrap().send(answer).ok()?;
            let _ = wait.recv();
            Some(String::new())
        });
        Slow { port, asked }
    }

    /// Waits for a request; what comes back answers it when it is told to, or dropped.
    pub fn asked(&self) -> Sender<()> {
        self.asked.recv_timeout(PATIENCE).expect("a request")
    }

    /// No request waits.
    pub fn is_idle(&self) -> bool {
        self.asked.try_recv().is_err()
    }
}

/// An origin that answers each request with its name and the headers that `extra` makes of the request.
pub fn named(name: &'static str, extra: &'static str) -> u16 {
    serve(move |_| Some(format!("X-Origin: {name}\r\n{extra}")))
}

/// An origin that adds these header lines to its answers; where there are none, it closes the connection.
pub fn serve(headers: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> u16 {
    serve_counted(headers).0
}

/// The same, and how many connections it was opened.
pub fn serve_counted(
    headers: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let port = listen(move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        talk(stream, &headers);
    });
    (port, count)
}

/// An origin that says that it keeps its connections, and closes each before its second answer; how many were opened.
pub fn forgetful() -> (u16, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let port = listen(move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        let fresh = Cell::new(true);
        talk(stream, &|_| fresh.replace(false).then(String::new));
    });
    (port, count)
}

fn talk(stream: TcpStream, headers: &dyn Fn(&str) -> Option<String>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let Some(headers) = headers(&head) else { return };
        let status = if head.starts_with("GET /bad") { "500 Bad" } else { "200 OK" };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{headers}\r\n");
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
