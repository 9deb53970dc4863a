//! Servers behind the one under test. Each stops in its own way.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use weir_testkit::Deaf;

/// Their ports.
pub struct Backs {
    /// Reads nothing and says nothing.
    pub silent: u16,
    /// Says more than any client reads.
    pub flood: u16,
    /// By name: says something, and nothing more.
    pub says: Vec<(&'static str, u16)>,
    /// Answers all requests with bodies of one byte.
    pub answers: u16,
    /// Accepts no connection.
    pub deaf: u16,
    /// A name server: by UDP it asks to be asked by TCP, where it is silent.
    pub names: u16,
}

/// Starts them, for as long as the process runs.
pub fn start() -> Backs {
    let early =
        [b"HTTP/1.1 101 Go\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\n", &[b'x'; 60_000][..]]
            .concat();
    let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(1000);
    let switch = b"HTTP/1.1 101 Go\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\n".to_vec();
    let said: [(&'static str, Vec<u8>); 8] = [
        ("head", b"HTTP/1.1 200 OK\r\nContent-Le".to_vec()),
        ("body", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc".to_vec()),
        ("chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc".to_vec()),
        ("continue", b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
        ("hint", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec()),
        ("hints", hints),
        ("switch", switch),
        ("early", early),
    ];
    let says = said.map(|(name, bytes)| {
        (
            name,
            listen(move |mut stream| {
                if head(&mut stream) {
                    let _ = stream.write_all(&bytes);
                    hold(stream);
                }
            }),
        )
    });
    let deaf = Deaf::new();
    let port = deaf.port();
    std::mem::forget(deaf);
    Backs {
        silent: listen(hold),
        flood: listen(flood),
        says: says.into(),
        answers: listen(|mut stream| {
            while head(&mut stream) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                if stream.read_exact(&mut [0]).is_err() || stream.write_all(answer).is_err() {
                    return;
                }
            }
        }),
        deaf: port,
        names: names(),
    }
}

fn listen(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Accepted sockets have the size that the listening one had.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Keeps a connection until the other end has gone, and reads nothing.
fn hold(stream: TcpStream) {
    let mut fds = [rustix::event::PollFd::new(&stream, rustix::event::PollFlags::RDHUP)];
    let _ = rustix::event::poll(&mut fds, None);
}

fn flood(mut stream: TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
    let mut sent = stream.write_all(head);
    let mut left = 20_000_000;
    while sent.is_ok() && left > 0 {
        sent = stream.write_all(&[b'x'; 10_000]);
        left -= 10_000;
    }
    if sent.is_ok() {
        hold(stream);
    }
}

/// Reads a request's head; false at the end.
fn head(stream: &mut TcpStream) -> bool {
    let mut seen = [0; 4];
    while &seen != b"\r\n\r\n" {
        seen.rotate_left(1);
        if !matches!(stream.read(&mut seen[3..]), Ok(1)) {
            return false;
        }
    }
    true
}

fn names() -> u16 {
    let port = listen(hold);
    let socket = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut query) {
            // An answer, cut short: TC.
            query[2] |= 0x82;
            let _ = socket.send_to(&query[..n], from);
        }
    });
    port
}
