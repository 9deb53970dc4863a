//! `canary-*`: which requests go to the upstream of another Ingress.

use super::{Reader, values};

/// The rules of a canary. The first that decides counts: header, cookie, weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Canary {
    /// A header and its values that choose the canary.
    pub header: Option<(String, Chosen)>,
    /// A cookie whose values `always` and `never` decide.
    pub cookie: Option<String>,
    /// The share of requests: the canary's part, and the total.
    pub weight: (u64, u64),
}

/// The values of a header that choose the canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// `always` chooses the canary, `never` the main upstream.
    Word,
    /// This value.
    Value(String),
    /// Values that the pattern matches.
    Pattern(String),
    /// None: the value or pattern is wrong. Requests with the header go to the main upstream.
    Nothing,
}

/// The largest number of a weight.
const MOST: u64 = 1_000_000;

impl Canary {
    pub(super) fn read(r: &Reader<'_>) -> Option<Canary> {
        let on = r.flag("canary").unwrap_or(false);
        let name = |name| {
            r.read(name, |text| match values::is_header(text) {
                true => Ok(text.to_owned()),
                false => Err("it is no name of a header or cookie".to_owned()),
            })
        };
        let header = name("canary-by-header");
        let value = r.plain("canary-by-header-value", "-_./:=+ ");
        let pattern =
            r.read("canary-by-header-pattern", |text| match values::is_pattern_text(text) {
                true => values::pattern(text).map(|()| text.to_owned()),
                false => Err("it has characters that are not allowed here".to_owned()),
            });
        let cookie = r.read("canary-by-cookie", |text| match values::of(text, "-_.") {
            true => Ok(text.to_owned()),
            false => Err("it is no name of a cookie".to_owned()),
        });
        let total = r.number("canary-weight-total", 1, MOST).unwrap_or(100);
        let weight = r.number("canary-weight", 0, MOST).unwrap_or(0).min(total);
        let chosen = match (value, pattern) {
            (Some(value), _) => Chosen::Value(value),
            (None, Some(pattern)) => Chosen::Pattern(pattern),
            // A wrong value chooses no request, rather than those with "always".
            (None, None)
                if r.text("canary-by-header-value").is_some()
                    || r.text("canary-by-header-pattern").is_some() =>
            {
                Chosen::Nothing
            }
            (None, None) => Chosen::Word,
        };
        on.then(|| Canary {
            header: header.map(|name| (name, chosen)),
            cookie,
            weight: (weight, total),
        })
    }
}
