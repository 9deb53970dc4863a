//! `Cache-Control` of answers and requests (RFC 9111, section 5.2), and targeted fields such as
//! `CDN-Cache-Control` (RFC 9213).

use std::borrow::Cow;

use weir_cache::members;

use super::seconds;

/// The length of the longest name, `stale-while-revalidate`.
const LONGEST_NAME: usize = 22;

/// The directives of all lines. Of a repeated directive, the first counts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Control {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache` without names of fields.
    pub no_cache: bool,
    /// `private` without names of fields.
    pub private: bool,
    /// `public`
    pub public: bool,
    /// `must-revalidate`
    pub must_revalidate: bool,
    /// `proxy-revalidate`
    pub proxy_revalidate: bool,
    /// `must-understand`
    pub must_understand: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age`
    pub max_age: Option<i64>,
    /// `s-maxage`
    pub s_maxage: Option<i64>,
    /// `min-fresh`
    pub min_fresh: Option<i64>,
    /// `max-stale`; the largest number if it has no argument.
    pub max_stale: Option<i64>,
    /// `stale-while-revalidate`
    pub stale_while_revalidate: Option<i64>,
    /// `stale-if-error`
    pub stale_if_error: Option<i64>,
    /// The fields that `no-cache` and `private` name, in lower case. They are removed from stored
    /// answers.
    pub withheld: Vec<Vec<u8>>,
}

impl Control {
    /// Adds a line.
    pub fn add(&mut self, line: &[u8]) {
        let whole = is_closed(line);
        let plain = line.split(|b| *b == b',' && !whole).filter(|_| !whole).map(<[u8]>::trim_ascii);
        // In a line with an unclosed quote, quotes are ignored, since they could hide a directive
        // that forbids to store.
        for member in members(if whole { line } else { b"" }).chain(plain) {
            let mut parts = member.splitn(2, |b| *b == b'=');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next());
            let bare = name.trim_ascii_end();
            let value = value.map(|value| unquoted(value.trim_ascii_start()));
            let mut lower = [0; LONGEST_NAME];
            // Longer names are unknown.
            let Some(lower) = lower.get_mut(..bare.len()) else { continue };
            lower.copy_from_slice(bare);
            lower.make_ascii_lowercase();
            // Spaces before `=` are invalid. Directives that forbid are obeyed all the same.
            if bare.len() == name.len() || matches!(&*lower, b"no-store" | b"no-cache" | b"private")
            {
                self.set(lower, value.as_deref());
            }
        }
    }

    fn set(&mut self, name: &[u8], value: Option<&[u8]>) {
        // An invalid number counts as 0.
        let number = || value.and_then(seconds).unwrap_or(0);
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache |= !value.is_some_and(|fields| self.withhold(fields)),
            b"private" => self.private |= !value.is_some_and(|fields| self.withhold(fields)),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => first(&mut self.max_age, number()),
            b"s-maxage" => first(&mut self.s_maxage, number()),
            b"min-fresh" => first(&mut self.min_fresh, number()),
            b"max-stale" if value.is_none() => first(&mut self.max_stale, i64::MAX),
            b"max-stale" => first(&mut self.max_stale, number()),
            b"stale-while-revalidate" => first(&mut self.stale_while_revalidate, number()),
            b"stale-if-error" => first(&mut self.stale_if_error, number()),
            _ => {}
        }
    }

    /// Adds the field names of a list. False if it is no list of names. The directive then applies
    /// to the whole answer.
    fn withhold(&mut self, fields: &[u8]) -> bool {
        let is_name = |name: &[u8]| {
            name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        let fields = fields.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        let mut names = fields.filter(|name| !name.is_empty()).peekable();
        if names.peek().is_none() {
            return false;
        }
        let before = self.withheld.len();
        for name in names {
            if !is_name(name) {
                self.withheld.truncate(before);
                return false;
            }
            self.withheld.push(name.to_ascii_lowercase());
        }
        true
    }

    /// Parses a targeted field: a dictionary (RFC 9651), which is used as a whole or not at all.
    /// `None` if it is empty or invalid.
    pub fn targeted<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Option<Control> {
        let mut this = Control::default();
        let mut any = false;
        for line in lines {
            for member in members(line) {
                let bare = member.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
                let mut parts = bare.splitn(2, |b| *b == b'=');
                let (name, value) = (parts.next().unwrap_or_default(), parts.next());
                if !is_key(name) || value.is_some_and(|value| !is_item(value)) {
                    return None;
                }
                let timed = matches!(
                    name,
                    b"max-age" | b"s-maxage" | b"stale-while-revalidate" | b"stale-if-error"
                );
                if timed && value.and_then(seconds).is_none() {
                    return None;
                }
                any = true;
                let said = value.filter(|value| !matches!(*value, b"?1"));
                if said != Some(b"?0") {
                    this.set(name, said.map(unquoted).as_deref());
                }
            }
        }
        any.then_some(this)
    }
}

fn first(place: &mut Option<i64>, value: i64) {
    place.get_or_insert(value);
}

/// Whether each quoted string of a line has an end.
fn is_closed(line: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for byte in line {
        let was_escaped = std::mem::replace(&mut escaped, false);
        match byte {
            b'\\' if quoted && !was_escaped => escaped = true,
            b'"' if !was_escaped => quoted = !quoted,
            _ => {}
        }
    }
    !quoted
}

/// A directive's value without quotes.
fn unquoted(value: &[u8]) -> Cow<'_, [u8]> {
    let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    let Some(inner) = inner else { return Cow::Borrowed(value) };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => out.extend(bytes.next()),
            byte => out.push(*byte),
        }
    }
    Cow::Owned(out)
}

fn is_key(name: &[u8]) -> bool {
    let begins = name.first().is_some_and(|b| b.is_ascii_lowercase() || *b == b'*');
    let goes_on = |b: &u8| {
        b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'.' | b'*')
    };
    begins && name.iter().all(goes_on)
}

/// Whether this is a bare item: a number, string, token, byte sequence or boolean.
fn is_item(value: &[u8]) -> bool {
    let Some(begin) = value.first() else { return false };
    let is_quoted = |end| value.len() > 1 && value.last() == Some(&end);
    match begin {
        b'"' => is_quoted(b'"'),
        b':' => is_quoted(b':'),
        b'?' => matches!(value, b"?0" | b"?1"),
        b'-' | b'0'..=b'9' => {
            value[1..].iter().all(|b| b.is_ascii_digit() || *b == b'.') && *begin != b'.'
        }
        b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
            value.iter().all(|b| b.is_ascii_graphic() && *b != b'"')
        }
        _ => false,
    }
}
