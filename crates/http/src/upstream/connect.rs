//! Opens connections to servers.

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

/// The tag that a connection must have to serve this request. With `local`, it must come from the
/// same location. So it must if scripts of the location take part in handshakes.
pub fn tag(
    r: &mut Request,
    passing: &'static UpstreamConf,
    secure: Option<&UpstreamTls>,
    local: bool,
) -> Tag {
    let secured = secure.map_or(0, |secure| secure.tag);
    // The address of the location's whole settings identifies it. Locations may share the settings
    // of one module.
    let is_own = local || passing.scripts.is_some();
    let place = if is_own { std::ptr::from_ref(r.conf()).addr() } else { 0 };
    let from = passing.bind.as_ref().and_then(|bind| bind.address(r));
    Tag { secured, place, from }
}

/// Connects to a peer. `shared`: another loop of the process may take the connection later.
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
    // If the connection becomes a tunnel, another loop may take that.
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
            // The following operations set their own timeouts, or wait for the client, which has
            // one.
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
