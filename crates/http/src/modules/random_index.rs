//! Redirects a request for a directory to a random file of it. nginx: ngx_http_random_index_module.

use weir_conf::Directive as Line;
use weir_engine::Boxed;
use weir_proto::http1::Method;

use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::files::directory;
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    enabled: bool,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[setting!(
    "random_index",
    CONF.enabled,
    Line::flag,
    "Redirects a request for a directory to a random file of it."
)];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_random_index", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).enabled
}

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let method = matches!(r.method, Method::Get | Method::Head | Method::Post);
    if !method || !r.path.ends_with(b"/") {
        return Answer::Now(Step::Next);
    }
    Answer::Later(Boxed::new(move || choose(r)))
}

async fn choose(r: &mut Request) -> Step {
    let core = &r.conf().core;
    let mut path = Vec::new();
    if let Err(error) = core.map_path_into(r, &mut path) {
        return error.into();
    }
    path.pop();
    let mut entries = match directory::entries(r, &path, directory::EntryFilter::USUAL).await {
        Ok(entries) => entries,
        Err(end) => return end,
    };
    entries.retain(|entry| entry.is_file());
    if entries.is_empty() {
        return Step::Next;
    }
    let random = usize::from_ne_bytes(r.event_loop.random_word().to_ne_bytes());
    let chosen = entries.swap_remove(random % entries.len());
    let target = [r.path.as_slice(), &chosen.name].concat();
    let args = std::mem::take(&mut r.args);
    r.redirect_to_parts(&target, args)
}
