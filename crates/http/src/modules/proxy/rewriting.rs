//! `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: rewrite URLs
//! and cookies of servers for clients.

use super::conf::{Conf, ProxyPass};
use crate::regex::Regex;
use crate::request::Request;
use crate::upstream::http::To;
use weir_values::Template;

/// A pattern and its replacement.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The pattern.
    pub pattern: Pattern,
    /// The replacement of the match.
    pub replacement: Template,
}

/// See [`Rewrite`].
#[derive(Debug, Clone)]
pub enum Pattern {
    /// The value begins with this.
    Prefix(Template),
    /// The value is this domain, with or without a dot before it.
    Domain(Template),
    /// A regular expression matches the value.
    Regex(Regex),
}

/// Flags for cookies with certain names.
#[derive(Debug, Clone)]
pub struct CookieFlags {
    /// The names.
    pub name: CookieName,
    /// `secure`, `nohttponly` and alike.
    pub flags: Vec<Template>,
}

/// See [`CookieFlags`].
#[derive(Debug, Clone)]
pub enum CookieName {
    /// Cookies of this name.
    Is(Template),
    /// Cookies whose names match.
    Regex(Regex),
}

impl Rewrite {
    /// The new value, if the old one matches from `prefix` on.
    fn apply(&self, r: &mut Request, value: &[u8], prefix: usize) -> Option<Vec<u8>> {
        let subject = value.get(prefix..)?;
        let (start, end) = match &self.pattern {
            Pattern::Prefix(pattern) => {
                let pattern = pattern.eval(r);
                subject.starts_with(&pattern).then_some((prefix, prefix + pattern.len()))?
            }
            Pattern::Domain(pattern) => {
                let pattern = pattern.eval(r);
                let plain = subject.strip_prefix(b".").unwrap_or(subject);
                let start = value.len() - plain.len();
                plain.eq_ignore_ascii_case(&pattern).then_some((start, value.len()))?
            }
            Pattern::Regex(regex) => {
                let hit = regex.matches(r, subject);
                hit.then_some((prefix, value.len()))?
            }
        };
        let mut new = value.get(..start).unwrap_or_default().to_vec();
        self.replacement.eval_into(r, &mut new);
        new.extend_from_slice(value.get(end..).unwrap_or_default());
        Some(new)
    }
}

fn first(r: &mut Request, rules: &[Rewrite], value: &[u8], prefix: usize) -> Option<Vec<u8>> {
    rules.iter().find_map(|rule| rule.apply(r, value, prefix))
}

/// `proxy_redirect default`: the URL of `proxy_pass` is replaced by the location's name. `None` for
/// a URL with variables.
pub fn default_redirect(pass: &ProxyPass) -> Option<Rewrite> {
    let To::Group(_, vars) = &pass.to else { return None };
    let (pattern, replacement) = match vars.uri.is_empty() {
        true => ([pass.url.as_slice(), b"/"].concat(), b"/".as_slice()),
        false => (pass.url.clone(), pass.location.as_slice()),
    };
    Some(Rewrite {
        pattern: Pattern::Prefix(Template::text(&pattern)),
        replacement: Template::text(replacement),
    })
}

/// Rewrites `Location`, or `Refresh` from `prefix` on, for the client.
pub fn redirect(
    r: &mut Request,
    conf: &Conf,
    pass: &ProxyPass,
    value: &[u8],
    prefix: usize,
) -> Option<Vec<u8>> {
    match &conf.redirects {
        Some(rules) => first(r, rules, value, prefix),
        None => default_redirect(pass)?.apply(r, value, prefix),
    }
}

/// An attribute of a cookie; the first is its name and value.
struct Attribute {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// Rewrites `Set-Cookie` for the client.
pub fn cookie(r: &mut Request, conf: &Conf, text: &[u8]) -> Option<Vec<u8>> {
    if conf.cookie_domains.is_empty()
        && conf.cookie_paths.is_empty()
        && conf.cookie_flags.is_empty()
    {
        return None;
    }
    let mut attributes: Vec<Attribute> = text.split(|b| *b == b';').map(attribute).collect();
    attributes.first()?.value.as_ref()?;
    let mut changed = false;
    for attribute in attributes.iter_mut().skip(1) {
        let Some(value) = &mut attribute.value else { continue };
        let rules = match attribute.key.to_ascii_lowercase().as_slice() {
            b"domain" => &conf.cookie_domains,
            b"path" => &conf.cookie_paths,
            _ => continue,
        };
        if let Some(new) = first(r, rules, value, 0) {
            (*value, changed) = (new, true);
        }
    }
    changed |= flags(r, &conf.cookie_flags, &mut attributes);
    changed.then(|| write(&attributes))
}

fn attribute(text: &[u8]) -> Attribute {
    let trim = |bytes: &[u8]| {
        let start = bytes.iter().take_while(|b| **b == b' ').count();
        let bytes = bytes.get(start..).unwrap_or_default();
        let end = bytes.iter().rev().take_while(|b| **b == b' ').count();
        bytes.get(..bytes.len() - end).unwrap_or_default().to_vec()
    };
    match memchr::memchr(b'=', text) {
        Some(at) => Attribute { key: trim(&text[..at]), value: Some(trim(&text[at + 1..])) },
        None => Attribute { key: trim(text), value: None },
    }
}

fn write(attributes: &[Attribute]) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, attribute) in attributes.iter().enumerate() {
        if i > 0 {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(&attribute.key);
        if let Some(value) = &attribute.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
    out
}

/// The wanted state of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    On(&'static [u8]),
    Off,
}

/// Applies the flags of the first rule for this cookie.
fn flags(r: &mut Request, rules: &[CookieFlags], attributes: &mut Vec<Attribute>) -> bool {
    let Some(name) = attributes.first().map(|a| a.key.clone()) else { return false };
    let rule = rules.iter().find(|rule| match &rule.name {
        CookieName::Is(text) => text.eval(r).eq_ignore_ascii_case(&name),
        CookieName::Regex(regex) => regex.matches(r, &name),
    });
    let Some(rule) = rule else { return false };
    let (mut secure, mut http_only, mut same_site) = (None, None, None);
    for flag in &rule.flags {
        match flag.eval(r).to_ascii_lowercase().as_slice() {
            b"secure" => secure = Some(Want::On(b"")),
            b"nosecure" => secure = secure.or(Some(Want::Off)),
            b"httponly" => http_only = Some(Want::On(b"")),
            b"nohttponly" => http_only = http_only.or(Some(Want::Off)),
            b"samesite=strict" => same_site = Some(Want::On(b"Strict")),
            b"samesite=lax" => same_site = Some(Want::On(b"Lax")),
            b"samesite=none" => same_site = Some(Want::On(b"None")),
            b"nosamesite" => same_site = same_site.or(Some(Want::Off)),
            _ => {}
        }
    }
    let wanted = [
        (b"Secure".as_slice(), secure),
        (b"HttpOnly".as_slice(), http_only),
        (b"SameSite".as_slice(), same_site),
    ];
    for (key, want) in wanted {
        if let Some(want) = want {
            set_flag(attributes, key, want);
        }
    }
    wanted.iter().any(|(_, want)| want.is_some())
}

fn set_flag(attributes: &mut Vec<Attribute>, key: &[u8], want: Want) {
    let is = |a: &Attribute| a.key.eq_ignore_ascii_case(key);
    match want {
        Want::Off => {
            let mut first = true;
            attributes.retain(|a| std::mem::take(&mut first) || !is(a));
        }
        Want::On(value) => {
            let value = Some(value.to_vec()).filter(|v| !v.is_empty());
            match attributes.iter_mut().skip(1).find(|a| is(a)) {
                Some(there) if value.is_none() || same(&there.value, &value) => {}
                Some(there) => *there = Attribute { key: key.to_vec(), value },
                None => attributes.push(Attribute { key: key.to_vec(), value }),
            }
        }
    }
}

fn same(a: &Option<Vec<u8>>, b: &Option<Vec<u8>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => false,
    }
}
