//! Adds headers and trailers, and sets the expiry of responses. nginx:
//! ngx_http_headers_filter_module.

use std::sync::Arc;

use weir_conf::{Error, Word};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_values::Template;

mod expires;

use expires::Expires;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    expires: Option<Expires>,
    headers: List,
    trailers: List,
}

/// The lines of `add_header` or `add_trailer`.
#[derive(Debug, Clone, Default)]
struct List {
    /// The lines in force.
    lines: Vec<AddedHeader>,
    /// The lines of the outer block.
    outer: Vec<AddedHeader>,
    inherit: Inherit,
}

/// `add_header_inherit`, `add_trailer_inherit`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Inherit {
    /// Inherits if the block has no lines of its own.
    #[default]
    On,
    /// Does not inherit.
    Off,
    /// Inherits in addition to the block's own lines.
    Merge,
}

/// A header or trailer of `add_header`, `add_trailer`.
#[derive(Debug, Clone)]
struct AddedHeader {
    name: Vec<u8>,
    value: Template,
    kind: AddedKind,
    /// Whether it is added for every status.
    always: bool,
}

/// How a header is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddedKind {
    Plain,
    LastModified,
    ETag,
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>, _: &crate::site::location::Kind) {
        if conf.headers.is_empty() && conf.trailers.is_empty() {
            return;
        }
        let conf = Arc::make_mut(conf);
        conf.headers.enter();
        conf.trailers.enter();
    }
}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let conf = CONF.of(&s.location);
    if conf.headers.outer.is_empty() && conf.trailers.outer.is_empty() {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    conf.headers.finish();
    conf.trailers.finish();
    Ok(())
}

impl List {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.outer.is_empty()
    }

    fn enter(&mut self) {
        self.outer = std::mem::take(&mut self.lines);
    }

    fn finish(&mut self) {
        let outer = std::mem::take(&mut self.outer);
        let inherits = match self.inherit {
            Inherit::On => self.lines.is_empty(),
            Inherit::Off => false,
            Inherit::Merge => true,
        };
        if inherits {
            self.lines.extend(outer);
        }
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "expires",
        help: "Sets `Expires` and `Cache-Control` of responses.",
        set: Set::Simple(expires::set),
    },
    Directive { name: "add_header", help: "Adds a header to responses.", set: Set::Simple(add) },
    Directive { name: "add_trailer", help: "Adds a trailer to responses.", set: Set::Simple(add) },
    Directive {
        name: "add_header_inherit",
        help: "Whether headers of outer blocks are inherited.",
        set: Set::Simple(inherit),
    },
    Directive {
        name: "add_trailer_inherit",
        help: "Whether trailers of outer blocks are inherited.",
        set: Set::Simple(inherit),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_headers_filter", directives: DIRECTIVES, finish, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    let conf = CONF.of(conf);
    let lists = [&conf.headers, &conf.trailers];
    conf.expires.is_some() || lists.iter().any(|list| !list.lines.is_empty())
}

/// Adds headers, and declares trailers.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    if !r.is_main() {
        return Ok(());
    }
    let conf = CONF.of(r.conf());
    let safe = is_safe(r.response.status);
    if let Some(expires) = conf.expires.as_ref().filter(|_| safe) {
        expires.apply(r);
    }
    for line in conf.headers.lines.iter().filter(|line| safe || line.always) {
        let value = line.value.eval(r).into_owned();
        line.add(r, &value);
    }
    if conf.trailers.lines.iter().any(|line| safe || line.always) {
        r.response.expects_trailers = true;
    }
    Ok(())
}

/// Whether responses of a location have trailers.
pub fn wants_trailers(conf: &LocationConf) -> bool {
    !CONF.of(conf).trailers.lines.is_empty()
}

/// Adds trailers. Their values are evaluated after the last of the body.
pub fn trailer_filter(r: &mut Request) {
    let conf = CONF.of(r.conf());
    let safe = is_safe(r.response.status);
    for line in conf.trailers.lines.iter().filter(|line| safe || line.always) {
        let value = line.value.eval(r).into_owned();
        if !value.is_empty() {
            r.response.trailers.add(&line.name, &value);
        }
    }
}

/// The statuses for which headers are added without `always`.
fn is_safe(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}

impl AddedHeader {
    fn add(&self, r: &mut Request, value: &[u8]) {
        match self.kind {
            AddedKind::Plain if value.is_empty() => {}
            AddedKind::Plain => r.response.headers.add(&self.name, value),
            AddedKind::ETag => r.response.etag = (!value.is_empty()).then(|| value.to_vec()),
            AddedKind::LastModified => r.response.set_last_modified(value),
        }
    }
}

/// `add_header name value [always]`, `add_trailer ...`
fn add(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let (Some(name), Some(value)) = (d.arg(0), d.arg(1)) else { return Ok(()) };
    let always = match d.arg(2) {
        None => false,
        Some(word) if word.is("always") => true,
        Some(word) => {
            return Err(d.invalid("parameter", word));
        }
    };
    let value = s.setup.line(d, value)?;
    let Some(line_name) = s.setup.line_name(d, name, &name.bytes) else { return Ok(()) };
    let trailer = d.name.is("add_trailer");
    let kind = if trailer { AddedKind::Plain } else { kind(name) };
    let conf = CONF.change(&mut s.location);
    let list = if trailer { &mut conf.trailers } else { &mut conf.headers };
    list.lines.push(AddedHeader { name: line_name, value, kind, always });
    Ok(())
}

fn kind(name: &Word) -> AddedKind {
    if name.bytes.eq_ignore_ascii_case(b"last-modified") {
        AddedKind::LastModified
    } else if name.bytes.eq_ignore_ascii_case(b"etag") {
        AddedKind::ETag
    } else {
        AddedKind::Plain
    }
}

fn inherit(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let how = d.choice(&[("on", Inherit::On), ("off", Inherit::Off), ("merge", Inherit::Merge)])?;
    let conf = CONF.change(&mut s.location);
    if d.name.is("add_trailer_inherit") {
        conf.trailers.inherit = how;
    } else {
        conf.headers.inherit = how;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::CONF;
    use crate::trial::{complaint, site};

    /// The header names of the innermost location.
    fn names(http: &str) -> Vec<String> {
        let site = site(http).unwrap();
        let inner = site.locations().iter().find(|l| l.name == b"/x").unwrap();
        let lines = CONF.of(&inner.conf).headers.lines.iter();
        lines.map(|line| String::from_utf8_lossy(&line.name).into_owned()).collect()
    }

    #[test]
    fn a_line_of_a_block_replaces_the_inherited_ones() {
        let around = "add_header A 1; server { add_header B 1;";
        assert_eq!(names(&format!("{around} location /x {{ }} }}")), ["B"]);
        assert_eq!(names(&format!("{around} location /x {{ add_header C 1; }} }}")), ["C"]);
    }

    #[test]
    fn inheritance_may_be_chosen() {
        let around = "add_header A 1; server {";
        let with = |inside: &str| names(&format!("{around} location /x {{ {inside} }} }}"));
        assert_eq!(with("add_header_inherit off;"), [""; 0]);
        assert_eq!(with("add_header C 1; add_header_inherit merge;"), ["C", "A"]);
        assert_eq!(with("add_header_inherit merge;"), ["A"]);
        let nested = "add_header_inherit merge; add_header A 1; server { add_header B 1; \
                      location /x { add_header C 1; } }";
        assert_eq!(names(nested), ["C", "B", "A"]);
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        assert_eq!(complaint("add_header a b never;"), "invalid parameter \"never\"");
        assert_eq!(complaint("add_header a $;"), "invalid variable name");
    }
}
