//! Compresses responses with gzip, and decides for which requests. nginx:
//! ngx_http_gzip_filter_module, ngx_http_gzip_ok.

use weir_conf::{Directive as Line, Error};
use weir_proto::date;
use weir_proto::http1::{HeaderId, Version};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::config::table::together;
use crate::modules::encoding::{Coding, Common, accepts, coding_directives, encode, power_of_two};
use crate::phases::Step;
use crate::regex::Regex;
use crate::request::Request;
use crate::request::user_agent::Browser;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod deflate;
mod whole;

use deflate::Deflate;
use whole::Whole;

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    common: Common,
    window: u64,
    version: Version,
    proxied: Proxied,
    /// `gzip_disable msie6`
    not_msie6: bool,
    /// `gzip_disable`
    disable: Vec<Regex>,
    /// No effect: the compressor sizes its hash by window and level.
    hash: u64,
    /// No effect: the compressor collects its input itself.
    postpone: u64,
    /// No effect, like `postpone`.
    no_buffer: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            common: Common::at_level(1),
            window: 32 * 1024,
            version: Version::Http11,
            proxied: Proxied::default(),
            not_msie6: false,
            disable: Vec::new(),
            hash: 128 * 1024,
            postpone: 0,
            no_buffer: false,
        }
    }
}

impl Settings for Conf {}

/// `gzip_proxied`: which responses to proxied requests may be compressed.
#[derive(Debug, Clone, Copy, Default)]
struct Proxied {
    any: bool,
    auth: bool,
    expired: bool,
    no_cache: bool,
    no_store: bool,
    private: bool,
    no_last_modified: bool,
    no_etag: bool,
}

const CODING_DIRECTIVES: &[Directive] =
    coding_directives!(CONF, "gzip", 1, 9, "Compresses responses for clients that accept gzip.");

const OWN: &[Directive] = &[
    setting!("gzip_window", CONF.window, window, "The size of the compression window."),
    setting!(
        "gzip_hash",
        CONF.hash,
        hash,
        "Accepted: the compressor sizes its tables by its window and level."
    ),
    setting!(
        "postpone_gzipping",
        CONF.postpone,
        Line::size,
        "Accepted: the compressor gathers its input itself."
    ),
    setting!(
        "gzip_no_buffer",
        CONF.no_buffer,
        Line::flag,
        "Accepted: the compressor gathers its input itself."
    ),
    setting!(
        "gzip_vary",
        core.gzip_vary,
        Line::flag,
        "Adds `Vary: Accept-Encoding` to responses that depend on it."
    ),
    setting!(
        "gzip_http_version",
        CONF.version,
        |d: &Line| d.choice(&[("1.0", Version::Http10), ("1.1", Version::Http11)]),
        "The minimum HTTP version of requests whose responses are compressed."
    ),
    Directive {
        name: "gzip_proxied",
        help: "Which responses to proxied requests are compressed.",
        set: Set::Simple(proxied),
    },
    Directive {
        name: "gzip_disable",
        help: "Patterns for `User-Agent` of browsers that get no compressed responses.",
        set: Set::Simple(disable),
    },
];

const DIRECTIVES: [Directive; CODING_DIRECTIVES.len() + OWN.len()] =
    together(CODING_DIRECTIVES, OWN);

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_gzip", directives: &DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut crate::config::Setup<'_>) {
    setup.variables.define("gzip_ratio", |r, out| {
        let Some((read, written)) = r.contexts.gzip_ratio.filter(|(_, written)| *written > 0)
        else {
            return false;
        };
        let hundredths = (read * 1000 / written + 5) / 10;
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        out.extend_from_slice(text.as_bytes());
        true
    });
}

fn window(d: &Line) -> Result<u64, Error> {
    power_of_two(d, 512..=32 << 10, "must be 512, 1k, 2k, 4k, 8k, 16k, or 32k")
}

fn hash(d: &Line) -> Result<u64, Error> {
    power_of_two(d, 512..=128 << 10, "must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k")
}

fn proxied(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    if s.first(d) {
        CONF.change(&mut s.location).proxied = Proxied::default();
    }
    let proxied = &mut CONF.change(&mut s.location).proxied;
    for word in &d.args {
        match word.bytes.to_ascii_lowercase().as_slice() {
            b"off" => {}
            b"any" => proxied.any = true,
            b"auth" => proxied.auth = true,
            b"expired" => proxied.expired = true,
            b"no-cache" => proxied.no_cache = true,
            b"no-store" => proxied.no_store = true,
            b"private" => proxied.private = true,
            b"no_last_modified" => proxied.no_last_modified = true,
            b"no_etag" => proxied.no_etag = true,
            _ => return Err(d.invalid("value", word)),
        }
    }
    Ok(())
}

fn disable(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    if s.first(d) {
        let conf = CONF.change(&mut s.location);
        conf.disable.clear();
        conf.not_msie6 = false;
    }
    for word in &d.args {
        if word.bytes == b"msie6" {
            CONF.change(&mut s.location).not_msie6 = true;
            continue;
        }
        let regex = s.setup.regex(d, word, &word.bytes, true)?;
        CONF.change(&mut s.location).disable.push(regex);
    }
    Ok(())
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).common.on
}

const CODING: Coding = Coding { name: b"gzip", module: "gzip_filter" };

/// Header filter.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if conf.common.fits(r) && allowed(r) {
        let length = r.response.content_length;
        let (level, bits) = (conf.common.level, window_bits(conf.window, length));
        if whole::suits(level, conf.window, length) {
            encode(r, &CODING, Whole::new(level, bits, length));
        } else {
            encode(r, &CODING, Deflate::new(level, bits));
        }
    }
    Ok(())
}

/// Whether the request may be answered with gzip.
pub fn allowed(r: &Request) -> bool {
    let conf = CONF.of(r.conf());
    if !r.is_main() || !accepts(r, "gzip") || r.version < conf.version {
        return false;
    }
    if r.header(HeaderId::Via).is_some() && !conf.proxied.allows(r) {
        return false;
    }
    if !conf.not_msie6 && conf.disable.is_empty() {
        return true;
    }
    let Some(agent) = r.header(HeaderId::UserAgent) else { return true };
    let refused = conf.not_msie6 && Browser::of(agent).msie6;
    !refused && !conf.disable.iter().any(|regex| regex.may_match(agent))
}

impl Proxied {
    fn allows(&self, r: &Request) -> bool {
        if self.any || (self.auth && r.header(HeaderId::Authorization).is_some()) {
            return true;
        }
        let response = &r.response;
        if let Some(expires) = response.headers.get(b"Expires") {
            let now = match &response.date {
                Some(date) => date::parse(date),
                None => Some(r.event_loop.handle.wall().secs),
            };
            return self.expired
                && date::parse(expires).zip(now).is_some_and(|(expires, now)| expires < now);
        }
        let mut control = response.headers.iter().filter(|(name, _)| is_cache_control(name));
        if response.headers.get(b"Cache-Control").is_some() {
            return control.any(|(_, value)| {
                (self.no_cache && names(value, b"no-cache"))
                    || (self.no_store && names(value, b"no-store"))
                    || (self.private && names(value, b"private"))
            });
        }
        let is_dated = response.last_modified.is_some() || response.has_last_modified_line;
        let cacheable =
            (self.no_last_modified && is_dated) || (self.no_etag && response.etag.is_some());
        !self.is_off() && !cacheable
    }

    /// Whether no parameter allows a response.
    fn is_off(&self) -> bool {
        !(self.expired
            || self.no_cache
            || self.no_store
            || self.private
            || self.no_last_modified
            || self.no_etag
            || self.auth)
    }
}

fn is_cache_control(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"Cache-Control")
}

fn names(list: &[u8], word: &[u8]) -> bool {
    list.split(|b| matches!(b, b',' | b';' | b' ' | b'=')).any(|w| w.eq_ignore_ascii_case(word))
}

/// The window in bits, no larger than a short response needs.
fn window_bits(window: u64, length: Option<u64>) -> u8 {
    let mut bits = window.trailing_zeros().clamp(9, 15) as u8;
    while bits > 9 && length.is_some_and(|length| length > 0 && length + 262 < 1 << (bits - 1)) {
        bits -= 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::complaint;

    #[test]
    fn wrong_values_are_refused() {
        let window = "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k";
        assert_eq!(complaint("gzip_window 3k;"), window);
        assert_eq!(complaint("gzip_window 512;"), "");
        assert_eq!(complaint("gzip_comp_level 10;"), "value must be between 1 and 9");
        assert_eq!(
            complaint("gzip_disable msie6 (;").split(':').next(),
            Some("pcre2_compile() failed")
        );
    }

    #[test]
    fn short_answers_get_small_windows() {
        assert_eq!(window_bits(32 * 1024, None), 15);
        assert_eq!(window_bits(32 * 1024, Some(20)), 9);
        assert_eq!(window_bits(32 * 1024, Some(16_000)), 14);
        assert_eq!(window_bits(512, Some(1 << 20)), 9);
    }
}
