//! The phases of handshakes with upstream servers: `proxy_ssl_certificate_by_lua` and
//! `proxy_ssl_verify_by_lua`.

use std::sync::Arc;

use weir_conf::{Directive, Error};
use weir_engine::Boxed;
use weir_log::Level;

use super::current::{Phase, Subject};
use super::phases::ERROR;
use super::run::{self, ScriptOutcome, Start};
use super::script::{Script, read_known};
use super::vm::vm_of;
use super::yield_request::Exit;
use crate::config::scope::Scope;
use crate::modules::proxy;
use crate::request::Request;
use crate::upstream::tls::{HandshakeScripts, Part, TakePart};

#[derive(Debug)]
struct HandshakeScript(Phase, Script);

impl TakePart for HandshakeScript {
    fn run<'r>(&'r self, r: &'r mut Request) -> Boxed<'r, Part> {
        let HandshakeScript(phase, script) = self;
        Boxed::new(move || perform(r, *phase, script))
    }
}

async fn perform(r: &mut Request, phase: Phase, script: &Script) -> Part {
    let Some(vm) = vm_of(&r.event_loop).cloned() else { return Part::Ends };
    let code = match vm.code(r, script) {
        Ok(code) => code,
        Err(error) => {
            r.log(Level::Error, format_args!("{error}{}", phase.in_log()));
            return Part::Ends;
        }
    };
    match run::drive(&vm, Subject::Request(r), phase, Start::Script(&code)).await {
        ScriptOutcome::Abandoned => Part::Abandoned,
        ScriptOutcome::Failed | ScriptOutcome::Exit(Exit::Status(ERROR | 400..)) => Part::Ends,
        ScriptOutcome::Finished | ScriptOutcome::Exit(_) => Part::Goes,
    }
}

/// `proxy_ssl_certificate_by_lua_block` and `proxy_ssl_certificate_by_lua_file`
pub fn certificate(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let script = script(s, d, "proxy_ssl_certificate_by_lua", Phase::ServerCertificate)?;
    scripts(s).certificate = Some(script);
    Ok(())
}

/// `proxy_ssl_verify_by_lua_block` and `proxy_ssl_verify_by_lua_file`
pub fn verify(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let script = script(s, d, "proxy_ssl_verify_by_lua", Phase::ServerVerify)?;
    scripts(s).verify = Some(script);
    Ok(())
}

/// `lua_upstream_skip_openssl_default_verify`
pub fn any_path(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    s.once(d)?;
    proxy::CONF.change(&mut s.location).passing.any_path = d.flag()?;
    Ok(())
}

/// Reads a script. A block may have one form of the directive only.
fn script(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    family: &'static str,
    phase: Phase,
) -> Result<Arc<dyn TakePart>, Error> {
    if !s.first_of(family) {
        return Err(d.problem("is duplicate"));
    }
    let script = Arc::new(HandshakeScript(phase, Script::Known(read_known(s, d, 0)?)));
    scripts(s).said = Some(family);
    Ok(script)
}

fn scripts<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut HandshakeScripts {
    let passing = &mut proxy::CONF.change(&mut s.location).passing;
    Arc::make_mut(passing.scripts.get_or_insert_default())
}
