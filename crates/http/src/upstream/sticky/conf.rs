//! The directive `sticky`.

use std::time::Duration;

use weir_conf::{Directive, Error, Word, values};
use weir_zone::Use;

use super::{Cookie, Expires, Sessions, Sticky, TAG};
use crate::config::scope::Scope;
use crate::variables::VariableId;

/// Eight pages, the least that nginx's slab allocator takes.
const SMALLEST_ZONE: u64 = 8 * 4096;
/// How long an unused session is kept, unless `timeout=` says otherwise.
const KEPT: Duration = Duration::from_secs(600);
/// The values of the cookie attribute `SameSite`.
const SAME_SITE: [&[u8]; 3] = [b"strict", b"lax", b"none"];

/// `sticky cookie | route | learn ...` of the upstream of this name.
pub fn read(s: &mut Scope<'_, '_>, d: &Directive, upstream: &str) -> Result<Sticky, Error> {
    let Some(kind) = d.args.first() else { return Err(d.problem("is empty")) };
    match kind.bytes.as_slice() {
        b"cookie" => cookie(s, d),
        b"route" => route(s, d),
        b"learn" => learn(s, d, upstream),
        _ => Err(unknown(d, kind)),
    }
}

fn unknown(d: &Directive, word: &Word) -> Error {
    d.error_at(word, format!("unknown parameter \"{}\"", word.lossy()))
}

fn cookie(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Sticky, Error> {
    let name = d.args.get(1).filter(|name| !name.bytes.is_empty());
    let name = name.ok_or_else(|| d.problem("empty cookie name"))?;
    let text = s.setup.line_text(d, name, &name.bytes).into_owned();
    let mut cookie = Cookie { name: text, ..Cookie::default() };
    for word in d.args.iter().skip(2) {
        attribute(s, d, word, &mut cookie)?;
    }
    let variable = [b"cookie_", name.bytes.as_slice()].concat();
    let lookup = vec![s.setup.variables.refer(&variable)];
    Ok(Sticky { lookup, cookie: Some(cookie), sessions: None })
}

fn attribute(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    word: &Word,
    cookie: &mut Cookie,
) -> Result<(), Error> {
    let text = word.bytes.as_slice();
    let (name, value) = match memchr::memchr(b'=', text) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (first, name) = match (name, value) {
        (b"httponly", None) => (!std::mem::replace(&mut cookie.http_only, true), "httponly"),
        (b"secure", None) => (!std::mem::replace(&mut cookie.secure, true), "secure"),
        (b"domain", Some(b"")) => return Err(d.problem("no value for \"domain\"")),
        (b"domain", Some(value)) => {
            let new = s.setup.line_of(d, word, value)?;
            (cookie.domain.replace(new).is_none(), "domain")
        }
        (b"path", Some(b"")) => return Err(d.problem("no value for \"path\"")),
        (b"path", Some(value)) => {
            let new = s.setup.line_text(d, word, value).into_owned();
            (cookie.path.replace(new).is_none(), "path")
        }
        (b"expires", Some(value)) => {
            let wrong = || d.problem("invalid \"expires\" parameter value");
            let new = match value {
                b"max" => Expires::Max,
                _ => Expires::After(values::sec(value).ok_or_else(wrong)?),
            };
            (cookie.expires.replace(new).is_none(), "expires")
        }
        (b"samesite", Some(value)) => {
            let new = s.setup.template_of(d, word, value)?;
            if new.constant().is_some() && !is_same_site(value) {
                return Err(d.problem("invalid \"samesite\" parameter value"));
            }
            (cookie.same_site.replace(new).is_none(), "samesite")
        }
        _ => return Err(unknown(d, word)),
    };
    match first {
        true => Ok(()),
        false => Err(d.problem(&format!("parameter \"{name}\" is duplicate"))),
    }
}

/// Whether browsers know this value of `samesite`.
pub fn is_same_site(value: &[u8]) -> bool {
    SAME_SITE.iter().any(|known| known.eq_ignore_ascii_case(value))
}

fn route(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Sticky, Error> {
    let words = d.args.iter().skip(1);
    let lookup = words.map(|word| s.refer_variable(d, word)).collect::<Result<_, _>>()?;
    Ok(Sticky { lookup, cookie: None, sessions: None })
}

/// The parameters of `learn` while it is read.
#[derive(Default)]
struct Learn {
    zone: Option<(String, u64)>,
    timeout: Option<Duration>,
    create: Vec<VariableId>,
    lookup: Vec<VariableId>,
    header: bool,
}

fn learn(s: &mut Scope<'_, '_>, d: &Directive, upstream: &str) -> Result<Sticky, Error> {
    let mut learn = Learn::default();
    for word in d.args.iter().skip(1) {
        learn.read(s, d, word)?;
    }
    let missing = |name| d.problem(&format!("\"{name}\" parameter is not specified"));
    if learn.lookup.is_empty() {
        return Err(missing("lookup"));
    }
    if learn.create.is_empty() {
        return Err(missing("create"));
    }
    let (name, size) = learn.zone.ok_or_else(|| missing("zone"))?;
    let zones = s.setup.inputs.zones;
    if let Ok(known) = zones.find(&name, TAG) {
        let other = &known.purpose().key;
        let text = format!("sticky zone \"{name}\" is already used in upstream \"{other}\"");
        return Err(d.error(text));
    }
    let purpose = Use { key: upstream.to_owned(), ..Use::of(TAG, super::VALUES) };
    let zone = zones.declare(&name, size, purpose).map_err(|text| d.error(text))?;
    let sessions = Sessions {
        zone,
        timeout: learn.timeout.unwrap_or(KEPT),
        create: learn.create,
        at_header: learn.header,
    };
    Ok(Sticky { lookup: learn.lookup, cookie: None, sessions: Some(sessions) })
}

impl Learn {
    fn read(&mut self, s: &mut Scope<'_, '_>, d: &Directive, word: &Word) -> Result<(), Error> {
        let text = word.bytes.as_slice();
        if text == b"header" {
            self.header = true;
            return Ok(());
        }
        let at = memchr::memchr(b'=', text).ok_or_else(|| unknown(d, word))?;
        let (name, value) = (&text[..at], &text[at + 1..]);
        match name {
            b"zone" => self.zone(d, value),
            b"timeout" if self.timeout.is_some() => Err(d.problem("duplicate timeout")),
            b"timeout" => {
                let time = values::msec(value).filter(|t| *t > 0);
                let time = time.ok_or_else(|| d.problem("invalid timeout"))?;
                self.timeout = Some(Duration::from_millis(time));
                Ok(())
            }
            b"create" => variable(s, d, value, "create").map(|id| self.create.push(id)),
            b"lookup" => variable(s, d, value, "lookup").map(|id| self.lookup.push(id)),
            _ => Err(unknown(d, word)),
        }
    }

    fn zone(&mut self, d: &Directive, value: &[u8]) -> Result<(), Error> {
        if self.zone.is_some() {
            return Err(d.problem("duplicate zone"));
        }
        let at = memchr::memchr(b':', value);
        let at = at.ok_or_else(|| d.problem("zone size is not specified"))?;
        if at == 0 {
            return Err(d.problem("zone name is not specified"));
        }
        let size = values::size(&value[at + 1..]).ok_or_else(|| d.problem("invalid zone size"))?;
        if size < SMALLEST_ZONE {
            return Err(d.problem("zone is too small"));
        }
        self.zone = Some((String::from_utf8_lossy(&value[..at]).into_owned(), size));
        Ok(())
    }
}

fn variable(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    value: &[u8],
    parameter: &str,
) -> Result<VariableId, Error> {
    let name = value.strip_prefix(b"$");
    let text = || d.problem(&format!("missing variable in the \"{parameter}\" parameter"));
    match name.ok_or_else(text)? {
        b"" => Err(d.error("invalid variable name \"$\"")),
        name => Ok(s.setup.variables.refer(name)),
    }
}
