//! Gets a connection for a request: a shared one or a new one.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::{Either, either};
use weir_upstream::{Connection, Limits, Peer, Tag};

use super::link::Link;
use super::links::{FoundLink, Links};
use super::stream::Room;
use super::task;
use crate::request::Request;
use crate::upstream::client::{Waited, wait};
use crate::upstream::connect::connect;
use crate::upstream::fault::{Doing, Fault, operation};
use crate::upstream::passing::UpstreamConf;
use crate::upstream::tls::UpstreamTls;

/// Starts HTTP/2 on a connection that is not shared.
pub fn start(connection: Box<Connection>, limits: Limits, window: u32) -> Rc<Link> {
    let link = Link::new(connection, None, window);
    task::start(&link, None, limits);
    link
}

/// Gets a connection to a peer for a request with `body` bytes, and whether it has served others.
/// `shared` are the loop's connections; without them, no other request uses it.
pub async fn open(
    r: &mut Request,
    passing: &'static UpstreamConf,
    peer: &Arc<Peer>,
    secure: Option<&UpstreamTls>,
    tag: Tag,
    body: u64,
    shared: Option<(&Rc<Links>, &Limits)>,
) -> Result<(Rc<Link>, bool), Fault> {
    let window = Room::of(passing).body;
    let Some((links, limits)) = shared else {
        let connection = connect(r, passing, peer, secure, tag, false).await?;
        let link = start(connection, Limits::default(), window);
        link.leave();
        return Ok((link, false));
    };
    let mut sharing = true;
    let opening = loop {
        let now = r.event_loop.handle.now();
        match links.find(peer, tag, body, limits, now, sharing) {
            FoundLink::Link(link) => return Ok((link, true)),
            FoundLink::None(opening) => break opening,
            FoundLink::Coming(coming) => {
                let timeout = r.event_loop.handle.sleep(passing.connect_within(r));
                let come = pin!(either(coming.wait(), timeout));
                match wait(r, passing, come, Some(Doing::Connecting)).await {
                    Waited::Gone => return Err(Fault::ClientLeft),
                    // If the other request failed to open it, this one tries.
                    Waited::For(Either::Left(open)) => sharing = open,
                    Waited::For(Either::Right(())) => {
                        let late = io::ErrorKind::TimedOut.into();
                        return Err(operation(r, "connect()", &late, Doing::Connecting));
                    }
                }
            }
        }
    };
    let connection = connect(r, passing, peer, secure, tag, false).await?;
    let link = Link::new(connection, Some(opening), window);
    links.add(link.clone());
    task::start(&link, Some(links), limits.clone());
    Ok((link, false))
}
