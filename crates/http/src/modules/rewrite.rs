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
    answer: Option<(u16, Template)>,
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

/// The server's code.
pub fn server(r: &mut Request) -> Step {
    run(r)
}

/// The location's code.
pub fn location(r: &mut Request) -> Step {
    run(r)
}

fn run(r: &mut Request) -> Step {
    let Some((status, text)) = &r.conf().rewrite.answer else { return Step::Next };
    let body = text.eval(r).into_owned();
    r.response.status = *status;
    r.response.content_type.extend_from_slice(&r.location.conf.core.default_type);
    Step::Respond(Bytes::from(body))
}

fn set_return(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    let code = d.args.first().and_then(|w| w.str()).and_then(|t| t.parse().ok());
    let code = code.ok_or_else(|| d.error("invalid return code"))?;
    let text = d.args.get(1).map_or(b"".as_slice(), |w| &w.bytes);
    let text = Template::new(&mut s.setup.variables, text).map_err(|e| d.error(e))?;
    std::sync::Arc::make_mut(&mut s.location.rewrite).answer = Some((code, text));
    Ok(())
}
