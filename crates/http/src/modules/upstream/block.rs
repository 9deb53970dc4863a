//! `upstream { }`: servers, balancing method and keep-alive connections.

use std::sync::Arc;
use std::time::Duration;

use crate::config::known::digest;
use crate::config::scope::{Scope, Set};
use crate::request::Request;
use crate::upstream::groups::{Block, GROUPS};
use weir_conf::{Directive, Error, Word, values};
use weir_resolver::ResolverConf as Resolver;
use weir_upstream::config::{QueueSettings, server};
use weir_values::Reading;

/// `upstream NAME { }`
pub fn upstream(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(name) = d.args.first() else { return Ok(()) };
    let digest = digest([d]);
    let (before, zones) = (s.setup.previous_site(), s.setup.inputs.zones);
    let groups = before.map(|site| GROUPS.of(&site.main_confs));
    let draft = GROUPS.draft(&mut s.setup.drafts);
    if groups.is_some_and(|groups| draft.all.take(&name.bytes, &digest, (groups, zones))) {
        return Ok(());
    }
    let draft = GROUPS.draft(&mut s.setup.drafts);
    if draft.all.is_defined(&name.bytes) {
        return Err(d.error_at(name, format!("duplicate upstream \"{}\"", name.lossy())));
    }
    let new = Block::new(name.lossy().into_owned());
    let outer = draft.block.replace(new);
    for line in d.block() {
        read(s, line)?;
    }
    let draft = GROUPS.draft(&mut s.setup.drafts);
    let Some(block) = std::mem::replace(&mut draft.block, outer) else { return Ok(()) };
    if !block.has_servers() {
        return Err(Error::emerg("no servers are inside upstream").at(d.close).mark(name.pos));
    }
    draft.all.define(d, name, block, Some(digest))
}

fn read(s: &mut Scope<'_, '_>, line: &Directive) -> Result<(), Error> {
    let name = line.name.lossy();
    match &*name {
        // Outside of this block, these names are other directives.
        "server" => with(s, line, |s, block| server(block, s.warnings, line, 80)),
        "keepalive_requests" => {
            block(s, line)?.keepalive.requests = line.number()?;
            Ok(())
        }
        "keepalive_time" => {
            block(s, line)?.keepalive.time = line.duration()?;
            Ok(())
        }
        "keepalive_timeout" => {
            block(s, line)?.keepalive.timeout = line.duration()?;
            Ok(())
        }
        "resolver" => {
            block(s, line)?.resolver = Some(Arc::new(Resolver::read(line)?));
            Ok(())
        }
        "resolver_timeout" => {
            block(s, line)?.resolver_timeout = Some(line.duration()?);
            Ok(())
        }
        _ => match s.setup.modules.directive(&name).map(|d| d.set) {
            Some(Set::Simple(set)) => set(s, line),
            _ => Err(line.error(format!("unknown directive \"{name}\""))),
        },
    }
}

/// Reads a line with the block that is being read.
pub fn with(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    read: impl FnOnce(&mut Reading<'_, Request>, &mut Block) -> Result<(), Error>,
) -> Result<(), Error> {
    let draft = GROUPS.draft(&mut s.setup.drafts);
    let mut own = draft.block.take().ok_or_else(|| d.problem("is not allowed here"))?;
    let done = read(&mut s.setup.reading(), &mut own);
    GROUPS.draft(&mut s.setup.drafts).block = Some(own);
    done
}

/// The block that is being read. The tables of `conf` allow such directives only inside of one.
pub fn block<'s>(s: &'s mut Scope<'_, '_>, d: &Directive) -> Result<&'s mut Block, Error> {
    let draft = GROUPS.draft(&mut s.setup.drafts);
    draft.block.as_mut().ok_or_else(|| d.problem("is not allowed here"))
}

/// `keepalive CONNECTIONS [local]`
pub fn keepalive(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let n = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
        let text = format!("invalid value \"{}\" in \"keepalive\" directive", word.lossy());
        d.error_at(word, text)
    })?;
    if let Some(word) = d.args.get(1).filter(|w| !w.is("local")) {
        return Err(d.invalid("parameter", word));
    }
    let keepalive = &mut block(s, d)?.keepalive;
    (keepalive.idle, keepalive.local) = (n, d.args.len() > 1);
    Ok(())
}

/// `sticky cookie | route | learn ...`
pub fn sticky(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if block(s, d)?.extras.sticky.is_some() {
        return Err(d.problem("is duplicate"));
    }
    let name = block(s, d)?.name.clone();
    let sticky = crate::upstream::sticky::read(s, d, &name)?;
    block(s, d)?.extras.sticky = Some(sticky);
    Ok(())
}

/// `queue NUMBER [timeout=TIME]`
pub fn queue(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let invalid = |w: &Word| d.invalid("parameter", w);
    let most = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok());
    let mut queue = QueueSettings::new(most.filter(|n| *n > 0).ok_or_else(|| invalid(word))?);
    if let Some(word) = d.args.get(1) {
        let time = word.bytes.strip_prefix(b"timeout=").and_then(values::msec);
        queue.timeout = Duration::from_millis(time.ok_or_else(|| invalid(word))?);
    }
    let block = block(s, d)?;
    if block.queue.replace(queue).is_some() {
        return Err(d.problem("is duplicate"));
    }
    Ok(())
}
