//! Checks links that are signed with a secret and may expire. nginx: ngx_http_secure_link_module.

use md5::{Digest, Md5};
use weir_conf::{Directive as Line, Error, values};
use weir_proto::base64::{self, Alphabet};

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::secret::is_same;
use crate::site::settings::{Key, Settings};
use weir_values::Template;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `secure_link`: the checksum, and optionally a comma and the expiry time.
    link: Option<Template>,
    /// `secure_link_md5`: the text that the checksum is made of.
    md5: Option<Template>,
    /// `secure_link_secret`
    secret: Option<Vec<u8>>,
    /// The settings that this block itself has.
    own: Own,
}

#[derive(Debug, Clone, Copy, Default)]
struct Own {
    link: bool,
    secret: bool,
}

impl Settings for Conf {
    fn enter(conf: &mut std::sync::Arc<Self>, _: &crate::site::location::Kind) {
        if conf.own.link || conf.own.secret {
            Scope::change(conf).own = Own::default();
        }
    }
}

/// A block has either kind of settings. Its own kind removes the inherited other kind.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    match CONF.of(&s.location).own {
        Own { link: true, secret: true } => Err(s.setup.error_at_end(
            "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"",
        )),
        Own { secret: true, .. } => {
            let conf = CONF.change(&mut s.location);
            (conf.link, conf.md5) = (None, None);
            Ok(())
        }
        Own { link: true, .. } => {
            CONF.change(&mut s.location).secret = None;
            Ok(())
        }
        Own { .. } => Ok(()),
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "secure_link",
        help: "The checksum and expiry time of a link, from variables.",
        set: Set::Simple(|s, d| {
            let value = template(s, d)?;
            let conf = CONF.change(&mut s.location);
            (conf.link, conf.own.link) = (value, true);
            Ok(())
        }),
    },
    Directive {
        name: "secure_link_md5",
        help: "The text whose MD5 is the checksum of a link.",
        set: Set::Simple(|s, d| {
            let value = template(s, d)?;
            let conf = CONF.change(&mut s.location);
            (conf.md5, conf.own.link) = (value, true);
            Ok(())
        }),
    },
    Directive {
        name: "secure_link_secret",
        help: "The secret of links of the form /prefix/checksum/link.",
        set: Set::Simple(|s, d| {
            s.once(d)?;
            let conf = CONF.change(&mut s.location);
            conf.secret = d.arg(0).map(|word| word.bytes.clone());
            conf.own.secret = true;
            Ok(())
        }),
    },
];

/// The state of a request: the expiry time, for `$secure_link_expires`.
static CONTEXT: ContextKey<Box<[u8]>> = ContextKey::passing();

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_secure_link", directives: DIRECTIVES, init, finish };

fn init(setup: &mut Setup<'_>) {
    setup.variables.define_kept("secure_link", |r, out| match &CONF.of(r.conf()).secret {
        Some(secret) => by_secret(r, secret, out),
        None => by_checksum(r, out),
    });
    setup.variables.define("secure_link_expires", |r, out| {
        let expires = CONTEXT.of(&r.contexts).map(|text| &**text);
        out.extend_from_slice(expires.unwrap_or_default());
        expires.is_some()
    });
}

fn template(s: &mut Scope<'_, '_>, d: &Line) -> Result<Option<Template>, Error> {
    s.once(d)?;
    let Some(word) = d.arg(0) else { return Ok(None) };
    s.setup.template(d, word).map(Some)
}

/// `1` for a valid link, `0` for an expired one, empty for an invalid one.
fn by_checksum(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let conf = CONF.of(r.conf());
    let (Some(link), Some(md5)) = (&conf.link, &conf.md5) else { return false };
    let value = link.eval(r).into_owned();
    let (checksum, expires) = match memchr::memchr(b',', &value) {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value.as_slice(), None),
    };
    let mut until = None;
    if let Some(text) = expires {
        until = values::number(text).filter(|time| *time > 0);
        if until.is_none() {
            return false;
        }
        CONTEXT.set(&mut r.contexts, text.into());
    }
    let checksum = match checksum.len() {
        0..=24 => base64::decode(Alphabet::Url, checksum),
        _ => None,
    };
    let expected = Md5::digest(&*md5.eval(r));
    if !checksum.is_some_and(|checksum| is_same(&checksum, &expected)) {
        return false;
    }
    let now = r.event_loop.handle.wall().secs;
    let passed = until.is_some_and(|until| i64::try_from(until).is_ok_and(|until| until < now));
    out.push(if passed { b'0' } else { b'1' });
    true
}

/// The link in a URI `/prefix/checksum/link`, if the checksum is valid.
fn by_secret(r: &Request, secret: &[u8], out: &mut Vec<u8>) -> bool {
    let target = r.text(r.head().target);
    let mut parts = target.get(1..).unwrap_or_default().splitn(3, |b| *b == b'/');
    let (Some(_), Some(checksum), Some(link)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let expected = Md5::new().chain_update(link).chain_update(secret).finalize();
    let good = !link.is_empty() && unhex(checksum).is_some_and(|bytes| is_same(&bytes, &expected));
    if good {
        out.extend_from_slice(link);
    }
    good
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    let digit = |ch: u8| char::from(ch).to_digit(16);
    let bytes = pairs.iter().map(|[a, b]| Some((digit(*a)? << 4 | digit(*b)?) as u8));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::complaint;

    #[test]
    fn hexadecimal() {
        assert_eq!(unhex(b"00fFa1"), Some(vec![0, 255, 161]));
        assert_eq!(unhex(b"0"), None);
        assert_eq!(unhex(b"0g"), None);
    }

    #[test]
    fn the_two_ways_exclude_each_other() {
        let text =
            "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
        assert_eq!(complaint("secure_link_secret a; secure_link_md5 b;"), text);
        assert_eq!(complaint("secure_link $arg_a; secure_link_md5 b;"), "");
    }
}
