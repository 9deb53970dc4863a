//! Sets and clears headers of requests and responses, including those from upstream servers. nginx:
//! the headers-more module.

use weir_conf::{Error, Word, values};

use crate::answer::change::{WITH_A_FIELD, set_answer, set_request};
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::config::types;
use crate::modules::rewrite;
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_values::escape::is_name;
use weir_values::{Subject, Template};

/// Settings. The edits of a block follow the inherited ones.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    answers: Vec<HeaderEdit>,
    requests: Vec<HeaderEdit>,
}

impl Settings for Conf {}

/// One directive.
#[derive(Debug, Clone)]
struct HeaderEdit {
    lines: Vec<EditedHeader>,
    how: EditMode,
    /// `-s`: answers of these statuses only.
    statuses: Vec<u16>,
    /// `-t`: bodies of these types only.
    types: Vec<Vec<u8>>,
}

/// What happens to existing lines of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditMode {
    /// They are replaced by one.
    Set,
    /// `-r`: they are replaced by one. Without such lines, nothing happens.
    Replace,
    /// `-a`: they stay, and another is added.
    Add,
    /// They are removed.
    Clear,
}

/// A header that a directive names.
#[derive(Debug, Clone)]
struct EditedHeader {
    name: Vec<u8>,
    /// `*`: all headers whose names begin with `name`.
    is_prefix: bool,
    /// Empty to remove the header.
    value: Template,
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "more_set_headers",
        help: "Sets headers of responses, optionally only for some statuses (`-s`) or content types (`-t`).",
        set: Set::Simple(read),
    },
    Directive {
        name: "more_clear_headers",
        help: "Removes headers of responses; `X-*`: all whose names begin with `X-`.",
        set: Set::Simple(read),
    },
    Directive {
        name: "more_set_input_headers",
        help: "Sets headers of the request after the rewrite phase, or only replaces them (`-r`).",
        set: Set::Simple(read),
    },
    Directive {
        name: "more_clear_input_headers",
        help: "Removes headers of the request.",
        set: Set::Simple(read),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_headers_more_filter", directives: DIRECTIVES, ..Module::NEW };

/// Whether headers of responses are changed.
pub fn wants_answers(conf: &LocationConf) -> bool {
    !CONF.of(conf).answers.is_empty()
}

/// Whether headers of requests are changed.
pub fn wants_requests(conf: &LocationConf) -> bool {
    !CONF.of(conf).requests.is_empty() || rewrite::has_blocks(conf)
}

/// Changes the headers of a response, before `add_header` adds to them.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    for change in &CONF.of(r.conf()).answers {
        let response = &r.response;
        let status = change.statuses.is_empty() || change.statuses.contains(&response.status);
        if status && change.applies_to(&response.content_type) {
            change.lines.iter().for_each(|line| line.change_answer(r, change.how));
        }
    }
    Ok(())
}

/// Changes the headers of a request, in its final location.
pub fn handler(r: &mut Request) -> Step {
    for change in &CONF.of(r.conf()).requests {
        if change.applies_to(r.header_named(b"Content-Type").unwrap_or_default()) {
            change.lines.iter().for_each(|line| line.change_request(r, change.how));
        }
    }
    Step::Next
}

impl HeaderEdit {
    /// Whether the edit applies to a body of this type. Parameters of the type are ignored.
    fn applies_to(&self, content_type: &[u8]) -> bool {
        let kind = types::without_parameters(content_type);
        self.types.is_empty() || self.types.iter().any(|t| t.eq_ignore_ascii_case(kind))
    }
}

impl EditedHeader {
    fn matches(&self, name: &[u8]) -> bool {
        match name.get(..self.name.len()) {
            Some(start) if self.is_prefix => start.eq_ignore_ascii_case(&self.name),
            _ => name.eq_ignore_ascii_case(&self.name),
        }
    }

    fn change_answer(&self, r: &mut Request, how: EditMode) {
        let mut value = self.value.eval(r).into_owned();
        if how == EditMode::Add && !value.is_empty() {
            r.within_line(&mut value, 0);
            r.response.headers.add(&self.name, &value);
            return;
        }
        if !self.is_prefix {
            // A `Content-Length` that is not a number is removed.
            let _ = set_answer(r, &self.name, &mut [value]);
            return;
        }
        let others = r.response.headers.iter().map(|(name, _)| name.to_vec());
        let known = WITH_A_FIELD.iter().map(|name| name.as_bytes().to_vec());
        let matching: Vec<_> = others.chain(known).filter(|name| self.matches(name)).collect();
        for name in matching {
            let _ = set_answer(r, &name, &mut []);
        }
    }

    fn change_request(&self, r: &mut Request, how: EditMode) {
        let present = r.headers().map(|(name, _)| name).filter(|name| self.matches(name));
        let present: Vec<_> = present.map(<[u8]>::to_vec).collect();
        if how == EditMode::Replace && present.is_empty() {
            return;
        }
        let value = self.value.eval(r).into_owned();
        if value.is_empty() {
            present.iter().for_each(|name| set_request(r, name, &[]));
        } else {
            set_request(r, &self.name, &[value]);
        }
    }
}

/// `more_set_headers [-t types]... [-s statuses]... [-a] 'Name: value'...` and alike.
fn read(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let of_requests = d.name.bytes.ends_with(b"_input_headers");
    let clears = d.name.bytes.starts_with(b"more_clear");
    let how = if clears { EditMode::Clear } else { EditMode::Set };
    let mut change = HeaderEdit { lines: Vec::new(), how, statuses: Vec::new(), types: Vec::new() };
    let mut words = d.args.iter();
    while let Some(word) = words.next() {
        let mut list = || match words.next() {
            Some(list) => Ok(list),
            None => Err(d.error_at(word, format!("option {} takes an argument", word.lossy()))),
        };
        match word.bytes.as_slice() {
            b"" => {}
            b"-t" => change.types.extend(parts(list()?).map(<[u8]>::to_vec)),
            b"-s" if !of_requests => {
                let list = list()?;
                for part in parts(list) {
                    let status = values::number(part).and_then(|n| u16::try_from(n).ok());
                    change.statuses.push(status.ok_or_else(|| d.invalid("status", list))?);
                }
            }
            b"-r" if of_requests && !clears => change.how = EditMode::Replace,
            b"-a" if !of_requests && !clears => change.how = EditMode::Add,
            [b'-', ..] => return Err(d.invalid("option name", word)),
            _ => change.lines.push(line(s, d, word, clears)?),
        }
    }
    let conf = CONF.change(&mut s.location);
    if of_requests {
        conf.requests.push(change)
    } else {
        conf.answers.push(change)
    }
    Ok(())
}

fn parts(list: &Word) -> impl Iterator<Item = &[u8]> {
    list.bytes.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty())
}

/// Reads `Name: value`, or a name alone if headers are cleared.
fn line(
    s: &mut Scope<'_, '_>,
    d: &weir_conf::Directive,
    word: &Word,
    clears: bool,
) -> Result<EditedHeader, Error> {
    let colon = word.bytes.iter().position(|b| *b == b':');
    let (name, value) = word.bytes.split_at(colon.unwrap_or(word.bytes.len()));
    let name = name.trim_ascii();
    let is_prefix = clears && name.ends_with(b"*");
    let name = if is_prefix { &name[..name.len() - 1] } else { name };
    if name.is_empty() && !is_prefix || !is_name(name) {
        return Err(d.invalid("header name in", word));
    }
    let value = match value.strip_prefix(b":") {
        Some(value) if !clears => s.setup.line_of(d, word, value.trim_ascii_start())?,
        _ => Template::EMPTY,
    };
    Ok(EditedHeader { name: name.to_vec(), is_prefix, value })
}
