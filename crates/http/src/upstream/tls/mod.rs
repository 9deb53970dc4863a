//! TLS to servers: the directives for each proxying module, and the handshake.

use std::pin::pin;

use weir_engine::{Boxed, Stream};
pub use weir_ssl::client::{Needed, Settings, UpstreamTls};
use weir_tls::Secured;
use weir_upstream::fault::{securing, unsecured};

use super::client::{Waited, wait};
use super::fault::{Doing, Fault, log};
use super::passing::UpstreamConf;
use crate::request::Request;

mod scripted;

pub use scripted::{HandshakeScripts, Part, TakePart};

/// The directives that set a module's `passing.tls`, as `passing_directives!` does for the rest.
macro_rules! tls_directives {
    ($key:ident, $prefix:literal) => {
        weir_ssl::client_directives!($prefix, tls_directive, $key)
    };
}
pub(crate) use tls_directives;

/// One directive.
macro_rules! tls_directive {
    ($key:ident, $name:expr, $help:literal, $set:expr) => {
        $crate::config::scope::Directive {
            name: $name,
            help: $help,
            set: $crate::config::scope::Set::Simple(|s, d| {
                let set: weir_ssl::SetDirective<
                    $crate::request::Request,
                    $crate::upstream::tls::Settings,
                > = $set;
                let said = weir_ssl::DirectiveUse { line: d, first: s.first(d) };
                let passing = &mut $key.change(&mut s.location).passing;
                set(std::sync::Arc::make_mut(&mut passing.tls), said, &mut s.setup.tls())
            }),
        }
    };
}
pub(crate) use tls_directive;

/// Does the TLS handshake on a new connection to a server at this address.
pub async fn handshake(
    r: &mut Request,
    passing: &UpstreamConf,
    stream: &Stream,
    secure: &UpstreamTls,
    peer: &str,
) -> Result<Secured, Fault> {
    let known = &r.event_loop.upstream_certificates;
    let client = secure.client(&r.event_loop.handle, known, peer).await;
    let client = client.map_err(|error| log(r, unsecured(error)))?;
    let until = r.event_loop.handle.now() + passing.connect_within(r);
    if r.conf().core.tcp_nodelay {
        // The request follows the end of the handshake, which the server need not answer. The kernel
        // would hold it back until that is acknowledged.
        let _ = stream.nodelay(true);
    }
    if let Some(scripts) = &passing.scripts {
        let with = scripted::Handshake { passing, scripts, stream, until, chosen: secure.chosen };
        return Boxed::new(|| with.go_through(r, client)).await;
    }
    let connecting = pin!(Secured::connect(stream, &client, until));
    let done = match wait(r, passing, connecting, Some(Doing::Securing)).await {
        Waited::Gone => return Err(Fault::ClientLeft),
        Waited::For(done) => done,
    };
    done.map_err(|error| log(r, securing(&error, secure.chosen)))
}
