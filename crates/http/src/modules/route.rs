//! `route` passes a request to a named location by several properties at once. nginx has no such
//! module.
//!
//! `location` and `if` test one property each. A rule of a gateway tests path, method, headers and
//! arguments together, and splits its requests by weight.

use weir_conf::{Directive as Line, Error, Word, values};
use weir_log::Level;
use weir_proto::uri::{self, Unescape};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::Step;
use crate::regex::GaveUp;
use crate::request::Request;
use crate::site::location::Kind;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_values::Regex;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// Not inherited: a named location inside would pass its requests to itself.
    rules: Vec<Rule>,
}

impl Settings for Conf {
    fn enter(conf: &mut std::sync::Arc<Self>, _: &Kind) {
        if !conf.rules.is_empty() {
            *conf = Conf::default().into();
        }
    }
}

/// A `route` line.
#[derive(Debug, Clone)]
struct Rule {
    conditions: Vec<Condition>,
    /// Named locations with their weights.
    targets: Vec<(Vec<u8>, u64)>,
    /// The sum of the weights, which is not zero.
    total: u64,
}

#[derive(Debug, Clone)]
enum Condition {
    Method(Vec<u8>),
    Path(Text),
    /// The path is this one or below it.
    Below(Vec<u8>),
    Header(Vec<u8>, Text),
    Argument(Vec<u8>, Text),
}

/// The test of a value.
#[derive(Debug, Clone)]
enum Text {
    Equal(Vec<u8>),
    Matches(Regex),
}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "route",
    help: "Passes a request that meets all conditions to a named location. The first matching line decides. With `=weight`, several locations share the requests.",
    set: Set::Simple(set),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_route", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).rules.is_empty()
}

/// Rewrite phase handler, before the rewrite module, since a rule decides which location's code
/// runs.
pub fn handler(r: &mut Request) -> Step {
    let rule = match first_that_holds(&CONF.of(r.conf()).rules, r) {
        Ok(Some(rule)) => rule,
        Ok(None) => return Step::Next,
        // Another location might allow what that of the rule denies.
        Err(gave_up) => {
            r.log(Level::Alert, format_args!("{gave_up}"));
            return Step::Status(500);
        }
    };
    let mut left = r.event_loop.random_word() % rule.total;
    let chosen = rule.targets.iter().find(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    match chosen {
        Some((name, _)) => r.redirect_to_named(name),
        None => Step::Next,
    }
}

/// The first rule whose conditions all hold. An error if a pattern exceeds its match limit.
fn first_that_holds<'c>(rules: &'c [Rule], r: &Request) -> Result<Option<&'c Rule>, GaveUp> {
    for rule in rules {
        if rule.holds(r)? {
            return Ok(Some(rule));
        }
    }
    Ok(None)
}

impl Rule {
    fn holds(&self, r: &Request) -> Result<bool, GaveUp> {
        for condition in &self.conditions {
            if !condition.holds(r)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Condition {
    fn holds(&self, r: &Request) -> Result<bool, GaveUp> {
        match self {
            Condition::Method(name) => Ok(r.method_name() == name.as_slice()),
            Condition::Path(text) => text.holds(&r.path),
            Condition::Below(stem) => {
                let rest = r.path.strip_prefix(stem.as_slice());
                Ok(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")))
            }
            Condition::Header(name, text) => text.holds_for(header(r, name)),
            Condition::Argument(name, text) => text.holds_for(argument(&r.args, name)),
        }
    }
}

impl Text {
    fn holds(&self, value: &[u8]) -> Result<bool, GaveUp> {
        match self {
            Text::Equal(text) => Ok(text == value),
            Text::Matches(pattern) => pattern.test(value),
        }
    }

    /// A missing value meets no condition.
    fn holds_for(&self, value: Option<Vec<u8>>) -> Result<bool, GaveUp> {
        value.map_or(Ok(false), |value| self.holds(&value))
    }
}

/// The values of all headers of this name, as one list.
fn header(r: &Request, name: &[u8]) -> Option<Vec<u8>> {
    let mut values = r.headers().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
    let mut joined = values.next()?.to_vec();
    for value in values {
        joined.extend_from_slice(b",");
        joined.extend_from_slice(value);
    }
    Some(joined)
}

/// The first argument of this name, without escapes.
fn argument(args: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    args.split(|byte| *byte == b'&').find_map(|pair| {
        let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (plain(&pair[..at]) == name).then(|| plain(pair.get(at + 1..).unwrap_or_default()))
    })
}

fn plain(escaped: &[u8]) -> Vec<u8> {
    let spaced: Vec<u8> = escaped.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    let mut out = Vec::with_capacity(spaced.len());
    uri::unescape(Unescape::All, &spaced, &mut out);
    out
}

/// `route [CONDITION ...] @NAME[=WEIGHT] ...`
fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let (mut conditions, mut targets) = (Vec::new(), Vec::new());
    for word in &d.args {
        match word.bytes.first() {
            Some(b'@') => targets.push(target(d, word)?),
            _ if targets.is_empty() => conditions.push(condition(s, d, word)?),
            _ => return Err(d.error_at(word, "conditions stand before named locations")),
        }
    }
    if targets.is_empty() {
        return Err(d.problem("names no location").hint("route method=GET @name"));
    }
    let total = targets.iter().map(|(_, weight)| *weight).sum();
    if total == 0 {
        return Err(d.problem("has no weight above 0"));
    }
    CONF.change(&mut s.location).rules.push(Rule { conditions, targets, total });
    Ok(())
}

/// The largest weight. A sum of weights does not overflow, and no gateway's rule has a larger one.
const MOST: u64 = 1 << 32;

fn target(d: &Line, word: &Word) -> Result<(Vec<u8>, u64), Error> {
    let Some(at) = memchr::memchr(b'=', &word.bytes) else { return Ok((word.bytes.clone(), 1)) };
    let weight = values::number(&word.bytes[at + 1..]);
    let weight = weight.filter(|n| *n <= MOST).ok_or_else(|| d.invalid("weight", word))?;
    Ok((word.bytes[..at].to_vec(), weight))
}

fn condition(s: &mut Scope<'_, '_>, d: &Line, word: &Word) -> Result<Condition, Error> {
    let wrong = || {
        let hint = "it may be: method=, uri=, uri^, uri~, header=NAME:, header~NAME:, arg=NAME:, arg~NAME:";
        d.invalid("condition", word).hint(hint)
    };
    let at = memchr::memchr3(b'=', b'~', b'^', &word.bytes).ok_or_else(wrong)?;
    let (what, sign, rest) = (&word.bytes[..at], word.bytes[at], &word.bytes[at + 1..]);
    if what == b"method" && sign == b'=' {
        return Ok(Condition::Method(rest.to_vec()));
    }
    if what == b"uri" && sign == b'^' {
        return Ok(Condition::Below(rest.strip_suffix(b"/").unwrap_or(rest).to_vec()));
    }
    let (name, value) = match what {
        b"uri" => (b"".as_slice(), rest),
        b"header" | b"arg" => {
            let end = memchr::memchr(b':', rest).filter(|end| *end > 0).ok_or_else(wrong)?;
            (&rest[..end], &rest[end + 1..])
        }
        _ => return Err(wrong()),
    };
    let text = match sign {
        b'=' => Text::Equal(value.to_vec()),
        b'~' => Text::Matches(s.setup.regex(d, word, value, false)?),
        _ => return Err(wrong()),
    };
    Ok(match what {
        b"uri" => Condition::Path(text),
        b"header" => Condition::Header(name.to_vec(), text),
        _ => Condition::Argument(name.to_vec(), text),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_proto::uri::{Escape, escape};

    use super::argument;
    use crate::trial::complaint;

    proptest! {
        #[test]
        fn any_argument_is_found_behind_others(
            before: Vec<u8>, name in proptest::collection::vec(any::<u8>(), 1..9), value: Vec<u8>,
        ) {
            let escaped = |bytes: &[u8]| {
                let mut out = Vec::new();
                escape(Escape::UriComponent, bytes, &mut out);
                out
            };
            // The name is not found in the value of another argument.
            let args = [b"x!=", escaped(&before).as_slice(), b"&", &escaped(&name), b"=", &escaped(&value)].concat();
            prop_assert_eq!(argument(&args, &name), Some(value));
            prop_assert_eq!(argument(&before, b"\xff\xfe absent name"), None);
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        assert_eq!(complaint("route method=GET;"), "\"route\" directive names no location");
        assert_eq!(complaint("route @a=0;"), "\"route\" directive has no weight above 0");
        assert_eq!(complaint("route @a=-1;"), "invalid weight \"@a=-1\"");
        assert_eq!(complaint("route @a=99999999999;"), "invalid weight \"@a=99999999999\"");
        assert_eq!(complaint("route method~GET @a;"), "invalid condition \"method~GET\"");
        assert_eq!(complaint("route header=x @a;"), "invalid condition \"header=x\"");
        assert_eq!(complaint("route header=:x @a;"), "invalid condition \"header=:x\"");
        assert_eq!(complaint("route what=x @a;"), "invalid condition \"what=x\"");
        assert_eq!(complaint("route arg^a:x @a;"), "invalid condition \"arg^a:x\"");
        assert_eq!(complaint("route @a method=GET;"), "conditions stand before named locations");
        assert!(complaint("route uri~( @a;").starts_with("pcre2_compile() failed"));
        assert_eq!(complaint("route method=GET uri^/a/ header~x:^y @a=3 @b=0;"), "");
    }

    #[test]
    fn arguments_are_compared_without_escapes() {
        for (args, name, value) in [
            ("a=1&b=2", "b", Some("2")),
            ("a=1&a=2", "a", Some("1")),
            ("A=1", "a", None),
            ("a", "a", Some("")),
            ("a=x+y%20z", "a", Some("x y z")),
            ("%61=1", "a", Some("1")),
            ("", "a", None),
        ] {
            let found = argument(args.as_bytes(), name.as_bytes());
            assert_eq!(found.as_deref(), value.map(str::as_bytes), "{args}");
        }
    }
}
