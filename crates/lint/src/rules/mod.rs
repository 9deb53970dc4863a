//! The rules, grouped by topic.

mod clients;
mod files;
mod headers;
mod locations;
mod proxying;

use std::fmt::Display;
use std::path::Path;

use weir_conf::{BlockPath, Directive, Error, Word};

/// A rule: examines a directive in its place.
pub(crate) type Rule = for<'a> fn(&BlockPath<'a>, &'a Directive) -> Option<Error>;

/// A rule about a file that a directive names. Relative paths begin at the first argument.
pub(crate) type FileRule = fn(&Path, &Directive) -> Option<Error>;

/// The rules that read other files.
pub(crate) const OF_FILES: &[(&str, FileRule)] = &[("certificate-ends", files::certificate_ends)];

/// The names of all rules.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    OF_TEXT.iter().map(|(name, _)| *name).chain(OF_FILES.iter().map(|(name, _)| *name))
}

/// The rules about the configuration alone.
pub(crate) const OF_TEXT: &[(&str, Rule)] = &[
    ("alias-slash", locations::alias_slash),
    ("error-log-off", locations::error_log_off),
    ("dot-php", locations::dot_php),
    ("if-is-a-location", locations::if_is_a_location),
    ("never-reached", locations::never_reached),
    ("proxy-slash", locations::proxy_slash),
    ("whole-disk", locations::whole_disk),
    ("cache-key-host", proxying::cache_key_host),
    ("cache-rules", proxying::defeats_cache_rules),
    ("connection-upgrade", proxying::connection_upgrade),
    ("no-keepalive", proxying::no_keepalive),
    ("no-resolver", proxying::no_resolver),
    ("not-forwarded", proxying::not_forwarded),
    ("proxy-to-itself", proxying::proxy_to_itself),
    ("small-buffer", proxying::small_buffer),
    ("server-of-the-client", proxying::server_of_the_client),
    ("add-header-lost", headers::add_header_lost),
    ("decoded-part", headers::decoded_part),
    ("decoded-uri", headers::decoded_uri),
    ("header-of-lines", headers::header_of_lines),
    ("host-of-the-client", headers::host_of_the_client),
    ("hsts-without-tls", headers::hsts_without_tls),
    ("proxy-set-header-lost", headers::proxy_set_header_lost),
    ("type-twice", headers::type_twice),
    ("access-order", clients::access_order),
    ("allow-without-deny", clients::allow_without_deny),
    ("endless-body", clients::endless_body),
    ("few-files", clients::few_files),
    ("key-of-the-client", clients::key_of_the_client),
    ("listen-without-ssl", clients::listen_without_ssl),
    ("old-tls", clients::old_tls),
    ("open-panel", clients::open_panel),
    ("origin-pattern", clients::origin_pattern),
    ("referer-none", clients::referer_none),
    ("return-before-access", clients::return_before_access),
    ("trusts-everybody", clients::trusts_every_client),
];

/// A finding that marks a word, with a remedy.
fn found(d: &Directive, word: &Word, what: impl Display, remedy: impl Display) -> Option<Error> {
    Some(Error::warn(what).at(d.end).mark(word.pos).hint(remedy))
}

fn text(word: Option<&Word>) -> &str {
    word.and_then(Word::str).unwrap_or_default()
}

/// The first variable in a text whose name begins with one of the prefixes.
fn variable_with_prefix<'t>(text: &'t str, prefixes: &[&str]) -> Option<&'t str> {
    text.match_indices('$').find_map(|(at, _)| {
        let rest = text.get(at + 1..)?.trim_start_matches('{');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest.get(..end)?;
        prefixes.iter().any(|prefix| name.starts_with(prefix)).then_some(name)
    })
}
