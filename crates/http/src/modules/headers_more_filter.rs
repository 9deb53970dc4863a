//! Sets and clears headers of answers and of requests, those of the upstream as well. nginx: the headers-more module.

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

/// Settings. Those of a block follow those of the blocks around it.
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
    how: How,
    /// `-s`: answers of these statuses only.
    statuses: Vec<u16>,
    /// `-t`: bodies of these types only.
    types: Vec<Vec<u8>>,
}

/// What happens to lines that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// One takes their place.
    Set,
    /// `-r`: the same, if there are any.
    Replace,
    /// `-a`: they stay, and one is added.
    Add,
    /// They go.
    Clear,
}

/// A header that a directive names.
#[derive(Debug, Clone)]
struct EditedHeader {
    name: Vec<u8>,
    /// The name is how the names begin that are meant.
    begins: bool,
    /// Empty: the header is removed.
    value: Template,
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "more_set_headers",
        help: "Sets headers of answers, of some statuses (`-s`) or types (`-t`) only.",
        set: Set::Simple(read),
    },
    Directive {
        name: "more_clear_headers",
        help: "Removes headers of answers; `X-*` means all that begin so.",
        set: Set::Simple(read),
    },
    Directive {
        name: "more_set_input_headers",
        help: "Sets headers of the request, or replaces them only (`-r`), behind `rewrite`.",
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

/// Whether answers of a location are changed.
pub fn wants_answers(conf: &LocationConf) -> bool {
    !CONF.of(conf).answers.is_empty()
}

/// Whether requests in a location are changed.
pub fn wants_requests(conf: &LocationConf) -> bool {
    !CONF.of(conf).requests.is_empty() || rewrite::has_blocks(conf)
}

/// Changes the headers of an answer, before `add_header` adds to them.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    for change in &CONF.of(r.conf()).answers {
        let response = &r.response;
        let status = change.statuses.is_empty() || change.statuses.contains(&response.status);
        if status && change.is_for(&response.content_type) {
            change.lines.iter().for_each(|line| line.change_answer(r, change.how));
        }
    }
    Ok(())
}

/// Changes the headers of a request, when its location is final.
pub fn handler(r: &mut Request) -> Step {
    for change in &CONF.of(r.conf()).requests {
        if change.is_for(r.header_named(b"Content-Type").unwrap_or_default()) {
            change.lines.iter().for_each(|line| line.change_request(r, change.how));
        }
    }
    Step::Next
}

impl HeaderEdit {
    /// Whether a body of this type is meant; its parameters do not count.
    fn is_for(&self, content_type: &[u8]) -> bool {
        let kind = types::without_parameters(content_type);
        self.types.is_empty() || self.types.iter().any(|t| t.eq_ignore_ascii_case(kind))
    }
}

impl EditedHeader {
    fn is_meant(&self, name: &[u8]) -> bool {
        match name.get(..self.name.len()) {
            Some(start) if self.begins => start.eq_ignore_ascii_case(&self.name),
            _ => name.eq_ignore_ascii_case(&self.name),
        }
    }

    fn change_answer(&self, r: &mut Request, how: How) {
        let mut value = self.value.eval(r).into_owned();
        if how == How::Add && !value.is_empty() {
            r.within_line(&mut value, 0);
            r.response.headers.add(&self.name, &value);
            return;
        }
        if !self.begins {
            // A length that is no number is none.
            let _ = set_answer(r, &self.name, &mut [value]);
            return;
        }
        let others = r.response.headers.iter().map(|(name, _)| name.to_vec());
        let known = WITH_A_FIELD.iter().map(|name| name.as_bytes().to_vec());
        let meant: Vec<_> = others.chain(known).filter(|name| self.is_meant(name)).collect();
        for name in meant {
            let _ = set_answer(r, &name, &mut []);
        }
    }

    fn change_request(&self, r: &mut Request, how: How) {
        let there = r.headers().map(|(name, _)| name).filter(|name| self.is_meant(name));
        let there: Vec<_> = there.map(<[u8]>::to_vec).collect();
        if how == How::Replace && there.is_empty() {
            return;
        }
        let value = self.value.eval(r).into_owned();
        if value.is_empty() {
            there.iter().for_each(|name| set_request(r, name, &[]));
        } else {
            set_request(r, &self.name, &[value]);
        }
    }
}

/// `more_set_headers [-t types]... [-s statuses]... [-a] 'Name: value'...` and kin.
fn read(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let of_requests = d.name.bytes.ends_with(b"_input_headers");
    let clears = d.name.bytes.starts_with(b"more_clear");
    let how = if clears { How::Clear } else { How::Set };
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
            b"-r" if of_requests && !clears => change.how = How::Replace,
            b"-a" if !of_requests && !clears => change.how = How::Add,
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

/// `Name: value`; where headers are cleared, the name alone.
fn line(
    s: &mut Scope<'_, '_>,
    d: &weir_conf::Directive,
    word: &Word,
    clears: bool,
) -> Result<EditedHeader, Error> {
    let colon = word.bytes.iter().position(|b| *b == b':');
    let (name, value) = word.bytes.split_at(colon.unwrap_or(word.bytes.len()));
    let name = name.trim_ascii();
    let begins = clears && name.ends_with(b"*");
    let name = if begins { &name[..name.len() - 1] } else { name };
    if name.is_empty() && !begins || !is_name(name) {
        return Err(d.invalid("header name in", word));
    }
    let value = match value.strip_prefix(b":") {
        Some(value) if !clears => s.setup.line_of(d, word, value.trim_ascii_start())?,
        _ => Template::EMPTY,
    };
    Ok(EditedHeader { name: name.to_vec(), begins, value })
}
