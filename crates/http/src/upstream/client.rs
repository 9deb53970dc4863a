//! The client while it waits: it may leave.

use std::future::Future;
use std::pin::Pin;

use weir_engine::{Either, either};
use weir_log::Level;

use super::fault::Doing;
use super::passing::UpstreamConf;
use crate::request::Request;

/// What came first.
pub enum Waited<T> {
    /// What was waited for.
    For(T),
    /// The client closed its connection.
    Gone,
}

/// Waits for something, and for the client to leave, unless that makes no difference; `doing` is what goes on with a
/// server, if one was chosen. It is pinned, since an
/// `async fn` has room for an argument twice.
pub async fn wait<T>(
    r: &Request,
    passing: &UpstreamConf,
    what: Pin<&mut impl Future<Output = T>>,
    doing: Option<Doing>,
) -> Waited<T> {
    if passing.ignore_client_abort || passing.store.is_some() || r.is_cacheable() {
        return Waited::For(what.await);
    }
    match either(what, r.client_left()).await {
        Either::Left(out) => Waited::For(out),
        Either::Right(()) => {
            gone(r, doing);
            Waited::Gone
        }
    }
}

fn gone(r: &Request, doing: Option<Doing>) {
    if r.carrier.stream().is_some() {
        // The connection lives, or its own line tells of its end.
        return;
    }
    let text = "epoll_wait() reported that client prematurely closed connection";
    let Some(doing) = doing else { return r.log(Level::Info, format_args!("{text}")) };
    let doing = doing.text();
    r.log(Level::Info, format_args!("{text}, so upstream connection is closed too {doing}"));
}
