//! Changes paths and answers at once. nginx: ngx_http_rewrite_module.

use bytes::Bytes;
use weir_conf::Error;

use crate::modules::{Module, Settings};
use crate::phases::Step;
use crate::request::Request;
use crate::scope::{Directive, Scope, Set};
use crate::template::Template;

/// Settings: not inherited, since the code of a block runs in that block alone.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    answer: Option<(u16, Option<Template>)>,
}

impl Settings for Conf {
    fn enter(conf: &mut std::sync::Arc<Self>) {
        *conf = Default::default();
    }
}

const DIRECTIVES: &[Directive] =
    &[Directive { name: "return", help: "Answers at once.", set: Set::Simple(set_return) }];

/// The module.
pub const MODULE: Module = Module { name: "http_rewrite", directives: DIRECTIVES, init: |_| {} };

/// The text of a `return` without one.
static NOTHING: Template = Template::EMPTY;

/// The server's code.
pub fn server(r: &mut Request) -> Step {
    run(r)
}

/// The location's code.
pub fn location(r: &mut Request) -> Step {
    if r.location.kind.is_server() {
        return Step::Next;
    }
    run(r)
}

fn run(r: &mut Request) -> Step {
    match &r.conf().rewrite.answer {
        Some((status, text)) => answer(r, *status, text.as_ref()),
        None => Step::Next,
    }
}

/// What `return` means: redirects carry the text as their `Location`, other answers as their body.
fn answer(r: &mut Request, status: u16, text: Option<&Template>) -> Step {
    let said = text.is_some_and(|text| text.constant() != Some(b""));
    if status >= 400 && !said {
        return Step::Status(status);
    }
    let text = text.unwrap_or(&NOTHING);
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        r.response.location = Some(text.eval(r).into_owned());
        return Step::Status(status);
    }
    let bytes = match text.shared() {
        Some(bytes) => bytes,
        None => Bytes::from(text.eval(r).into_owned()),
    };
    body(r, status, bytes)
}

fn body(r: &mut Request, status: u16, bytes: Bytes) -> Step {
    r.response.status = status;
    r.set_content_type();
    Step::Respond(bytes)
}

/// `return code [text]`, `return code URL`, `return URL`
fn set_return(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let Some(first) = d.arg(0) else { return Ok(()) };
    let (status, text) = match weir_conf::values::number(&first.bytes) {
        Some(code @ 0..=999) => (code as u16, d.arg(1)),
        None if d.args.len() == 1 && is_url(&first.bytes) => (302, Some(first)),
        _ => {
            let text = format!("invalid return code \"{}\"", first.lossy());
            return Err(d.error_at(first, text));
        }
    };
    let text = match text {
        Some(word) => Some(
            Template::new(&mut s.setup.variables, &word.bytes).map_err(|e| d.error_at(word, e))?,
        ),
        None => None,
    };
    let conf = Scope::change(&mut s.location.rewrite);
    conf.answer.get_or_insert((status, text));
    Ok(())
}

/// A text that begins like this sends the client elsewhere.
fn is_url(text: &[u8]) -> bool {
    [b"http://".as_slice(), b"https://", b"$scheme"].iter().any(|start| text.starts_with(start))
}
