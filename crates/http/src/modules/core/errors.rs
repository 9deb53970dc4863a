//! `error_page`: which page of the configuration stands for a status, and the redirects from within.

use weir_conf::{Directive, Error, values};
use weir_log::Level;
use weir_proto::http1::Method;

use crate::config::scope::Scope;
use crate::phases::{From, Step, count_change};
use crate::request::Request;
use weir_values::Template;

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
    let invalid = |word: &weir_conf::Word| d.invalid("value", word);
    let number = |text: &[u8]| values::number(text).and_then(|n| u16::try_from(n).ok());
    let mut tell = None;
    if let Some((last, rest)) = codes.split_last()
        && let Some(code) = last.bytes.strip_prefix(b"=")
    {
        codes = rest;
        tell = Some(match code {
            _ if rest.is_empty() => return Err(invalid(last)),
            b"" | b"0" => Tell::Page,
            code => Tell::This(number(code).ok_or_else(|| invalid(last))?),
        });
    }
    let page = match page_word.bytes.first() {
        Some(b'/' | b'@') => s.setup.template(d, page_word)?,
        // A URL becomes a `Location`.
        _ => s.setup.line(d, page_word)?,
    };
    for word in codes {
        let status = values::number(&word.bytes).filter(|n| *n != 499);
        let status = status.ok_or_else(|| invalid(word))?;
        if !(300..=599).contains(&status) {
            let text = format!("value \"{}\" must be between 300 and 599", word.lossy());
            return Err(d.error_at(word, text));
        }
        let tell = tell.unwrap_or(match status {
            494..=497 => Tell::This(400),
            _ => Tell::Same,
        });
        let entry = ErrorPage { status: status as u16, tell, page: page.clone() };
        Scope::change(&mut s.location.core).error_pages.push(entry);
    }
    Ok(())
}

/// Where the configuration sends a request that failed with this status, if it says so.
pub fn error_page(r: &mut Request, status: u16) -> Option<Step> {
    let pages = &r.conf().core.error_pages;
    let found = pages.iter().find(|p| p.status == status)?;
    match found.tell {
        Tell::Same => {}
        Tell::This(code) => r.error_status = code,
        Tell::Page => r.error_status = 0,
    }
    if !matches!(found.tell, Tell::Page | Tell::This(200)) {
        // The client's body is not what the page is about.
        r.body.expects_continue = false;
    }
    let target = found.page.eval(r).into_owned();
    Some(match target.first() {
        Some(b'/') => {
            if r.method != Method::Head {
                r.method = Method::Get;
            }
            r.response.forget_body();
            r.redirect_to(&target)
        }
        Some(b'@') => {
            r.response.forget_body();
            r.redirect_to_named(&target)
        }
        _ => elsewhere(r, found.tell, target),
    })
}

/// Whether the location names a page for this status.
pub fn has_error_page(r: &Request, status: u16) -> bool {
    r.conf().core.error_pages.iter().any(|p| p.status == status)
}

/// A page elsewhere: the client is sent there.
fn elsewhere(r: &mut Request, tell: Tell, target: Vec<u8>) -> Step {
    let code = match tell {
        Tell::This(code @ (301 | 302 | 303 | 307 | 308)) => code,
        _ => 302,
    };
    r.response.location = Some(target);
    crate::answer::special::own_page(r, code)
}

impl Request {
    /// Goes on as if this path (and query string) had been asked for, from within.
    pub fn redirect_to(&mut self, target: &[u8]) -> Step {
        match memchr::memchr(b'?', target) {
            Some(at) => self.redirect_to_parts(&target[..at], target[at + 1..].to_vec()),
            None => self.redirect_to_parts(target, Vec::new()),
        }
    }

    /// The same with the query string apart.
    pub fn redirect_to_parts(&mut self, path: &[u8], args: Vec<u8>) -> Step {
        let cycle =
            format_args!("while internally redirecting to \"{}\"", String::from_utf8_lossy(path));
        if let Some(end) = count_change(self, cycle) {
            return end;
        }
        self.set_path(path);
        self.args = args;
        self.begin_anew();
        self.unchanged_path = false;
        self.location = self.site.location(self.server.location);
        Step::Redirect(From::Server)
    }

    /// Goes on in a named location of this server.
    pub fn redirect_to_named(&mut self, name: &[u8]) -> Step {
        let shown = String::from_utf8_lossy(name);
        let cycle = format_args!("while redirect to named location \"{shown}\"");
        if let Some(end) = count_change(self, cycle) {
            return end;
        }
        let server = self.site.location(self.server.location);
        match server.children.named(name) {
            Some(id) => {
                self.begin_anew();
                Step::Redirect(From::Location(id))
            }
            None => {
                let text = format_args!("could not find named location \"{shown}\"");
                self.log(Level::Error, text);
                Step::Status(500)
            }
        }
    }

    /// What modules remembered of the way so far does not hold on another one.
    fn begin_anew(&mut self) {
        (self.internal, self.path_changed) = (true, false);
        (self.rewritten_in_place, self.path_below_alias) = (false, false);
        self.contexts.redirected();
    }
}
