//! Opens a connection to a server.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::ConnectOptions;
use weir_tls::Wire;
use weir_upstream::fault::connecting as unreached;
use weir_upstream::{Connection, Peer, Tag};

use super::client::{Waited, wait};
use super::fault::{self, Doing, Fault};
use super::passing::UpstreamConf;
use super::tls::{self, UpstreamTls};
use crate::request::Request;

/// What a connection must be to serve this request. With `local` it is one that the same place opened.
pub fn tag(
    r: &mut Request,
    passing: &'static UpstreamConf,
    secure: Option<&UpstreamTls>,
    local: bool,
) -> Tag {
    let secured = secure.map_or(0, |secure| secure.tag);
    // Locations may share what a module has read, and not their whole settings.
    let place = if local { std::ptr::from_ref(r.conf()).addr() } else { 0 };
    let from = passing.bind.as_ref().and_then(|bind| bind.address(r));
    Tag { secured, place, from }
}

/// Connects to a peer; `shared`: the connection may serve another loop of the process afterwards.
pub async fn connect(
    r: &mut Request,
    passing: &UpstreamConf,
    peer: &Arc<Peer>,
    secure: Option<&UpstreamTls>,
    tag: Tag,
    shared: bool,
) -> Result<Box<Connection>, Fault> {
    let now = r.event_loop.handle.now();
    let handle = r.event_loop.handle.clone();
    // If a tunnel comes of it, another loop may go on with that.
    let shared = shared || handle.has_steal_group();
    let until = now + passing.connect_within(r);
    let options = ConnectOptions { shared, ..options(passing, tag.from, until) };
    let connecting = async {
        let to = peer.endpoint.to_any()?;
        handle.connect(&to, &options).await
    };
    let connected = wait(r, passing, pin!(connecting), Some(Doing::Connecting)).await;
    match connected {
        Waited::Gone => Err(Fault::ClientLeft),
        Waited::For(Err(error)) => Err(fault::log(r, unreached(peer, &error))),
        Waited::For(Ok(stream)) => {
            // What follows has times of its own, or waits for the client, which has its own.
            stream.set_deadline(None);
            let secured = match secure {
                Some(secure) => {
                    Some(tls::handshake(r, passing, &stream, secure, &peer.name).await?)
                }
                None => None,
            };
            Ok(Connection::new(Wire::join(stream, secured), peer.clone(), tag, now))
        }
    }
}

fn options(passing: &UpstreamConf, from: Option<SocketAddr>, until: Instant) -> ConnectOptions {
    ConnectOptions {
        deadline: Some(until),
        keepalive: passing.socket_keepalive,
        rcvbuf: passing.socket_rcvbuf.and_then(|n| usize::try_from(n).ok()),
        sndbuf: passing.socket_sndbuf.and_then(|n| usize::try_from(n).ok()),
        bind: from.map(Into::into),
        transparent: passing.bind.as_ref().is_some_and(|bind| bind.transparent),
        ..ConnectOptions::default()
    }
}
