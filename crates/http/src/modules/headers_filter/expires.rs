//! `expires`: sets `Expires` and `Cache-Control`.

use weir_conf::{Directive, Error, values};
use weir_proto::date;

use crate::config::scope::Scope;
use crate::modules::headers_filter::CONF;
use crate::request::Request;
use weir_values::Template;

/// The value of the directive.
#[derive(Debug, Clone)]
pub enum Expires {
    /// The same for all requests.
    Fixed(When),
    /// A value with variables, and whether `modified` was given.
    Variable(Template, bool),
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// No headers are set.
    Off,
    /// In the past: `no-cache`.
    Epoch,
    /// The latest date.
    Max,
    /// Seconds from now.
    Access(i64),
    /// Seconds from the last change of the file.
    Modified(i64),
    /// The next time that the local clock shows this second of the day.
    Daily(i64),
}

const DAY: i64 = 24 * 60 * 60;

/// `expires [modified] time`, `expires @time`, `expires epoch|max|off`
pub fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    s.once(d)?;
    let (modified, word) = match d.args.as_slice() {
        [word] => (false, word),
        [first, word] if first.is("modified") => (true, word),
        _ => return Err(d.problem("invalid value")),
    };
    let template = s.setup.template(d, word)?;
    let expires = match template.constant() {
        Some(text) => Expires::Fixed(parse(text, modified).map_err(|text| d.problem(text))?),
        None => Expires::Variable(template, modified),
    };
    let conf = CONF.change(&mut s.location);
    conf.expires = (!matches!(expires, Expires::Fixed(When::Off))).then_some(expires);
    Ok(())
}

/// Parses a time as nginx does. The error is the part of nginx's message behind the directive's
/// name.
fn parse(text: &[u8], modified: bool) -> Result<When, &'static str> {
    match text {
        b"epoch" if !modified => return Ok(When::Epoch),
        b"max" if !modified => return Ok(When::Max),
        b"off" if !modified => return Ok(When::Off),
        _ => {}
    }
    let (sign, time) = match text.split_first() {
        Some((sign @ (b'@' | b'+' | b'-'), rest)) => (*sign, rest),
        _ => (b'+', text),
    };
    if sign == b'@' && modified {
        return Err("daily time cannot be used with \"modified\" parameter");
    }
    let seconds = values::sec(time).and_then(|n| i64::try_from(n).ok()).ok_or("invalid value")?;
    match (sign, modified) {
        (b'@', _) if seconds > DAY => Err("daily time value must be less than 24 hours"),
        (b'@', _) => Ok(When::Daily(seconds)),
        (b'-', false) => Ok(When::Access(-seconds)),
        (b'-', true) => Ok(When::Modified(-seconds)),
        (_, false) => Ok(When::Access(seconds)),
        (_, true) => Ok(When::Modified(seconds)),
    }
}

impl Expires {
    /// Sets both headers, in the places of the server's own ones as in nginx.
    pub fn apply(&self, r: &mut Request) {
        let when = match self {
            Expires::Fixed(when) => *when,
            Expires::Variable(template, modified) => match parse(&template.eval(r), *modified) {
                Ok(when) => when,
                Err(_) => return,
            },
        };
        let (now, offset) = r.event_loop.local_time();
        let Some((at, age)) = when.resolve(now, i64::from(offset), r.response.last_modified) else {
            return;
        };
        let control = match age {
            Some(age) => format!("max-age={age}"),
            None => "no-cache".to_owned(),
        };
        let headers = &mut r.response.headers;
        headers.replace(b"Expires", &date::imf_fixdate(at));
        headers.replace(b"Cache-Control", control.as_bytes());
    }
}

impl When {
    /// The date for `Expires`, and `max-age` in seconds. `None` for the age means `no-cache`.
    fn resolve(self, now: i64, offset: i64, modified: Option<i64>) -> Option<(i64, Option<i64>)> {
        let (at, age) = match (self, modified) {
            (When::Off, _) => return None,
            (When::Epoch, _) => return Some((1, None)),
            // Thu, 31 Dec 2037 23:55:55 GMT, and ten years.
            (When::Max, _) => return Some((2_145_916_555, Some(315_360_000))),
            (When::Access(0) | When::Modified(0), _) => (now, 0),
            (When::Daily(clock), _) => {
                let at = next(now, offset, clock);
                (at, at - now)
            }
            (When::Access(seconds), _) | (When::Modified(seconds), None) => {
                (now.saturating_add(seconds), seconds)
            }
            (When::Modified(seconds), Some(modified)) => {
                let at = modified.saturating_add(seconds);
                (at, at - now)
            }
        };
        let negative = matches!(self, When::Modified(seconds) if seconds < 0);
        Some((at, (age >= 0 && !negative).then_some(age)))
    }
}

/// The next time that the local clock shows the second `clock` of the day.
fn next(now: i64, offset: i64, clock: i64) -> i64 {
    let today = now + offset - (now + offset).rem_euclid(DAY) - offset + clock;
    if today > now { today } else { today + DAY }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form() {
        for (text, modified, when) in [
            ("off", false, When::Off),
            ("epoch", false, When::Epoch),
            ("max", false, When::Max),
            ("1h", false, When::Access(3600)),
            ("+1h", true, When::Modified(3600)),
            ("-1", false, When::Access(-1)),
            ("@15h30m", false, When::Daily(55_800)),
        ] {
            assert_eq!(parse(text.as_bytes(), modified), Ok(when), "{text}");
        }
        assert_eq!(parse(b"max", true), Err("invalid value"));
        assert_eq!(parse(b"@25h", false), Err("daily time value must be less than 24 hours"));
        assert!(parse(b"@1h", true).is_err());
    }

    #[test]
    fn dates_and_ages() {
        assert_eq!(When::Access(60).resolve(1000, 0, None), Some((1060, Some(60))));
        assert_eq!(When::Access(-60).resolve(1000, 0, None), Some((940, None)));
        assert_eq!(When::Modified(60).resolve(1000, 0, Some(900)), Some((960, None)));
        assert_eq!(When::Modified(200).resolve(1000, 0, Some(900)), Some((1100, Some(100))));
        assert_eq!(When::Modified(60).resolve(1000, 0, None), Some((1060, Some(60))));
        assert_eq!(date::imf_fixdate(2_145_916_555), *b"Thu, 31 Dec 2037 23:55:55 GMT");
    }

    proptest! {
        #[test]
        fn a_daily_time_is_within_a_day(now in 0i64..4_000_000_000, offset in -12i64..14, clock in 0..=DAY) {
            let at = next(now, offset * 3600, clock);
            prop_assert!(at > now && at <= now + 2 * DAY);
            prop_assert_eq!((at + offset * 3600 - clock).rem_euclid(DAY), 0);
        }
    }
}
