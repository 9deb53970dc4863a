//! Serves precompressed `.zst` files. The directive is that of the zstd-nginx-module.

use weir_conf::Directive as Line;
use weir_engine::Boxed;

use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::modules::precompressed::{self, CHOICE, Precompressed};
use crate::modules::zstd_filter;
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
    "zstd_static",
    CONF.mode,
    |d: &Line| d.choice(CHOICE),
    "Sends precompressed `.zst` files to clients that accept Zstandard, or to all."
)];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_zstd_static", directives: DIRECTIVES, ..Module::NEW };

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
    let accepted = zstd_filter::allowed(r);
    Answer::Later(Boxed::new(move || precompressed::send(r, mode, accepted, b".zst", b"zstd")))
}
