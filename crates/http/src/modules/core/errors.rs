//! `error_page`: which page of the configuration stands for a status.

use weir_conf::{Directive, Error};

use crate::phases::{From, Step, count_change};
use crate::request::Request;
use crate::scope::Scope;
use crate::template::Template;

/// One status of an `error_page` line.
#[derive(Debug, Clone)]
pub struct ErrorPage {
    status: u16,
    /// What the client is told: the status itself, another one, or what the page answers.
    tell: Tell,
    page: Template,
}

#[derive(Debug, Clone, Copy)]
enum Tell {
    Same,
    This(u16),
    Page,
}

/// `error_page code ... [=[response]] page`
pub fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if s.first(d) {
        Scope::change(&mut s.location.core).error_pages.clear();
    }
    let Some((page_word, mut codes)) = d.args.split_last() else { return Ok(()) };
    let mut tell = Tell::Same;
    if let Some((last, rest)) = codes.split_last()
        && let Some(code) = last.bytes.strip_prefix(b"=")
    {
        codes = rest;
        tell =
            match code {
                b"" => Tell::Page,
                code => Tell::This(parse(code).ok_or_else(|| {
                    d.error_at(last, format!("invalid value \"{}\"", last.lossy()))
                })?),
            };
    }
    let page = Template::new(&mut s.setup.variables, &page_word.bytes)
        .map_err(|text| d.error_at(page_word, text))?;
    for word in codes {
        let status = parse(&word.bytes)
            .ok_or_else(|| d.error_at(word, format!("invalid value \"{}\"", word.lossy())))?;
        if !(300..=599).contains(&status) {
            let text = format!("value \"{}\" must be between 300 and 599", word.lossy());
            return Err(d.error_at(word, text));
        }
        let entry = ErrorPage { status, tell, page: page.clone() };
        Scope::change(&mut s.location.core).error_pages.push(entry);
    }
    Ok(())
}

fn parse(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Where the configuration sends a request that failed with this status, if it says so.
pub fn error_page(r: &mut Request, status: u16) -> Option<Step> {
    let pages = &r.conf().core.error_pages;
    let found = pages.iter().find(|p| p.status == status)?;
    r.response.forget_body();
    let target = found.page.eval(r).into_owned();
    match found.tell {
        Tell::Same => {}
        Tell::This(code) => r.error_status = code,
        Tell::Page => r.error_status = 0,
    }
    match target.first() {
        Some(b'/') => Some(internal(r, &target)),
        Some(b'@') => Some(named(r, &target)),
        _ => Some(redirect(r, found.tell, status, target)),
    }
}

fn internal(r: &mut Request, target: &[u8]) -> Step {
    if r.method != weir_proto::http1::Method::Head {
        r.method = weir_proto::http1::Method::Get;
    }
    r.redirect_to(target)
}

fn named(r: &mut Request, name: &[u8]) -> Step {
    r.redirect_to_named(name)
}

/// A page elsewhere: the client is sent there.
fn redirect(r: &mut Request, tell: Tell, _status: u16, target: Vec<u8>) -> Step {
    let code = match tell {
        Tell::This(code @ (301 | 302 | 303 | 307 | 308)) => code,
        _ => 302,
    };
    r.response.location = Some(target);
    r.error_status = code;
    crate::special::own_page(r, code)
}

impl Request {
    /// Goes on as if this path (and query string) had been asked for, from within.
    pub fn redirect_to(&mut self, target: &[u8]) -> Step {
        if let Some(end) = count_change(self) {
            return end;
        }
        let (path, args) = match memchr::memchr(b'?', target) {
            Some(at) => (&target[..at], &target[at + 1..]),
            None => (target, b"".as_slice()),
        };
        self.path = path.to_vec();
        self.args = args.to_vec();
        (self.internal, self.unchanged_path, self.path_changed) = (true, false, false);
        self.rewritten_in_place = false;
        self.location = self.site.location(self.server.location);
        Step::Redirect(From::Server)
    }

    /// Goes on in a named location of this server.
    pub fn redirect_to_named(&mut self, name: &[u8]) -> Step {
        if let Some(end) = count_change(self) {
            return end;
        }
        self.internal = true;
        self.path_changed = false;
        let server = self.site.location(self.server.location);
        match server.children.named(name) {
            Some(id) => Step::Redirect(From::Location(id)),
            None => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.log(
                    weir_log::Level::Error,
                    format_args!("could not find named location \"{name}\""),
                );
                Step::Status(500)
            }
        }
    }
}
