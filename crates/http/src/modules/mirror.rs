//! Copies requests to other locations and drops the answers. nginx: ngx_http_mirror_module.

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    paths: Vec<Vec<u8>>,
    /// `mirror_request_body`
    body: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { paths: Vec::new(), body: true }
    }
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "mirror",
        help: "Copies each request to this URI and discards the response.",
        set: Set::Simple(mirror),
    },
    setting!(
        "mirror_request_body",
        CONF.body,
        Line::flag,
        "Whether copies include the client's body, which is then read first."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_mirror", directives: DIRECTIVES, ..Module::NEW };

fn mirror(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let first = s.first(d);
    let paths = &mut CONF.change(&mut s.location).paths;
    if first {
        paths.clear();
    }
    let off = word.bytes == b"off";
    // `off` excludes other lines: if this is not the first line and the list is empty, the first
    // was `off`.
    if !first && (off || paths.is_empty()) {
        return Err(d.problem("is duplicate"));
    }
    if !off {
        paths.push(word.bytes.clone());
    }
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).paths.is_empty()
}

/// Precontent phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let conf = CONF.of(r.conf());
    if !r.is_main() {
        return Answer::Now(Step::Next);
    }
    if conf.body && !r.body.is_whole() {
        return Answer::Later(Boxed::new(move || with_body(r)));
    }
    Answer::Now(start(r))
}

async fn with_body(r: &mut Request) -> Step {
    match r.read_body().await {
        Ok(()) => start(r),
        Err(error) => error.into(),
    }
}

fn start(r: &mut Request) -> Step {
    let args = r.args.clone();
    for path in &CONF.of(r.conf()).paths {
        if !r.copy_to(path, &args) {
            return Step::Status(500);
        }
    }
    Step::Next
}

#[cfg(test)]
mod tests {
    use crate::trial::complaint;

    #[test]
    fn off_stands_alone() {
        let duplicate = "\"mirror\" directive is duplicate";
        assert_eq!(complaint("mirror /a; mirror /b;"), "");
        assert_eq!(complaint("mirror off;"), "");
        assert_eq!(complaint("mirror off; mirror /b;"), duplicate);
        assert_eq!(complaint("mirror /a; mirror off;"), duplicate);
        assert_eq!(complaint("mirror off; mirror off;"), duplicate);
    }
}
