//! Checks `Referer` against a list of valid hosts. nginx: ngx_http_referer_module.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_proto::http1::HeaderId;

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::names::{ServerName, WildcardNames};
use crate::regex::Regex;
use crate::request::Request;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `none`: requests without `Referer` are valid.
    none: bool,
    /// `blocked`: a `Referer` that is not a URL is valid, since a proxy or firewall has removed the
    /// URL.
    blocked: bool,
    /// `server_names`: the server's names are valid. They are added to the table when all are
    /// known.
    server_names: bool,
    table: Arc<ValidReferers>,
}

#[derive(Debug, Clone, Default)]
struct ValidReferers {
    /// Hosts, each with the prefix that paths must have.
    names: WildcardNames<Vec<u8>>,
    /// Whether there was any name. One that is not a host name is not in `names`.
    has_names: bool,
    /// Names of the server that are regular expressions.
    server_names: Vec<Regex>,
    /// Regular expressions for the part behind the scheme.
    regexes: Vec<Regex>,
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if CONF.of(&s.location).server_names {
        let mut names = s.server.names.clone();
        if names.is_empty() {
            names.push(ServerName::Exact(Vec::new()));
        }
        let conf = CONF.change(&mut s.location);
        conf.server_names = false;
        let table = Arc::make_mut(&mut conf.table);
        for name in names {
            match name {
                ServerName::Regex(regex) => table.server_names.push(regex),
                // The directive may list the name as well.
                name => _ = table.add(&name, Vec::new()),
            }
        }
    }
    let conf = CONF.of(&s.location);
    if (conf.none || conf.blocked) && conf.table.is_empty() {
        return Err(Error::emerg(
            "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" \
             directive without any valid referer",
        ));
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "valid_referers",
        help: "Valid values of `Referer`; sets `$invalid_referer`.",
        set: Set::Simple(set),
    },
    Directive {
        name: "referer_hash_max_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(|s, d| s.once(d)),
    },
    Directive {
        name: "referer_hash_bucket_size",
        help: "Accepted: weir sizes its tables itself.",
        set: Set::Simple(|s, d| s.once(d)),
    },
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_referer", directives: DIRECTIVES, init, finish };

fn init(setup: &mut Setup<'_>) {
    setup.variables.define_changeable("invalid_referer", false, |r, out| {
        let conf = CONF.of(r.conf());
        if !conf.allows(r) {
            out.push(b'1');
        }
        true
    });
}

impl Conf {
    fn allows(&self, r: &Request) -> bool {
        let table = &self.table;
        if table.is_empty() {
            return true;
        }
        let Some(referer) = r.header(HeaderId::Referer) else { return self.none };
        match behind_scheme(referer) {
            Some(rest) => table.allows(rest),
            None => self.blocked,
        }
    }
}

/// The longest host that is looked up. A longer one is not valid.
const HOST_MAX: usize = 256;

/// The part behind `http://` or `https://`, if the text is long enough for a URL.
fn behind_scheme(referer: &[u8]) -> Option<&[u8]> {
    if referer.len() < b"http://i.ru".len() {
        return None;
    }
    [b"http://".as_slice(), b"https://"].into_iter().find_map(|scheme| {
        let (head, rest) = referer.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

impl ValidReferers {
    fn is_empty(&self) -> bool {
        !self.has_names && self.regexes.is_empty() && self.server_names.is_empty()
    }

    fn allows(&self, rest: &[u8]) -> bool {
        let end = rest.iter().position(|b| matches!(b, b'/' | b':')).unwrap_or(rest.len());
        let (host, behind) = rest.split_at(end);
        if host.len() > HOST_MAX {
            return false;
        }
        let host = host.to_ascii_lowercase();
        if let Some(path) = self.names.find(&host) {
            let slash = memchr::memchr(b'/', behind).unwrap_or(behind.len());
            return behind.get(slash..).unwrap_or_default().starts_with(path);
        }
        self.server_names.iter().any(|regex| regex.is_match(&host))
            || self.regexes.iter().any(|regex| regex.is_match(rest))
    }

    /// Adds a host with the prefix of its paths. False if the host was added before.
    fn add(&mut self, name: &ServerName, path: Vec<u8>) -> bool {
        self.has_names = true;
        self.names.add(name, path)
    }
}

/// `valid_referers none | blocked | server_names | host | ~pattern ...`
fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let mut conf = match s.first(d) {
        true => Conf::default(),
        false => std::mem::take(CONF.change(&mut s.location)),
    };
    let table = Arc::make_mut(&mut conf.table);
    for word in &d.args {
        let fault = |what: &str| d.error_at(word, format!("{what} \"{}\"", word.lossy()));
        match word.bytes.as_slice() {
            b"" => return Err(fault("invalid referer")),
            b"none" => conf.none = true,
            b"blocked" => conf.blocked = true,
            b"server_names" => conf.server_names = true,
            b"~" => return Err(fault("empty regex in")),
            [b'~', pattern @ ..] => {
                table.regexes.push(s.setup.regex(d, word, pattern, true)?);
            }
            text => {
                let slash = memchr::memchr(b'/', text).unwrap_or(text.len());
                let (host, path) = text.split_at(slash);
                let name = ServerName::parse(host)
                    .filter(|name| !matches!(name, ServerName::Bad(_)))
                    .ok_or_else(|| fault("invalid hostname or wildcard"))?;
                if !table.add(&name, path.to_vec()) {
                    let host = String::from_utf8_lossy(host);
                    return Err(d.error_at(word, format!("conflicting parameter \"{host}\"")));
                }
            }
        }
    }
    *CONF.change(&mut s.location) = conf;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::CONF;
    use crate::trial::{complaint, site};
    use weir_testkit::spent;

    fn allows(parameters: &str, rest: &str) -> bool {
        let text = format!("server {{ server_name own.org; valid_referers {parameters}; }}");
        let site = site(&text).unwrap();
        let conf = site.locations().iter().find(|l| CONF.of(&l.conf).table.has_names);
        CONF.of(&conf.unwrap().conf).table.allows(rest.as_bytes())
    }

    #[test]
    fn hosts_and_paths() {
        assert!(allows("*.example.com example.org/a", "www.EXAMPLE.com/x"));
        assert!(!allows("*.example.com", "example.com/"));
        assert!(allows("example.org/a", "example.org:81/ab"));
        assert!(!allows("example.org/a", "example.org/b"));
        assert!(!allows("example.org/a", "example.org"));
        assert!(allows("server_names", "own.org/"));
        assert!(allows(r"x.y ~\.google\.", "www.google.com/"));
        assert!(!allows("x.y", &"h".repeat(300)));
    }

    #[test]
    fn complaints_are_those_of_nginx() {
        for (text, expected) in [
            ("valid_referers '';", "invalid referer \"\""),
            ("valid_referers ~;", "empty regex in \"~\""),
            ("valid_referers a*b;", "invalid hostname or wildcard \"a*b\""),
            (
                "valid_referers none;",
                "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" \
                 directive without any valid referer",
            ),
            ("valid_referers a.b a.b;", "conflicting parameter \"a.b\""),
            ("valid_referers a.b/x a.b/y;", "conflicting parameter \"a.b\""),
        ] {
            assert_eq!(complaint(text), expected, "{text}");
        }
    }

    /// The time grows with the number of hosts, not with its square.
    #[test]
    fn many_hosts_are_read_in_time() {
        let time = |many: u32| {
            let hosts: String = (0..many).map(|n| format!(" host{n}.test")).collect();
            spent(|| assert!(allows(&hosts, "host7.test/")))
        };
        let (few, many) = (time(400), time(8_000));
        assert!(many < few * 100, "{few:?}, {many:?}");
    }
}
