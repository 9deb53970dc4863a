//! Serves precompressed `.gz` files. nginx: ngx_http_gzip_static_module.

use weir_conf::Directive as Line;
use weir_engine::Boxed;

use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::modules::gzip_filter;
use crate::modules::precompressed::{self, CHOICE, Precompressed};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    mode: Precompressed,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] = &[setting!(
    "gzip_static",
    CONF.mode,
    |d: &Line| d.choice(CHOICE),
    "Sends precompressed `.gz` files to clients that accept gzip, or to all."
)];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_gzip_static", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).mode != Precompressed::Off
}

/// Content phase handler.
pub fn handler(r: &mut Request) -> Answer<'_> {
    let mode = CONF.of(r.conf()).mode;
    if !precompressed::applies(r) {
        return Answer::Now(Step::Next);
    }
    let accepted = gzip_filter::allowed(r);
    Answer::Later(Boxed::new(move || precompressed::send(r, mode, accepted, b".gz", b"gzip")))
}
