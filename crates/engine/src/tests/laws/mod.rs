//! The laws of a loop, by what they are about.

pub(crate) mod files;
pub(crate) mod parked;
pub(crate) mod streams;
pub(crate) mod tasks;
pub(crate) mod turns;

use std::io;
use std::net::TcpStream;
use std::thread;

use super::site::Site;
use crate::{Chain, Handle, Patience, Segment, Stream};

async fn send(stream: &Stream, bytes: impl Into<Segment>) -> io::Result<()> {
    let mut chain = Chain::new();
    chain.push(bytes);
    stream.send(&mut chain, Patience::Watched).await
}

async fn receive(stream: &Stream) -> io::Result<Vec<u8>> {
    let (n, buf) = stream.recv(stream.handle().take_buf(4096)).await;
    n.map(|_| buf)
}

/// Runs the client on a thread of its own. The loop stops when the client is done.
fn client(site: &Site, play: impl FnOnce(TcpStream) + Send + 'static) -> thread::JoinHandle<()> {
    let (socket, remote) = (site.client(), site.h.remote());
    thread::spawn(move || {
        let stop = StopAtEnd(remote);
        play(socket);
        drop(stop);
    })
}

/// Stops the loop even if the client panics.
struct StopAtEnd(crate::Remote);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.post(Box::new(Handle::stop));
    }
}
