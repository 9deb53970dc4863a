//! Reads the scripts of a `stream` block, with their settings.

use weir_conf::{Contexts, Directive as Line, Error};

use crate::config::Setup;
use crate::config::place::Place;
use crate::config::scope::{Scope, Set};
use crate::modules::lua::conf::{CONF, Conf};
use crate::modules::lua::script::{SESSIONS, Script, read};
use crate::modules::lua::tls;
use crate::site::location::Kind;
use crate::site::server::ServerConf;
use crate::site::settings::LocationConf;

/// Called at the end of each block of `http`. At the end of `http` itself, the scripts of `stream`
/// are read.
pub fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    tls::finish(s)?;
    match s.setup.inputs.sessions {
        Some(stream) if s.context == Contexts::HTTP && is_used(stream) => sessions(s.setup, stream),
        _ => Ok(()),
    }
}

/// Whether the block or a server in it has a directive of scripts.
pub fn is_used(stream: &Line) -> bool {
    stream.block().iter().any(|d| is_of_scripts(d) || d.block().iter().any(is_of_scripts))
}

fn is_of_scripts(d: &Line) -> bool {
    d.name.bytes.starts_with(b"lua_") || memchr::memmem::find(&d.name.bytes, b"_by_lua").is_some()
}

fn sessions(setup: &mut Setup<'_>, stream: &Line) -> Result<(), Error> {
    let mut around = LocationConf::new(setup.modules.settings);
    Scope::change(&mut around.core).error_log = setup.inputs.error_log.clone();
    setup.reads_sessions = true;
    let main = block(setup, stream.block(), around)?;
    for d in stream.block().iter().filter(|d| d.name.is("server")) {
        let server = block(setup, d.block(), main.clone())?;
        SESSIONS.draft(&mut setup.drafts).servers.push(server);
    }
    for d in stream.block().iter().filter(|d| d.name.is("upstream")) {
        balancer(setup, d, main.clone())?;
    }
    SESSIONS.draft(&mut setup.drafts).main = Some(main);
    setup.reads_sessions = false;
    Ok(())
}

/// Reads the lines of one block. Only directives of scripts count, and a few settings that they
/// need.
fn block(
    setup: &mut Setup<'_>,
    lines: &[Line],
    around: LocationConf,
) -> Result<LocationConf, Error> {
    let place = Place::new(b"", Kind::Server);
    let mut scope = Scope::new(setup, Contexts::SERVER, ServerConf::default(), around, place);
    for d in lines {
        let name = d.name.lossy();
        let shared = ["resolver", "resolver_timeout", "error_log"].contains(&&*name);
        match &*name {
            "preread_by_lua_block" | "preread_by_lua_file" => {
                script(&mut scope, d, |conf| &mut conf.preread)?;
            }
            "content_by_lua_block" | "content_by_lua_file" => {
                script(&mut scope, d, |conf| &mut conf.session)?;
            }
            "log_by_lua_block" | "log_by_lua_file" => script(&mut scope, d, |conf| &mut conf.log)?,
            _ if shared || is_of_scripts(d) => {
                if let Some(Set::Simple(set)) = scope.setup.modules.directive(&name).map(|d| d.set)
                {
                    set(&mut scope, d)?;
                }
            }
            _ => {}
        }
    }
    tls::finish(&mut scope)?;
    Ok(scope.location)
}

/// Reads `balancer_by_lua` of an upstream group.
fn balancer(setup: &mut Setup<'_>, group: &Line, around: LocationConf) -> Result<(), Error> {
    let place = Place::new(b"", Kind::Server);
    let mut scope = Scope::new(setup, Contexts::SERVER, ServerConf::default(), around, place);
    for d in group.block().iter().filter(|d| is_of_scripts(d)) {
        let (id, name) = (read(&mut scope, d, 0)?.known(d)?, group.arg(0));
        let name = name.map(|name| name.bytes.clone()).unwrap_or_default();
        SESSIONS.draft(&mut scope.setup.drafts).balancers.push((name, id));
    }
    Ok(())
}

fn script(
    s: &mut Scope<'_, '_>,
    d: &Line,
    field: fn(&mut Conf) -> &mut Option<Script>,
) -> Result<(), Error> {
    let script = read(s, d, 0)?.constant(d)?;
    *field(CONF.change(&mut s.location)) = Some(script);
    Ok(())
}
