//! Waiting for a server while the client may leave.

use std::future::Future;
use std::pin::Pin;

use weir_engine::{Either, either};
use weir_log::Level;

use super::fault::Doing;
use super::passing::UpstreamConf;
use crate::request::Request;

/// The result of a wait.
pub enum Waited<T> {
    /// The future's result.
    For(T),
    /// The client closed its connection.
    Gone,
}

/// Waits for a future, or until the client leaves. The client is not watched if the request goes on
/// without it: with `..._ignore_client_abort` or `..._store`. If the answer is cacheable, the request
/// goes on as well, but [`has_left`] knows that the client is gone. `doing` is the present operation
/// with a server, if one was chosen. The future is pinned, since an `async fn` reserves room for its
/// arguments twice.
pub async fn wait<T>(
    r: &Request,
    passing: &UpstreamConf,
    mut what: Pin<&mut impl Future<Output = T>>,
    doing: Option<Doing>,
) -> Waited<T> {
    let is_watched = is_watched(r, passing);
    if !is_watched && (goes_on(passing) || has_left(r)) {
        return Waited::For(what.await);
    }
    match either(what.as_mut(), r.client_left()).await {
        Either::Left(out) => Waited::For(out),
        Either::Right(()) if is_watched => {
            gone(r, doing);
            Waited::Gone
        }
        Either::Right(()) => {
            r.contexts.upstream.client_left.set(true);
            gone(r, None);
            Waited::For(what.await)
        }
    }
}

/// Whether the client of a cacheable request was seen to leave. No other server is asked for it.
pub fn has_left(r: &Request) -> bool {
    r.contexts.upstream.client_left.get()
}

/// Whether the request goes on without its client, whatever its servers say.
fn goes_on(passing: &UpstreamConf) -> bool {
    passing.ignore_client_abort || passing.store.is_some()
}

/// Whether a client that leaves makes a difference.
pub fn is_watched(r: &Request, passing: &UpstreamConf) -> bool {
    !(goes_on(passing) || r.is_cacheable())
}

fn gone(r: &Request, doing: Option<Doing>) {
    if r.carrier.stream().is_some() {
        // The connection lives on, or its end has a log line of its own.
        return;
    }
    let text = "epoll_wait() reported that client prematurely closed connection";
    let Some(doing) = doing else { return r.log(Level::Info, format_args!("{text}")) };
    let doing = doing.text();
    r.log(Level::Info, format_args!("{text}, so upstream connection is closed too {doing}"));
}
