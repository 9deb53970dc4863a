//! Adds the bodies of other URIs before and after a response. nginx:
//! ngx_http_addition_filter_module.

use std::io;

use weir_conf::{Directive as Line, Error};
use weir_engine::{Boxed, Chain};

use crate::answer::filters::{BodyFilter, Filtered};
use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::config::types::{Types, types_setting};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    before: Vec<u8>,
    after: Vec<u8>,
    types: Types,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[
    setting!(
        "add_before_body",
        CONF.before,
        path,
        "Inserts the response of this URI before a response."
    ),
    setting!("add_after_body", CONF.after, path, "Appends the response of this URI to a response."),
    types_setting!(
        "addition_types",
        CONF.types,
        "Content types of responses to which bodies are added."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_addition", directives: DIRECTIVES, ..Module::NEW };

fn path(d: &Line) -> Result<Vec<u8>, Error> {
    Ok(d.args.first().map_or_else(Vec::new, |word| word.bytes.clone()))
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !(CONF.of(conf).before.is_empty() && CONF.of(conf).after.is_empty())
}

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if r.response.status != 200 || !r.is_main() || !conf.types.matches(&r.response.content_type) {
        return Ok(());
    }
    r.response.expect_changes();
    r.response.weaken_etag();
    r.add_body_filter(Box::new(Addition { conf, begun: false }));
    Ok(())
}

struct Addition {
    conf: &'static Conf,
    begun: bool,
}

impl BodyFilter for Addition {
    fn module(&self) -> &'static str {
        "addition_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, input: Chain, last: bool) -> Filtered<'a> {
        if !std::mem::replace(&mut self.begun, true)
            && let Err(error) = add(r, &self.conf.before)
        {
            return Filtered::Now(Err(error));
        }
        if !last || self.conf.after.is_empty() {
            return Filtered::Now(Ok(input));
        }
        Filtered::Later(Boxed::new(move || async {
            r.send_last_ahead(input).await?;
            add(r, &self.conf.after)?;
            Ok(Chain::new())
        }))
    }

    fn needs_memory(&self) -> bool {
        false
    }
}

fn add(r: &mut Request, path: &[u8]) -> io::Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    let Some(sub) = r.include(path, b"", None) else { return Err(io::ErrorKind::Other.into()) };
    r.send_subrequest(sub);
    Ok(())
}
