//! Servers for tests.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Listens on 127.0.0.1 and calls `serve` for each connection, in a thread of its own. Returns the
/// port. It ends with the test's process.
pub fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port to listen on");
    let port = listener.local_addr().expect("a listener's address").port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// An address at which no connection can be established: its accept queue is full and never
/// emptied.
#[derive(Debug)]
pub struct Deaf {
    listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Deaf {
    /// Listens on 127.0.0.1.
    pub fn new() -> Deaf {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port without accepts");
        rustix::net::listen(&listener, 0).expect("a short queue");
        let address = listener.local_addr().expect("its address");
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let queued = std::iter::from_fn(connect).collect();
        Deaf { listener, _queued: queued }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("its address").port()
    }
}

impl Default for Deaf {
    fn default() -> Deaf {
        Deaf::new()
    }
}
