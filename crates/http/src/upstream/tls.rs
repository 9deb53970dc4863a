//! TLS to servers: its directives for each module that passes requests on, and the handshake.

use std::io;
use std::pin::pin;

use weir_engine::Stream;
use weir_log::{Cause, Level};
pub use weir_ssl::client::{Needed, Settings, UpstreamTls};
use weir_tls::{HandshakeError, Secured};
use weir_upstream::fault::blame_handshake;

use super::client::{Waited, wait};
use super::fault::{CLIENT_GONE, Doing, Fault, operation};
use super::passing::Passing;
use crate::request::Request;

/// The directives that set a module's `passing.tls`, as `passing_directives!` does for the rest.
macro_rules! tls_directives {
    ($key:ident, $prefix:literal) => {
        weir_ssl::client_directives!($prefix, tls_directive, $key)
    };
}
pub(crate) use tls_directives;

/// One of them.
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

/// Goes through the handshake on a new connection.
pub async fn handshake(
    r: &Request,
    passing: &Passing,
    stream: &Stream,
    secure: &UpstreamTls,
) -> Result<Secured, Fault> {
    let client = secure.client(&r.event_loop.handle, &r.event_loop.upstream_certificates).await;
    let client = client.map_err(|text| {
        r.log(Level::Error, format_args!("{text} {}", Doing::Connecting.text()));
        Fault::Us(500)
    })?;
    let until = r.event_loop.handle.now() + passing.connect_timeout;
    let connecting = pin!(Secured::connect(stream, &client, until));
    let done = match wait(r, passing, connecting, Some(Doing::Securing)).await {
        Waited::Gone => return Err(CLIENT_GONE),
        Waited::For(done) => done,
    };
    done.map_err(|error| failed(r, &error, secure.chosen))
}

fn failed(r: &Request, error: &HandshakeError, chosen: bool) -> Fault {
    let doing = Doing::Securing;
    match error {
        HandshakeError::TimedOut => {
            return operation(r, "SSL_do_handshake()", &io::ErrorKind::TimedOut.into(), doing);
        }
        HandshakeError::Io(error) => {
            let text = HandshakeError::Closed;
            r.log(Level::Error, format_args!("{text} {} {}", Cause(error), doing.text()));
        }
        error => r.log(Level::Error, format_args!("{error} {}", doing.text())),
    }
    blame_handshake(error, chosen).into()
}
