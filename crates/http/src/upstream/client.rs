//! The client while it waits: it may leave.

use std::future::Future;
use std::pin::Pin;

use weir_engine::{Either, either};
use weir_log::Level;

use super::passing::Passing;
use crate::request::Request;

/// What came first.
pub enum Waited<T> {
    /// What was waited for.
    For(T),
    /// The client closed its connection.
    Gone,
}

/// Waits for something, and for the client to leave, unless that makes no difference. It is pinned, since an
/// `async fn` has room for an argument twice.
pub async fn wait<T>(
    r: &Request,
    passing: &Passing,
    what: Pin<&mut impl Future<Output = T>>,
    connected: bool,
) -> Waited<T> {
    if passing.ignore_client_abort || passing.store.is_some() || r.is_cacheable() {
        return Waited::For(what.await);
    }
    match either(what, r.client_left()).await {
        Either::Left(out) => Waited::For(out),
        Either::Right(()) => {
            gone(r, connected);
            Waited::Gone
        }
    }
}

fn gone(r: &Request, connected: bool) {
    let too = if connected { ", so upstream connection is closed too" } else { "" };
    r.log(
        Level::Info,
        format_args!("epoll_wait() reported that client prematurely closed connection{too}"),
    );
}
