//! The blocks of `core`: `server`, `location`, `types`.

use std::collections::HashMap;
use std::sync::Arc;

use weir_conf::{Contexts, Directive, DirectiveBody, Error, Word};

use crate::config::place::Place;
use crate::config::scope::{Scope, Spot};
use crate::listen::ListenLine;
use crate::site::Server;
use crate::site::location::{Key, Kind, LocationId};

/// `server { }`
pub fn server(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if s.setup.reuse_server() {
        return Ok(());
    }
    let begin = s.setup.begin_server();
    let id = s.setup.reserve();
    let place = Place { at: Some(d.name.pos), ..Place::new(b"", Kind::Server) };
    let (conf, location) = (s.server.clone(), s.location.inherited(&place.kind));
    let mut inner = Scope::new(s.setup, Contexts::SERVER, conf, location, place);
    inner.read(d.block())?;
    let says_where = inner.has_seen("listen");
    let Scope { setup, mut server, location, place, .. } = inner;
    let built = place.build(location, setup.modules, &|id| setup.auto_redirect(id))?;
    setup.place(id, built);
    if !says_where {
        server.listens = default_listen(d)?;
    }
    if server.names.is_empty() {
        server.names.push(crate::names::ServerName::Exact(Vec::new()));
    }
    let (listens, names) = (std::mem::take(&mut server.listens), std::mem::take(&mut server.names));
    let first_name =
        names.first().map(|name| String::from_utf8_lossy(&name.of_server()).into_owned());
    let first_name = first_name.unwrap_or_default();
    let at = Spot::new(d, &d.name);
    let server = Server { conf: server, names, first_name, location: id, at };
    setup.servers.push((Arc::new(server), listens));
    setup.end_server(&begin);
    Ok(())
}

/// The `listen` of a server without one: port 80, or 8000 if weir does not run as root.
fn default_listen(d: &Directive) -> Result<Vec<ListenLine>, Error> {
    let port = if rustix::process::geteuid().is_root() { "80" } else { "8000" };
    let word = Word { bytes: port.as_bytes().to_vec(), pos: d.name.pos, quoted: false };
    let line = Directive { args: vec![word], body: DirectiveBody::None, ..d.clone() };
    crate::listen::parse(&line, true, &mut Vec::new())
}

/// `location [modifier] name { }`
pub fn location(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let (kind, key, word, name) = selector(s, d)?;
    let shown = String::from_utf8_lossy(name);
    check_nesting(s, d, &kind, (word, name))?;
    let id = open(s, d, Place::new(name, kind))?;
    let duplicate = d.error_at(word, format!("duplicate location \"{shown}\""));
    s.place.inner.push((id, key, duplicate));
    Ok(())
}

/// Reads a block into a location that inherits from this scope.
pub fn open(s: &mut Scope<'_, '_>, d: &Directive, place: Place) -> Result<LocationId, Error> {
    let id = s.setup.reserve();
    open_reserved(s, d, place, Contexts::LOCATION, id)?;
    Ok(id)
}

/// The same for a reserved place and another context (`if`, `limit_except`).
pub fn open_reserved(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    place: Place,
    context: Contexts,
    id: LocationId,
) -> Result<(), Error> {
    let (conf, location) = (s.server.clone(), s.location.inherited(&place.kind));
    let place = Place { at: Some(d.name.pos), ..place };
    let mut inner = Scope::new(s.setup, context, conf, location, place);
    inner.read(d.block())?;
    let Scope { setup, server, location, place, .. } = inner;
    let built = place.build(location, setup.modules, &|id| setup.auto_redirect(id))?;
    setup.place(id, built);
    // CONNECT must be allowed before the request's path is known, so it is allowed in the whole
    // server.
    s.server.head_limits.allow_connect |= server.head_limits.allow_connect;
    Ok(())
}

/// How the location is selected, and its name. The modifier may be a word of its own or part of the
/// name.
fn selector<'d>(
    s: &mut Scope<'_, '_>,
    d: &'d Directive,
) -> Result<(Kind, Key, &'d Word, &'d [u8]), Error> {
    let (modifier, name, word) = match d.args.as_slice() {
        [modifier, word] => (modifier.bytes.as_slice(), word.bytes.as_slice(), word),
        [word, ..] => {
            let (modifier, name) = split_modifier(&word.bytes);
            (modifier, name, word)
        }
        [] => return Err(d.error("invalid number of arguments in \"location\" directive")),
    };
    let (kind, key) = match modifier {
        b"=" => (Kind::Exact, Key::Exact(name.to_vec())),
        b"^~" => (Kind::Prefix { noregex: true }, Key::Prefix(name.to_vec())),
        b"~" => (Kind::Regex(s.setup.regex(d, word, name, false)?), Key::Regex),
        b"~*" => (Kind::Regex(s.setup.regex(d, word, name, true)?), Key::Regex),
        b"" if d.args.len() == 1 && name.starts_with(b"@") => {
            (Kind::Named, Key::Named(name.to_vec()))
        }
        b"" if d.args.len() == 1 => (Kind::Prefix { noregex: false }, Key::Prefix(name.to_vec())),
        _ => return Err(d.invalid("location modifier", d.args.first().unwrap_or(word))),
    };
    Ok((kind, key, word, name))
}

/// Splits the modifier off a word.
fn split_modifier(word: &[u8]) -> (&[u8], &[u8]) {
    let modifiers: [&[u8]; 4] = [b"=", b"^~", b"~*", b"~"];
    let begins = modifiers.into_iter().find(|modifier| word.starts_with(modifier));
    word.split_at(begins.map_or(0, <[u8]>::len))
}

fn check_nesting(
    s: &Scope<'_, '_>,
    d: &Directive,
    kind: &Kind,
    (word, name): (&Word, &[u8]),
) -> Result<(), Error> {
    let (inner, outer) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&s.place.name));
    match (&s.place.kind, kind) {
        (Kind::Server, _) => Ok(()),
        (Kind::Exact, _) => Err(d.error_at(
            word,
            format!("location \"{inner}\" cannot be inside the exact location \"{outer}\""),
        )),
        (Kind::Named, _) => Err(d.error_at(
            word,
            format!("location \"{inner}\" cannot be inside the named location \"{outer}\""),
        )),
        (_, Kind::Named) => Err(
            d.error_at(word, format!("named location \"{inner}\" can be on the server level only"))
        ),
        (Kind::Prefix { .. } | Kind::Regex(_), Kind::Prefix { .. } | Kind::Exact)
            if !name.starts_with(&s.place.name) =>
        {
            Err(d.error_at(word, format!("location \"{inner}\" is outside location \"{outer}\"")))
        }
        _ => Ok(()),
    }
}

/// `types { type extension...; }`
pub fn types(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let mut map = if s.first(d) { HashMap::new() } else { (*s.location.core.types).clone() };
    for line in d.block() {
        let kind = s.setup.line_text(line, &line.name, &line.name.bytes);
        for extension in &line.args {
            let key = extension.bytes.to_ascii_lowercase();
            let old = map.insert(key, kind.to_vec());
            if let Some(old) = old {
                s.setup.warnings.push(line.warning(format!(
                    "duplicate extension \"{}\", content type: \"{}\", previous content type: \"{}\"",
                    extension.lossy(),
                    line.name.lossy(),
                    String::from_utf8_lossy(&old)
                )));
            }
        }
    }
    Scope::change(&mut s.location.core).types = Arc::new(map);
    Ok(())
}
