//! The directives of `core`.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, values};

use super::conf::Root;
use super::{blocks, errors};
use crate::names::ServerName;
use crate::regex::Regex;
use crate::scope::{Directive, Scope, Set, setting};
use crate::template::Template;

pub const DIRECTIVES: &[Directive] = &[
    Directive { name: "server", help: "A virtual server.", set: Set::Block(blocks::server) },
    Directive {
        name: "location",
        help: "Settings for some paths.",
        set: Set::Block(blocks::location),
    },
    Directive {
        name: "types",
        help: "Types by file name extension.",
        set: Set::Simple(blocks::types),
    },
    Directive {
        name: "listen",
        help: "An address that the server answers on.",
        set: Set::Simple(listen),
    },
    Directive {
        name: "server_name",
        help: "Host names that select the server.",
        set: Set::Simple(server_name),
    },
    Directive {
        name: "root",
        help: "The directory that paths are looked up in.",
        set: Set::Simple(root),
    },
    Directive {
        name: "alias",
        help: "The directory that stands for the location's name.",
        set: Set::Simple(root),
    },
    Directive { name: "error_page", help: "The page for a status.", set: Set::Simple(errors::set) },
    Directive {
        name: "internal",
        help: "Only internal redirects reach the location.",
        set: Set::Simple(internal),
    },
    Directive {
        name: "default_type",
        help: "The type where the extension tells none.",
        set: Set::Simple(default_type),
    },
    Directive {
        name: "keepalive_timeout",
        help: "How long an idle connection stays.",
        set: Set::Simple(keepalive_timeout),
    },
    setting!(
        "keepalive_requests",
        core.keepalive_requests,
        Line::number,
        "Requests on one connection."
    ),
    setting!("etag", core.etag, Line::flag, "Whether files get an ETag."),
];

fn listen(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut lines = crate::listen::parse(d)?;
    if s.first(d) {
        s.server.listens.clear();
    }
    s.server.listens.append(&mut lines);
    Ok(())
}

fn server_name(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    for word in &d.args {
        if s.server.first_name.is_none() {
            s.server.first_name = Some(word.lossy().into_owned());
        }
        if let Some(pattern) = word.bytes.strip_prefix(b"~") {
            let regex = Regex::new(&mut s.setup.variables, pattern, true);
            let regex = regex.map_err(|text| d.error_at(word, text))?;
            s.server.names.push(ServerName::Regex(regex));
            continue;
        }
        let names = ServerName::parse(&word.bytes).ok_or_else(|| {
            d.error_at(word, format!("invalid server name or wildcard \"{}\"", word.lossy()))
        })?;
        s.server.names.extend(names);
    }
    Ok(())
}

fn root(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let alias = d.name.bytes == b"alias";
    let Some(word) = d.args.first() else { return Ok(()) };
    let conf = Scope::change(&mut s.location.core);
    if conf.root.set {
        let other = if conf.root.alias { "alias" } else { "root" };
        let name = d.name.lossy();
        return Err(match other == name {
            true => d.problem("is duplicate"),
            false => {
                d.problem(&format!("is duplicate, \"{other}\" directive was specified earlier"))
            }
        });
    }
    let mut text = word.bytes.clone();
    if !alias && text.ends_with(b"/") {
        text.pop();
    }
    if !text.starts_with(b"$") {
        use std::os::unix::ffi::OsStringExt;
        text = s.setup.path(&text).into_os_string().into_vec();
    }
    let value = Template::new(&mut s.setup.variables, &text).map_err(|e| d.error_at(word, e))?;
    conf.root = Root { value, alias, alias_of: s.place.name.len(), set: true };
    Ok(())
}

fn internal(s: &mut Scope<'_, '_>, _: &Line) -> Result<(), Error> {
    Arc::make_mut(&mut s.location.core).internal = true;
    Ok(())
}

fn default_type(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let text = d.args.first().map_or(Vec::new(), |w| w.bytes.clone());
    Arc::make_mut(&mut s.location.core).default_type = text;
    Ok(())
}

fn keepalive(d: &Line) -> Result<std::time::Duration, Error> {
    let value = d.arg(0).and_then(|word| values::duration(&word.bytes));
    value.ok_or_else(|| d.problem("invalid value"))
}

fn keepalive_timeout(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let timeout = keepalive(d)?;
    let conf = Arc::make_mut(&mut s.location.core);
    conf.keepalive_timeout = timeout;
    conf.keepalive_header = None;
    if let Some(word) = d.args.get(1) {
        let seconds = values::sec(&word.bytes);
        conf.keepalive_header = Some(seconds.ok_or_else(|| d.problem("invalid second parameter"))?);
    }
    Ok(())
}
