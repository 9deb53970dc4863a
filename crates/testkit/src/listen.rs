//! Servers of the tests' own.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Listens on 127.0.0.1 and hands each connection to a call of `serve`, in a thread of its own: the port. It ends
/// with the test's process.
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
