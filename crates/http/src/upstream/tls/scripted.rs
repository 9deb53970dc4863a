//! Handshakes with servers in which scripts of the location take part.
//!
//! - In: nothing before the handshake; then the certificates that the server has shown.
//! - Out: the certificate that the server is shown; what is said of the server's.
//! - Callers: the handshake runs them, and waits for them before the server gets an answer; a module that has scripts sets
//!   them.

use std::fmt::Debug;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Boxed, Either, Stream, either};
use weir_log::Level;
use weir_tls::x509::VerifyError;
use weir_tls::{Secured, TlsClient};
use weir_upstream::Failure;
use weir_upstream::fault::securing;

use crate::request::Request;
use crate::request::passed::ServerHandshake;
use crate::upstream::client::{Waited, is_watched, wait};
use crate::upstream::fault::{Doing, Fault, complain, log, operation};
use crate::upstream::passing::UpstreamConf;

/// A script.
pub trait TakePart: Debug + Send + Sync {
    /// Runs it, for the request's [`ServerHandshake`].
    fn run<'r>(&'r self, r: &'r mut Request) -> Boxed<'r, Part>;
}

/// How a script has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The handshake goes on.
    Goes,
    /// It ends.
    Ends,
    /// The client has left.
    Abandoned,
}

/// The scripts of a location.
#[derive(Debug, Clone, Default)]
pub struct HandshakeScripts {
    /// Chooses the certificate that servers are shown.
    pub certificate: Option<Arc<dyn TakePart>>,
    /// Judges the certificates of servers.
    pub verify: Option<Arc<dyn TakePart>>,
    /// The directive that has set the last one, until the location is known to speak TLS.
    pub said: Option<&'static str>,
}

/// A handshake that is to be gone through.
pub(super) struct Handshake<'a> {
    pub passing: &'a UpstreamConf,
    pub scripts: &'a HandshakeScripts,
    pub stream: &'a Stream,
    pub until: Instant,
    /// As in [`securing`].
    pub chosen: bool,
}

impl Handshake<'_> {
    pub async fn go_through(self, r: &mut Request, client: TlsClient) -> Result<Secured, Fault> {
        let client = match &self.scripts.certificate {
            None => client,
            Some(script) => {
                let done = self.run(r, &**script, ServerHandshake::default()).await?;
                match done.own {
                    Some(own) => client.showing(own.identities().pop()),
                    None => client,
                }
            }
        };
        let Some(script) = &self.scripts.verify else {
            let connecting = pin!(Secured::connect(self.stream, &client, self.until));
            let done = wait(r, self.passing, connecting, Some(Doing::Securing)).await;
            return self.done(r, done);
        };
        let client = client.inspected(self.passing.any_path);
        let inspecting = pin!(Secured::inspect(self.stream, &client, self.until));
        let shown = wait(r, self.passing, inspecting, Some(Doing::Securing)).await;
        let shown = self.done(r, shown)?;
        let chain = shown.connection().peer_certificates().iter().map(|der| der.to_vec());
        let version = Some(shown.connection().negotiated().protocol());
        let before = ServerHandshake { chain: chain.collect(), version, ..Default::default() };
        let done = self.run(r, &**script, before).await?;
        if done.result != 0 {
            complain(r, wrong(done.result), Doing::Securing);
            return Err(Fault::Peer(Failure::Error));
        }
        let finishing = pin!(shown.finish(self.stream, self.until));
        let done = wait(r, self.passing, finishing, Some(Doing::Securing)).await;
        self.done(r, done)
    }

    fn done<T>(
        &self,
        r: &Request,
        done: Waited<Result<T, weir_tls::HandshakeError>>,
    ) -> Result<T, Fault> {
        match done {
            Waited::Gone => Err(Fault::ClientLeft),
            Waited::For(done) => done.map_err(|error| log(r, securing(&error, self.chosen))),
        }
    }

    /// Runs a script: what it has said.
    async fn run(
        &self,
        r: &mut Request,
        script: &dyn TakePart,
        before: ServerHandshake,
    ) -> Result<ServerHandshake, Fault> {
        let verifies = before.version.is_some();
        let is_watched = is_watched(r, self.passing);
        r.contexts.upstream.handshake = Some(Box::new(ServerHandshake { is_watched, ..before }));
        let now = r.event_loop.handle.now();
        let late = r.event_loop.handle.sleep(self.until.saturating_duration_since(now));
        let part = either(script.run(r), late).await;
        let after = r.contexts.upstream.handshake.take();
        let (doing, failed, failure) = match verifies {
            true => (Doing::Verifying, "certificate verify failed", Failure::Error),
            // The server has no part in it.
            false => (Doing::Certifying, "cert cb error", Failure::Unreachable),
        };
        match part {
            Either::Left(Part::Goes) => Ok(after.map(|after| *after).unwrap_or_default()),
            Either::Left(Part::Abandoned) => Err(Fault::ClientLeft),
            Either::Left(Part::Ends) => {
                let doing = Doing::Securing.text();
                let text = format_args!("SSL_do_handshake() failed (SSL: {failed}) {doing}");
                r.log(Level::Info, text);
                Err(Fault::Peer(failure))
            }
            Either::Right(()) => {
                let error = io::ErrorKind::TimedOut.into();
                Err(operation(r, "SSL_do_handshake()", &error, doing))
            }
        }
    }
}

/// What the log says of a server that a script has refused by one of OpenSSL's numbers.
fn wrong(result: i32) -> String {
    let known = u32::try_from(result).ok().and_then(VerifyError::of_code);
    let fault =
        known.map_or_else(|| format!("({result}:error number {result})"), |f| f.to_string());
    format!("upstream SSL certificate verify error: {fault}")
}
