//! Tells modern browsers by name and version. nginx: ngx_http_browser_module.

use memchr::memmem;
use weir_conf::{Directive as Line, Error};
use weir_proto::http1::HeaderId;

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::request::Request;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    modern: Modern,
    ancient: Ancient,
    modern_value: Vec<u8>,
    ancient_value: Vec<u8>,
}

/// `modern_browser`: the index of a browser in [`BROWSERS`], and its first modern version.
#[derive(Debug, Clone, Default)]
struct Modern {
    versions: Vec<(usize, u64)>,
    /// `unlisted`: browsers that are not listed are modern.
    unlisted: bool,
}

/// `ancient_browser`
#[derive(Debug, Clone, Default)]
struct Ancient {
    texts: Vec<Vec<u8>>,
    netscape4: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            modern: Modern::default(),
            ancient: Ancient::default(),
            modern_value: b"1".to_vec(),
            ancient_value: b"1".to_vec(),
        }
    }
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let versions = &CONF.of(&s.location).modern.versions;
    if !versions.is_empty() && !versions.iter().any(|(browser, _)| *browser == OPERA) {
        // Opera may call itself MSIE. Unless it is configured, no version of it is modern.
        let conf = CONF.change(&mut s.location);
        conf.modern.versions.insert(0, (OPERA, u64::MAX));
    }
    Ok(())
}

/// A browser: its name in the configuration, and how to find its version in `User-Agent`. The
/// search for `token` begins at the offset `skip`. The version is `version` bytes behind the start
/// of the token.
struct Browser {
    name: &'static [u8],
    skip: usize,
    token: &'static [u8],
    version: usize,
}

/// Opera is first, since its `User-Agent` contains names of other browsers.
const OPERA: usize = 0;

const BROWSERS: &[Browser] = &[
    Browser { name: b"opera", skip: 0, token: b"Opera", version: 6 },
    Browser { name: b"msie", skip: 25, token: b"MSIE ", version: 5 },
    Browser { name: b"gecko", skip: 13, token: b"rv:", version: 3 },
    Browser { name: b"safari", skip: 13, token: b"Safari/", version: 7 },
    Browser { name: b"konqueror", skip: 25, token: b"Konqueror/", version: 10 },
];

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "modern_browser",
        help: "A browser and the version from which it is modern.",
        set: Set::Simple(modern),
    },
    Directive {
        name: "ancient_browser",
        help: "Strings in `User-Agent` of browsers that are not modern.",
        set: Set::Simple(ancient),
    },
    Directive {
        name: "modern_browser_value",
        help: "The value of `$modern_browser`.",
        set: Set::Simple(|s, d| {
            CONF.change(&mut s.location).modern_value = word(d);
            Ok(())
        }),
    },
    Directive {
        name: "ancient_browser_value",
        help: "The value of `$ancient_browser`.",
        set: Set::Simple(|s, d| {
            CONF.change(&mut s.location).ancient_value = word(d);
            Ok(())
        }),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_browser", directives: DIRECTIVES, init, finish };

fn init(setup: &mut Setup<'_>) {
    setup.variables.define_changeable("modern_browser", false, |r, out| {
        let conf = CONF.of(r.conf());
        if conf.is_modern(agent(r)) {
            out.extend_from_slice(&conf.modern_value);
        }
        true
    });
    setup.variables.define_changeable("ancient_browser", false, |r, out| {
        let conf = CONF.of(r.conf());
        if !conf.is_modern(agent(r)) {
            out.extend_from_slice(&conf.ancient_value);
        }
        true
    });
    setup.variables.define_changeable("msie", false, |r, out| {
        if agent(r).is_some_and(is_msie) {
            out.push(b'1');
        }
        true
    });
}

fn agent(r: &Request) -> Option<&[u8]> {
    r.header(HeaderId::UserAgent)
}

/// Whether it is MSIE. Opera may call itself MSIE.
fn is_msie(agent: &[u8]) -> bool {
    memmem::find(agent, b"MSIE ").is_some_and(|at| agent.len() > at + 7)
        && memmem::find(agent, b"Opera").is_none()
}

impl Conf {
    fn is_modern(&self, agent: Option<&[u8]>) -> bool {
        let Some(agent) = agent else { return self.modern.unlisted };
        for (browser, least) in &self.modern.versions {
            let Some(browser) = BROWSERS.get(*browser) else { continue };
            if let Some(version) = browser.version_in(agent) {
                return version >= *least;
            }
        }
        if !self.modern.versions.is_empty() && !self.modern.unlisted {
            return false;
        }
        !self.ancient.names(agent) && self.modern.unlisted
    }
}

impl Ancient {
    fn names(&self, agent: &[u8]) -> bool {
        let netscape = || {
            agent.len() > b"Mozilla/4.72 ".len()
                && agent.starts_with(b"Mozilla/")
                && agent.get(8).is_some_and(|ch| (b'1'..=b'4').contains(ch))
        };
        (self.netscape4 && netscape())
            || self.texts.iter().any(|text| memmem::find(agent, text).is_some())
    }
}

impl Browser {
    fn version_in(&self, agent: &[u8]) -> Option<u64> {
        let rest = agent.get(self.skip..)?;
        let at = memmem::find(rest, self.token)? + self.version;
        let text = rest.get(at..).filter(|text| !text.is_empty())?;
        let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b'.');
        version(text.get(..end.unwrap_or(text.len()))?)
    }
}

/// A version of up to four numbers as one number. Each number behind the first takes two digits.
fn version(text: &[u8]) -> Option<u64> {
    let mut scale = 1_000_000;
    let mut sum = 0u64;
    for part in text.split(|b| *b == b'.') {
        let number = if part.is_empty() { 0 } else { weir_conf::values::number(part)? };
        sum = sum.checked_add(number.checked_mul(scale)?)?;
        scale /= 100;
    }
    Some(sum)
}

/// `modern_browser name version`, `modern_browser unlisted`
fn modern(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let conf = CONF.change(&mut s.location);
    if first {
        conf.modern = Modern::default();
    }
    match d.args.as_slice() {
        [word] if word.is("unlisted") => conf.modern.unlisted = true,
        [name, least] => {
            let browser = BROWSERS.iter().position(|b| name.bytes.eq_ignore_ascii_case(b.name));
            let browser = browser.ok_or_else(|| {
                d.error_at(name, format!("unknown browser name \"{}\"", name.lossy()))
            })?;
            let least = version(&least.bytes).ok_or_else(|| d.invalid("browser version", least))?;
            conf.modern.versions.push((browser, least));
            conf.modern.versions.sort_by_key(|(browser, _)| *browser);
        }
        _ => return Err(d.problem("invalid value")),
    }
    Ok(())
}

/// `ancient_browser text ...`
fn ancient(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let conf = CONF.change(&mut s.location);
    if first {
        conf.ancient = Ancient::default();
    }
    for word in &d.args {
        match word.bytes.as_slice() {
            b"netscape4" => conf.ancient.netscape4 = true,
            text => conf.ancient.texts.push(text.to_vec()),
        }
    }
    Ok(())
}

/// The value of a line. Of several lines in a block, the last one holds.
fn word(d: &Line) -> Vec<u8> {
    d.arg(0).map(|word| word.bytes.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{complaint, site};

    fn conf(text: &str) -> Conf {
        let site = site(&format!("server {{ location /x {{ {text} }} }}")).unwrap();
        let location = site.locations().iter().find(|l| l.name == b"/x").unwrap();
        CONF.of(&location.conf).clone()
    }

    #[test]
    fn versions_decide() {
        let conf = conf("modern_browser msie 6.0; modern_browser gecko 1.8;");
        let modern = |agent: &str| conf.is_modern(Some(agent.as_bytes()));
        assert!(modern("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)"));
        assert!(!modern("Mozilla/4.0 (compatible; MSIE 5.5; Windows NT 5.1)"));
        assert!(!modern("Mozilla/4.0 (compatible; MSIE 6.0; X11) Opera 7.50  [en]"));
        assert!(modern("Mozilla/5.0 (X11; U; FreeBSD i386; en-US; rv:1.8.0.5) Gecko/2006"));
        assert!(!modern("Mozilla/5.0 (X11; U; rv:1.7.8) Gecko/20050511"));
        assert!(!modern("curl/8"));
        assert!(!conf.is_modern(None));
    }

    #[test]
    fn unlisted_browsers() {
        let conf = conf("modern_browser unlisted; ancient_browser Lynx netscape4;");
        assert!(conf.is_modern(None));
        assert!(conf.is_modern(Some(b"curl/8")));
        assert!(!conf.is_modern(Some(b"Lynx/2.8")));
        assert!(!conf.is_modern(Some(b"Mozilla/4.72 [en] (X11)")));
    }

    #[test]
    fn the_last_value_holds() {
        let conf = conf("modern_browser_value a; modern_browser_value b;");
        assert_eq!(conf.modern_value, b"b");
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        assert_eq!(complaint("modern_browser netcat 1;"), "unknown browser name \"netcat\"");
        assert_eq!(complaint("modern_browser msie 1.x;"), "invalid browser version \"1.x\"");
        assert_eq!(complaint("modern_browser_value a; modern_browser_value b;"), "");
        assert_eq!(complaint("ancient_browser_value a; ancient_browser_value b;"), "");
    }
}
