//! The module of content handlers that remove answers from a cache. The directives are
//! `proxy_cache_purge` and alike. The caches define them.

use crate::config::module::Module;
use crate::site::settings::{Key, Settings};
use crate::upstream::cache::purge_location;

/// No settings: the directives set a content handler.
#[derive(Debug, Clone, Default)]
pub struct Conf;

impl Settings for Conf {}

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_cache_purge",
    directives: &[],
    finish: purge_location::look_up,
    ..Module::NEW
};
