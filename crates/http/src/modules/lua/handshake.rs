//! The phases of a client's handshake: `ssl_client_hello_by_lua`, `ssl_certificate_by_lua` and
//! those of TLS sessions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use mlua::{MultiValue, Value};
use weir_engine::Boxed;
use weir_log::Level;
use weir_ssl::server::AcceptError;
use weir_tls::HandshakeError;

use super::anchors::Anchor;
use super::answer::CONTEXT;
use super::conf::CONF;
use super::current::{Phase, Subject};
use super::phases::ERROR;
use super::run::{self, ScriptOutcome, Start};
use super::script::Script;
use super::vm::{ScriptError, Vm, vm_of};
use super::yield_request::Exit;
use crate::request::Request;

/// `ssl_client_hello_by_lua`
pub fn client_hello(r: &mut Request) -> Boxed<'_, Result<(), AcceptError>> {
    let script = CONF.of(r.conf()).client_hello.as_ref();
    let failed = AcceptError::Script("callback failed");
    Boxed::new(move || perform(r, Phase::ClientHello, script, failed))
}

/// `ssl_certificate_by_lua`
pub fn certificate(r: &mut Request) -> Boxed<'_, Result<(), AcceptError>> {
    let script = CONF.of(r.conf()).certificate.as_ref();
    let failed = AcceptError::Script("cert cb error");
    Boxed::new(move || perform(r, Phase::Certificate, script, failed))
}

/// `ssl_session_fetch_by_lua`. If it fails, the client gets a new session.
pub fn session_fetch(r: &mut Request) -> Boxed<'_, Result<(), AcceptError>> {
    let script = CONF.of(r.conf()).session_fetch.as_ref();
    let failed = AcceptError::Script("callback failed");
    Boxed::new(move || async move {
        match perform(r, Phase::SessionFetch, script, failed).await {
            Err(AcceptError::Script(_)) => Ok(()),
            done => done,
        }
    })
}

/// `ssl_session_store_by_lua`
pub fn session_store(r: &mut Request) -> Boxed<'_, Result<(), AcceptError>> {
    Boxed::new(move || async move {
        store(r);
        Ok(())
    })
}

fn store(r: &mut Request) {
    let phase = Phase::SessionStore;
    let script = CONF.of(r.conf()).session_store.as_ref();
    let (Some(script), Some(vm)) = (script, vm_of(&r.event_loop).cloned()) else { return };
    if let Some(handshake) = &mut r.contexts.handshake {
        handshake.place = phase.in_log();
    }
    let failed = |r: &Request, error: ScriptError| {
        // The text of OpenResty.
        let (name, place) = ("session_store_by_lua*", phase.in_log());
        log(r, Level::Error, format_args!("failed to run {name}: {error}{place}"));
    };
    let code = match vm.code(r, script) {
        Ok(code) => code,
        Err(error) => return failed(r, error),
    };
    let done = run::at_once(&vm, Subject::Request(r), phase, &code, MultiValue::new());
    match done {
        Ok(_) => keep_ctx(&vm, r),
        Err(error) => failed(r, error),
    }
}

async fn perform(
    r: &mut Request,
    phase: Phase,
    script: Option<&Script>,
    failed: AcceptError,
) -> Result<(), AcceptError> {
    let (Some(script), Some(vm)) = (script, vm_of(&r.event_loop).cloned()) else {
        return Err(failed);
    };
    if let Some(handshake) = &mut r.contexts.handshake {
        handshake.place = phase.in_log();
    }
    let code = match vm.code(r, script) {
        Ok(code) => code,
        Err(error) => {
            log(r, Level::Error, format_args!("{error}{}", phase.in_log()));
            return Err(failed);
        }
    };
    match run::drive(&vm, Subject::Request(r), phase, Start::Script(&code)).await {
        ScriptOutcome::Abandoned => Err(HandshakeError::Closed.into()),
        ScriptOutcome::Failed | ScriptOutcome::Exit(Exit::Status(ERROR | 400..)) => Err(failed),
        ScriptOutcome::Finished | ScriptOutcome::Exit(_) => {
            keep_ctx(&vm, r);
            Ok(())
        }
    }
}

thread_local! {
    /// `ngx.ctx` of handshakes, by the number of the connection.
    static CONNECTION_CTX: RefCell<HashMap<u64, Anchor>> = RefCell::default();
}

/// Removes the `ngx.ctx` of a connection when it ends.
struct ConnectionCtx(u64);

impl Drop for ConnectionCtx {
    fn drop(&mut self) {
        let taken = CONNECTION_CTX
            .try_with(|all| all.try_borrow_mut().ok().and_then(|mut all| all.remove(&self.0)));
        drop(taken);
    }
}

/// Keeps the `ngx.ctx` of a handshake for the requests of its connection.
fn keep_ctx(vm: &Vm, r: &Request) {
    let ctx = CONTEXT.of(&r.contexts).and_then(|context| context.ctx.as_ref());
    let Some(Ok(ctx)) = ctx.map(Anchor::get::<Value>) else { return };
    let Ok(anchor) = vm.anchors.keep(ctx) else { return };
    let number = r.conn.number;
    if r.conn.keep(|| Box::new(ConnectionCtx(number))) {
        drop(CONNECTION_CTX.with_borrow_mut(|all| all.insert(number, anchor)));
    }
}

/// The number of the anchor with the `ngx.ctx` of the connection's handshake.
pub fn ctx_of(r: &Request) -> Option<usize> {
    let kept = || CONNECTION_CTX.with_borrow(|all| all.get(&r.conn.number).map(Anchor::number));
    if r.conn.stays() { kept() } else { None }
}

/// Logs for a request, or for the connection during its handshake.
pub fn log(r: &Request, level: Level, text: fmt::Arguments<'_>) {
    match &r.contexts.handshake {
        Some(_) => r.conn.log(r.site, r.error_log(), level, text),
        None => r.log(level, text),
    }
}
