//! The module of locations that remove answers from a cache. Its directives, `..._cache_purge`, are those of each kind
//! of cache, and stand with the caches.

use crate::config::module::Module;
use crate::site::settings::{Key, Settings};
use crate::upstream::cache::purge_location;

/// Settings: none, the directives name a handler.
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
