//! Allows or denies a request by the result of a subrequest. nginx: ngx_http_auth_request_module.

use weir_conf::{Directive as Line, Error, Spot};
use weir_engine::Boxed;
use weir_log::Level;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use crate::variables::VariableId;
use weir_values::Subject;
use weir_values::Template;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// The URI of the subrequest. Empty: none.
    path: Vec<u8>,
    /// `auth_request_set`: the variables that are set from the answer.
    variables: Vec<(VariableId, Template)>,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "auth_request",
        help: "Authorizes requests by a subrequest to this URI: 2xx allows, 401 and 403 deny.",
        set: Set::Simple(auth_request),
    },
    Directive {
        name: "auth_request_set",
        help: "Sets a variable from the response of `auth_request`.",
        set: Set::Simple(auth_request_set),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_auth_request", directives: DIRECTIVES, ..Module::NEW };

fn auth_request(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let path = d.args.first().map_or(b"".as_slice(), |word| &word.bytes);
    let path = if path == b"off" { b"" } else { path };
    CONF.change(&mut s.location).path = path.to_vec();
    Ok(())
}

fn auth_request_set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let [variable, value] = d.args.as_slice() else { return Ok(()) };
    let name = s.new_variable(d, variable)?;
    let id = s.setup.variables.stored(name.as_bytes());
    let template = s.setup.template(d, value)?;
    let written = Spot::new(d, value);
    s.setup.variables.own_texts_of(name.as_bytes(), template.texts(), written);
    if s.first(d) {
        CONF.change(&mut s.location).variables.clear();
    }
    CONF.change(&mut s.location).variables.push((id, template));
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).path.is_empty()
}

/// Access phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    Answer::Later(Boxed::new(move || authorize(r)))
}

async fn authorize(r: &mut Request) -> Step {
    let conf = CONF.of(r.conf());
    let Some(mut answer) = r.ask(&conf.path, b"").await else { return Step::Abort };
    for (variable, template) in &conf.variables {
        let value = template.eval(&mut *answer).into_owned();
        r.store_variable(*variable, value);
    }
    match answer.response.status {
        200..=299 => Step::Done,
        403 => Step::Status(403),
        401 => {
            let challenges = answer.response.headers.iter();
            for (name, value) in challenges.filter(|(name, _)| is_challenge(name)) {
                r.response.headers.add(name, value);
            }
            Step::Status(401)
        }
        status => {
            // As in nginx, the line ends with the last activity, once the subrequest used an upstream
            // server.
            let asked = !answer.contexts.upstream.attempts.is_empty();
            let doing = if asked { " while sending to client" } else { "" };
            r.log(Level::Error, format_args!("auth request unexpected status: {status}{doing}"));
            Step::Status(500)
        }
    }
}

fn is_challenge(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"WWW-Authenticate")
}

#[cfg(test)]
mod tests {
    use crate::trial::complaint;

    #[test]
    fn wrong_lines_are_refused() {
        assert_eq!(
            complaint("auth_request /a; auth_request off;"),
            "\"auth_request\" directive is duplicate"
        );
        assert_eq!(complaint("auth_request_set a b;"), "invalid variable name \"a\"");
        assert_eq!(complaint("auth_request_set $ b;"), "invalid variable name \"$\"");
        assert_eq!(complaint("auth_request_set $uri b;"), "the duplicate \"uri\" variable");
        assert_eq!(complaint("auth_request_set $a $b;"), "unknown \"b\" variable");
        assert_eq!(complaint("auth_request_set $a b; auth_request_set $a c;"), "");
    }
}
